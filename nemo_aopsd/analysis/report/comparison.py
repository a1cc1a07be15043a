"""Runs and evaluations side by side. Rollouts are not read, so many runs cost little."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_aopsd.config.label import label_run
from nemo_aopsd.errors import UserError
from nemo_aopsd.run import layout
from nemo_aopsd.run.reader import Run, parse, read_run
from nemo_aopsd.run.record_types import Evaluation


@dataclass(frozen=True, slots=True)
class Cell:
    """`detail` has the counts behind `text`."""

    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a header."""

    header: tuple[str, ...]
    rows: list[list[Cell]]


@dataclass(frozen=True, slots=True)
class Source:
    """A run, or an evaluation of a model as it comes. `evaluations` by set of problems: (step, summary), by step."""

    name: str
    model: str
    evaluations: dict[str, list[tuple[int, Evaluation]]]
    method: str = ""
    minutes: float | None = None  # of the steps of a finished epoch
    num_epochs: int = 0  # finished


def side_by_side(paths: Sequence[Path]) -> Table | None:
    """By folder and set: pass@1 at the first and at the newest checkpoint that was evaluated on it.

    None if there is nothing to compare: one run with no evaluation but those of its training. Raises UserError on a
    folder that is neither a run nor an evaluation, or has a broken file.
    """
    sources = [read_source(path) for path in {path.resolve(): path for path in paths}.values()]
    sets = sorted({name for source in sources for name in source.evaluations})
    if len(sources) == 1 and len(sets) <= 1:
        return None
    header = ("Run", "Method", *(f"{name}, {when}" for name in sets for when in ("first", "newest")), "min an epoch")
    return Table(header, [_row(source, sets) for source in sources])


def read_source(path: Path) -> Source:
    """A run folder, or a folder that `aopsd evaluate` wrote."""
    if (path / layout.CONFIG).is_file():
        return _read_run(path)
    if (path / layout.RESULTS).is_file():
        results = _read_results(path / layout.RESULTS)
        return Source(name_of(path), results.model, {name: [(0, one)] for name, one in results.benchmarks.items()})
    raise UserError(f"{path}: neither a run (config.yaml) nor an evaluation (results.json). Check the path.")


def name_of(path: Path) -> str:
    """What to call a run: its folder, and the member before it where a suite calls all its runs `seed_N`."""
    path = path.resolve()
    return f"{path.parent.name}/{path.name}" if re.fullmatch(r"seed_\d+", path.name) else path.name


def _read_run(path: Path) -> Source:
    run = read_run(path)
    num_finished = max([record.epoch for record in (*run.competence, *run.evaluations)], default=0)
    finished = [row for row in run.metrics if row.epoch < num_finished]
    last_step = {0: 0} | {row.epoch + 1: row.step for row in finished}
    held_out = Path(str(run.config.aopsd.evaluation.data_path)).stem
    found = [(held_out, last_step.get(one.epoch, 0), one) for one in run.evaluations]
    evaluations: dict[str, list[tuple[int, Evaluation]]] = defaultdict(list)
    for name, step, one in sorted([*found, *_later_evaluations(run)], key=lambda item: item[1]):
        evaluations[name].append((step, one))
    epochs = len({row.epoch for row in finished})
    seconds = sum(row.number("time/step") for row in finished)
    return Source(
        name=name_of(path),
        model=str(run.config.policy["model_name"]),
        evaluations=dict(evaluations),
        method=str(label_run(run.config.aopsd) or ""),
        minutes=seconds / 60 / epochs if epochs else None,
        num_epochs=epochs,
    )


def _later_evaluations(run: Run) -> list[tuple[str, int, Evaluation]]:
    """Those of `aopsd evaluate` on checkpoints, which are named by their step."""
    found = []
    for file in sorted((run.path / layout.EVALUATIONS).glob(f"*/{layout.RESULTS}")):
        results = _read_results(file)
        match = re.fullmatch(r"step_(\d+)", results.model)
        if match is None:
            raise UserError(f"{file}: `model` must be a checkpoint such as step_000012, got {results.model!r}.")
        found += [(name, int(match[1]), one) for name, one in results.benchmarks.items()]
    return found


@dataclass(frozen=True)
class _Results:
    model: str
    benchmarks: dict[str, Evaluation]


def _read_results(path: Path) -> _Results:
    return parse(_Results, path.read_bytes(), str(path))


def _row(source: Source, sets: Sequence[str]) -> list[Cell]:
    cells = [Cell(source.name, source.model), Cell(source.method)]
    for name in sets:
        found = source.evaluations.get(name)
        cells += [_rate(*found[0]), _rate(*found[-1])] if found else [Cell("-")] * 2
    epochs = "1 epoch" if source.num_epochs == 1 else f"{source.num_epochs} epochs"
    return [*cells, Cell("-") if source.minutes is None else Cell(f"{source.minutes:.3g}", epochs)]


def _rate(step: int, one: Evaluation) -> Cell:
    """pass@1; below it the step, the counts, and pass@k of the most samples."""
    most = max(one.pass_at_k)
    many = f", pass@{most} {100 * one.pass_at_k[most]:.1f}" if most > 1 else ""
    counts = f"{one.num_problems} problems × {one.num_samples} samples"
    return Cell(f"{100 * one.pass_at_k[1]:.1f}", f"step {step}, {counts}{many}")
