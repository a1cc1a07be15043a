"""Progress lines and bars during a run: no stage that takes long is silent, on a terminal or in a log."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, ClassVar, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, MarkdownElement, TableElement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from nemo_aopsd.clock import duration

T = TypeVar("T")
_SLOW = 5.0  # seconds: what ends earlier needs no line
EVERY = 30.0  # seconds between two lines in a log, where a terminal has a bar
_FIGURE = re.compile(r"^!\[.*?\]\(.*?\)$", re.MULTILINE)


@contextmanager
def slow(stage: str, after: float = _SLOW, every: float = EVERY) -> Iterator[None]:
    """Says on stderr what is going on, if it goes on for `after` seconds, and then for how long it has.

    For what has no parts to count.
    """
    ended, begun = Event(), time.monotonic()

    def say(line: str) -> None:
        Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)

    def work() -> None:
        if not ended.wait(after):
            say(f"{stage} ...")
        while not ended.wait(every):
            say(f"{stage}: {duration(time.monotonic() - begun)} so far")

    Thread(target=work, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def progress(
    label: str,
    total: int,
    done: int,
    console: Console,
    keep: bool,
    clock: Callable[[], float] = time.monotonic,
    told: bool = False,
) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, else lines now and then; yields a function that takes a number of new items.

    `told`: an item has a line of its own already. A line also comes while one item takes long.
    """
    if not console.is_terminal:
        lines = _Lines(label, total, done, console, clock, told)
        with _repeated(lines.still_at_work):
            yield lines.advance
        return
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*shown, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=not keep) as bar:
        task = bar.add_task(label, total=total, completed=done)
        yield lambda count: bar.advance(task, count)


class _Lines:
    """Where a terminal has a bar; none twice in `EVERY` seconds."""

    def __init__(
        self, label: str, total: int, done: int, console: Console, clock: Callable[[], float], told: bool
    ) -> None:
        self.label, self.total, self.done, self.console = label, total, done, console
        self.clock, self.told, self.begun, self.last = clock, told, clock(), clock()
        self.before = done
        if done < total:
            self._say(f"{total - done} to go")

    def advance(self, count: int) -> None:
        self.done += count
        if self.told:
            self.last = self.clock()
        elif count and self._is_due():
            seconds = (self.clock() - self.begun) * (self.total - self.done) / (self.done - self.before)
            self._say(f"{self.done} of {self.total}, about {duration(seconds)} left")

    def still_at_work(self) -> None:
        if self._is_due():
            self._say(f"{self.done} of {self.total}, {duration(self.clock() - self.begun)} so far")

    def _is_due(self) -> bool:
        return self.done < self.total and self.clock() - self.last >= EVERY

    def _say(self, words: str) -> None:
        self.last = self.clock()
        self.console.print(f"{self.label}: {words}", highlight=False, markup=False)


