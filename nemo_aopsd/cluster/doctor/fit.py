"""Does the config fit? The sums of `memory.py` against the GPU and the host, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nemo_aopsd.cluster.doctor import memory
from nemo_aopsd.cluster.doctor.memory import SAMPLE, TRAIN, Item, Layout
from nemo_aopsd.cluster.doctor.model_size import ModelSize
from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check, gigabytes

ASSUMED_GPU = 81559 * 2**20  # an H100 80GB, where no GPU is to be seen
FULL = 0.9  # of a GPU or of a host; above it is a warning, for the items are estimates
_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Machine:
    """Bytes. `gpu` is None where none is seen, `host` where it is unknown or not the machine that would train."""

    gpu: int | None
    host: int | None


def check_cluster(size: ModelSize, layout: Layout, machine: Machine) -> tuple[list[Check], list[Item]]:
    rows = memory.items(size, layout)
    gpu = machine.gpu or ASSUMED_GPU
    return [
        _training(rows, layout, gpu, machine),
        *_sampling(size, layout, gpu),
        _host(rows, layout, machine.host),
    ], rows


def _level(need: float, have: float) -> str:
    return ERROR if need > have else WARN if need > FULL * have else OK


def _training(rows: list[Item], layout: Layout, gpu: float, machine: Machine) -> Check:
    need = memory.total(rows, "gpu", TRAIN)
    severity = _level(need, gpu)
    assumed = "" if machine.gpu else " (assumed: no GPU here)"
    largest = max((row for row in rows if row.place == "gpu" and TRAIN in row.turns), key=lambda row: row.size)
    remedy = "" if severity == OK else f"Largest is {largest.name}: {_SMALLER.get(largest.name, _SPLIT)}"
    return Check("memory: training", severity, f"{gigabytes(need)} a GPU", f"at most {gigabytes(gpu)}{assumed}", remedy)


_SPLIT = "raise policy.megatron_cfg.tensor_model_parallel_size, pipeline_ or expert_model_parallel_size"
_TOKENS = (
    "raise policy.megatron_cfg.tensor_model_parallel_size with sequence_parallel=true, or context_parallel_size, "
    "or lower policy.max_total_sequence_length"
)
_SMALLER = {
    "activations": f"set policy.megatron_cfg.activation_checkpointing=true, {_TOKENS}",
    "logits": f"set policy.logprob_chunk_size=2048 with policy.megatron_cfg.defer_fp32_logits=true, {_TOKENS}",
    "optimizer": "use more GPUs, which share it, or policy.megatron_cfg.optimizer.optimizer_cpu_offload=true with "
    "optimizer_offload_fraction=1.0",
}


def _sampling(size: ModelSize, layout: Layout, gpu: float) -> list[Check]:
    """vLLM takes its share of the GPU; what weights and work space leave of it is cache."""
    key, share = "policy.generation.vllm_cfg", layout.utilization * gpu
    cache = share - memory.sampler_weights(size, layout) - memory.SAMPLER_EXTRA
    one_row = memory.row_bytes(size, layout)
    fits, wanted = max(int(cache // one_row), 0), layout.rows_per_engine
    severity = ERROR if fits < 1 else WARN if fits < wanted else OK
    remedy = (
        f"Raise {key}.gpu_memory_utilization or {key}.tensor_parallel_size, or lower policy.max_total_sequence_length; "
        "prefixes that are pushed out are read again by each probe"
    )
    found = f"cache {gigabytes(cache)} a GPU, room for {fits} of the longest rows ({gigabytes(one_row)} each)"
    expected = f"at least 1, better the {wanted} of a step"
    room = Check("memory: sampling", severity, found, expected, "" if severity == OK else remedy)
    beside = gpu - share
    needed, who, remedy = memory.CONTEXT, "the sleeping trainer", f"Lower {key}.gpu_memory_utilization"
    if layout.keeps_cache:
        needed, who = needed + memory.scoring(size, layout), "the trainer, which scores beside it"
        remedy = f"Set aopsd.probes.keep_cache=false, or lower {key}.gpu_memory_utilization"
    remedy = "" if beside >= needed else remedy
    expected = f"{gigabytes(needed)} for {who}"
    left = Check("memory: beside vLLM", ERROR if remedy else OK, f"{gigabytes(beside)} a GPU", expected, remedy)
    return [room, left]


def _host(rows: list[Item], layout: Layout, have: int | None) -> Check:
    need = max(memory.total(rows, "host", turn) for turn in (TRAIN, SAMPLE))
    found = f"{gigabytes(need)} a node"
    if have is None:
        return Check("memory: host", OK, found, "not compared: this is not a node with GPUs")
    severity = _level(need, have)
    copies = max(layout.gpus_per_node // (layout.tp * layout.pp), 1)
    engines = max(layout.gpus_per_node // layout.sampler_tp, 1)
    remedy = (
        f"A node holds {copies} copies of the reference and {engines} pairs of banks: raise "
        "policy.megatron_cfg.tensor_model_parallel_size and policy.generation.vllm_cfg.tensor_parallel_size"
    )
    return Check("memory: host", severity, found, f"at most {gigabytes(have)}", "" if severity == OK else remedy)


def local_items(size: ModelSize, policy: dict[str, Any], teacher: str, place: str) -> list[Item]:
    """The local engine keeps everything on one device, `gpu` or `host`, all the time."""
    num_bytes, both = _BYTES[policy.get("precision") or "float32"], (TRAIN, SAMPLE)
    tokens = (policy.get("train_micro_batch_size") or 4) * policy["max_total_sequence_length"]
    cache = policy.get("prefix_cache_gb")
    of_layers = len(size.layers) * memory.layer_bytes(size) * num_bytes / 2 * tokens
    banks = 1 if teacher == "live" else 2
    masters = 0 if num_bytes == memory.FP32 else memory.FP32  # of the weights
    average = memory.FP32 if teacher == "ema" else 0
    gradients, moments = memory.FP32 + (num_bytes if masters else 0), 2 * memory.FP32
    return [
        Item(
            "weights", place, both, banks * num_bytes * size.total, f"{banks} x {num_bytes} B x P, teacher and student"
        ),
        Item("gradients", place, (TRAIN,), gradients * size.total, f"{gradients} B x P"),
        Item(
            "optimizer",
            place,
            both,
            (moments + masters + average) * size.total,
            f"({moments} + {masters} + {average}) B x P: moments, master weights, moving average",
        ),
        Item("activations", place, (TRAIN,), of_layers, "layers x layer's bytes x tokens"),
        Item("logits", place, (TRAIN,), 2 * 4 * size.vocabulary * tokens, "2 x 4 B x vocabulary x tokens"),
        Item("kept KV", place, both, 2e9 * (2.0 if cache is None else cache), "prefix_cache_gb, by role"),
    ]


def check_local(
    size: ModelSize, policy: dict[str, Any], teacher: str, machine: Machine
) -> tuple[list[Check], list[Item]]:
    """Only ever a warning: few rows are as long as the longest allowed."""
    place, have = ("gpu", machine.gpu) if machine.gpu else ("host", machine.host)
    rows = local_items(size, policy, teacher, place)
    need = max(memory.total(rows, place, turn) for turn in (TRAIN, SAMPLE))
    found = f"{gigabytes(need)} on the {place} with rows of full length"
    if have is None:
        return [Check("memory", OK, found, "not compared: this system does not say what it has")], rows
    severity = OK if need <= FULL * have else WARN
    remedy = (
        "Lower policy.train_micro_batch_size, policy.max_total_sequence_length or policy.prefix_cache_gb, or set "
        "policy.precision=bfloat16, which halves activations"
    )
    return [Check("memory", severity, found, f"at most {gigabytes(have)}", "" if severity == OK else remedy)], rows
