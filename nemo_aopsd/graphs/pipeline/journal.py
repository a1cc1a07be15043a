"""The journal of paid answers: one line per finished stage, on disk before the next stage begins.

A line is found again by a digest of the whole request, so another model or another wording starts new lines in the
same file and nothing is mixed. A kill can lose only answers that were still on their way.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from nemo_aopsd.errors import UserError
from nemo_aopsd.files import naming

_BEGINNING = b'{"key": "'


class Entry(BaseModel):
    """One line. Those without a default are read again; the others are for people."""

    model_config = ConfigDict(strict=True, frozen=True)
    key: str
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    usage_estimated: bool
    problem_id: str = ""
    stage: str = ""
    attempt: int = 0
    model: str = ""
    seconds: float = 0.0


def request_key(problem_id: str, stage: str, attempt: int, request: dict[str, Any]) -> str:
    """SHA-256 of what identifies a stage: the problem, its name, which try it is, and everything that is sent."""
    identity = json.dumps([problem_id, stage, attempt, request], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


class Journal:
    """An append-only file of entries; one process at a time. Use as a context manager."""

    def __init__(self, path: Path):
        """Read what is there and cut off a last line that a kill left torn. Raises UserError if locked, or if a line is
        damaged: the file is then left as it is, because what was paid for must not be lost without notice."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.entries = {entry.key: entry for entry in self._read()}
        except BlockingIOError:
            os.close(self._file)
            raise UserError(
                f"{path}: another process is writing it. Wait for it to end, or choose another --out."
            ) from None
        except UserError:
            os.close(self._file)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._file)

    def append(self, entry: Entry) -> None:
        """Write one line and return when it is on disk."""
        line = json.dumps(entry.model_dump()).encode() + b"\n"
        with naming(self.path):
            written = os.write(self._file, line)
            if written < len(line):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise UserError(f"{self.path}: the disk took {written} of {len(line)} bytes. Make room; start again.")
            os.fsync(self._file)
        self.entries[entry.key] = entry

    def _read(self) -> list[Entry]:
        *lines, last = self.path.read_bytes().split(b"\n")
        found = [self._entry(line, number) for number, line in enumerate(lines, start=1) if line.strip()]
        if last.startswith(_BEGINNING) or _BEGINNING.startswith(last):  # the beginning of a line, as a kill leaves it
            os.ftruncate(self._file, os.fstat(self._file).st_size - len(last))
        else:
            self._entry(last, len(lines) + 1)
        return found

    def _entry(self, line: bytes, number: int) -> Entry:
        try:
            return Entry.model_validate_json(line)
        except ValidationError:
            raise UserError(
                f"{self.path}:{number}: not a line of a journal. Restore it from a copy, or delete it: its answer is "
                "then asked for, and paid for, once more. If the file is something else, choose another --out."
            ) from None
