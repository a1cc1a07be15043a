"""A run folder as the cost model sees it: seconds by stage, and how long its rows were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nemo_aopsd.cluster.plan import workload
from nemo_aopsd.cluster.plan.workload import Workload
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_journal
from nemo_aopsd.run.folder import load_run_config

# The engine changes turns when a stage needs it, so the refit is within the rollout's seconds.
WITHIN = {"refit": "rollout"}


@dataclass(frozen=True)
class Measured:
    """Steps of one run but the first, which compiles, loads and warms up."""

    folder: Path
    config: Config
    steps: list[dict[str, float]]

    def seconds(self) -> dict[str, float]:
        """Median seconds of each stage that was timed."""
        timed = {key for step in self.steps for key in step if key.startswith("time/")} - {"time/step", "time/total"}
        return {
            key.removeprefix("time/"): median(step[key] for step in self.steps if key in step) for key in sorted(timed)
        }

    def workload(self, planned: Workload) -> Workload:
        """`planned` with the lengths of this run's rows."""
        return workload.from_rollouts(planned, self._records(), len(self.steps), str(self.folder), self.config.aopsd)

    def _records(self) -> Iterator[dict[str, Any]]:
        for step in self.steps:
            path = self.folder / "rollouts" / f"step_{int(step['step']):06d}.jsonl"
            if not path.is_file():
                raise UserError(
                    f"{path}: not there, so its rows' lengths are unknown. Restore it, or take another run."
                )
            yield from read_journal(path, "response", "student_prompt", "teacher_prompt", "judge_text", "probes")


def read_run(folder: Path) -> Measured:
    """Raises UserError if `folder` is no run, or one of fewer than two steps."""
    config = load_run_config(folder)
    steps = list(read_journal(folder / "metrics.jsonl", "step"))[1:]
    if not steps:
        raise UserError(
            f"{folder}: fewer than two steps in metrics.jsonl; the first, which warms up, is left out. Run more."
        )
    return Measured(folder, config, steps)


def by_measured_stage(predicted: dict[str, Any]) -> dict[str, list[Any]]:
    """Predicted stages under the names that a run times them by."""
    found: dict[str, list[Any]] = {}
    for stage, value in predicted.items():
        found.setdefault(WITHIN.get(stage, stage), []).append(value)
    return found
