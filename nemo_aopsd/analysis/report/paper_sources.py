"""What the layouts of the paper's tables are filled from: runs, and evaluations of models that nobody trained here.

Nothing of the rollouts is read, so many runs cost little.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from typing_extensions import TypedDict

from nemo_aopsd.config.label import Label, label_run
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError
from nemo_aopsd.run import layout
from nemo_aopsd.run.reader import Run, parse, read_run
from nemo_aopsd.run.record_types import Evaluation

T = TypeVar("T")
Intent = TypedDict(  # a row of Table 1, as `aopsd diagnose continuations` writes it
    "Intent",
    {
        "k": int,
        "events": int,
        "correction cues": int,
        "references to the private context": int,
        "first at this k, correction": str,
        "first at this k, reference": str,
    },
)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One benchmark at one checkpoint. `epoch` counts finished epochs, None in the middle of one; 0 is the base."""

    benchmark: str
    step: int
    epoch: int | None
    summary: Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A run, or (`config` None) an evaluation of a model as it comes. `minutes`: of each finished epoch's steps."""

    name: str
    config: Config | None
    model: str
    evaluations: list[Evaluated]
    minutes: list[float] = field(default_factory=list)
    num_steps: int = 0  # in those epochs
    continuations: dict[str, list[Intent]] | None = None  # tables by title, of `aopsd diagnose continuations`
    method: Label | None = None  # None also where no methods are installed to compare a run with

    @property
    def last_step(self) -> int | None:
        """That of the newest weights that were evaluated on anything."""
        return max((e.step for e in self.evaluations), default=None)

    def at_epoch(self, benchmark: str, epoch: int) -> list[Evaluation]:
        """The evaluations on a benchmark after that many epochs."""
        return [e.summary for e in self.evaluations if e.benchmark == benchmark and e.epoch == epoch]

    def final(self, benchmark: str) -> list[Evaluation]:
        """The evaluations on a benchmark at `last_step`."""
        return [e.summary for e in self.evaluations if e.benchmark == benchmark and e.step == self.last_step]


def read_source(path: Path) -> Source:
    """A run folder, or a folder that `aopsd evaluate` wrote. Raises UserError if it is neither, or a file is broken."""
    if (path / layout.CONFIG).is_file():
        return _read_run(path)
    if (path / layout.RESULTS).is_file():
        results = _parse_file(_Results, path / layout.RESULTS)
        found = [Evaluated(name, 0, 0, summary) for name, summary in results.benchmarks.items()]
        return Source(name=name_of(path), config=None, model=results.model, evaluations=found)
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
    seconds: dict[int, float] = defaultdict(float)
    for row in finished:
        seconds[row.epoch] += row.number("time/step")
    held_out = Path(str(run.config.aopsd.evaluation.data_path)).stem
    own = [Evaluated(held_out, last_step.get(one.epoch, 0), one.epoch, one) for one in run.evaluations]
    file = path / layout.DIAGNOSTICS / "continuations.json"
    return Source(
        name=name_of(path),
        config=run.config,
        model=str(run.config.policy["model_name"]),
        evaluations=[*own, *_later_evaluations(run, last_step)],
        minutes=[total / 60 for total in seconds.values()],
        num_steps=len(finished),
        continuations=_parse_file(_Continuations, file).tables if file.is_file() else None,
        method=label_run(run.config.aopsd),
    )


def _later_evaluations(run: Run, last_step: dict[int, int]) -> list[Evaluated]:
    """Those of `aopsd evaluate` on checkpoints, which are named by their step."""
    epoch_of = {step: epoch for epoch, step in last_step.items()}
    found = []
    for file in sorted((run.path / layout.EVALUATIONS).glob(f"*/{layout.RESULTS}")):
        results = _parse_file(_Results, file)
        match = re.fullmatch(r"step_(\d+)", results.model)
        if match is None:
            raise UserError(f"{file}: `model` must be a checkpoint such as step_000012, got {results.model!r}.")
        step = int(match[1])
        found += [Evaluated(name, step, epoch_of.get(step), one) for name, one in results.benchmarks.items()]
    return found


@dataclass(frozen=True)
class _Results:
    model: str
    benchmarks: dict[str, Evaluation]


@dataclass(frozen=True)
class _Continuations:
    tables: dict[str, list[Intent]]


def _parse_file(kind: type[T], path: Path) -> T:
    return parse(kind, path.read_bytes(), str(path))
