"""From 8 to 1,024 GPUs and from 4B to 235B-A22B: the fastest parallel sizes that fit, and what they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from nemo_aopsd.cluster.doctor.memory import Layout
from nemo_aopsd.cluster.doctor.model_size import ModelSize
from nemo_aopsd.cluster.plan import Plan
from nemo_aopsd.cluster.plan.models import published
from nemo_aopsd.cluster.plan.setup import A_NODE, fits, rows_at_once, spread
from nemo_aopsd.cluster.plan.stages import MOST_ROWS, Setup, step_terms
from nemo_aopsd.cluster.plan.workload import Workload

GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)
MODELS = ("Qwen3-4B", "Qwen3-8B", "Qwen3-32B", "Qwen3-30B-A3B", "Qwen3-235B-A22B")
ALIKE = 1.05  # the model is not good enough to tell these apart


@dataclass(frozen=True)
class Row:
    """One model on one number of GPUs; without a layout where none of those tried fits."""

    model: str
    gpus: int
    rows: int
    layout: Layout | None = None
    stages: dict[str, float] | None = None  # seconds of a step

    @property
    def seconds(self) -> float:
        return sum(self.stages.values())

    @property
    def bottleneck(self) -> str:
        return max(self.stages, key=self.stages.get)

    @property
    def hours_per_thousand(self) -> float:
        """GPU-hours of 1,000 rollouts."""
        return self.seconds * self.gpus / 3600 / self.rows * 1000


def scaling(plan: Plan, per_gpu: float | None) -> list[Row]:
    """Of the plan's lengths and constants. `per_gpu` rollouts a GPU, or None: the config's rollouts on any number."""
    return [
        best(plan, model, published()[model], gpus, round(per_gpu * gpus) if per_gpu else plan.work.rows)
        for model in MODELS
        for gpus in GPUS
    ]


def best(plan: Plan, name: str, size: ModelSize, gpus: int, rows: int) -> Row:
    """Of the layouts that fit and are within ALIKE of the fastest, the one that splits the model least."""
    work = plan.work.scaled(rows)
    found = []
    for layout in layouts(plan.setup.layout, size, gpus):
        setup = _setup(plan, size, replace(layout, rows_per_step=rows), work)
        if setup:
            stages = {stage: plan.constants.seconds(terms) for stage, terms in step_terms(setup, work).items()}
            found.append(Row(name, gpus, rows, setup.layout, stages))
    if not found:
        return Row(name, gpus, rows)
    limit = ALIKE * min(row.seconds for row in found)
    return min((row for row in found if row.seconds <= limit), key=_splits)


def _splits(row: Row) -> tuple[int, int, int, float]:
    return row.layout.tp * row.layout.pp, row.layout.ep, row.layout.sampler_tp, row.seconds


def layouts(base: Layout, size: ModelSize, gpus: int) -> Iterator[Layout]:
    """Powers of two that divide the GPUs, heads, layers' stages and experts; TP within a node."""
    experts = (1, 2, 4, 8, 16, 32, 64) if size.is_moe else (1,)
    powers = [1, 2, 4, 8, 16]
    heads = size.query_width // size.head_width
    for tp, pp, ep, sampler_tp in product(powers, powers, experts, powers):
        whole = gpus % (tp * pp) == 0 and gpus % (ep * pp) == 0 and gpus % sampler_tp == 0
        if whole and tp <= A_NODE and heads % tp == 0 and heads % sampler_tp == 0 and pp <= len(size.layers):
            yield replace(
                spread(base, gpus), tp=tp, pp=pp, cp=1, ep=ep, etp=1, sampler_tp=sampler_tp, sequence_parallel=tp > 1
            )


def _setup(plan: Plan, size: ModelSize, layout: Layout, work: Workload) -> Setup | None:
    rows = min(rows_at_once(size, layout, plan.setup.gpu, work), MOST_ROWS)
    if rows < 1:
        return None
    setup = Setup(size, plan.setup.gpu, layout, plan.setup.num_bytes, False, rows, layout.pack_tokens)
    return setup if fits(setup) else None
