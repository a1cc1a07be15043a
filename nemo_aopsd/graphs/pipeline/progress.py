"""Progress of a build on a terminal: one line with counts and cost; nothing without a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nemo_aopsd.graphs.pipeline.ledger import Ledger
from nemo_aopsd.graphs.pipeline.results import Tally, Watch


@contextmanager
def watching() -> Iterator[Watch]:
    """A function to call whenever a count changes."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def watch(tally: Tally, ledger: Ledger) -> None:
            done = tally.accepted + tally.rejected + tally.unfinished
            counts = f"{tally.accepted} accepted · {tally.repaired} repaired · {tally.rejected} rejected"
            text = f"{counts} · {tally.unfinished} unfinished · {ledger.this_run.tokens:,} tokens"
            bar.update(task, total=tally.problems, completed=done, description=text)

        yield watch
