"""Atomic writes: a temporary file is renamed, so that a reader never sees half a file."""

import codecs
import errno
import fcntl
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from nemo_aopsd.errors import UserError, first_line

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def atomic_write(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content`. On any failure (a full disk, say) the old file stays as it was."""
    beside = _partial(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        try:
            with beside.open("wb") as file:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def open_locked(path: Path, *, wait: bool = False) -> int:
    """A file that this process has for itself, made if there is none; the system lifts the lock however it ends.

    Raises BlockingIOError with the path, unless it is to `wait`, if another process has it.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file)):
                return file
        except BlockingIOError as error:
            os.close(file)
            error.filename = str(path)
            raise
        os.close(file)  # who had it has just deleted it


class OwnFile:
    """An append-only file that this process has for itself, read when it is opened; use as a context manager.

    It is deleted if it ends empty: a command that is refused leaves no trace. Raises UserError that ends in `busy` if
    another process has it, and what `_read` raises.
    """

    def __init__(self, path: Path, busy: str):
        self.path = path
        try:
            self._file = open_locked(path)
        except BlockingIOError:
            raise UserError(f"{path}: another process {busy}") from None
        try:
            self._read()
        except UserError:
            os.close(self._file)
            raise

    def _read(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if not os.fstat(self._file).st_size:
            self.path.unlink(missing_ok=True)
        os.close(self._file)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path` that becomes `path` if the block succeeds and vanishes if it does not."""
    beside = _partial(path)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        yield beside
        for file in filter(Path.is_file, beside.rglob("*")):  # safetensors makes files that their owner alone can read
            file.chmod(beside.stat().st_mode & 0o666)
        shutil.rmtree(path, ignore_errors=True)
        beside.replace(path)
    except OSError as error:
        if error.filename:
            error.filename = str(error.filename).replace(str(beside), str(path), 1)
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let the error of a failed write name `path`: a full disk names no file, other errors the temporary one.

    Libraries in Rust say `(os error 28)` and raise what is no OSError.
    """
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
    except Exception as error:
        if not (found := _OS_ERROR.search(str(error))):
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error


def is_full(error: OSError) -> bool:
    """Whether a write failed for want of space."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def explain(error: OSError) -> str:
    """Which file could not be read or written, why, and what to do."""
    if error.errno is None:  # not the file system's, but a library's, which says more
        return str(error)
    where = error.filename or "output"  # the terminal's, or a file that it is sent to
    remedy = "Free some space, then start the same command." if is_full(error) else "Check the path."
    return f"{where}: {error.strerror or error}. {remedy}"


def keep_inputs(
    written: Iterable[Path | None],
    read: Iterable[tuple[str, Path | None]],
    option: str = "--out",
    *,
    is_folder: bool = False,
) -> None:
    """Raise UserError, before hours of work, if a file that is to be written, or the one beside it, is also read.

    `read` are pairs of what the user calls a file, and its path; a path is None if it was not given. Links and other
    spellings of a path count, and what lies inside of a folder that is to be replaced as a whole. Nor may a file be
    where a folder must be, or, unless it `is_folder`, a folder where the file must be.
    """
    given = [(name, Path(path)) for name, path in read if path is not None]
    targets = [path for path in written if path is not None]
    for target, (name, path) in itertools.product(targets, given):
        with naming(target):
            lost = next((place for place in (target, _partial(target)) if _would_take(place, path)), None)
        if lost:
            raise UserError(f"{option}: would write {lost} over {name} {path}. Choose another {option}, or move it.")
    for target in targets:
        if target.is_dir() and not is_folder:
            raise UserError(f"{option}: {target} is a folder; expected a file to write. Name a file in it.")
        with naming(target):
            above = next((folder for folder in target.absolute().parents if folder.exists()), None)
        if above is not None and not above.is_dir():
            raise UserError(f"{option}: {above} is a file, so that {target} cannot be made. Choose another {option}.")


def _would_take(place: Path, path: Path) -> bool:
    if place.exists() and path.exists() and place.samefile(path):
        return True
    place, path = Path(os.path.realpath(place)), Path(os.path.realpath(path))
    return place == path or place in path.parents


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def jsonl(records: Iterable[dict[str, Any]]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def json_text(value: Any) -> str:
    """The content of a JSON file that people read, too."""
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Replace `path` by one JSON object a line."""
    atomic_write(path, jsonl(records))


def append_jsonl(path: Path, record: dict[str, Any]) -> None:
    """Append one line and push it to disk."""
    append_bytes(path, jsonl([record]).encode("utf-8"))


def append_bytes(path: Path, content: bytes) -> None:
    """Append to `path` and push it to disk."""
    with naming(path), path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_journal(path: Path, *keys: str) -> list[dict[str, Any]]:
    """The complete lines of an append-only file; a last line that a kill cut short is left out.

    Raises UserError on any other line that is no JSON object with all of `keys`.
    """
    return [_object(line, keys, where, "Delete the line.") for where, line in complete_lines(path)]


def complete_lines(path: Path) -> list[tuple[str, bytes]]:
    """`(file:line, bytes)` of each line of an append-only file that ends; none without the file."""
    complete, _, _ = (path.read_bytes() if path.is_file() else b"").rpartition(b"\n")  # a cut may split a character
    return [(f"{path}:{number}", line) for number, line in enumerate(complete.split(b"\n"), start=1) if line]


def read_jsonl(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """`(where, record)` of each non-blank line. Raises UserError on a missing file, bad bytes or bad JSON."""
    for where, line in read_lines(path):
        yield where, decode_line(line, where)


def read_lines(path: str | Path) -> Iterator[tuple[str, bytes]]:
    """`(where, bytes)` of each non-blank line; `where` is `file:line`. Raises UserError on a missing file.

    A byte order mark before the first line, which some editors write, is passed over.
    """
    path = Path(path)
    if not path.is_file():
        found = "is a folder" if path.is_dir() else f"no such file (looked from {Path.cwd()})"
        raise UserError(f"{path}: {found}. Expected a file with one JSON object a line. Check the path.")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                _refuse_foreign(line, path)
            if line.strip():
                yield f"{path}:{number}", line.removesuffix(b"\n")


def _refuse_foreign(first: bytes, path: Path) -> None:
    """Raise UserError if a file's first line is that of another form: one remedy, where each line had a fault."""
    read = f"< {shlex.quote(str(path))} > ROWS.jsonl"
    convert = 'python -c "import csv, json, sys; [print(json.dumps(row)) for row in {}(sys.stdin)]" ' + read
    forms = {
        rb"\x1f\x8b": f"gzip. Unpack it: gunzip {read}",
        rb"PAR1": "parquet. Give its name that ending: aopsd data prepare FILE.parquet --out PROBLEMS.jsonl",
        rb"\s*\[": f"a JSON array. Write an element a line: {convert.format('json.load')}",
        rb"[^{}[\]:,]+(,[^{}[\]:,]+)+$": f"a table (CSV). Write a row a line: {convert.format('csv.DictReader')}",
    }
    if told := next((told for form, told in forms.items() if re.match(form, first)), None):
        raise UserError(f"{path}:1: expected a JSON object on each line, got {told}")


def decode_line(line: bytes, where: str) -> dict[str, Any]:
    """The JSON object of one line. Raises UserError on bad bytes or bad JSON."""
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from error
    except json.JSONDecodeError as error:
        fault = f"{error.msg.removesuffix(' at')} at column {error.colno}"
        raise UserError(f"{where}: broken JSON: {fault}. Correct the line.") from error
    except (ValueError, RecursionError) as error:  # a number of very many digits; lists within lists without end
        raise UserError(f"{where}: unreadable JSON: {first_line(error)}. Correct the line.") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object, got {type(record).__name__}. One object a line.")
    for field, value in record.items() if _SURROGATE.search(line) else ():
        try:  # JSON can escape half of a surrogate pair, which no file or tokenizer takes
            json.dumps([field, value], ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start]).strip("'")
            raise UserError(f"{where}: `{field}` holds {half}, half of a character. Write it whole.") from error
    return record


def decode_text(content: bytes, where: str, remedy: str) -> str:
    """The text of a file's bytes. Raises UserError that names line and byte, with the remedy, if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].split(b"\n")
        raise UserError(f"{where}:{len(before)}: byte {len(before[-1])} of the line is not UTF-8. {remedy}") from error


def read_json(path: Path, *keys: str, remedy: str) -> dict[str, Any]:
    """The JSON object of a file, with all of `keys`. Raises UserError, with the remedy, if it is damaged."""
    return _object(path.read_bytes(), keys, str(path), remedy)


def _object(content: bytes, keys: tuple[str, ...], where: str, remedy: str) -> dict[str, Any]:
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: broken JSON: {error}. {remedy}") from error
    if not isinstance(record, dict) or not record.keys() >= set(keys):
        expected = f"an object with {', '.join(keys)}" if keys else "an object"
        raise UserError(f"{where}: expected {expected}, got {content[:80]!r}. {remedy}")
    return record


def free_beside(path: Path) -> Path:
    """`path` with the first number behind it that no file or folder has: `runs/demo.1`."""
    return next(free for number in itertools.count(1) if not (free := path.with_name(f"{path.name}.{number}")).exists())


def derive_seed(*parts: object) -> int:
    """A 63-bit seed for one purpose of one step, so that resuming needs no generator state.

    >>> derive_seed(0, "rollout", 3) == derive_seed(0, "rollout", 3) != derive_seed(0, "rollout", 4)
    True
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
