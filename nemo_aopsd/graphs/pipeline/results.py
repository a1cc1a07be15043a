"""The files that a build writes: accepted rows, rejects with their reasons, and counts."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nemo_aopsd.console import EVERY, counted
from nemo_aopsd.data.dag import to_raw
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.files import atomic_write, write_jsonl
from nemo_aopsd.graphs.pipeline.ledger import Ledger
from nemo_aopsd.graphs.pipeline.roles import Outcome


@dataclass(slots=True)
class Tally:
    """Counts so far. `repaired` problems are among the accepted; `reasons` counts the kinds of fault of each rejected
    row, one of each kind a row."""

    model: str
    judge_model: str
    problems: int
    accepted: int = 0
    repaired: int = 0
    rejected: int = 0
    unfinished: int = 0
    accepted_without_contexts: int = 0
    transitive_edges_removed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        if outcome.graph is None:
            self.rejected += 1
            self.reasons.update({f"{outcome.stage}: {fault.kind}" for fault in outcome.faults})
        else:
            self.accepted += 1
            self.repaired += outcome.repairs > 0
            self.accepted_without_contexts += bool(outcome.context_faults)
            self.transitive_edges_removed += outcome.num_transitive

    def summary(self, ledger: Ledger) -> dict[str, Any]:
        """The content of the summary's file; a problem that was never begun is unfinished, too."""
        return asdict(self) | {
            "unfinished": self.problems - self.accepted - self.rejected,
            "reasons": dict(self.reasons.most_common()),
            "tokens_this_run": asdict(ledger.this_run),
            "tokens_of_journal": asdict(ledger.total),
            "http_requests_without_answer": ledger.client.num_requests - ledger.client.num_completions,
        }


Watch = Callable[[Tally, Ledger], None]


def beside(out: Path, suffix: str) -> Path:
    """`dags.jsonl` -> `dags.journal.jsonl`."""
    return out.with_name(f"{out.name.removesuffix('.jsonl')}.{suffix}")


def files_of(out: Path) -> list[Path]:
    """Every file that a build writes, its journal first."""
    return [beside(out, "journal.jsonl"), out, beside(out, "rejects.jsonl"), beside(out, "summary.json")]


def write(
    out: Path, rows: list[tuple[dict[str, Any], Problem]], outcomes: dict[str, Outcome], summary: dict[str, Any]
) -> None:
    """`out` and its rejects and summary, each replaced as a whole."""
    accepted, rejects = [], []
    for record, outcome in ((record, outcomes[problem.id]) for record, problem in rows if problem.id in outcomes):
        if outcome.graph is not None:
            accepted.append({**record, **outcome.contexts, "dag": to_raw(outcome.graph)})
        if outcome.graph is None or outcome.context_faults:
            reasons = outcome.faults or outcome.context_faults
            rejects.append(
                {
                    "problem_id": outcome.problem.id,
                    "rejected": "row" if outcome.graph is None else "plan and subproblems",
                    "stage": outcome.stage,
                    "repairs": outcome.repairs,
                    "reasons": [{"kind": fault.kind, "detail": fault.detail} for fault in reasons],
                    "last_text": outcome.last_text,
                }
            )
    write_jsonl(out, accepted)
    write_jsonl(beside(out, "rejects.jsonl"), rejects)
    atomic_write(beside(out, "summary.json"), json.dumps(summary, indent=2) + "\n")


def summary_lines(summary: dict[str, Any]) -> Iterator[str]:
    """The summary as a person reads it."""
    cost = summary["tokens_this_run"]
    yield (
        f"{counted(summary['problems'], 'problem')}: {summary['accepted']} accepted "
        f"({summary['repaired']} after repair), {summary['rejected']} rejected; {counted(cost['requests'], 'answer')}, "
        f"{cost['prompt_tokens']} prompt and {cost['completion_tokens']} answer tokens in this run"
    )
    if cost["without_usage"]:
        yield f"{cost['without_usage']} answers came without a usage; their {cost['estimated']} tokens are estimated"
    for reason, count in summary["reasons"].items():
        yield f"{count:>6}  {reason}"
    if summary["accepted_without_contexts"]:
        yield f"{summary['accepted_without_contexts']} accepted without plan and subproblems"


@contextmanager
def watching(clock: Callable[[], float] = time.monotonic) -> Iterator[Watch]:
    """A function to call whenever a count changes: a bar with counts and cost, or without a terminal lines."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        told = -math.inf

        def watch(tally: Tally, ledger: Ledger) -> None:
            nonlocal told
            done = tally.accepted + tally.rejected + tally.unfinished
            counts = f"{tally.accepted} accepted · {tally.repaired} repaired · {tally.rejected} rejected"
            text = f"{counts} · {tally.unfinished} unfinished · {ledger.this_run.tokens:,} tokens"
            bar.update(task, total=tally.problems, completed=done, description=text)
            if not console.is_terminal and clock() - told >= EVERY:
                told = clock()
                line = f"{done} of {tally.problems} problems · {text}"
                console.print(line, highlight=False, markup=False, soft_wrap=True)

        yield watch
