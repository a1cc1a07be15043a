"""Bytes a GPU and a node need, item by item. The formulas, with sources and what they leave out: docs/doctor.md.

Trainer and vLLM take turns on a GPU, so there are two sums: while training and while sampling. The numbers are those
of the fullest pipeline stage. A new item is a line in `_trainer`, `_sampler`, `_host` or `local_items`.
"""

from dataclasses import dataclass
from math import ceil

from nemo_aopsd.cluster import SCORED_ROWS, student_has_room
from nemo_aopsd.cluster.doctor.model import Layer, ModelSize, read_size
from nemo_aopsd.cluster.tree import MEGATRON, VLLM, Tree
from nemo_aopsd.config.schema import Config
from nemo_aopsd.models.config_json import find_model_config, find_published
from nemo_aopsd.models.limits import chunk_size

TRAIN, SAMPLE = "training", "sampling"
BOTH = (TRAIN, SAMPLE)
CONTEXT = 2.5e9  # CUDA context, NCCL buffers and workspaces of one process: an estimate
ASLEEP = 1.5e9  # what a sleeping vLLM keeps: context, graphs, NCCL. An estimate
SAMPLER_EXTRA = 4e9  # vLLM's own activations and CUDA graphs within its share. An estimate
BF16, FP32 = 2, 4
_BYTES = {"float32": FP32, "bfloat16": BF16}


