"""Read a run folder, finished or not: `run = load_run(path)`.

    run.config                 the settings of the run
    run.metrics                a `StepMetrics` a step
    run.competence             a `Competence` before training, and one after each epoch
    run.evaluations            an `Evaluation` for each that training has finished
    for rollout in run.rollouts(): ...     a `Rollout` at a time: a run may have more than fit into memory
    run.frames()               all of it as data frames, with pandas

A file is read when it is asked for. A last line of metrics that a kill cut short is left out; any other damage is a
UserError with file, line and key. The records are in `record_types.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from nemo_aopsd.config.checks import adapter
from nemo_aopsd.config.extension import is_own
from nemo_aopsd.config.schema import AOPSDConfig, Config
from nemo_aopsd.console import counted
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import complete_lines, read_lines
from nemo_aopsd.method.curriculum import build_curriculum
from nemo_aopsd.run import layout
from nemo_aopsd.run.folder import commands_of, load_run_config
from nemo_aopsd.run.record_types import Competence, Evaluation, Rollout, StepMetrics

if TYPE_CHECKING:
    from nemo_aopsd.run.frames import Frames

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """A run folder. Lists are in order of step or epoch, and empty where nothing is there yet."""

    path: Path
    config: Config

    def __repr__(self) -> str:
        """Short, and without reading what may be damaged."""
        metrics = self.path / layout.METRICS
        steps = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
        return f"Run({self.path}: {steps} steps, {len(layout.evaluation_files(self.path))} evaluations)"

    @cached_property
    def commands(self) -> list[str]:
        """The command that made the run, then those that resumed it; none where the config file does not say."""
        return commands_of(self.path)

    @cached_property
    def metrics(self) -> list[StepMetrics]:
        """The numbers of each step."""
        return read_metrics(self.path)

    @cached_property
    def competence(self) -> list[Competence]:
        """By problem, before training and after each epoch."""
        return [parse(Competence, line, where) for where, line in complete_lines(self.path / layout.COMPETENCE)]

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """Those that training itself made, on its held-out problems."""
        return read_evaluations(self.path, self.metrics)

    def rollouts(self, first_step: int = 1, last_step: float = math.inf) -> Iterator[Rollout]:
        """The rollouts of these steps, in order of steps."""
        for step, path in layout.rollout_files(self.path).items():
            if first_step <= step <= last_step:
                yield from (parse(Rollout, line, where) for where, line in read_lines(path))

    @property
    def is_finished(self) -> bool:
        """Whether it has used up its epochs or another limit of its config, and so ended by itself."""
        last = self.metrics[-1].get if self.metrics else {}.get
        tokens, seconds = last("rollout/total_tokens") or 0, last("time/total") or 0
        return bool(used_up(self.config.aopsd, self.epochs_done, self.num_steps, tokens, seconds))

    @property
    def num_steps(self) -> int:
        """Steps done."""
        return self.metrics[-1].step if self.metrics else 0

    @property
    def epochs_done(self) -> int:
        """Finished epochs."""
        return max((state.epoch for state in self.competence), default=0)

    @property
    def steps_done(self) -> str:
        """Steps done in words, and of how many where the config and the problems tell: `29 of 36 steps`."""
        planned = self._num_steps_planned()
        return f"{self.num_steps} of {counted(planned, 'step')}" if planned else counted(self.num_steps, "step")

    def caution(self, step: int, name: str) -> str:
        """What is to be said first of a comparison by the evaluation at a step, unless that is where the run ended."""
        if self.is_finished and step == self.num_steps:
            return ""
        state = "has no evaluation of its end" if self.is_finished else "is unfinished"
        compared = f"compared at its step {step}" if step else "its only evaluation is from before training"
        return f"{name} {state} ({self.steps_done}); {compared}"

    def _num_steps_planned(self) -> int | None:
        """None where a limit of tokens or seconds decides, or a curriculum of the user's that ended no epoch yet."""
        aopsd = self.config.aopsd
        if aopsd.max_response_tokens or aopsd.max_train_seconds or not self.competence:
            return None
        if self.epochs_done:
            an_epoch = sum(row.epoch == 0 for row in self.metrics)
        elif is_own(aopsd.curriculum.name):
            return aopsd.max_num_steps
        else:
            ids, size = list(self.competence[0].competence), aopsd.num_prompts_per_step
            an_epoch = len(build_curriculum(ids, aopsd.curriculum, size, aopsd.seed).batches())
        whole = an_epoch * aopsd.max_num_epochs
        return whole if aopsd.max_num_steps is None else min(whole, aopsd.max_num_steps)

    def frames(self) -> Frames:
        """The same as pandas data frames. Raises UserError if pandas is not installed."""
        from nemo_aopsd.run.frames import frames_of

        return frames_of(self)


def used_up(aopsd: AOPSDConfig, epochs: int, steps: int, tokens: float, seconds: float) -> dict[str, float]:
    """The limits of the config that a run which has done so much has reached."""
    used = {"max_num_epochs": epochs, "max_num_steps": steps}
    used |= {"max_response_tokens": tokens, "max_train_seconds": seconds}
    limits = {key: getattr(aopsd, key) for key in used}
    return {key: limit for key, limit in limits.items() if limit is not None and used[key] >= limit}


def load_run(path: Path | str) -> Run:
    """The run in a folder. Raises UserError if there is none."""
    path = Path(path)
    return Run(path, load_run_config(path))


def read_metrics(run: Path) -> list[StepMetrics]:
    """The numbers of each step of the run in a folder, 1 to the last; its config is not read."""
    rows = [_step_metrics(line, where) for where, line in complete_lines(run / layout.METRICS)]
    for step, row in enumerate(rows, start=1):
        if row.step != step:
            raise UserError(
                f"{row.where}: expected step {step}, got {row.step}: lines are lost or doubled. Restore the file."
            )
    return rows


def read_evaluations(run: Path, metrics: Sequence[StepMetrics]) -> list[Evaluation]:
    """Those of training in the folder of a run, whose steps these are; its config is not read."""
    found = []
    for epoch, path in layout.evaluation_files(run).items():
        steps = [row.step for row in metrics if row.epoch < epoch]
        if epoch and not steps:
            raise UserError(f"{run / layout.METRICS}: has no step before {path}. Restore the file.")
        record = parse(Evaluation, path.read_bytes(), str(path))
        found.append(replace(record, epoch=epoch, step=max(steps, default=0)))
    return found


def parse(kind: type[T], content: bytes, where: str) -> T:
    """A JSON object as a record of a dataclass, its types checked; keys that the dataclass lacks are passed over.

    Raises UserError with `where` and the key, if the content is damaged.
    """
    try:
        record: Any = adapter(kind).validate_json(content, strict=True)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(map(str, fault["loc"]))
        found = "nothing" if fault["type"] == "missing" else repr(fault["input"])[:40]
        said = fault["msg"].removeprefix("Value error, ") + (f", got {found}" if key else "")
        raise UserError(f"{where}: {f'`{key}`: ' if key else ''}{said}. Restore or delete the file.") from error
    return replace(record, where=where) if hasattr(record, "where") else record


def _step_metrics(line: bytes, where: str) -> StepMetrics:
    values = parse(dict[str, float | None], line, where)
    row = StepMetrics(epoch=0, step=0, values=values, where=where)
    return replace(row, epoch=int(row.number("epoch")), step=int(row.number("step")))
