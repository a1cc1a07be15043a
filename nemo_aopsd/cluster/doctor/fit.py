"""Does the config fit? The sums of `memory.py` against the GPU and the host, and what to change."""

from dataclasses import replace
from math import ceil

from nemo_aopsd.cluster.doctor import memory
from nemo_aopsd.cluster.doctor.memory import SAMPLE, TRAIN, Item, Layout
from nemo_aopsd.cluster.doctor.model import ModelSize
from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check, gigabytes
from nemo_aopsd.cluster.tree import VLLM

ASSUMED_GPU = 81559 * 2**20  # an H100 80GB, where no GPU is to be seen
FULL = 0.9  # of a GPU or of a host; above it is a warning, for the items are estimates
KEEP_ALL = "policy.megatron_cfg.activation_checkpointing=false"
STAY = "aopsd.keep_optimizer_on_gpu=true"
_SPLIT = "raise policy.megatron_cfg.tensor_model_parallel_size, pipeline_ or expert_model_parallel_size"
_TOKENS = (
    "raise policy.megatron_cfg.tensor_model_parallel_size with sequence_parallel=true, or context_parallel_size, "
    "or lower policy.max_total_sequence_length"
)
_SMALLER = {
    "activations": f"set policy.megatron_cfg.activation_checkpointing=true with recompute_granularity=full, {_TOKENS}",
    "logits": f"set policy.logprob_chunk_size=2048 with policy.megatron_cfg.defer_fp32_logits=true, {_TOKENS}",
    "optimizer": "use more GPUs, which share it, or policy.megatron_cfg.optimizer.optimizer_cpu_offload=true with "
    "optimizer_offload_fraction=1.0",
}


def check_cluster(size: ModelSize, layout: Layout, gpu: int | None, host: int | None) -> tuple[list[Check], list[Item]]:
    """`gpu` and `host` are bytes, both None on a machine without GPUs, which is not the one that would train."""
    have = gpu or ASSUMED_GPU
    rows = memory.items(size, replace(layout, keeps_optimizer=memory.optimizer_stays(size, layout, have)))
    training = _training(rows, have, "" if gpu else " (assumed: no GPU here)")
    if gpu and (more := unrecomputed(size, layout, gpu)):
        training.found += f"; {KEEP_ALL} would fit, by estimate: {gigabytes(more)} of {gigabytes(gpu)}"
    beside = _beside(size, layout, have)
    could_stay = not (layout.keeps_optimizer or layout.offloaded)
    if gpu and could_stay and memory.optimizer_stays(size, replace(layout, keeps_optimizer=True), gpu):
        state = gigabytes(memory.optimizer(size, layout))
        beside.found += f"; with {STAY} its optimizer ({state}) has room, too, and makes no way to the host and back"
    return [training, _sampling(size, layout, have), beside, _host(rows, host)], rows


def unrecomputed(size: ModelSize, layout: Layout, gpu: float) -> float | None:
    """Bytes of a GPU that trains and recomputes nothing: None where they do not fit, or where that is so already.

    Also None for what the kept activations were not derived for: experts, FP8, pipeline and context parallelism.
    """
    is_derived = layout.pp == layout.cp == 1 and not layout.fp8 and not size.experts_per_token
    if not (layout.recompute and is_derived):
        return None
    need = memory.total(memory.items(size, replace(layout, recompute=False)), "gpu", TRAIN)
    return need if need <= FULL * gpu else None


def _level(need: float, have: float) -> str:
    return ERROR if need > have else WARN if need > FULL * have else OK


def _training(rows: list[Item], gpu: float, assumed: str) -> Check:
    need = memory.total(rows, "gpu", TRAIN)
    largest = max((row for row in rows if row.place == "gpu" and TRAIN in row.turns), key=lambda row: row.size)
    remedy = f"Largest is {largest.name}: {_SMALLER.get(largest.name, _SPLIT)}"
    expected = f"at most {gigabytes(gpu)}{assumed}"
    return Check("memory: training", _level(need, gpu), f"{gigabytes(need)} a GPU", expected, remedy)


