"""Which rollouts of a run a diagnostic reads."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from nemo_aopsd.errors import UserError
from nemo_aopsd.run import layout
from nemo_aopsd.run.reader import Run
from nemo_aopsd.run.record_types import Rollout


@dataclass(frozen=True)
class Steps:
    """Which steps of a run to read, both ends included; None leaves an end open."""

    first: int | None = None
    last: int | None = None

    def __str__(self) -> str:
        return f"{'start' if self.first is None else self.first} to {'end' if self.last is None else self.last}"


ALL_STEPS = Steps()


def read_rollouts(run: Run, steps: Steps = ALL_STEPS) -> Iterator[Rollout]:
    """The saved rollouts of `steps`, in order. Raises UserError if there is none."""
    place = run.path / layout.ROLLOUTS
    files = [*layout.rollout_files(run.path).values()]
    if not files:
        raise UserError(f"{place}: no step_*.jsonl, so no rollout to read. Let the run finish its first step.")
    rollouts = run.rollouts(steps.first or 1, math.inf if steps.last is None else steps.last)
    if (first := next(rollouts, None)) is None:
        have = f"{files[0].stem} to {files[-1].stem}"
        raise UserError(f"{place}: no rollout of steps {steps} (there are {have}). Choose other steps.")
    yield first
    yield from rollouts
