"""What a person watches while a suite runs: bars on a terminal, a line an event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nemo_aopsd.analysis.suite.folder import Run
from nemo_aopsd.analysis.suite.processes import Active, Failure, Watch

_EVERY = 1.0  # seconds between looks at the runs' metrics


@contextmanager
def watching(total: int, already: int, console: Console) -> Iterator[Watch]:
    """A function for the pool to call; `already` of the `total` runs were complete before."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield _Watcher(bar, bar.add_task("runs", total=total, completed=already), already, total, console)


class _Watcher:
    """One bar for the suite, and one line for each run at work with the steps that it has done."""

    def __init__(self, bar: Progress, overall: TaskID, already: int, total: int, console: Console):
        self.bar, self.overall, self.already, self.total, self.console = bar, overall, already, total, console
        self.lines: dict[Run, TaskID] = {}
        self.told: set[Run] = set()
        self.looked = 0.0

    def __call__(self, active: Sequence[Active], done: Sequence[Run], failures: Sequence[Failure]) -> None:
        for work in active:
            if work.run not in self.lines:
                self.lines[work.run] = self.bar.add_task(work.run.label, total=None)
                self._say(f"started {work.run.label}")
        for run in done:
            self._finish(run, f"[green]done[/] {run.label}")
        for failure in failures:
            self._finish(failure.run, f"[red]failed[/] {failure.run.label}: {escape(failure.reason)}")
        self.bar.update(self.overall, completed=self.already + len(done))
        if self.console.is_terminal and time.monotonic() - self.looked > _EVERY:
            self.looked = time.monotonic()
            for work in active:
                self.bar.update(self.lines[work.run], description=f"{work.run.label}: step {_steps(work.run)}")

    def _finish(self, run: Run, message: str) -> None:
        if run in self.told:
            return
        self.told.add(run)
        if run in self.lines:  # one that could not be started has none
            self.bar.remove_task(self.lines[run])
        self.console.print(f"{len(self.told) + self.already}/{self.total} {message}", highlight=False, soft_wrap=True)

    def _say(self, message: str) -> None:
        if not self.console.is_terminal:
            self.console.print(message, highlight=False, soft_wrap=True)


def _steps(run: Run) -> int:
    path = run.folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0
