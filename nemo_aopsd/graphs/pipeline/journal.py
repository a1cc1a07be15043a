"""What was paid for: one line for each finished stage, on disk before the next stage begins.

A line is found again by a digest of the whole request, so another model or another wording starts new lines in the
same file and nothing is mixed. A kill can lose only answers that were still on their way.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from nemo_aopsd.errors import UserError

# What every line has; lines of other versions may have more.
_KINDS = {
    "key": str,
    "text": str,
    "finish_reason": str,
    "prompt_tokens": int,
    "completion_tokens": int,
    "usage_estimated": bool,
}
_BEGINNING = b'{"key": "'
_JOIN = 0.005  # seconds in which other lines may join an fsync; no request waits for it


def request_key(problem_id: str, stage: str, attempt: int, request: dict[str, Any]) -> str:
    """SHA-256 of what identifies a stage: the problem, its name, which try it is, and everything that is sent."""
    identity = json.dumps([problem_id, stage, attempt, request], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


class Journal:
    """An append-only file of JSON objects, each with a `key`; one process at a time. Use as a context manager."""

    def __init__(self, path: Path):
        """Read what is there and cut off a last line that a kill left torn. Raises UserError if locked, or if a line is
        damaged: the file is then left as it is, for what was paid for must not be lost without a word."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._syncing: asyncio.Task[None] | None = None
        try:
            self._lock()
            self.entries = self._read()
        except UserError:
            os.close(self._file)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        os.fsync(self._file)
        os.close(self._file)

    def get(self, key: str) -> dict[str, Any] | None:
        return self.entries.get(key)

    async def append(self, entry: dict[str, Any]) -> None:
        """Write one line and return when it is on disk; lines that come together share one fsync."""
        line = json.dumps(entry).encode() + b"\n"
        written = os.write(self._file, line)
        if written < len(line):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise UserError(f"{self.path}: the disk took only {written} of {len(line)} bytes. Make room; start again.")
        self.entries[entry["key"]] = entry
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())
        await asyncio.shield(self._syncing)

    async def _sync(self) -> None:
        await asyncio.sleep(_JOIN)
        self._syncing = None
        await asyncio.to_thread(os.fsync, self._file)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"{self.path}: another process is writing it. Wait for it to end, or choose another --out."
            ) from error

    def _read(self) -> dict[str, dict[str, Any]]:
        *lines, last = self.path.read_bytes().split(b"\n")
        read = [(number, _read_entry(line)) for number, line in enumerate(lines, start=1) if line.strip()]
        damaged = [number for number, entry in read if entry is None]
        final = _read_entry(last)
        if last and final is None and not _is_torn(last):
            damaged.append(len(lines) + 1)
        if damaged:
            raise UserError(self._explain(damaged))
        if final:  # whole, but for its line break
            os.write(self._file, b"\n")
            read.append((len(lines) + 1, final))
        else:
            os.ftruncate(self._file, os.fstat(self._file).st_size - len(last))
        return {entry["key"]: entry for _, entry in read if entry}

    def _explain(self, damaged: list[int]) -> str:
        more = f" (and {len(damaged) - 1} more lines)" if len(damaged) > 1 else ""
        return (
            f"{self.path}:{damaged[0]}{more}: no line of a journal. Restore it from a copy, or delete it: its "
            "answer is then asked for, and paid for, once more. If the file is something else, choose another --out."
        )


def _read_entry(line: bytes) -> dict[str, Any] | None:
    """An answer with all that is read of it; None for anything else."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(entry, dict) and all(type(entry.get(name)) is kind for name, kind in _KINDS.items())
    return entry if whole else None


def _is_torn(line: bytes) -> bool:
    """The beginning of a line of ours, as a kill leaves it."""
    return line.startswith(_BEGINNING) or _BEGINNING.startswith(line)
