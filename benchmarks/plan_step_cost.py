"""What `aopsd plan` predicts for the steps that `step_cost_nemo.py` measured, stage by stage.

    python -m benchmarks.plan_step_cost MEASURED.json

MEASURED is what that benchmark's `--json` wrote, the card included. No optimizer step is predicted; one that was taken
(`--adam`) is in the measured update.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.arms import STAGES, STOCK, config_of, split
from benchmarks.step_cost_nemo import make_config
from nemo_aopsd.cluster.plan import make_plan
from nemo_aopsd.cluster.plan.stages import step_seconds
from nemo_aopsd.config.schema import Config

NOTHING = 0.01  # seconds: a stage that was passed through


@dataclass(frozen=True)
class Line:
    """Seconds of one stage of an arm; `measured` is None for a stage that was not timed."""

    arm: str
    stage: str
    predicted: float
    measured: float | None

    @property
    def error(self) -> float | None:
        """Of the prediction, relative to what was measured."""
        return self.predicted / self.measured - 1 if self.measured else None


def compare(path: Path) -> Iterator[Line]:
    """A line a stage of each arm, then their sums over the stages that were timed."""
    found = json.loads(path.read_text(encoding="utf-8"))
    scoring = found.get("scoring", "trainer")  # the default of the first runs, which do not name it
    overrides = [f"aopsd.scoring={scoring}", *found["overrides"], "data.train.data_path=none"]
    config = make_config(
        argparse.Namespace(**{"adam": False} | found | {"overrides": overrides}), Path("Qwen/Qwen3-4B")
    )
    for arm, stages in found["seconds"].items():
        if split(arm)[0] == STOCK:  # not a step of ours
            continue
        timed_stages = [stage for stage in STAGES if stage in stages]  # older files know no judge
        measured = {stage: stages[stage]["median"] for stage in timed_stages if stages[stage]["greatest"] > NOTHING}
        predicted = predict(found, arm, config)
        predicted["rollout"] += predicted.pop("refit")  # the engine changes turns within the rollout
        yield from (Line(arm, stage, seconds, measured.get(stage)) for stage, seconds in predicted.items())
        timed = sum(seconds for stage, seconds in predicted.items() if stage in measured)
        yield Line(arm, "total", timed, sum(measured[stage] for stage in predicted if stage in measured))


def predict(found: dict[str, Any], arm: str, config: Config) -> dict[str, float]:
    """Seconds by stage on the card that the arm ran on, with every length as it was forced."""
    steps = [step for step in found["steps"] if step["arm"] == arm]
    plan = make_plan(config_of(arm, config, 1.0), card(found["device"]))
    work = replace(
        plan.work,
        question=found["question"],
        teacher_prompt=found["teacher_prompt"],
        response=found["tokens"],
        longest=found["tokens"],
        probes=sum(step["num_probes"] for step in steps) / len(steps),
    )
    return step_seconds(plan.setup, work)


def card(device: str) -> str:
    """The plan's name of what CUDA calls `device`.

    >>> card("NVIDIA H100 80GB HBM3")
    'h100'
    """
    return next(name for name in ("h100", "h200") if name in device.lower())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    path = parser.parse_args().measured
    print(f"{'arm':21}{'stage':10}{'plan, s':>8}{'run, s':>8} {'error':>6}")
    for line in compare(path):
        measured, error = ("", "") if line.error is None else (f"{line.measured:.2f}", f"{line.error:+.0%}")
        print(f"{line.arm:21}{line.stage:10}{line.predicted:8.2f}{measured:>8} {error:>6}")


if __name__ == "__main__":
    main()
