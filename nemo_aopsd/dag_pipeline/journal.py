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

_JOIN = 0.005  # seconds in which other lines may join an fsync; no request waits for it


def request_key(problem_id: str, stage: str, attempt: int, request: dict[str, Any]) -> str:
    """SHA-256 of what identifies a stage: the problem, its name, which try it is, and everything that is sent."""
    identity = json.dumps([problem_id, stage, attempt, request], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


class Journal:
    """An append-only file of JSON objects, each with a `key`; one process at a time. Use as a context manager."""

    def __init__(self, path: Path):
        """Read what is there and cut off a last line that a kill left torn. Raises UserError if locked or broken."""
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
        content = self.path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        os.ftruncate(self._file, len(complete))
        entries = {}
        for number, line in enumerate(complete.splitlines(), start=1):
            try:
                entry = json.loads(line)
                entries[entry["key"]] = entry
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{self.path}:{number}: no line of a journal. Something else wrote to this file; mend or move it."
                ) from error
        return entries
