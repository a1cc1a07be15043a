"""Rows of a JSONL or parquet file, or of a data set of the Hugging Face hub, and how many of them were kept."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_aopsd.errors import UserError, first_line, how_to_install
from nemo_aopsd.files import read_jsonl

_SUFFIXES = (".jsonl", ".parquet")
_HUB_ID = re.compile(r"[\w.\-]+/[\w.\-]+")

_CONVERT = "CSV and other forms are not read: write one JSON object a line, or parquet, and pass that file."

Row = tuple[str, dict[str, Any]]  # (where, record)


@dataclass(slots=True)
class Report:
    """How many rows were read, left out by reason, and kept; `notes` are further lines."""

    out: Path
    left_out: Counter[str] = field(default_factory=Counter)
    read: int = 0
    kept: int = 0
    notes: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"{self.read:>7}  rows read"
        for reason, count in self.left_out.items():
            yield f"{-count:>7}  {reason}"
        yield f"{self.kept:>7}  kept in {self.out}"
        yield from self.notes


def read_source(source: str, *, split: str | None = None, revision: str | None = None) -> Iterator[Row]:
    """`(where, record)` of each row. Raises UserError for what cannot be read, saying what can.

    A path that exists is a file; anything of the form `owner/name` is looked up on the hub, its split `train` unless
    `split` names another.
    """
    path = Path(source)
    if path.is_file() or path.suffix in _SUFFIXES:
        for option, value in (("--split", split), ("--revision", revision)):
            if value is not None:
                raise UserError(f"{option} {value}: is of a data set of the hub, and {path} is a file. Leave it out.")
        yield from _read_file(path)
    elif _HUB_ID.fullmatch(source):
        for path in _download(source, split or "train", revision):
            yield from _read_file(path)
    else:
        raise UserError(
            f"{source}: neither a file nor a hub id (owner/name). Give a .jsonl or .parquet file, or an id."
        )


def _read_file(path: Path) -> Iterator[Row]:
    if path.suffix == ".jsonl":
        yield from read_jsonl(path)
    elif path.suffix == ".parquet":
        yield from _read_parquet(path)
    else:
        raise UserError(f"{path}: expected a name that ends in {' or '.join(_SUFFIXES)}. {_CONVERT}")


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path}: pyarrow is not installed. {how_to_install('data')}") from error
    if not path.is_file():
        raise UserError(f"{path}: no such file (looked from {Path.cwd()}). Check the path.")
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", record
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{path}: no readable parquet file: {error}. Download or write it anew.") from error


def _download(hub_id: str, split: str, revision: str | None) -> list[Path]:
    folder = _fetch(hub_id, revision)
    found = sorted(path.relative_to(folder) for path in Path(folder).rglob("*") if path.suffix in _SUFFIXES)
    if not found:
        raise UserError(f"{hub_id}: no parquet or JSONL file in it. {_CONVERT}")
    chosen = _of_split(found, split) or (found if len(found) == 1 else [])
    if not chosen:
        names = [str(path) for path in found]
        raise UserError(f"{hub_id}: no parquet or JSONL file of split {split!r} among {names}. Choose another --split.")
    return [folder / path for path in chosen]


def _of_split(paths: list[Path], split: str) -> list[Path]:
    """Those with the split's name as a word of its own, in the file's name or a folder's: `train-0`, not `pretrain`.

    `_` joins words (`train_sft` is a split, too), but for numbers, and unless no name fits otherwise.
    """
    for letters in (r"A-Za-z0-9_", r"A-Za-z0-9"):
        word = re.compile(rf"(?<![{letters}]){re.escape(split)}(?:_?[0-9]+)?(?![{letters}])", re.IGNORECASE)
        if chosen := [path for path in paths if word.search(str(path.with_suffix("")))]:
            return chosen
    return []


def _fetch(hub_id: str, revision: str | None) -> Path:
    """The folder of a data set's files. Raises UserError for whatever the hub, the network or the cache refuses."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    patterns = [f"*{suffix}" for suffix in _SUFFIXES]
    try:
        folder = huggingface_hub.snapshot_download(
            hub_id, repo_type="dataset", revision=revision, allow_patterns=patterns
        )
    except HFValidationError as error:
        raise UserError(f"{hub_id}: no id of the hub: {first_line(error)}. Check it, or give a file.") from error
    except UnicodeEncodeError:  # of a request's header; the error holds the token, so no word of it
        raise UserError(f"{hub_id}: the hub's token has a character that is not ASCII. Set HF_TOKEN anew.") from None
    except Exception as error:  # the hub, its HTTP library, the network and the cache have no common error
        causes = [error] if error.__cause__ is None else [error, error.__cause__]
        listed = "; ".join(f"{type(cause).__name__}: {first_line(cause)}" for cause in causes)
        raise UserError(
            f"{hub_id}: cannot be downloaded: {listed}. Check the id, --revision, your log-in and the connection, or "
            f"download it elsewhere and pass the file: aopsd data prepare {hub_id.split('/')[1]}.parquet --out ..."
        ) from error
    return Path(folder)
