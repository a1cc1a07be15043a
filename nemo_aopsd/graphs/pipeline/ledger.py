"""Requests that are paid for once: each goes through a journal on disk and counts against the cap on tokens.

The journal has one line a finished stage, written before the next stage begins. A line is found again by a digest of
the whole request, so another model or another wording starts new lines in the same file and nothing is mixed. A kill
can lose only answers that were still on their way.
"""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from nemo_aopsd.chat.client import ChatClient
from nemo_aopsd.chat.protocol import Completion, Request
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import OwnFile, naming

_BEGINNING = b'{"key": "'
_BYTES_A_TOKEN = 2  # fewer than in any usual text, so that the estimate of a prompt is too high and not too low


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


class Journal(OwnFile):
    """A file of entries, by their keys; one process at a time. A last line that a kill left torn is cut off.

    Raises UserError if a line is damaged: the file is then left as it is, because what was paid for must not be lost
    without notice.
    """

    def __init__(self, path: Path):
        super().__init__(path, "is writing it. Wait for it to end, or choose another --out.")

    def append(self, entry: Entry) -> None:
        """Write one line and return when it is on disk."""
        line = json.dumps(entry.model_dump()).encode() + b"\n"
        with naming(self.path):
            written = os.write(self._file, line)
            if written < len(line):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise UserError(f"{self.path}: wrote {written} of {len(line)} bytes. Free some space; run it again.")
            os.fsync(self._file)
        self.entries[entry.key] = entry

    def _read(self) -> None:
        *lines, last = self.path.read_bytes().split(b"\n")
        found = [self._entry(line, number) for number, line in enumerate(lines, start=1) if line.strip()]
        self.entries = {entry.key: entry for entry in found}
        if last.startswith(_BEGINNING) or _BEGINNING.startswith(last):  # the beginning of a line, as a kill leaves it
            os.ftruncate(self._file, os.fstat(self._file).st_size - len(last))
        else:
            self._entry(last, len(lines) + 1)

    def _entry(self, line: bytes, number: int) -> Entry:
        try:
            return Entry.model_validate_json(line)
        except ValidationError:
            raise UserError(
                f"{self.path}:{number}: not a line of a journal. Restore it from a copy, or delete it: its answer is "
                "then requested, and paid for, again. If the file is something else, choose another --out."
            ) from None


class BudgetUsedUp(Exception):
    """The next request could go over the cap on tokens."""


@dataclass(slots=True)
class Cost:
    """`without_usage` counts answers whose usage the server did not report; `estimated` are their tokens, which are in
    the others too."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    without_usage: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def add(self, entry: Entry) -> None:
        self.requests += 1
        self.prompt_tokens += entry.prompt_tokens
        self.completion_tokens += entry.completion_tokens
        self.estimated += (entry.prompt_tokens + entry.completion_tokens) * entry.usage_estimated
        self.without_usage += entry.usage_estimated


class Ledger:
    """Answers from the journal, else from the server. The cap counts everything that the journal holds."""

    def __init__(self, client: ChatClient, journal: Journal, max_total_tokens: int | None, watch: Callable[[], None]):
        self.client = client
        self.journal = journal
        self.total = Cost()  # over the journal's whole life
        self.this_run = Cost()
        self._cap = max_total_tokens
        self._watch = watch
        self._reserved = 0
        self._released = asyncio.Condition()
        for entry in journal.entries.values():
            self.total.add(entry)

    async def ask(self, problem_id: str, stage: str, attempt: int, request: Request) -> Completion:
        """Raises BudgetUsedUp before a request that may not be paid for, and what `ChatClient.complete` raises."""
        identity = json.dumps([problem_id, stage, attempt, request.identity()], sort_keys=True)
        key = hashlib.sha256(identity.encode()).hexdigest()
        entry = self.journal.entries.get(key)
        if entry is None:
            prompt_bytes = sum(len(message["content"].encode("utf-8", "replace")) for message in request.messages)
            need = prompt_bytes // _BYTES_A_TOKEN
            async with self._reserve(need + request.max_tokens):
                started = time.perf_counter()
                completion = await self.client.complete(request)
                text = self.client.endpoint.redact_answer(completion.text)
                usage = completion.usage or (need, len(text.encode()))  # estimated from above if not reported
                entry = Entry(
                    key=key,
                    text=text,
                    finish_reason=completion.finish_reason,
                    prompt_tokens=usage[0],
                    completion_tokens=usage[1],
                    usage_estimated=completion.usage is None,
                    problem_id=problem_id,
                    stage=stage,
                    attempt=attempt,
                    model=request.model,
                    seconds=round(time.perf_counter() - started, 3),
                )
                self.total.add(entry)
                self.this_run.add(entry)
                self.journal.append(entry)  # written before anything else can happen
            self._watch()
        return Completion(entry.text, entry.finish_reason, (entry.prompt_tokens, entry.completion_tokens))

    @asynccontextmanager
    async def _reserve(self, tokens: int) -> AsyncIterator[None]:
        """Under a cap, wait until the request fits, whatever the requests under way will cost."""
        async with self._released:
            await self._released.wait_for(lambda: self._fits(tokens) or not self._reserved)
            if not self._fits(tokens):
                raise BudgetUsedUp
            self._reserved += tokens
        try:
            yield
        finally:
            async with self._released:
                self._reserved -= tokens
                self._released.notify_all()

    def _fits(self, tokens: int) -> bool:
        return self._cap is None or self.total.tokens + self._reserved + tokens <= self._cap
