"""SHA-256 of the files of a folder that a later process will trust, in a journal beside them.

Each change is announced by a line of `manifest.jsonl`: file, first byte, number of bytes and their SHA-256. The line is
on disk before the file changes. So a kill leaves undone only what the last line announces: `check` puts that file back
to what it was, and the work is done again. Any other difference is damage.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nemo_aopsd.errors import UserError
from nemo_aopsd.files import append_bytes, append_jsonl, atomic_write, jsonl

NAME = "manifest.jsonl"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a file, as its line tells. `size` is None where the file was removed."""

    file: str
    at: int
    size: int | None
    sha256: str

    @property
    def end(self) -> int:
        return self.at + (self.size or 0)

    @property
    def digest(self) -> str:
        """Of the line itself."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


class Manifest:
    """Writes files of `folder`, or below it, and checks what an earlier process wrote; one process at a time."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / NAME

    def begin(self, path: Path, content: str) -> None:
        """Write the file that says what a folder is. Its line comes after it: no folder has the line alone."""
        atomic_write(path, content)
        self.adopt(path)

    def append(self, path: Path, records: Iterable[dict[str, Any]]) -> None:
        """Add lines to a journal; after a kill it has all of them or none."""
        content = jsonl(records).encode("utf-8")
        self._announce(path, path.stat().st_size if path.exists() else 0, content)
        append_bytes(path, content)

    def replace(self, path: Path, content: str | bytes) -> None:
        """As `atomic_write`."""
        content = content.encode("utf-8") if isinstance(content, str) else content
        self._announce(path, 0, content)
        atomic_write(path, content)

    def replace_jsonl(self, path: Path, records: Iterable[dict[str, Any]]) -> None:
        """As `write_jsonl`."""
        self.replace(path, jsonl(records))

    def remove(self, path: Path) -> None:
        self._announce(path, 0, None)
        path.unlink()

    def adopt(self, path: Path) -> None:
        """Take a file as it is."""
        content = path.read_bytes()
        if path.suffix == ".jsonl":  # a last line that a kill cut short
            content = content[: content.rfind(b"\n") + 1]
            os.truncate(path, len(content))
        self._announce(path, 0, content)

    def check(self, present: Iterable[Path]) -> list[str]:
        """What a user should know before an earlier process's files are trusted; normally nothing.

        Without a manifest, as before there were any, the files that are `present` are taken as they are, and one is
        begun. Raises UserError that names the file, if its content is not what was written.
        """
        if not self.path.exists():
            adopted = [path for path in present if path.is_file()]
            for path in [*adopted, *adopted[-1:]]:  # the last one twice: no kill can have left it unfinished
                self.adopt(path)
            told = f"{self.folder}: has no {NAME}: nothing tells whether its files are as they were written"
            return [f"{told}. They are taken as they are."] if adopted else []
        lines = self._read()
        files = _by_file(lines)
        if lines and not self._is_done(lines[-1], files):
            before = _by_file(lines[:-1])
            if self._was_killed(lines[-1], before.get(lines[-1].file, [])):
                self._undo(lines[-1].file, before.get(lines[-1].file, []))
                files = before
        missing = [name for name, pieces in files.items() if pieces and not (self.folder / name).is_file()]
        for name, pieces in files.items():
            if pieces and name not in missing and not self._holds(pieces):
                raise UserError(
                    f"{self.folder / name}: damaged, as its SHA-256 in {NAME} tells. Restore the file from a copy; or "
                    f"delete {self.path} to go on with all files as they are."
                )
        for name in missing:
            self._announce(self.folder / name, 0, None)  # so that it is told once
        return [f"{self.folder}: missing since they were written: {', '.join(missing)}"] if missing else []

    def _announce(self, path: Path, at: int, content: bytes | None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = path.absolute().relative_to(self.folder.absolute()).as_posix()
        digest = "" if content is None else hashlib.sha256(content).hexdigest()
        piece = _Piece(name, at, None if content is None else len(content), digest)
        append_jsonl(self.path, asdict(piece) | {"line": piece.digest})

    def _read(self) -> list[_Piece]:
        """The complete lines; a last one that a kill cut short announces nothing that was begun, and is cut off."""
        *lines, torn = self.path.read_bytes().split(b"\n")
        os.truncate(self.path, self.path.stat().st_size - len(torn))
        return [self._piece(line, number) for number, line in enumerate(lines, start=1)]

    def _piece(self, line: bytes, number: int) -> _Piece:
        try:
            record = json.loads(line)
            digest, piece = record.pop("line"), _Piece(**record)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            digest, piece = None, None
        if piece is None or digest != piece.digest:
            remedy = "Restore the file from a copy; or delete it to go on with all files as they are"
            raise UserError(f"{self.path}:{number}: damaged. {remedy}.")
        return piece

    def _holds(self, pieces: Sequence[_Piece], *, exactly: bool = True) -> bool:
        """Whether a file begins with these pieces and, if `exactly`, ends with them; none where there is no piece."""
        if not pieces:
            return True
        path = self.folder / pieces[0].file
        if not path.is_file():
            return False
        with path.open("rb") as file:
            file.seek(pieces[0].at)  # 0, but for a journal that an older version began
            same = all(hashlib.sha256(file.read(piece.size)).hexdigest() == piece.sha256 for piece in pieces)
            return same and not (exactly and file.read(1))

    def _is_done(self, last: _Piece, files: dict[str, list[_Piece]]) -> bool:
        return self._holds(files[last.file]) and not (last.size is None and (self.folder / last.file).exists())

    def _was_killed(self, last: _Piece, before: Sequence[_Piece]) -> bool:
        """Whether the change that the last line announces was not made, or broken off in the middle of an append."""
        path, end = self.folder / last.file, before[-1].end if before else 0
        size = path.stat().st_size if path.is_file() else 0
        return self._holds(before, exactly=False) and (size == end or (last.at == end < size < last.end))

    def _undo(self, name: str, before: Sequence[_Piece]) -> None:
        """Put a file back to `before`, and forget the last line."""
        path = self.folder / name
        if before:
            os.truncate(path, before[-1].end)
        else:
            path.unlink(missing_ok=True)
        os.truncate(self.path, self.path.read_bytes()[:-1].rfind(b"\n") + 1)


def _by_file(lines: Sequence[_Piece]) -> dict[str, list[_Piece]]:
    """The pieces of which each file consists, none of one that was removed; a piece at the beginning is a new file."""
    files: dict[str, list[_Piece]] = {}
    for line in lines:
        kept = files.get(line.file, []) if line.at else []
        files[line.file] = [*kept, line] if line.size is not None else []
    return files
