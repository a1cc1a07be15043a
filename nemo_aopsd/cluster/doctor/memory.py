"""Bytes a GPU and a node need, item by item. The formulas, with sources and what they leave out: docs/doctor.md.

Trainer and vLLM take turns on a GPU, so there are two sums: while training and while sampling. The numbers are those
of the fullest pipeline stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from nemo_aopsd.cluster.doctor.model_size import Layer, ModelSize
from nemo_aopsd.config.checks import select
from nemo_aopsd.config.schema import Config

TRAIN, SAMPLE = "training", "sampling"
CONTEXT = 2.5e9  # CUDA context, NCCL buffers and workspaces of one process: an estimate
ASLEEP = 1.5e9  # what a sleeping vLLM keeps: context, graphs, NCCL. An estimate
SAMPLER_EXTRA = 4e9  # vLLM's own activations and CUDA graphs within its share. An estimate
BF16, FP32 = 2, 4


@dataclass(frozen=True)
class Item:
    """`place` is `gpu` (one of them) or `host` (one node); `turns` are those in which it is there."""

    name: str
    place: str
    turns: tuple[str, ...]
    size: float  # bytes
    formula: str


@dataclass(frozen=True)
class Layout:
    """Sizes of a cluster config for the Megatron backend."""

    nodes: int
    gpus_per_node: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    sampler_tp: int
    sequence_parallel: bool
    pack_tokens: int  # of one micro-batch
    longest_row: int
    rows_per_step: int
    utilization: float
    recompute: bool
    chunk: int | None
    fp32_gradients: bool
    fp8: bool
    offloaded: float  # share of the optimizer that lives in host memory
    keeps_cache: bool  # vLLM is awake while the trainer scores

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def copies(self) -> int:
        """Ranks that share one shard's optimizer: data- and context-parallel ones."""
        return max(self.gpus // (self.tp * self.pp), 1)

    @property
    def expert_copies(self) -> int:
        return max(self.gpus // (self.ep * self.etp * self.pp), 1)

    @property
    def rows_per_engine(self) -> int:
        return ceil(self.rows_per_step / max(self.gpus // self.sampler_tp, 1))


def read_layout(config: Config) -> Layout:
    """Of a cluster config that the engine's own check has passed."""
    raw = config.raw
    megatron, vllm = select(raw, "policy.megatron_cfg"), select(raw, "policy.generation.vllm_cfg")
    policy, row = raw["policy"], raw["policy"]["max_total_sequence_length"]
    is_packed = select(raw, "policy.sequence_packing.enabled")
    budget = select(raw, "policy.sequence_packing.train_mb_tokens") if is_packed else None
    optimizer = megatron.get("optimizer") or {}
    ddp = megatron.get("distributed_data_parallel_config") or {}
    return Layout(
        nodes=raw["cluster"]["num_nodes"],
        gpus_per_node=raw["cluster"]["gpus_per_node"],
        tp=megatron["tensor_model_parallel_size"],
        pp=megatron["pipeline_model_parallel_size"],
        cp=megatron["context_parallel_size"],
        ep=megatron.get("expert_model_parallel_size") or 1,
        etp=megatron.get("expert_tensor_parallel_size") or 1,
        sampler_tp=vllm["tensor_parallel_size"],
        sequence_parallel=bool(megatron.get("sequence_parallel")),
        pack_tokens=budget or row * policy["train_micro_batch_size"],
        longest_row=vllm["max_model_len"],
        rows_per_step=raw["aopsd"]["num_prompts_per_step"] * raw["aopsd"]["num_generations_per_prompt"],
        utilization=vllm["gpu_memory_utilization"],
        recompute=bool(megatron.get("activation_checkpointing")),
        chunk=policy.get("logprob_chunk_size"),
        fp32_gradients=bool(ddp.get("grad_reduce_in_fp32")),
        fp8=bool(select(raw, "policy.megatron_cfg.fp8_cfg.enabled")),
        offloaded=(optimizer.get("optimizer_offload_fraction") or 0.0)
        if optimizer.get("optimizer_cpu_offload")
        else 0.0,
        keeps_cache=config.aopsd.keeps_cache,
    )


def stage_layers(size: ModelSize, layout: Layout) -> tuple[Layer, ...]:
    """The layers of the fullest stage."""
    return size.layers[: ceil(len(size.layers) / layout.pp)]


def shard(size: ModelSize, layout: Layout) -> tuple[float, float]:
    """Parameters of one GPU: those that data-parallel ranks share, and experts."""
    layers = stage_layers(size, layout)
    ends = size.embedding + size.head + size.final_norm if layout.pp == 1 else size.embedding
    shared = sum(layer.attention + layer.mlp for layer in layers) / layout.tp + ends / layout.tp
    shared += sum(layer.router + layer.norms for layer in layers)  # every tensor-parallel rank has these
    return shared, sum(layer.experts for layer in layers) / (layout.ep * layout.etp)


def items(size: ModelSize, layout: Layout) -> list[Item]:
    """Everything that is counted."""
    return [*_trainer(size, layout), *_sampler(size, layout), *_host(size, layout)]


def total(rows: list[Item], place: str, turn: str) -> float:
    return sum(item.size for item in rows if item.place == place and turn in item.turns)


def _trainer(size: ModelSize, layout: Layout) -> list[Item]:
    shared, experts = shard(size, layout)
    gradient = FP32 if layout.fp32_gradients else BF16
    optimizer = _optimizer(size, layout)
    rows = [
        Item("weights", "gpu", (TRAIN,), BF16 * (shared + experts), "2 B x P"),
        Item("gradients", "gpu", (TRAIN,), gradient * (shared + experts), f"{gradient} B x P"),
        Item(
            "optimizer",
            "gpu",
            (TRAIN,),
            optimizer * (1 - layout.offloaded),
            "12 B x (Ps / copies + Pe / expert copies)",
        ),
        Item("activations", "gpu", (TRAIN,), activations(size, layout), "kept + 2 x one layer's"),
        Item("logits", "gpu", (TRAIN,), logits(size, layout), "see docs/doctor.md"),
        Item("CUDA, NCCL", "gpu", (TRAIN, SAMPLE), CONTEXT, "estimate"),
        Item("vLLM asleep", "gpu", (TRAIN,), ASLEEP, "estimate"),
    ]
    if layout.fp8:
        rows.append(Item("FP8 weights", "gpu", (TRAIN,), 2 * (shared + experts), "1 B x P, by rows and by columns"))
    return rows


def _optimizer(size: ModelSize, layout: Layout) -> float:
    """Adam in float32: master weights and two moments, shared out over the copies of a shard."""
    shared, experts = shard(size, layout)
    return 12 * (shared / layout.copies + experts / layout.expert_copies)


def layer_bytes(size: ModelSize) -> int:
    """Bytes a token that one layer keeps for its backward pass, bfloat16, flash attention."""
    attention = 4 * size.hidden + 2 * size.query_width + 2 * size.key_heads * size.head_width
    routed = 2 * size.experts_per_token * size.hidden  # tokens sent to experts and back
    return BF16 * (attention + size.hidden + 4 * size.mlp_width + routed)


def activations(size: ModelSize, layout: Layout) -> float:
    """With recomputation a layer's input is kept, and one layer is whole at a time, with its gradients."""
    tokens, number = layout.pack_tokens / layout.cp, len(stage_layers(size, layout))
    in_flight = number * layout.pp  # the first stage has as many micro-batches in flight as there are stages
    working = 2 * layer_bytes(size) * tokens / layout.tp
    if not layout.recompute:
        return in_flight * layer_bytes(size) * tokens / layout.tp + working
    split = layout.tp if layout.sequence_parallel else 1
    return in_flight * BF16 * size.hidden * tokens / split + working


def logits(size: ModelSize, layout: Layout) -> float:
    """Of a pack, with their gradient: in bfloat16 with float32 chunks, or all in float32."""
    tokens, share = layout.pack_tokens / layout.cp, size.vocabulary / layout.tp
    if layout.chunk:
        return 2 * share * (BF16 * tokens + FP32 * min(layout.chunk, tokens))
    return 2 * share * (BF16 + FP32) * tokens


def scoring(size: ModelSize, layout: Layout) -> float:
    """Bytes on each GPU of the trainer while it scores: weights, one layer's tensors and the logits of a pack."""
    working = layer_bytes(size) * layout.pack_tokens / layout.cp / layout.tp
    return BF16 * sum(shard(size, layout)) + working + logits(size, layout) / 2


def sampler_weights(size: ModelSize, layout: Layout) -> float:
    """Bytes on each GPU of a vLLM engine; its experts are split like the rest, by heads or by expert."""
    return BF16 * size.total / layout.sampler_tp


def row_bytes(size: ModelSize, layout: Layout) -> float:
    """Cache of the longest row on each GPU of an engine; key heads fewer than GPUs are repeated."""
    share = max(size.key_heads / layout.sampler_tp, 1) / size.key_heads
    return size.kv_bytes() * share * layout.longest_row


def _sampler(size: ModelSize, layout: Layout) -> list[Item]:
    weights = sampler_weights(size, layout)
    return [
        Item("vLLM weights", "gpu", (SAMPLE,), weights, "2 B x all / vLLM's TP"),
        Item("vLLM work space", "gpu", (SAMPLE,), SAMPLER_EXTRA, "estimate"),
        Item(
            "KV, longest row",
            "gpu",
            (SAMPLE,),
            row_bytes(size, layout),
            "4 B x layers x key heads x width x tokens / TP",
        ),
    ]


def _host(size: ModelSize, layout: Layout) -> list[Item]:
    """Of one node. The trainer's weights and optimizer wait in host memory while vLLM samples."""
    gpus, weights = layout.gpus_per_node, BF16 * sum(shard(size, layout))
    bank, optimizer = sampler_weights(size, layout), _optimizer(size, layout)
    return [
        Item("reference weights", "host", (TRAIN, SAMPLE), gpus * weights, "2 B x P x GPUs"),
        Item(
            "student aside",
            "host",
            (TRAIN, SAMPLE),
            gpus * weights,
            "2 B x P x GPUs: while the teacher scores, or asleep",
        ),
        Item("optimizer aside", "host", (TRAIN, SAMPLE), gpus * optimizer, "as on the GPUs, x GPUs"),
        Item("pinned teacher bank", "host", (TRAIN, SAMPLE), gpus * bank, "vLLM weights x GPUs"),
        Item("pinned student bank", "host", (TRAIN, SAMPLE), gpus * bank, "vLLM weights x GPUs"),
        Item("vLLM asleep (level 1)", "host", (TRAIN,), gpus * bank, "vLLM weights x GPUs"),
    ]