@dataclass(frozen=True)
class Item:
    """`place` is `gpu` (one of them) or `host` (one node); `turns` are those in which it is there."""

    name: str
    place: str
    turns: tuple[str, ...]
    size: float  # bytes
    formula: str
    remedy: str = ""  # of the local engine: what makes it less; "" if no key does


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
    recompute: bool  # whole layers
    chunk: int | None
    fp32_gradients: bool
    fp8: bool
    state: int  # bytes a parameter of the optimizer's
    offloaded: float  # share of the optimizer that lives in host memory
    keeps_cache: bool  # vLLM is awake while the trainer scores
    keeps_optimizer: bool  # on the GPU while vLLM samples, if there is room

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def engines(self) -> int:
        """Of vLLM, in the whole run."""
        return max(self.gpus // self.sampler_tp, 1)

    @property
    def copies(self) -> int:
        """Ranks that share one shard's optimizer: data- and context-parallel ones."""
        return max(self.gpus // (self.tp * self.pp), 1)

    @property
    def expert_copies(self) -> int:
        return max(self.gpus // (self.ep * self.etp * self.pp), 1)


def read_layout(config: Config) -> Layout:
    """The layout of a cluster config for Megatron in which `broken_sizes` finds nothing."""
    tree, aopsd = Tree(config.raw), config.aopsd
    row = tree.size("policy.max_total_sequence_length")
    budget = next((tree[f"policy.{block}.train_mb_tokens"] for block in tree.token_budgets), None)
    is_offloaded = tree[f"{MEGATRON}.optimizer.optimizer_cpu_offload"]
    return Layout(
        nodes=tree.size("cluster.num_nodes"),
        gpus_per_node=tree.size("cluster.gpus_per_node"),
        tp=tree.tensor,
        pp=tree.pipeline,
        cp=tree.context,
        ep=tree.size(f"{MEGATRON}.expert_model_parallel_size"),
        etp=tree.size(f"{MEGATRON}.expert_tensor_parallel_size"),
        sampler_tp=tree.size(f"{VLLM}.tensor_parallel_size"),
        sequence_parallel=bool(tree[f"{MEGATRON}.sequence_parallel"]),
        pack_tokens=budget or row * tree.size("policy.train_micro_batch_size"),
        longest_row=tree.size(f"{VLLM}.max_model_len"),
        rows_per_step=aopsd.rollouts_per_step,
        utilization=tree[f"{VLLM}.gpu_memory_utilization"],
        # By default `selective` recomputes the attention scores, which flash attention never keeps: it saves nothing.
        recompute=bool(tree[f"{MEGATRON}.activation_checkpointing"])
        and tree[f"{MEGATRON}.recompute_granularity"] != "selective",
        chunk=tree["policy.logprob_chunk_size"],
        fp32_gradients=bool(tree[f"{MEGATRON}.distributed_data_parallel_config.grad_reduce_in_fp32"]),
        fp8=tree.fp8_multiple > 1,
        # Two float32 moments and the master weights, of which the precision-aware one keeps what bfloat16 lacks.
        state=10 if tree[f"{MEGATRON}.optimizer.use_precision_aware_optimizer"] else 12,
        offloaded=(tree[f"{MEGATRON}.optimizer.optimizer_offload_fraction"] or 0.0) if is_offloaded else 0.0,
        keeps_cache=aopsd.keeps_cache,
        keeps_optimizer=aopsd.keep_optimizer_on_gpu,
    )


def items(size: ModelSize, layout: Layout) -> list[Item]:
    """Everything that is counted for a cluster, with room for the optimizer if it is to stay."""
    return [*_trainer(size, layout), *_sampler(size, layout), *_host(size, layout)]


def total(rows: list[Item], place: str, turn: str) -> float:
    return sum(item.size for item in rows if item.place == place and turn in item.turns)


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


def _trainer(size: ModelSize, layout: Layout) -> list[Item]:
    parameters = sum(shard(size, layout))
    gradient = FP32 if layout.fp32_gradients else BF16
    on_gpu, turns = (1 - layout.offloaded) * optimizer(size, layout), BOTH if layout.keeps_optimizer else (TRAIN,)
    rows = [
        Item("weights", "gpu", (TRAIN,), BF16 * parameters, "2 B x P"),
        Item("gradients", "gpu", (TRAIN,), gradient * parameters, f"{gradient} B x P"),
        Item("optimizer", "gpu", turns, on_gpu, f"{layout.state} B x (Ps / copies + Pe / expert copies)"),
        Item("activations", "gpu", (TRAIN,), activations(size, layout), "kept + 2 x one layer's"),
        Item("logits", "gpu", (TRAIN,), logits(size, layout), "see docs/doctor.md"),
        Item("CUDA, NCCL", "gpu", BOTH, CONTEXT, "estimate"),
        Item("vLLM asleep", "gpu", (TRAIN,), ASLEEP, "estimate"),
    ]
    if layout.fp8:
        rows.append(Item("FP8 weights", "gpu", (TRAIN,), 2 * parameters, "1 B x P, by rows and by columns"))
    return rows


def optimizer(size: ModelSize, layout: Layout) -> float:
    """Adam's state, shared out over the copies of a shard."""
    shared, experts = shard(size, layout)
    return layout.state * (shared / layout.copies + experts / layout.expert_copies)


def layer_bytes(size: ModelSize) -> int:
    """Bytes a token that one layer keeps for its backward pass, bfloat16, flash attention."""
    attention = 4 * size.hidden + 2 * size.query_width + 2 * size.key_heads * size.head_width
    routed = 2 * size.experts_per_token * size.hidden  # tokens sent to experts and back
    return BF16 * (attention + size.hidden + 4 * size.mlp_width + routed)


def megatron_layer(size: ModelSize, layout: Layout) -> float:
    """As `layer_bytes`, of megatron-core on one GPU: queries and keys twice, for the norms that Qwen3 has on them.

    Its MLP without `bias_activation_fusion` keeps gate, value, activated gate, value + offset (0) and the product.
    """
    heads = 3 * (size.query_width + size.key_heads * size.head_width)
    split = heads + 5 * size.mlp_width + 2 * size.experts_per_token * size.hidden
    return BF16 * (split / layout.tp + 4 * size.hidden / _norm_split(layout))


def _norm_split(layout: Layout) -> int:
    """GPUs that share what lies between the layers, and around their norms."""
    return layout.tp if layout.sequence_parallel else 1


def activations(size: ModelSize, layout: Layout) -> float:
    """With recomputation a layer's input is kept, and one layer is whole at a time, with its gradients."""
    tokens, number = layout.pack_tokens / layout.cp, len(stage_layers(size, layout))
    in_flight = number * layout.pp  # the first stage has as many micro-batches in flight as there are stages
    layer = megatron_layer(size, layout) * tokens
    kept = BF16 * size.hidden * tokens / _norm_split(layout) if layout.recompute else layer
    return in_flight * kept + 2 * layer


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


def row_scorer(size: ModelSize) -> float:
    """Bytes on each GPU of a vLLM engine while it scores: logits in bfloat16 and, three times, in float32."""
    return SCORED_ROWS * size.vocabulary * (BF16 + 3 * FP32)


def sampler_weights(size: ModelSize, layout: Layout) -> float:
    """Bytes on each GPU of a vLLM engine; its experts are split like the rest, by heads or by expert."""
    return BF16 * size.total / layout.sampler_tp


def cache_bytes(size: ModelSize, layout: Layout) -> float:
    """Of one cached token on each GPU of an engine; key heads fewer than GPUs are repeated."""
    return size.kv_bytes() * max(size.key_heads / layout.sampler_tp, 1) / size.key_heads


def cache_room(size: ModelSize, layout: Layout, gpu: float) -> float:
    """Bytes of a GPU that vLLM has for its cache: its share without weights and work space."""
    return layout.utilization * gpu - sampler_weights(size, layout) - SAMPLER_EXTRA


def student_waits_on_gpu(size: ModelSize, layout: Layout, gpu: float, beside: float = 0.0) -> bool:
    """While vLLM shows the teacher; on the host where vLLM and `beside` bytes leave too little of `gpu` bytes, or the
    trainer scores.
    """
    left = (1 - layout.utilization) * gpu - CONTEXT - beside
    return not layout.keeps_cache and student_has_room(sampler_weights(size, layout), left)


def optimizer_stays(size: ModelSize, layout: Layout, gpu: float) -> bool:
    """On the GPU while vLLM samples: if the setting is on, and the student can wait beside it."""
    return layout.keeps_optimizer and student_waits_on_gpu(size, layout, gpu, optimizer(size, layout))


def _sampler(size: ModelSize, layout: Layout) -> list[Item]:
    row = cache_bytes(size, layout) * layout.longest_row
    return [
        Item("vLLM weights", "gpu", (SAMPLE,), sampler_weights(size, layout), "2 B x all / vLLM's TP"),
        Item("vLLM work space", "gpu", (SAMPLE,), SAMPLER_EXTRA, "estimate"),
        Item("vLLM's row scorer", "gpu", (SAMPLE,), row_scorer(size), f"{SCORED_ROWS} x V x 14 B"),
        Item("KV, longest row", "gpu", (SAMPLE,), row, "4 B x layers x key heads x width x tokens / TP"),
    ]


def _host(size: ModelSize, layout: Layout) -> list[Item]:
    """Of one node. The trainer's weights and optimizer wait in host memory while vLLM samples."""
    gpus = layout.gpus_per_node
    weights, bank = gpus * BF16 * sum(shard(size, layout)), gpus * sampler_weights(size, layout)
    aside = "2 B x P x GPUs: while the teacher scores, or asleep"
    moved = 0.0 if layout.keeps_optimizer else gpus * optimizer(size, layout)
    return [
        Item("reference weights", "host", BOTH, weights, "2 B x P x GPUs"),
        Item("student aside", "host", BOTH, weights, aside),
        Item("optimizer aside", "host", BOTH, moved, "as on the GPUs, x GPUs"),
        Item("pinned teacher bank", "host", BOTH, bank, "vLLM weights x GPUs"),
        Item("pinned student bank", "host", BOTH, bank, "vLLM weights x GPUs"),
        Item("vLLM asleep (level 1)", "host", (TRAIN,), bank, "vLLM weights x GPUs"),
    ]


def local_items(size: ModelSize, config: Config, place: str) -> list[Item]:
    """The local engine keeps everything on one device, `gpu` or `host`, all the time."""
    policy, teacher, count = config.policy, config.aopsd.teacher.weights, size.total
    num_bytes = _BYTES[policy.get("precision") or "float32"]
    longest, budgets = policy["max_total_sequence_length"], policy.get("dynamic_batching") or {}
    key, tokens = "policy.train_micro_batch_size", (policy.get("train_micro_batch_size") or 4) * longest
    if budgets.get("enabled") and budgets.get("train_mb_tokens"):
        key, tokens = "policy.dynamic_batching.train_mb_tokens", max(longest, budgets["train_mb_tokens"])
    chunk = min(tokens, chunk_size(size.vocabulary, place == "gpu"))
    cap = 2.0 if (given := policy.get("prefix_cache_gb")) is None else given
    of_step = config.aopsd.rollouts_per_step * longest * size.kv_bytes() * num_bytes / BF16
    of_layers = len(size.layers) * layer_bytes(size) * num_bytes / BF16 * tokens
    banks = 1 if teacher == "live" else 2
    masters = 0 if num_bytes == FP32 else FP32  # of the weights
    average = FP32 if teacher == "ema" else 0
    gradients = FP32 + (num_bytes if masters else 0)
    optimizer = 2 * FP32 + masters + average
    parts = ", ".join(["moments", *(["master weights"] if masters else []), *(["moving average"] if average else [])])
    fewer = f"lower {key if tokens > longest else 'policy.max_total_sequence_length'}"
    fewer += ", or set policy.precision=bfloat16, which halves them" if place == "gpu" and not masters else ""
    kept, less = "2 x a step's rows or prefix_cache_gb", "lower policy.prefix_cache_gb"
    return [
        Item("weights", place, BOTH, banks * num_bytes * count, f"{banks} x {num_bytes} B x P, teacher and student"),
        *_own_judge(config, place, num_bytes),
        Item("gradients", place, (TRAIN,), gradients * count, f"{gradients} B x P"),
        Item("optimizer", place, BOTH, optimizer * count, f"{optimizer} B x P: {parts}"),
        Item("activations", place, (TRAIN,), of_layers, "layers x layer's bytes x tokens", fewer),
        Item("logits", place, (TRAIN,), 3 * FP32 * size.vocabulary * chunk, f"3 x 4 B x vocabulary x chunk of {chunk}"),
        Item("kept KV", place, BOTH, 2 * min(1e9 * cap, of_step), kept, less),
    ]


def _own_judge(config: Config, place: str, num_bytes: int) -> list[Item]:
    """The weights of `aopsd.judge.model`, where that is a model beside the student's."""
    if not config.aopsd.judge.has_own_model:
        return []
    name = config.aopsd.judge.model
    found = find_model_config(name) or find_published(name)
    if found is None:
        return [Item("judge", place, BOTH, 0.0, "not counted: no config.json of aopsd.judge.model at hand")]
    return [Item("judge", place, BOTH, num_bytes * read_size(found).total, f"{num_bytes} B x P of aopsd.judge.model")]
