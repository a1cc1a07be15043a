"""Whether a stage of a step has become slower than in a file: `python -m benchmarks.step_cost --baseline FILE`.

On one GPU through NeMo RL `python -m benchmarks.step_cost_nemo --baseline FILE`, in seconds, on the same card only.

A stage is slower if its median is at least 1.05 of the file's, and the 99 % interval of that ratio is above 1, and both
once more in a second measurement. On a busy machine chance is large, and only a large change is seen. Another version
of torch or transformers, or another kind of machine, may move a stage: make the file anew from a commit that is known
to be fast.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

SLOWER, CERTAIN = 1.05, 0.99  # a stage over the file's; of the interval that must be above 1
LEAST_SHARE = 0.03  # of a step: smaller stages are not looked at
NOT_STAGES = {"whole step", "processor time"}
Stages = dict[str, list[float]]  # of each step, as multiples of the yardstick or in seconds


def over(runs: dict[str, list[dict[str, float]]], rods: list[float]) -> Stages:
    """Each stage of each arm as multiples of the yardstick beside it."""
    found = Stages()
    for arm, steps in runs.items():
        whole = statistics.median(step["processor time"] for step in steps)
        for stage in steps[0].keys() - NOT_STAGES:
            values = [step[stage] for step in steps]
            if statistics.median(values) > LEAST_SHARE * whole:
                found[f"{arm}: {stage}"] = [round(a / b, 4) for a, b in zip(values, rods, strict=True)]
    return dict(sorted(found.items()))


def here() -> dict[str, str]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"device": device, "torch": torch.__version__, "transformers": transformers.__version__}


def write(path: Path, stages: Stages, sizes: dict[str, Any]) -> None:
    path.write_text(json.dumps({**here(), "sizes": sizes, "stages": stages}) + "\n", encoding="utf-8")


def hold_against(path: Path, found: Stages, again: Callable[[], Stages]) -> int:
    """`verdict` on the file's stages; says where the file was made with something else."""
    then = json.loads(path.read_text(encoding="utf-8"))
    for name, value in here().items():
        if then[name] != value:
            print(f"{name}: {then[name]} in {path}, {value} here")
    return verdict(then["stages"], found, again, "multiples of the yardstick")


def verdict(then: Stages, found: Stages, again: Callable[[], Stages], unit: str) -> int:
    """Prints a line a stage; 1 if one has become slower."""
    slower = compare(then, found, unit)
    if slower:
        print(f"once more, for it seems slower: {', '.join(sorted(slower))}")
        slower &= compare(then, again(), unit)
    print(f"SLOWER: {', '.join(sorted(slower))}" if slower else "no stage is slower")
    return 1 if slower else 0


def compare(then: Stages, found: Stages, unit: str) -> set[str]:
    """Stages that are slower. One that the file does not have is told, no more."""
    slower = set[str]()
    print(f"{unit:32}{'then':>8}{'now':>8}{'ratio':>8}  {CERTAIN:.0%} interval")
    for stage, values in found.items():
        if stage not in then:
            print(f"{stage:32}{'new':>8}{statistics.median(values):8.3f}")
            continue
        before, after = statistics.median(then[stage]), statistics.median(values)
        low, high = interval(then[stage], values)
        if after >= SLOWER * before and low > 1:
            slower.add(stage)
        print(f"{stage:32}{before:8.3f}{after:8.3f}{after / before:8.3f}  {low:.3f} to {high:.3f}")
    return slower


def interval(then: list[float], found: list[float]) -> tuple[float, float]:
    """Percentile bootstrap of the ratio of medians."""
    rng = random.Random(0)
    ratios = sorted(
        statistics.median(rng.choices(found, k=len(found))) / statistics.median(rng.choices(then, k=len(then)))
        for _ in range(2000)
    )
    outside = int(len(ratios) * (1 - CERTAIN) / 2)
    return ratios[outside], ratios[-1 - outside]
