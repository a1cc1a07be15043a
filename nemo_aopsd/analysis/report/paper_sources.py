"""What the layouts of the paper's tables are filled from: runs, and evaluations of models that nobody trained here.

Nothing of the rollouts is read, so many runs cost little.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_aopsd.analysis.report.fields import COMPETENCE, METRICS, check_evaluation, check_fields
from nemo_aopsd.config.label import Label, label_run
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_journal
from nemo_aopsd.run.folder import load_run_config

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One benchmark at one checkpoint. `epoch` counts finished epochs, None in the middle of one; 0 is the base."""

    benchmark: str
    step: int
    epoch: int | None
    summary: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A run, or (`config` None) an evaluation of a model as it comes. `minutes`: of each finished epoch's steps."""

    name: str
    config: Config | None
    model: str
    evaluations: list[Evaluation]
    minutes: list[float] = field(default_factory=list)
    num_steps: int = 0  # in those epochs
    continuations: Record | None = None  # what `aopsd diagnose continuations` wrote
    method: Label | None = None  # None also where no methods are installed to compare a run with

    @property
    def last_step(self) -> int | None:
        """That of the newest weights that were evaluated on anything."""
        return max((e.step for e in self.evaluations), default=None)

    def at_epoch(self, benchmark: str, epoch: int) -> list[Record]:
        """The evaluations on a benchmark after that many epochs."""
        return [e.summary for e in self.evaluations if e.benchmark == benchmark and e.epoch == epoch]

    def final(self, benchmark: str) -> list[Record]:
        """The evaluations on a benchmark at `last_step`."""
        return [e.summary for e in self.evaluations if e.benchmark == benchmark and e.step == self.last_step]


def read_source(path: Path) -> Source:
    """A run folder, or a folder that `aopsd evaluate` wrote. Raises UserError if it is neither, or a file is broken."""
    if (path / "config.yaml").is_file():
        return _read_run(path)
    if (path / "results.json").is_file():
        results = _read_results(path / "results.json")
        found = [Evaluation(name, 0, 0, summary) for name, summary in results["benchmarks"].items()]
        return Source(name=name_of(path), config=None, model=results["model"], evaluations=found)
    raise UserError(f"{path}: neither a run (config.yaml) nor an evaluation (results.json). Check the path.")


def name_of(path: Path) -> str:
    """What to call a run: its folder, and the member before it where a suite calls all its runs `seed_N`."""
    path = path.resolve()
    return f"{path.parent.name}/{path.name}" if re.fullmatch(r"seed_\d+", path.name) else path.name


def _read_run(path: Path) -> Source:
    config = load_run_config(path)
    metrics = _journal(path / "metrics.jsonl", METRICS)
    own = [(_number(file), _read_json(file)) for file in sorted((path / "eval").glob("epoch_[0-9]*[0-9].json"))]
    boundaries = [line["epoch"] for line in _journal(path / "competence.jsonl", COMPETENCE)]
    num_finished = max([*boundaries, *(epoch for epoch, _ in own)], default=0)
    finished = [row for row in metrics if row["epoch"] < num_finished]
    last_step = {0: 0} | {row["epoch"] + 1: row["step"] for row in finished}
    seconds: dict[int, float] = {}
    for row in finished:
        seconds[row["epoch"]] = seconds.get(row["epoch"], 0.0) + row["time/step"]
    return Source(
        name=name_of(path),
        config=config,
        model=str(config.policy["model_name"]),
        evaluations=[*_own_evaluations(config, path, own, last_step), *_later_evaluations(path, last_step)],
        minutes=[total / 60 for total in seconds.values()],
        num_steps=len(finished),
        continuations=_read_continuations(path / "diagnostics" / "continuations.json"),
        method=label_run(config.aopsd),
    )


def _own_evaluations(
    config: Config, path: Path, own: list[tuple[int, Record]], last_step: dict[int, int]
) -> list[Evaluation]:
    """Those that training itself made, on its one held-out file."""
    name = Path(str(config.aopsd.evaluation.data_path)).stem
    found = []
    for epoch, summary in own:
        check_evaluation(summary, f"{path / 'eval'}/epoch_{epoch:03d}.json")
        found.append(Evaluation(name, last_step.get(epoch, 0), epoch, summary))
    return found


def _later_evaluations(path: Path, last_step: dict[int, int]) -> list[Evaluation]:
    """Those of `aopsd evaluate` on checkpoints, which are named by their step."""
    epoch_of = {step: epoch for epoch, step in last_step.items()}
    found = []
    for file in sorted((path / "eval").glob("*/results.json")):
        results = _read_results(file)
        step = re.fullmatch(r"step_(\d+)", results["model"])
        if step is None:
            raise UserError(f"{file}: `model` must be a checkpoint such as step_000012, got {results['model']!r}.")
        number = int(step[1])
        found += [
            Evaluation(name, number, epoch_of.get(number), summary) for name, summary in results["benchmarks"].items()
        ]
    return found


def _read_results(path: Path) -> Record:
    results = _read_json(path)
    check_fields(results, {"model": str, "benchmarks": dict}, str(path))
    for name, summary in results["benchmarks"].items():
        check_evaluation({"epoch": 0, **summary} if isinstance(summary, dict) else summary, f"{path}: `{name}`")
    return results


def _read_continuations(path: Path) -> Record | None:
    if not path.is_file():
        return None
    record = _read_json(path)
    check_fields(record, {"tables": dict, "samples": dict, "settings": dict}, str(path))
    return record


def _journal(path: Path, fields: dict[str, Any]) -> list[Record]:
    lines = read_journal(path)
    for number, line in enumerate(lines, start=1):
        check_fields(line, fields, f"{path}:{number}")
    return lines


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: broken JSON: {error}. Restore or delete the file.") from error


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("epoch_"))
