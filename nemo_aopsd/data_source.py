"""Rows of a JSONL or parquet file, or of a data set of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_aopsd.data import read_jsonl
from nemo_aopsd.errors import UserError

_SUFFIXES = (".jsonl", ".parquet")
_HUB_ID = re.compile(r"[\w.\-]+/[\w.\-]+")

Row = tuple[str, dict[str, Any]]  # (where, record)


def read_source(source: str, *, split: str = "train", revision: str | None = None) -> Iterator[Row]:
    """`(where, record)` of each row. Raises UserError for what cannot be read, saying what can.

    A path that exists is a file; anything of the form `owner/name` is looked up on the hub.
    """
    path = Path(source)
    if path.is_file() or path.suffix in _SUFFIXES:
        yield from _read_file(path)
    elif _HUB_ID.fullmatch(source):
        for path in _download(source, split, revision):
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
        raise UserError(f"{path}: expected a name that ends in {' or '.join(_SUFFIXES)}.")


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path}: pyarrow is not installed. Run: pip install 'nemo_aopsd[data]'") from error
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
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    local = f"Download it elsewhere and pass the file: aopsd data prepare {hub_id.split('/')[1]}.parquet --out ..."
    try:
        patterns = [f"*{suffix}" for suffix in _SUFFIXES]
        folder = huggingface_hub.snapshot_download(
            hub_id, repo_type="dataset", revision=revision, allow_patterns=patterns
        )
    except HfHubHTTPError as error:
        raise UserError(
            f"{hub_id}: the hub refused it: {str(error).splitlines()[0]} Check the id, or log in."
        ) from error
    except LocalEntryNotFoundError as error:
        raise UserError(f"{hub_id}: the hub cannot be reached, and its cache has no such data set. {local}") from error
    found = sorted(path for path in Path(folder).rglob("*") if path.suffix in _SUFFIXES)
    chosen = [path for path in found if split in path.stem or split in path.parent.name]
    chosen = chosen or (found if len(found) == 1 else [])
    if not chosen:
        names = [str(path.relative_to(folder)) for path in found]
        raise UserError(f"{hub_id}: no parquet or JSONL file of split {split!r} among {names}. Choose another --split.")
    return chosen
