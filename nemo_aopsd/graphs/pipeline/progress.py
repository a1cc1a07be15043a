"""What a person sees while a build goes on: counts and cost, in one line that moves, or now and then a new line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nemo_aopsd.graphs.pipeline.ledger import Ledger
from nemo_aopsd.graphs.pipeline.pipeline import Watch
from nemo_aopsd.graphs.pipeline.results import Tally

_EVERY = 30.0  # seconds between lines where there is no terminal


@contextmanager
def watching() -> Iterator[Watch]:
    """A function to call whenever a count changes."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        said = time.monotonic()

        def watch(tally: Tally, ledger: Ledger) -> None:
            nonlocal said
            done = tally.accepted + tally.rejected + tally.unfinished
            if console.is_terminal:
                bar.update(task, total=tally.total, completed=done, description=_line(tally, ledger))
            elif time.monotonic() - said > _EVERY:
                said = time.monotonic()
                print(f"{done}/{tally.total} {_line(tally, ledger)}", file=sys.stderr, flush=True)

        yield watch


def _line(tally: Tally, ledger: Ledger) -> str:
    parts = [f"{tally.accepted} accepted", f"{tally.repaired} repaired", f"{tally.rejected} rejected"]
    if tally.unfinished:
        parts.append(f"{tally.unfinished} unfinished")
    return " · ".join([*parts, f"{ledger.this_run.tokens:,} tokens"])
