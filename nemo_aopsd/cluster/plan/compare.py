"""Predicted against measured seconds, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_aopsd.cluster.plan import Plan
from nemo_aopsd.cluster.plan.measured import Measured, by_measured_stage


@dataclass(frozen=True)
class Line:
    """Seconds of one stage of a step; None where it was not planned, or not timed."""

    stage: str
    predicted: float | None
    measured: float | None

    @property
    def error(self) -> float | None:
        """Of the prediction, relative to what was measured."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1


def compare(run: Measured, plan: Plan) -> list[Line]:
    """A line a stage, then their sums over the stages that have both."""
    predicted = {stage: sum(parts) for stage, parts in by_measured_stage(plan.step_seconds).items()}
    measured = run.seconds()
    stages = [*predicted, *(stage for stage in measured if stage not in predicted)]
    lines = [Line(stage, predicted.get(stage), measured.get(stage)) for stage in stages]
    both = [stage for stage in predicted if stage in measured]
    return [*lines, Line("total", sum(predicted[stage] for stage in both), sum(measured[stage] for stage in both))]