def _sampling(size: ModelSize, layout: Layout, gpu: float) -> Check:
    """vLLM takes its share of the GPU; what weights and work space leave of it is cache."""
    room, one_row = memory.cache_room(size, layout, gpu), memory.cache_bytes(size, layout) * layout.longest_row
    fits, wanted = max(int(room // one_row), 0), ceil(layout.rows_per_step / layout.engines)
    severity = ERROR if fits < 1 else WARN if fits < wanted else OK
    remedy = (
        f"Raise {VLLM}.gpu_memory_utilization or {VLLM}.tensor_parallel_size, or lower "
        "policy.max_total_sequence_length; prefixes that are pushed out are read again by each probe"
    )
    found = f"cache {gigabytes(room)} a GPU, room for {fits} of the longest rows ({gigabytes(one_row)} each)"
    return Check("memory: sampling", severity, found, f"at least 1, better the {wanted} of a step", remedy)


def _beside(size: ModelSize, layout: Layout, gpu: float) -> Check:
    """What vLLM leaves to the trainer."""
    left, who = (1 - layout.utilization) * gpu, "vLLM's row scorer and the sleeping trainer"
    needed = memory.CONTEXT + memory.row_scorer(size)
    remedy = f"Lower {VLLM}.gpu_memory_utilization"
    if layout.keeps_cache:
        needed, who = needed + memory.scoring(size, layout), "vLLM's row scorer and the trainer, which scores beside it"
        remedy = f"Set aopsd.probes.keep_cache=false, or lower {VLLM}.gpu_memory_utilization"
    place = "GPU" if memory.student_waits_on_gpu(size, layout, gpu) else "host"
    found = f"{gigabytes(left)} a GPU, student aside on the {place}"
    if layout.keeps_optimizer:
        state, stays = memory.optimizer(size, layout), memory.optimizer_stays(size, layout, gpu)
        needed, who = (needed + state, f"{who} with its optimizer") if stays else (needed, who)
        found += f", optimizer ({gigabytes(state)}) {'there too' if stays else 'moved to the host: no room'}"
    severity, expected = OK if left >= needed else ERROR, f"{gigabytes(needed)} for {who}"
    return Check("memory: beside vLLM", severity, found, expected, remedy)


def _host(rows: list[Item], have: int | None) -> Check:
    need = max(memory.total(rows, "host", turn) for turn in (TRAIN, SAMPLE))
    found = f"{gigabytes(need)} a node"
    if have is None:
        return Check("memory: host", OK, found, "not compared: this is not a node with GPUs")
    remedy = (
        "A node holds a reference for each copy of the trainer, and two banks for each vLLM engine: raise "
        f"policy.megatron_cfg.tensor_model_parallel_size and {VLLM}.tensor_parallel_size"
    )
    return Check("memory: host", _level(need, have), found, f"at most {gigabytes(have)}", remedy)


def check_local(rows: list[Item], have: int) -> Check:
    """`rows` of the local engine. Only ever a warning: few rows are as long as the longest allowed."""
    place = rows[0].place
    need = max(memory.total(rows, place, turn) for turn in (TRAIN, SAMPLE))
    found = f"{gigabytes(need)} on the {place} with rows of full length"
    largest, *others = sorted(rows, key=lambda row: row.size, reverse=True)
    told = [f"{row.name} ({gigabytes(row.size)}): {row.remedy}" for row in (largest, *others) if row.remedy]
    remedy = f"Largest first: {'; '.join(told)}"
    if not largest.remedy:
        less = "less only with a smaller model, or with aopsd.engine=nemo_rl on several GPUs (docs/slurm.md)"
        remedy = f"Largest is {largest.name} ({gigabytes(largest.size)}), {less}. {remedy}"
    severity = OK if need <= FULL * have else WARN
    return Check("memory", severity, found, f"at most {gigabytes(have)}", remedy)
