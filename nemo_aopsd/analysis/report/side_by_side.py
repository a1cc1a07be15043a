"""Runs beside each other by pass@1, which every evaluation has, however few its samples."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_aopsd.analysis.report.paper_sources import Evaluated, Source
from nemo_aopsd.analysis.report.paper_tables import Cell, PaperTable


def side_by_side(sources: Sequence[Source]) -> PaperTable:
    """By source and set: pass@1 at the first and at the newest checkpoint that was evaluated on it."""
    benchmarks = sorted({evaluation.benchmark for source in sources for evaluation in source.evaluations})
    header = ("Run", "Method", *(f"{name}, {when}" for name in benchmarks for when in ("first", "newest")))
    caption = (
        "pass@1 on the bare question, %; below it the step, and problems and samples. One run a row: without an "
        "interval over seeds. `aopsd paired-test` compares two evaluations problem by problem."
    )
    return PaperTable("Runs side by side", caption, header, [_row(source, benchmarks) for source in sources])


def _row(source: Source, benchmarks: Sequence[str]) -> list[Cell]:
    cells = [Cell(source.name, source.model), Cell(str(source.method) if source.method else "")]
    for benchmark in benchmarks:
        found = sorted((e for e in source.evaluations if e.benchmark == benchmark), key=lambda e: e.step)
        cells += [_rate(found[0]), _rate(found[-1])] if found else [Cell("missing", "not evaluated", missing=True)] * 2
    return cells


def _rate(evaluation: Evaluated) -> Cell:
    summary = evaluation.summary
    counted = f"{summary.num_problems} problems × {summary.num_samples} samples"
    return Cell(f"{100 * summary.pass_at_k[1]:.1f}", f"step {evaluation.step}, {counted}")
