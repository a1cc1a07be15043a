"""The arms of step_cost_nemo.py: what each trains with, the numbers of a step, and the table of them.

An arm is METHOD[@SCORING][:RATE]. `uniform` is PG, `continuation` PG with a request a probe, `batched` PG
with probes in batches, `aopsd` the same with a judge and what it finds of a graph, `topk16` the forward KL over 16
tokens, and `grpo` NeMo RL's own GRPO.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import statistics
from collections.abc import Sequence
from typing import Any, get_args

from nemo_aopsd.config.schema import Config, Scoring

GOAL = 1.05  # the paper measured 1.125
STOCK = "grpo"
SHARED, SHARED_GOAL = ("rollout", "update"), 1.02  # stages of PG and of stock GRPO
STAGES = ("rollout", "judge", "student", "teacher", "probes", "update")
PG = {
    "uniform": "PG",
    "continuation": "PG + continuation",
    "batched": "PG + continuation in batches",
    "aopsd": "AOPSD with a judge",
}  # arms on sampled tokens


def label_of(arm: str) -> str:
    method, scoring, rate = split(arm)
    if method == STOCK:
        return "NeMo RL's GRPO"
    label = (PG.get(method) or f"top-{method[4:]} forward KL") + (scoring and f", {scoring}")
    return label if rate is None else f"{label}, {rate:.1%}"


def checked(arm: str) -> str:
    """`arm` as it is. Raises ArgumentTypeError if it is none: an engine starts for minutes before one is looked at."""
    form = re.fullmatch(rf"({'|'.join(PG)}|topk\d+|{STOCK})(@({'|'.join(get_args(Scoring))}))?(:0?\.\d+)?", arm)
    if not form:
        raise argparse.ArgumentTypeError(f"{arm}: expected METHOD[@SCORING][:RATE], such as batched@sampler:0.02")
    return arm


def split(arm: str) -> tuple[str, str, float | None]:
    """Method, scoring and share of probed tokens; no scoring where the config says it, None for `--rate`."""
    name, _, rate = arm.partition(":")
    method, _, scoring = name.partition("@")
    return method, scoring, float(rate) if rate else None


def plain(arm: str) -> str:
    """PG with the scoring of `arm`."""
    return "@".join(filter(None, ("uniform", split(arm)[1])))


def config_of(arm: str, config: Config, threshold: float) -> Config:
    """`config` with the method of this arm and `threshold` nats for probes."""
    method, scoring, _ = split(arm)
    runner = "batched" if method in ("batched", "aopsd") else "requests"
    probes = dataclasses.replace(config.aopsd.probes, threshold=threshold, runner=runner)
    aopsd = dataclasses.replace(config.aopsd, probes=probes, scoring=scoring or config.aopsd.scoring)
    if method == "aopsd":
        context = dataclasses.replace(aopsd.context, kind="dag_frontier")
        judge = dataclasses.replace(aopsd.judge, kind="log_odds")  # always readable, also of random weights
        aopsd = dataclasses.replace(aopsd, context=context, judge=judge)
    if method in PG or method == STOCK:
        weighting = "uniform" if method in ("uniform", STOCK) else "continuation"
        return dataclasses.replace(config, aopsd=dataclasses.replace(aopsd, weighting=weighting))
    objective = dataclasses.replace(aopsd.objective, name="topk_fkl", top_k=int(method[4:]))
    return dataclasses.replace(config, aopsd=dataclasses.replace(aopsd, weighting="uniform", objective=objective))


@dataclasses.dataclass(frozen=True)
class Step:
    """One step that was run. `seconds` by stage, by part (see `watch`) and in `total`; `rate` is of all tokens."""

    arm: str
    seconds: dict[str, float]
    lengths: list[int]  # of the responses, each once, ascending
    threshold: float  # nats
    rate: float | None  # None where no sampled token is scored
    num_probes: int
    mean_suffix: float

    def __str__(self) -> str:
        rate = "" if self.rate is None else f", {self.rate:.3%} at the threshold"
        work = f"responses of {self.lengths} tokens{rate}, {self.num_probes} probes, mean suffix {self.mean_suffix:.1f}"
        return f"{label_of(self.arm)}: {self.seconds['total']:.1f} s; {work}"


def summary(steps: Sequence[Step]) -> dict[str, Any]:
    """Median, least and greatest seconds by arm and stage, and each arm's totals over its base's, by round.

    `shared`: the stages that PG has in common with stock GRPO over GRPO's, if that is among the arms.
    """
    runs: dict[str, list[dict[str, float]]] = {}
    for step in sorted(steps, key=lambda step: (split(step.arm)[1], split(step.arm)[0] != "uniform", step.arm)):
        runs.setdefault(step.arm, []).append(step.seconds)
    parts = sorted({name for step in steps for name in step.seconds} - {*STAGES, "total"})
    names = (*STAGES, "total", *parts)
    seconds = {arm: {name: _spread(run.get(name, 0.0) for run in runs[arm]) for name in names} for arm in runs}
    ratios = {
        arm: {"over": base} | _spread(a["total"] / b["total"] for a, b in zip(runs[arm], runs[base], strict=True))
        for arm, base in ((arm, _base(arm, list(runs))) for arm in runs)
        if arm != base
    }
    common = {arm: [sum(run[name] for name in SHARED) for run in runs[arm]] for arm in runs}
    shared = {
        arm: _spread(a / b for a, b in zip(common[arm], common[STOCK], strict=True))
        for arm in runs
        if STOCK in runs and split(arm)[0] == "uniform"
    }
    rounds = len(next(iter(runs.values())))
    return {"seconds": seconds, "ratios": ratios, "shared": shared, "rounds": rounds, "goal": GOAL}


def _base(arm: str, arms: list[str]) -> str:
    """PG with the same scoring, or the first arm."""
    return plain(arm) if plain(arm) in arms and plain(arm) != arm else arms[0]


def _spread(values: Any) -> dict[str, float]:
    values = sorted(values)
    return {"median": statistics.median(values), "least": values[0], "greatest": values[-1]}


def report(steps: Sequence[Step]) -> list[str]:
    """The table: seconds and share of each stage by arm; then each arm's ratio, and the stages that add most to it."""
    found = summary(steps)
    arms = found["seconds"]
    lines = [f"{'median seconds (least-greatest)':32}" + "".join(f"{label_of(arm):>32}" for arm in arms)]
    for name in next(iter(arms.values())):
        label = name if name in (*STAGES, "total") else f"  within these: {name}"
        lines.append(f"{label:32}" + "".join(f"{_cell(of[name], of['total']['median']):>32}" for of in arms.values()))
    for arm, ratio in found["ratios"].items():
        base = arms[ratio["over"]]
        first, second, *_ = sorted(STAGES, key=lambda stage: base[stage]["median"] - arms[arm][stage]["median"])
        lines.append(
            f"{label_of(arm)} over {label_of(ratio['over'])}: {ratio['median']:.3f} (median of {found['rounds']} rounds"
            f", {ratio['least']:.3f} to {ratio['greatest']:.3f}); most in {first}, then {second}"
        )
    for arm, ratio in found["shared"].items():
        lines.append(
            f"{' and '.join(SHARED)} of {label_of(arm)} over those of {label_of(STOCK)}: {ratio['median']:.3f} "
            f"({ratio['least']:.3f} to {ratio['greatest']:.3f}); goal {SHARED_GOAL}"
        )
    return [*lines, f"goal for {PG['continuation']}: {GOAL}"]


def _cell(seconds: dict[str, float], whole: float) -> str:
    bounds = f"({seconds['least']:.2f}-{seconds['greatest']:.2f})"
    return f"{seconds['median']:.2f} {bounds} {seconds['median'] / whole:6.1%}"
