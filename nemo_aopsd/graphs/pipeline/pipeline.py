"""All problems of a file, many at a time; resumable, capped, and every rejection kept with its reason."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_aopsd.chat.client import ChatClient, ServerUnavailable
from nemo_aopsd.chat.endpoint import Endpoint
from nemo_aopsd.chat.protocol import Completion, Request
from nemo_aopsd.data.problems import Problem, load_rows
from nemo_aopsd.errors import UserError
from nemo_aopsd.graphs.pipeline.ledger import BudgetUsedUp, Journal, Ledger
from nemo_aopsd.graphs.pipeline.results import Tally, Watch, files_of, write
from nemo_aopsd.graphs.pipeline.roles import Ask, Outcome, build_one
from nemo_aopsd.graphs.pipeline.stages import SCHEMAS

_GIVE_UP_AFTER = 3  # problems in a row without an answer from the server
_RETRY_TEMPERATURE = 1.0  # of a second reading, which would otherwise only repeat the first


@dataclass(frozen=True, slots=True)
class Settings:
    """`judge_model` None is `model`; `temperature` None leaves the server's default."""

    model: str
    judge_model: str | None = None
    max_tokens: int = 8192
    temperature: float | None = None
    concurrency: int = 32
    timeout: float = 600.0  # seconds without a byte
    max_retries: int = 6
    max_total_tokens: int | None = None


def check(problems: Path, out: Path) -> list[tuple[dict[str, Any], Problem]]:
    """The rows that a build would work on. Raises UserError for what it would refuse without a server."""
    rows = load_rows(problems, without=("dag", "plan", "subproblems"))  # which are to be made anew
    journal, *others = files_of(out)
    if not journal.exists() and (found := next((path for path in others if path.exists()), None)):
        raise UserError(f"{found}: exists, but without {journal.name}: another command made it. Choose another --out.")
    return rows


def build(problems: Path, out: Path, endpoint: Endpoint, settings: Settings, watch: Watch) -> dict[str, Any]:
    """Write `out` (accepted rows, in order), and beside it journal, rejects and summary; returns the summary.

    Raises UserError for what the user must correct (key, model, cap, server that does not answer) after writing what is
    finished; started again, it goes on from the journal.
    """
    rows = check(problems, out)
    with Journal(files_of(out)[0]) as opened:
        return asyncio.run(_build(rows, out, endpoint, settings, opened, watch))


async def _build(
    rows: list[tuple[dict[str, Any], Problem]],
    out: Path,
    endpoint: Endpoint,
    settings: Settings,
    journal: Journal,
    watch: Watch,
) -> dict[str, Any]:
    limits = {"concurrency": settings.concurrency, "timeout": settings.timeout, "max_retries": settings.max_retries}
    async with ChatClient(endpoint, **limits) as client:
        tally = Tally(settings.model, settings.judge_model or settings.model, len(rows))
        ledger = Ledger(client, journal, settings.max_total_tokens, lambda: watch(tally, ledger))
        run = _Run(ledger, settings, tally, watch)
        watch(tally, ledger)  # what is to come
        try:
            await run.all([problem for _, problem in rows])
        finally:
            summary = tally.summary(ledger)
            if run.outcomes or journal.entries:  # a server that refuses the key leaves nothing to write
                write(out, rows, run.outcomes, summary)
    if run.unfinished:
        problem_id, why = next(iter(run.unfinished.items()))
        left = f"{len(run.unfinished)} problem(s) unfinished; {problem_id}: {why}"
        raise UserError(f"{out}: {left}. What is finished is in the journal; run the command again to continue.")
    return summary


class _Run:
    """Workers that take the next problem; twice as many as requests may be open, so that no slot waits at the end for
    the stages of a few last problems."""

    def __init__(self, ledger: Ledger, settings: Settings, tally: Tally, watch: Watch):
        self.ledger, self.settings, self.tally, self.watch = ledger, settings, tally, watch
        self.outcomes: dict[str, Outcome] = {}
        self.unfinished: dict[str, str] = {}
        self._failures_in_a_row = self._answered = 0

    async def all(self, problems: list[Problem]) -> None:
        queue = iter(problems)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(problems), 2 * self.settings.concurrency)):
                    group.create_task(self._work(queue))
        except BaseExceptionGroup as errors:
            for error in errors.exceptions:
                if isinstance(error, UserError | OSError):
                    raise error from None
            raise

    async def _work(self, queue: Iterator[Problem]) -> None:
        for problem in queue:
            try:
                self.outcomes[problem.id] = outcome = await build_one(problem, self._asker(problem))
                self.tally.add(outcome)
            except BudgetUsedUp:
                cap, spent = self.settings.max_total_tokens, self.ledger.total.tokens
                self.unfinished[problem.id] = f"does not fit under --max-total-tokens {cap} ({spent} used); raise it"
            except ServerUnavailable as error:
                self.unfinished[problem.id] = f"no answer: {error}"
                self._count_failure(str(error))
            self.tally.unfinished = len(self.unfinished)
            self.watch(self.tally, self.ledger)

    def _asker(self, problem: Problem) -> Ask:
        async def ask(stage: str, attempt: int, messages: list[dict[str, str]]) -> Completion:
            again = attempt > 1 and stage in ("judge", "contexts")
            request = Request(
                model=self.tally.judge_model if stage == "judge" else self.settings.model,
                messages=messages,
                max_tokens=self.settings.max_tokens,
                temperature=_RETRY_TEMPERATURE if again else self.settings.temperature,
                schema=SCHEMAS[stage],
            )
            return await self.ledger.ask(problem.id, stage, attempt, request)

        return ask

    def _count_failure(self, why: str) -> None:
        client = self.ledger.client
        answered, self._answered = client.num_completions != self._answered, client.num_completions
        self._failures_in_a_row = 1 if answered else self._failures_in_a_row + 1
        if self._failures_in_a_row == _GIVE_UP_AFTER:
            what = f"no answer to {_GIVE_UP_AFTER} requests in a row, retries included; the last time: {why}"
            raise UserError(f"{client.endpoint.url} gave {what}. What is finished is in the journal; run it again.")
