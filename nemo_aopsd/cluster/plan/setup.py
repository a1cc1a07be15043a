"""From a config to the machine that is planned for: parallel sizes, and what the engine does at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nemo_aopsd.cluster.doctor import fit, memory
from nemo_aopsd.cluster.doctor.memory import Layout
from nemo_aopsd.cluster.doctor.model_size import ModelSize
from nemo_aopsd.cluster.doctor.result import Check
from nemo_aopsd.cluster.plan.constants import GPU
from nemo_aopsd.cluster.plan.models import find_size
from nemo_aopsd.cluster.plan.stages import MOST_ROWS, Setup
from nemo_aopsd.cluster.plan.workload import Workload
from nemo_aopsd.config.checks import select
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError

_LOCAL_BATCHES = {"generation_batch_size": 32, "logprob_batch_size": 8, "train_micro_batch_size": 4}
A_NODE = 8  # GPUs


def make_setup(config: Config, gpu: GPU, gpus: int | None, work: Workload) -> Setup:
    """`gpus` goes over the config's own number. Raises UserError where the config's parallel sizes do not divide it."""
    size = find_size(config.policy["model_name"])
    if config.aopsd.engine == "local":
        return _local(config, gpu, gpus, size, work)
    if not select(config.raw, "policy.megatron_cfg.enabled"):
        raise UserError("policy.megatron_cfg.enabled is false: plans are made for Megatron only. Set it to true.")
    layout = memory.read_layout(config)
    if gpus:
        layout = spread(layout, gpus)
    check_divides(layout)
    rows = min(rows_at_once(size, layout, gpu, work), MOST_ROWS)
    if rows < 1:
        raise UserError(
            f"not one row of {work.question + work.longest:.0f} tokens fits in vLLM's cache on {gpu.name}: raise "
            "policy.generation.vllm_cfg.tensor_parallel_size or gpu_memory_utilization. `aopsd doctor` has the table."
        )
    budget = select(config.raw, "policy.sequence_packing.logprob_mb_tokens") or layout.pack_tokens
    return Setup(size, gpu, layout, memory.BF16, False, rows, budget)


def spread(layout: Layout, gpus: int) -> Layout:
    """The same parallel sizes on `gpus` GPUs, in nodes of 8. Raises UserError for a number that fills no nodes."""
    if gpus > A_NODE and gpus % A_NODE:
        raise UserError(f"--gpus {gpus}: beyond one node, expected a multiple of {A_NODE}.")
    return replace(layout, nodes=max(gpus // A_NODE, 1), gpus_per_node=min(gpus, A_NODE))


def check_divides(layout: Layout) -> None:
    whole = {
        "tensor x pipeline x context parallel sizes": layout.tp * layout.pp * layout.cp,
        "expert x expert-tensor x pipeline parallel sizes": layout.ep * layout.etp * layout.pp,
        "vLLM's tensor_parallel_size": layout.sampler_tp,
    }
    for name, ranks in whole.items():
        if layout.gpus % ranks:
            raise UserError(f"{layout.gpus} GPUs: not a multiple of {ranks}, the config's {name}. Change one of them.")


def rows_at_once(size: ModelSize, layout: Layout, gpu: GPU, work: Workload) -> int:
    """Rows whose caches one engine holds together, at the mean length that they end with."""
    cache = layout.utilization * gpu.memory - memory.sampler_weights(size, layout) - memory.SAMPLER_EXTRA
    tokens = max(work.question, work.judge_prompt - work.response) + work.response
    return int(cache // (memory.row_bytes(size, layout) / layout.longest_row * tokens))


def check_memory(setup: Setup, config: Config) -> tuple[list[Check], list[memory.Item]]:
    """The doctor's sums for the planned GPUs."""
    machine = fit.Machine(int(setup.gpu.memory), int(setup.gpu.host_memory))
    if setup.is_local:
        on_cpu = fit.Machine(None, int(setup.gpu.host_memory)) if setup.gpu.kind == "cpu" else machine
        return fit.check_local(setup.size, config.policy, config.aopsd.teacher.weights, on_cpu)
    return fit.check_cluster(setup.size, setup.layout, machine)


def _local(config: Config, gpu: GPU, gpus: int | None, size: ModelSize, work: Workload) -> Setup:
    if gpus and gpus > 1:
        raise UserError(f"--gpus {gpus}: aopsd.engine=local works on one device. Leave it out, or plan for nemo_rl.")
    policy, row = config.policy, work.question + work.response
    batches: dict[str, Any] = {key: policy.get(key) or default for key, default in _LOCAL_BATCHES.items()}
    is_single = (policy.get("precision") or "float32") == "float32"
    ones = dict.fromkeys(("nodes", "gpus_per_node", "tp", "pp", "cp", "ep", "etp", "sampler_tp"), 1)
    layout = Layout(
        **ones,
        sequence_parallel=False,
        pack_tokens=max(round(batches["train_micro_batch_size"] * row), 1),
        longest_row=config.max_row_tokens,
        rows_per_step=work.rows,
        utilization=1.0,
        recompute=False,
        chunk=None,
        fp32_gradients=is_single,
        fp8=False,
        offloaded=0.0,
        keeps_cache=False,
    )
    score_tokens = max(round(batches["logprob_batch_size"] * row), 1)
    num_bytes, replays_graphs = 4 if is_single else 2, gpu.kind != "cpu" and not policy.get("enforce_eager")
    return Setup(size, gpu, layout, num_bytes, True, batches["generation_batch_size"], score_tokens, replays_graphs)