@contextmanager
def _repeated(function: Callable[[], None], every: float = EVERY / 2) -> Iterator[None]:
    """Calls it in a thread, each `every` seconds."""
    ended = Event()

    def work() -> None:
        while not ended.wait(every):
            function()

    Thread(target=work, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def track(items: Sequence[T], label: str, console: Console, total: int | None = None, done: int = 0) -> Iterator[T]:
    """The items, behind a bar that vanishes at the end; without a terminal lines now and then."""
    total = total or len(items)
    with progress(label, total, done, console, keep=False) as advance:
        for item in items:
            yield item
            advance(1)


class _Folded(TableElement):
    """A table in which a word that is wider than its column goes on in the next line; rich would cut it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            assert isinstance(table, Table)
            for column in table.columns:
                column.overflow = "fold"
            yield table


class _Page(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = Markdown.elements | {"table_open": _Folded}


def show_page(page: str, console: Console | None = None) -> None:
    """A page of Markdown: as tables on a terminal, as it is elsewhere. Its figures are files; a terminal has none."""
    console = console or Console()
    if console.is_terminal:
        console.print(_Page(_FIGURE.sub("", page)))
    else:
        console.print(page, markup=False, highlight=False, soft_wrap=True)


def counted(count: float, noun: str) -> str:
    """A number and what it counts: 0 rows, 1 row, 4,567 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def seed_words(seed: int, option: str = "aopsd.seed", drawn: str = "answers") -> str:
    """Which seed drew the answers, and that they depend on it."""
    return f"seed {seed} (another {option} draws other {drawn})"


def warn(lines: Iterable[str]) -> None:
    """Each line on stderr, as a warning."""
    for line in lines:
        Console(stderr=True).print(f"warning: {line}", highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Whole:
    """How much a run is of, and what is left of it: seconds of steps, without evaluations."""

    epochs: int
    steps: int
    seconds_left: float


# The numbers of a step's line by name: label and form, what matters first. docs/reading_runs.md explains each.
STEP_LINE = {
    "train/loss": ("loss", "{:+.4f}"),
    "reward/mean": ("reward", "{:.2f}"),
    "dag/progress": ("progress", "{:.2f}"),
    "gap/mean_abs": ("|gap|", "{:.3f}"),
    "probe/trigger_rate": ("triggered", "{:.2%}"),
    "rollout/mean_tokens": ("tokens", "{:.0f}"),
    "time/step": ("took", "{:.1f} s"),
    "rollout/truncated": ("truncated", "{:.0f}"),
    "judge/failed": ("unread verdicts", "{:.0f}"),
    "context/dropped": ("dropped", "{:.0f}"),
    "reward/undecided": ("ungradable answers", "{:.0f}"),
    "train/grad_norm": ("grad", "{:.3f}"),
    "probe/nll_mean": ("surprise", "{:.2f}"),
    "probe/weight_mean": ("probed weight", "{:.2f}"),
    "weight/mean": ("weight", "{:.2f}{spread}"),
    "dag/disclosed_share": ("disclosed", "{:.2f}"),
}
_ONLY_IF_SOME = {"rollout/truncated", "judge/failed", "context/dropped", "reward/undecided"}  # counts of trouble


def step_line(metrics: dict[str, float], whole: Whole, width: int | None = None) -> str:
    """Where the run is and the numbers of a step, in one line; a number that does not apply is left out.

    `width` is a terminal's: what does not fit in is left out from the end, with `...` in its place.
    """
    left = f"{duration(whole.seconds_left)} left" if whole.seconds_left else "last step"
    parts = [f"step {metrics['step']:.0f}/{whole.steps}", left]
    untold = {key for key in _ONLY_IF_SOME if not metrics.get(key)}
    spread = _spread(metrics)
    if "probe/weight_mean" in metrics and not spread:
        untold.add("weight/mean")  # next to all are as one, and the probed ones are told
    for key, (label, form) in STEP_LINE.items():
        if key in metrics and key not in untold:
            parts.append(f"{label} {form.format(metrics[key], spread=spread)}")
    parts.append(f"epoch {metrics['epoch'] + 1:.0f}/{whole.epochs}")
    if metrics["time/step"] > 0:
        tokens = metrics["rollout/mean_tokens"] * metrics["rollout/count"]
        parts.append(f"{tokens / metrics['time/step']:.0f} tokens/s")
    line = "  ".join(parts)
    while width and len(line) > width and parts:
        parts.pop()
        line = "  ".join([*parts, "..."])
    return line


def _spread(metrics: dict[str, float]) -> str:
    """Where 90 % of the weights lie, if that is no point: the mean may lie outside."""
    low, high = (f"{metrics.get(f'weight/{name}', 0):.2f}" for name in ("p5", "p95"))
    return "" if low == high else f" (90 % from {low} to {high})"


def evaluation_line(summary: dict[str, Any], within: int | None = None) -> str:
    """pass@1 and pass@k of one evaluation, and how many answers the grader could not judge if there are any.

    `within` is the last step of a run that ends within the epoch."""
    most = summary["num_samples"]
    rates = "  ".join(f"pass@{k} {summary['pass_at_k'][str(k)]:.3f}" for k in dict.fromkeys((1, most)))
    doubtful = f"  {summary['ungradable']} ungradable answers" if summary["ungradable"] else ""
    asked, epoch = asked_of(summary["num_problems"], summary.get("num_trained_on")), summary["epoch"]
    when = f"epoch {epoch}" if within is None else f"step {within} (in epoch {epoch})"
    return f"after {when}: {rates} on {asked}{doubtful}"


def asked_of(count: int, trained_on: int | None) -> str:
    """The problems of an evaluation in words. Who trains on them has held out none."""
    also = f"not held out: {trained_on} {'is' if trained_on == 1 else 'are'} also trained on"
    return f"{counted(count, 'problem')}, {also}" if trained_on else counted(count, "held-out problem")
