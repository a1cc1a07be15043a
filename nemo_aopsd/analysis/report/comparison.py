"""Runs and evaluations side by side. Rollouts are not read, so many runs cost little."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nemo_aopsd.config.label import label_run
from nemo_aopsd.errors import UserError
from nemo_aopsd.run import layout
from nemo_aopsd.run.reader import Run, parse, read_run
from nemo_aopsd.run.record_types import Evaluation


class Cell(NamedTuple):
    """`detail` has the counts behind `text`."""

    text: str
    detail: str = ""


class Source(NamedTuple):
    """A run, or an evaluation of a model as it comes. `evaluations`: (set of problems, step, summary), by step."""

    name: str
    model: str
    evaluations: list[tuple[str, int, Evaluation]]
    method: str = ""
    minutes: Cell = Cell("-")  # an epoch, of the steps of finished epochs


@dataclass(frozen=True)
class _Results:
    """As much of `results.json` as is read here."""

    model: str
    benchmarks: dict[str, Evaluation]


def side_by_side(paths: Sequence[Path]) -> list[list[Cell]]:
    """A header and a row a folder: pass@1 at the first and at the newest checkpoint evaluated on each set of problems.

    Empty if there is nothing to compare: one run with no evaluation but those of its training. Raises UserError on a
    folder that is neither a run nor an evaluation, or has a broken file.
    """
    sources = [read_source(path) for path in {path.resolve(): path for path in paths}.values()]
    sets = sorted({name for source in sources for name, _, _ in source.evaluations})
    if len(sources) == 1 and len(sets) <= 1:
        return []
    columns = [f"{name}, {when}" for name in sets for when in ("first", "newest")]
    header = [Cell(text) for text in ("Run", "Method", *columns, "min an epoch")]
    return [header, *(_row(source, sets) for source in sources)]


def read_source(path: Path) -> Source:
    """A run folder, or a folder that `aopsd evaluate` wrote."""
    if (path / layout.CONFIG).is_file():
        return _read_run(read_run(path))
    if not (path / layout.RESULTS).is_file():
        raise UserError(f"{path}: neither a run (config.yaml) nor an evaluation (results.json). Check the path.")
    results = parse(_Results, (path / layout.RESULTS).read_bytes(), str(path / layout.RESULTS))
    return Source(name_of(path), results.model, [(name, 0, one) for name, one in results.benchmarks.items()])


def name_of(path: Path) -> str:
    """What to call a run: its folder, and the member before it where a suite calls all its runs `seed_N`."""
    path = path.resolve()
    return f"{path.parent.name}/{path.name}" if re.fullmatch(r"seed_\d+", path.name) else path.name


def _read_run(run: Run) -> Source:
    num_finished = max([record.epoch for record in (*run.competence, *run.evaluations)], default=0)
    finished = [row for row in run.metrics if row.epoch < num_finished]
    last_step = {0: 0} | {row.epoch + 1: row.step for row in finished}
    held_out = Path(str(run.config.aopsd.evaluation.data_path)).stem
    found = [(held_out, last_step.get(one.epoch, 0), one) for one in run.evaluations]
    minutes, epochs = sum(row.number("time/step") for row in finished) / 60, len({row.epoch for row in finished})
    return Source(
        name=name_of(run.path),
        model=str(run.config.policy["model_name"]),
        evaluations=sorted([*found, *_later_evaluations(run)], key=lambda item: item[1]),
        method=str(label_run(run.config.aopsd) or ""),
        minutes=Cell(f"{minutes / epochs:.3g}", f"{epochs} epoch{'s' if epochs > 1 else ''}") if epochs else Cell("-"),
    )


def _later_evaluations(run: Run) -> Iterator[tuple[str, int, Evaluation]]:
    """Those of `aopsd evaluate` on checkpoints, which are named by their step."""
    for file in sorted((run.path / layout.EVALUATIONS).glob(f"*/{layout.RESULTS}")):
        results = parse(_Results, file.read_bytes(), str(file))
        match = re.fullmatch(r"step_(\d+)", results.model)
        if match is None:
            raise UserError(f"{file}: `model` must be a checkpoint such as step_000012, got {results.model!r}.")
        yield from ((name, int(match[1]), one) for name, one in results.benchmarks.items())


def _row(source: Source, sets: Sequence[str]) -> list[Cell]:
    cells = [Cell(source.name, source.model), Cell(source.method)]
    for wanted in sets:
        found = [_rate(step, one) for name, step, one in source.evaluations if name == wanted] or [Cell("-")]
        cells += [found[0], found[-1]]
    return [*cells, source.minutes]


def _rate(step: int, one: Evaluation) -> Cell:
    """pass@1; below it the step, the counts, and pass@k of the most samples."""
    most = max(one.pass_at_k)
    many = f", pass@{most} {100 * one.pass_at_k[most]:.1f}" if most > 1 else ""
    counts = f"{one.num_problems} problems × {one.num_samples} samples"
    return Cell(f"{100 * one.pass_at_k[1]:.1f}", f"step {step}, {counts}{many}")
