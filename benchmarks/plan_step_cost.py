"""What `aopsd plan` predicts for the steps that `step_cost_nemo.py` measured, stage by stage.

    python -m benchmarks.plan_step_cost MEASURED.json [--fit OTHER.json]

MEASURED is what that benchmark's `--json` wrote, the card included. It takes no optimizer step, so none is predicted.
`--fit` first fits the constants to both arms of OTHER, as `aopsd plan --fit` does with runs, so that the shipped ones
and those of one run can be held against another.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.step_cost_nemo import STAGES, arm_named, make_config
from nemo_aopsd.cluster.plan import Plan, make_plan
from nemo_aopsd.cluster.plan.compare import compare
from nemo_aopsd.cluster.plan.fitting import fit, with_fit
from nemo_aopsd.cluster.plan.stages import add, optimizer, step_terms, times

NOTHING = 0.01  # seconds: a stage that was passed through


@dataclass(frozen=True)
class MeasuredArm:
    """The part of a measured run that comparing and fitting ask for."""

    found: dict[str, Any]
    name: str

    def seconds(self) -> dict[str, float]:
        """Median seconds of the stages that this arm has."""
        stages = self.found["seconds"][self.name]
        return {stage: stages[stage]["median"] for stage in STAGES if stages[stage]["greatest"] > NOTHING}

    def plan(self) -> Plan:
        """Of this arm on the card that it ran on, with every length as it was forced and without Adam."""
        found = self.found
        steps = [step for step in found["steps"] if step["arm"] == self.name]
        overrides = [*found["overrides"], "data.train.data_path=none"]
        config = make_config(argparse.Namespace(**found | {"overrides": overrides}), Path("Qwen/Qwen3-4B"))
        config = arm_named(self.name).applied(config, threshold=1.0)
        lengths = {
            "question": found["question"],
            "teacher_prompt": found["teacher_prompt"],
            "response": found["tokens"],
            "longest": found["tokens"],
            "probes": sum(step["num_probes"] for step in steps) / len(steps),
        }
        plan = make_plan(config, card(found["device"]))
        work = replace(plan.work, **lengths)
        terms = step_terms(plan.setup, work)
        adam = {name: amount for name, amount in optimizer(plan.setup).items() if name != "turn"}
        return replace(plan, work=work, terms=terms | {"update": add(terms["update"], times(-1, adam))})


def card(device: str) -> str:
    """The plan's name of what CUDA calls `device`.

    >>> card("NVIDIA H100 80GB HBM3")
    'h100'
    """
    return next(name for name in ("h100", "h200") if name in device.lower())


def arms(path: Path) -> list[MeasuredArm]:
    found = json.loads(path.read_text(encoding="utf-8"))
    return [MeasuredArm(found, name) for name in found["seconds"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--fit", type=Path)
    arguments = parser.parse_args()
    constants = None
    if arguments.fit:
        pairs = [(arm, arm.plan()) for arm in arms(arguments.fit)]
        fitted = fit(pairs)
        constants = with_fit(pairs[0][1].constants, fitted)
        for each in fitted:
            print(f"{each.after.name:20} {each.before.value:9.4g} -> {each.after.value:9.4g}  {each.after.status}")
    for arm in arms(arguments.measured):
        plan = arm.plan()
        for line in compare(arm, replace(plan, constants=constants) if constants else plan):
            error = "" if line.error is None else f"{line.error:+.0%}"
            print(f"{arm.name:14}{line.stage:10}{line.predicted or 0:8.2f}{line.measured or 0:8.2f} {error:>6}")


if __name__ == "__main__":
    main()
