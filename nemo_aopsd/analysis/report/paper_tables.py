"""Tables that compare runs: pass@1 side by side, and the layouts of the paper's Tables 1, 2 and 3.

They are filled from the user's own runs; what has no data says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from nemo_aopsd.analysis.report.paper_sources import Evaluated, Intent, Source
from nemo_aopsd.errors import UserError
from nemo_aopsd.run.record_types import Evaluation

KS = (2, 4, 6, 8, 16)  # tokens; the rows of Table 1
K = 8  # of pass@k in Table 2
EPOCHS = (1, 2, 3)
BENCHMARKS = {"hmmt_feb25": "HMMT25", "aime24": "AIME24", "aime25": "AIME25", "brumo25": "BRUMo25"}


@dataclass(frozen=True, slots=True)
class Cell:
    """`detail` has the counts behind `text`, or why the cell is `missing`. `share` of a whole draws a bar."""

    text: str
    detail: str = ""
    missing: bool = False
    share: float | None = None


@dataclass(frozen=True, slots=True)
class PaperTable:
    """Rows of cells under a header; the first cell of a row names it."""

    title: str
    caption: str
    header: tuple[str, ...]
    rows: list[list[Cell]]

    @property
    def filled(self) -> tuple[int, int]:
        """Cells that have a value, and all that could; names of rows are none."""
        cells = [cell for row in self.rows for cell in row[1:]]
        return sum(not cell.missing for cell in cells), len(cells)


def paper_tables(sources: Sequence[Source]) -> list[PaperTable]:
    """Tables 1 to 3. The first source is the run that the report is about."""
    return [continuation_table(sources), performance_table(sources), time_table(sources)]


def side_by_side(sources: Sequence[Source]) -> PaperTable:
    """By source and set: pass@1 at the first and at the newest checkpoint that was evaluated on it."""
    benchmarks = sorted({evaluation.benchmark for source in sources for evaluation in source.evaluations})
    header = ("Run", "Method", *(f"{name}, {when}" for name in benchmarks for when in ("first", "newest")))
    caption = (
        "pass@1 on the bare question, %; below it the step, and problems and samples. One run a row: without an "
        "interval over seeds. `aopsd paired-test` compares two evaluations problem by problem."
    )
    return PaperTable("Runs side by side", caption, header, [_side_row(source, benchmarks) for source in sources])


def _side_row(source: Source, benchmarks: Sequence[str]) -> list[Cell]:
    cells = [Cell(source.name, source.model), Cell(str(source.method) if source.method else "")]
    for benchmark in benchmarks:
        found = sorted((e for e in source.evaluations if e.benchmark == benchmark), key=lambda e: e.step)
        cells += [_pass_at_1(found[0]), _pass_at_1(found[-1])] if found else [_missing("not evaluated")] * 2
    return cells


def _pass_at_1(evaluation: Evaluated) -> Cell:
    summary = evaluation.summary
    counted = f"{summary.num_problems} problems × {summary.num_samples} samples"
    return Cell(f"{100 * summary.pass_at_k[1]:.1f}", f"step {evaluation.step}, {counted}")


def continuation_table(sources: Sequence[Source]) -> PaperTable:
    """Table 1: cumulative counts of cues and references within the first k tokens of a continuation."""
    name, tables = next(((s.name, s.continuations) for s in sources if s.continuations is not None), ("", None))
    rows: dict[int, Intent] = {}
    if tables is None:
        caption = "No run given has diagnostics/continuations.json; `aopsd diagnose continuations RUN` writes it."
    else:
        rows, where = _continuation_rows(name, tables)
        events = max((row["events"] for row in rows.values()), default=0)
        caption = f"{name}: n = {events} non-overlapping events, {where}."
    caption += " The paper counts 31 cues and 238 references at k = 8."
    header = ("k, tokens", "Correction cues", "First new one", "Explicit PI references", "First new one")
    cells = [[Cell(str(k)), *_intent(rows, k, "correction"), *_intent(rows, k, "reference")] for k in KS]
    return PaperTable("Table 1: what short continuations say", caption, header, cells)


def performance_table(sources: Sequence[Source]) -> PaperTable:
    """Table 2: pass@8 of the newest evaluated checkpoint by benchmark, and the mean of the four by epoch."""
    others = sorted({e.benchmark for source in sources for e in source.evaluations} - BENCHMARKS.keys())
    benchmarks = BENCHMARKS | {name: name for name in others}
    rows = _base_rows(sources, benchmarks)
    for method, runs in _by_row(sources, _MAIN, _METHODS).items():
        rows += [_run_row(method, source, benchmarks) for source in runs]
        if not runs:
            rows.append([Cell(method), *[_missing("no run")] * (len(benchmarks) + len(EPOCHS))])
    header = ("Method", *benchmarks.values(), *(f"Avg. E{epoch}" for epoch in EPOCHS))
    models = sorted({source.model for source in sources})
    caption = (
        f"pass@{K}, %; below it problems solved of problems asked. By benchmark: the newest checkpoint that was "
        "evaluated. Avg.: unweighted mean of the paper's four benchmarks after each epoch, where all four are there. "
        f"Models: {', '.join(models)}. Rows of one run each, so without an interval over seeds. {_NAMES}"
    )
    return PaperTable("Table 2: overall performance", caption, header, rows)


def time_table(sources: Sequence[Source]) -> PaperTable:
    """Table 3: minutes an epoch, relative to the plain sampled-token policy gradient."""
    by_row = _by_row(sources, _TIMES, _CONFIGURATIONS)
    base = next((fmean(source.minutes) for source in by_row[_CONFIGURATIONS[0]] if source.minutes), None)
    longest = max((fmean(source.minutes) for runs in by_row.values() for source in runs if source.minutes), default=1.0)
    rows = []
    for configuration, runs in by_row.items():
        rows += [_time_row(configuration, source, base, longest) for source in runs]
        if not runs:
            rows.append([Cell(configuration), _missing("no run"), _missing("no run")])
    caption = (
        "Seconds of the steps of finished epochs: rollout, judge, teacher, student, probes and update; without "
        "evaluations, checkpoints and the attempts before epoch 1. Comparable only on one machine with one model. "
        f"The paper has 24, 27, 30 and 32 minutes. {_NAMES}"
    )
    return PaperTable("Table 3: training time", caption, ("Configuration", "Time, min/epoch", "Relative time"), rows)


# Labels of the paper's tables, and their rows in its order, as the configs of methods have them.
_MAIN, _TIMES = "tab:main_results", "tab:gradient-time"
_METHODS = ("SFT", "GRPO", "OPSD", "OP²SD", "DASH", "AOPSD")
_CONFIGURATIONS = ("Sampled-token PG", "PG + continuation", "Top-16 forward KL", "Top-32 forward KL")
_NAMES = (
    "A run stands in a row of the paper if its settings are exactly that method's; below are other runs, by the config "
    "of `aopsd methods` that they equal, or the nearest one + what differs."
)


def _by_row(sources: Sequence[Source], table: str, rows: Sequence[str]) -> dict[str, list[Source]]:
    """The trained runs by row: those of the paper in its order, each there even without a run, then others."""
    found: dict[str, list[Source]] = {row: [] for row in rows}
    for source in sources:
        if not _is_base(source):
            row = source.method.row_of(table) if source.method else None
            name = _name(source) if row is None or row not in rows else row
            found.setdefault(name, []).append(source)
    return found


def _name(source: Source) -> str:
    return str(source.method) if source.method else "unknown: no examples/configs here to compare with"


def _is_base(source: Source) -> bool:
    """Is it a model as it is: an evaluation of one, or a run without a step?"""
    return source.config is None or source.config.aopsd.max_num_steps == 0


def _run_row(method: str, source: Source, benchmarks: Mapping[str, str]) -> list[Cell]:
    at = "no evaluation" if source.last_step is None else f"step {source.last_step}"
    name = Cell(method, f"{source.name}, {at}")
    return [
        name,
        *(_rate(source.final(benchmark)) for benchmark in benchmarks),
        *(_average([source.at_epoch(benchmark, epoch) for benchmark in BENCHMARKS]) for epoch in EPOCHS),
    ]


def _base_rows(sources: Sequence[Source], benchmarks: Mapping[str, str]) -> list[list[Cell]]:
    """The untrained model of the first source, from whichever evaluation of it there is; then other evaluated ones."""
    names = [Path(source.model).name for source in sources]
    bare = [name for name, source in zip(names, sources, strict=True) if _is_base(source)]
    rows = []
    for model in dict.fromkeys([names[0], *bare]):
        same = [source for name, source in zip(names, sources, strict=True) if name == model]
        before = {name: [summary for source in same for summary in source.at_epoch(name, 0)] for name in benchmarks}
        average = _average([before[name] for name in BENCHMARKS])
        rows.append([Cell("Base", model), *map(_rate, before.values()), *[average] * len(EPOCHS)])
    return rows


def _rate(summaries: Sequence[Evaluation]) -> Cell:
    found = _with_enough_samples(summaries)
    if found is None:
        most = max((summary.num_samples for summary in summaries), default=None)
        return _missing("not evaluated" if most is None else f"{most} samples, {K} needed")
    return Cell(f"{100 * found.pass_at_k[K]:.1f}", _counts([found]))


def _average(by_benchmark: Sequence[Sequence[Evaluation]]) -> Cell:
    found = [summary for summary in map(_with_enough_samples, by_benchmark) if summary is not None]
    if len(found) < len(by_benchmark):
        return _missing(f"{len(found)} of {len(by_benchmark)} sets")
    return Cell(f"{100 * fmean(summary.pass_at_k[K] for summary in found):.1f}", _counts(found))


def _with_enough_samples(summaries: Sequence[Evaluation]) -> Evaluation | None:
    """Of several evaluations the one with fewest samples that has pass@8: with 8, it is a plain count."""
    enough = [summary for summary in summaries if K in summary.pass_at_k]
    return min(enough, key=lambda summary: summary.num_samples, default=None)


def _counts(summaries: Sequence[Evaluation]) -> str:
    problems = sum(summary.num_problems for summary in summaries)
    sizes = {summary.num_samples for summary in summaries}
    if sizes == {K}:
        solved = sum(count > 0 for summary in summaries for count in summary.correct_per_problem.values())
        return f"{solved}/{problems}"
    return f"{problems} problems × {'/'.join(map(str, sorted(sizes)))} samples"


def _time_row(configuration: str, source: Source, base: float | None, longest: float) -> list[Cell]:
    name = Cell(configuration, source.name)
    if not source.minutes:
        return [name, _missing("no epoch finished"), _missing("no epoch finished")]
    minutes = fmean(source.minutes)
    detail = f"{len(source.minutes)} epochs, {source.num_steps} steps"
    relative = _missing(f"no {_CONFIGURATIONS[0]} run") if not base else Cell(f"{minutes / base:.3f}×")
    return [name, Cell(f"{minutes:.3g}", detail, share=minutes / longest if longest else None), relative]


def _continuation_rows(name: str, tables: Mapping[str, Sequence[Intent]]) -> tuple[dict[int, Intent], str]:
    """Rows by k of the events that keep the student's token, as in the paper, and what they are."""
    title = next((title for title in tables if title.startswith("gap > 0")), None)
    if title is None:
        where = f"{name}/diagnostics/continuations.json"
        raise UserError(f"{where}: no table of events with gap > 0. Run `aopsd diagnose continuations` again.")
    return {row["k"]: row for row in tables[title]}, title


def _intent(rows: Mapping[int, Intent], k: int, kind: str) -> tuple[Cell, Cell]:
    """Count and excerpt. The excerpt is the first one that became whole after the row above and by this k."""
    if k not in rows:
        reason = f"probes end at k = {max(rows)}" if rows else "no event counted"
        return _missing(reason), _missing(reason)
    above = max((other for other in KS if other < k), default=0)
    new = [rows[j][f"first at this k, {kind}"] for j in range(above + 1, k + 1) if j in rows]
    excerpt = next((text for text in new if text), None)
    count = rows[k]["correction cues" if kind == "correction" else "references to the private context"]
    return Cell(str(count), f"of {rows[k]['events']}"), Cell(excerpt) if excerpt else Cell("", "none new")


def _missing(reason: str) -> Cell:
    return Cell("missing", reason, missing=True)
