"""`aopsd plan`: predicted seconds and GPU-hours of a run, as far as similar steps were measured.

docs/scaling.md has the formulas, and what was measured.
"""

import sys
from dataclasses import dataclass, replace

from nemo_aopsd.cluster.doctor import fit, memory
from nemo_aopsd.cluster.doctor.memory import Item, Layout
from nemo_aopsd.cluster.doctor.model import ModelSize, check_model, read_size
from nemo_aopsd.cluster.doctor.result import Check
from nemo_aopsd.cluster.plan import rates
from nemo_aopsd.cluster.plan.rates import GPU, GPUS, Rates
from nemo_aopsd.cluster.plan.stages import MOST_ROWS, Setup, first_seconds, step_seconds
from nemo_aopsd.cluster.plan.workload import Workload, from_config
from nemo_aopsd.cluster.rules import broken_sizes, gpu_faults, refuse
from nemo_aopsd.cluster.tree import Tree
from nemo_aopsd.config.keys import where
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError


@dataclass(frozen=True)
class Unrecomputed:
    """What training would take with `activation_checkpointing=false`."""

    memory: float  # bytes of one GPU
    update_seconds: float  # of a step


@dataclass(frozen=True)
class Plan:
    """What one run takes. `step_seconds` by stage, and `first_seconds` before the first epoch: empty and 0 where
    nothing like it was measured, as `unmeasured` says."""

    setup: Setup
    work: Workload
    step_seconds: dict[str, float]
    first_seconds: float
    unmeasured: list[str]
    checks: list[Check]
    memory: list[Item]
    notes: list[str]
    unrecomputed: Unrecomputed | None  # where that would fit
    run_steps: int  # at most: a budget of tokens may end the run sooner

    @property
    def run_seconds(self) -> float:
        return self.first_seconds + sum(self.step_seconds.values()) * self.run_steps

    @property
    def epoch_seconds(self) -> dict[str, float]:
        return {stage: seconds * self.work.steps for stage, seconds in self.step_seconds.items()}

    @property
    def errors(self) -> rates.Errors:
        """Least and greatest of the seconds' relative errors by stage; none where no step like these was measured."""
        return {} if _is_extrapolation(self.setup) else rates.ERRORS

    def gpu_hours(self, seconds: float) -> float:
        return seconds * self.setup.layout.gpus / 3600


@dataclass(frozen=True)
class LocalPlan:
    """What can be said of a run on one machine: its work and its memory. No seconds: machines differ too much."""

    size: ModelSize
    work: Workload
    memory: list[Item]
    gpu: GPU | None  # None: on the processor
    checks: list[Check]  # whether it fits on that GPU


def make_local_plan(config: Config, gpu: str | None = None, response: int | None = None) -> LocalPlan:
    """Of `aopsd.engine=local`, all on one GPU of the kind `gpu`, or on the processor.

    Raises UserError for a model that cannot be found.
    """
    sheet, size = _sheet(gpu) if gpu else None, _read_size(config)
    items = memory.local_items(size, config, "gpu" if sheet else "host")
    checks = [fit.check_local(items, sheet.memory)] if sheet else []
    return LocalPlan(size, from_config(config, response), items, sheet, checks)


def make_plan(config: Config, gpu: str, response: int | None = None) -> Plan:
    """Plan `config` on GPUs of the kind `gpu`, with responses of `response` tokens on average.

    Raises UserError for another backend, and for parallel sizes that do not divide the GPUs.
    """
    sheet, tree = _sheet(gpu), Tree(config.raw)
    if not tree.uses_megatron:
        remedy = "Set policy.megatron_cfg.enabled=true, or time two steps of a run: aopsd.max_num_steps=2."
        raise UserError(f"aopsd plan: DTensor was not measured. {remedy}")
    refuse(broken_sizes(tree))
    refuse(gpu_faults(tree))
    size, layout = _read_size(config), memory.read_layout(config)
    work = from_config(config, response)
    pack = tree["policy.sequence_packing.logprob_mb_tokens"] or layout.pack_tokens
    setup = Setup(size, sheet, layout, Rates(), rows_at_once(size, layout, sheet, work), pack)
    unmeasured = _unmeasured(size, layout)
    checks, items = fit.check_cluster(size, layout, sheet.memory, rates.HOST_MEMORY)
    return Plan(
        setup,
        work,
        {} if unmeasured else step_seconds(setup, work),
        0.0 if unmeasured else first_seconds(setup, work),
        unmeasured,
        checks,
        items,
        _notes(setup, work),
        None if unmeasured else _unrecomputed(setup, work),
        min(config.aopsd.max_num_epochs * work.steps, config.aopsd.max_num_steps or sys.maxsize),
    )


def rows_at_once(size: ModelSize, layout: Layout, gpu: GPU, work: Workload) -> int:
    """Rows whose caches one engine holds together, at the mean length that they end with."""
    tokens = max(work.question, work.judge_prompt - work.response) + work.response
    rows = memory.cache_room(size, layout, gpu.memory) // (memory.cache_bytes(size, layout) * tokens)
    return max(min(int(rows), MOST_ROWS), 1)


def _unrecomputed(setup: Setup, work: Workload) -> Unrecomputed | None:
    need = fit.unrecomputed(setup.size, setup.layout, setup.gpu.memory)
    keeping = replace(setup, layout=replace(setup.layout, recompute=False))
    return Unrecomputed(need, step_seconds(keeping, work)["update"]) if need else None


def _sheet(gpu: str) -> GPU:
    if gpu not in GPUS:
        raise UserError(f"--gpu {gpu}: expected one of {', '.join(GPUS)}, on which steps were measured.")
    return GPUS[gpu]


def _read_size(config: Config) -> ModelSize:
    check, content = check_model(config.policy["model_name"], config.aopsd.engine)
    if content is None:
        place = where(config, "policy.model_name")
        raise UserError(f"{place}: policy.model_name={check.found}; expected {check.expected}. {check.remedy}.")
    return read_size(content)


def _unmeasured(size: ModelSize, layout: Layout) -> list[str]:
    """What of the config was never measured, so that no seconds can be stated."""
    found = {
        "a mixture of experts": size.experts_per_token > 0,
        "FP8": layout.fp8,
        f"{layout.nodes} nodes": layout.nodes > 1,
        f"pipeline_model_parallel_size={layout.pp}": layout.pp > 1,
        f"context_parallel_size={layout.cp}": layout.cp > 1,
    }
    return [name for name, is_there in found.items() if is_there]


def _is_extrapolation(setup: Setup) -> bool:
    is_machine = setup.gpu == rates.GPUS["h200"] and setup.layout.gpus <= rates.MEASURED_GPUS
    return not (is_machine and setup.size.total == rates.MEASURED_MODEL)


def _notes(setup: Setup, work: Workload) -> list[str]:
    """What the numbers do not cover, for this config."""
    left_out = "Adam's step and its way from host memory, the exchange of gradients, checkpoints, evaluations"
    notes = [f"not in the seconds: {left_out}; the rollout's error is that of refit and rollout together"]
    if _is_extrapolation(setup):
        other = "a step of a 1.5B with short rows took 1.8 times what this plans"
        notes.append(f"an extrapolation, of unknown error: steps were measured with {rates.MEASURED}; {other}")
    if work.missing:
        notes.append(f"no file data.train.data_path={work.missing}: {work.problems} problems are assumed")
    return notes
