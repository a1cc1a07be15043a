"""Requests that are paid for once: each goes through the journal and counts against the token cap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nemo_aopsd.chat.client import ChatClient
from nemo_aopsd.chat.protocol import Completion, Request
from nemo_aopsd.graphs.pipeline.journal import Entry, Journal, request_key

_BYTES_A_TOKEN = 2  # fewer than in any usual text, so that the estimate of a prompt is too high and not too low


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
        prompt, completion = max(0, entry.prompt_tokens), max(0, entry.completion_tokens)  # old journals may hold -1
        self.requests += 1
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.estimated += (prompt + completion) * entry.usage_estimated
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
        key = request_key(problem_id, stage, attempt, request.identity())
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
        """Under a cap, wait until the request fits whatever the others that are on their way turn out to cost."""
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
