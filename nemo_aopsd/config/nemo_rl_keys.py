"""What we read of NeMo RL's blocks: their keys by type and range, and defaults for short configs.

These blocks are open, for NeMo RL reads more of them than we do. What `generation` and `checkpointing` leave out is
filled in for both engines; the other defaults are the local engine's, and mean nothing to NeMo RL.
"""

from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval

from nemo_aopsd.config.schema import AOPSDConfig, Count, Name, NonNegative, Positive, Strict, keys_of

# Top-level blocks of NeMo RL's recipes; ours is `aopsd`.
NEMO_RL_BLOCKS = (
    *("policy", "data", "logger", "checkpointing", "cluster", "env", "loss_fn"),
    *("grpo", "distillation", "teacher", "sft", "dpo", "rm", "generation", "tokenizer", "eval"),
    *("data_plane", "on_policy_distillation", "ppo", "teachers", "value", "value_loss_fn"),  # after v0.7.0
)


@dataclass(frozen=True)
class Open:
    """A block with keys that only NeMo RL knows."""

    __pydantic_config__: ClassVar[dict[str, Any]] = Strict.__pydantic_config__ | {"extra": "ignore"}


@dataclass(frozen=True)
class GenerationKeys(Open):
    """How the student answers in training."""

    max_new_tokens: Count
    """Tokens of a response. A prompt, and a probe where there are any, must fit beside it."""
    temperature: Annotated[float, Interval(ge=0.01, le=100)] = 1.0
    """Tokens are drawn from the student's whole distribution, never greedily. Paper: temperature 1. Gap, NLL and ratio
    are always those at temperature 1, so with another sampling temperature the gap is no longer an unbiased
    estimate."""
    top_p: Annotated[float, Interval(ge=1, le=1)] | None = 1.0
    """The gap on a sampled token estimates the divergence from the teacher only if tokens come from the student's
    whole, untruncated distribution."""
    top_k: Literal[-1, 0] | None = None
    """As `top_p`: tokens come from the student's whole, untruncated distribution."""


@dataclass(frozen=True)
class OptimizerKwargs(Open):
    """AdamW at a constant learning rate."""

    lr: NonNegative | None = None
    """The local engine needs it."""
    weight_decay: NonNegative = 0.01
    """AdamW's own; it applies to every parameter."""
    betas: tuple[Annotated[float, Interval(ge=0, lt=1)], Annotated[float, Interval(ge=0, lt=1)]] = (0.9, 0.999)
    """AdamW's own."""
    eps: Positive = 1e-8
    """AdamW's own."""


@dataclass(frozen=True)
class OptimizerKeys(Open):
    """What updates the student."""

    name: Name = "torch.optim.AdamW"
    """The local engine has no other."""
    kwargs: OptimizerKwargs | None = None


@dataclass(frozen=True)
class TokenizerKeys(Open):
    """How text becomes tokens."""

    name: Name | None = None
    """null is the model's own."""


@dataclass(frozen=True)
class DynamicBatchingKeys(Open):
    """Batches by tokens instead of rows: short rows share a forward, long ones do not overflow the memory."""

    enabled: bool = False
    """On a GPU it pays: a forward of few tokens takes as long as its launches do."""
    train_mb_tokens: Count | None = None
    """Padded tokens of an update's micro-batch, in place of `train_micro_batch_size`. A longer row is a
    micro-batch by itself."""
    logprob_mb_tokens: Count | None = None
    """Padded tokens of a forward that scores rows, in place of `logprob_batch_size`."""


@dataclass(frozen=True)
class PolicyKeys(Open):
    """The student. Sizes are rows, lengths are tokens."""

    model_name: Name
    """The local engine takes a Hugging Face folder or a .gguf file; NeMo RL also a name of the hub."""
    max_total_sequence_length: Count
    """Prompt and response together, the teacher's longer prompts included."""
    generation: GenerationKeys
    tokenizer: TokenizerKeys | None = None
    optimizer: OptimizerKeys | None = None
    precision: Name = "float32"
    """float32 or bfloat16 on the local engine. Exact on a CPU; `bfloat16` keeps float32 master weights for the
    optimizer."""
    max_grad_norm: Positive = 1.0
    """Usual for full fine-tuning."""
    generation_batch_size: Count = 32
    """Speed and memory only."""
    logprob_batch_size: Count = 8
    """Speed and memory only."""
    train_micro_batch_size: Count = 4
    """Speed and memory only: gradients do not depend on it."""
    dynamic_batching: DynamicBatchingKeys | None = None
    """Speed and memory only, as the sizes above, which it replaces."""
    enforce_eager: bool = False
    """On a GPU, decoding replays CUDA graphs; set it for a model whose step cannot be captured (`aopsd evaluate` of a
    bare model has no such key: `--engine vllm`)."""
    prefix_cache_gb: NonNegative = 2.0
    """Memory against speed, per role: keys and values that are kept from log-probs to probes. Beyond it they are
    recomputed in other batches, which may change the last digits, so a resume needs the same value."""


@dataclass(frozen=True)
class TrainDataKeys(Open):
    """What the student trains on."""

    data_path: Name
    """The training problems, a JSONL file."""


@dataclass(frozen=True)
class DataKeys(Open):
    """The data."""

    train: TrainDataKeys


@dataclass(frozen=True)
class WandbKeys(Open):
    """What `wandb.init` takes; `mode: offline` sends nothing."""

    project: Name | None = None
    """null is W&B's own."""
    name: Name | None = None
    """Of the run, as above."""
    entity: Name | None = None
    """Who owns the project, as above."""


@dataclass(frozen=True)
class MLflowKeys(Open):
    """Where MLflow keeps the run."""

    experiment_name: Name | None = None
    """null is MLflow's own."""
    run_name: Name | None = None
    """As above."""
    tracking_uri: Name | None = None
    """null is `MLFLOW_TRACKING_URI`; on the local engine without that a file in `mlflow/` of the run's folder."""


@dataclass(frozen=True)
class LoggerKeys(Open):
    """Where a run writes. Trackers get every number of `metrics.jsonl`: [trackers.md](trackers.md)."""

    log_dir: Name
    """The run's folder."""
    tensorboard_enabled: bool = False
    """Into `tensorboard/` of the run's folder."""
    wandb_enabled: bool = False
    """Into `wandb/` of the run's folder, and to W&B unless it is offline."""
    wandb: WandbKeys | None = None
    swanlab_enabled: bool = False
    """NeMo RL has this tracker; the local engine refuses it."""
    mlflow_enabled: bool = False
    """A run of MLflow."""
    mlflow: MLflowKeys | None = None


@dataclass(frozen=True)
class CheckpointingKeys(Open):
    """What a run keeps, so that it can be resumed."""

    enabled: bool = True
    """A run can always be resumed."""
    checkpoint_dir: Name = "${logger.log_dir}/checkpoints"
    """A run is one folder."""
    save_period: Count = 10
    """In steps; the end of an epoch is saved as well."""
    keep_top_k: Count = 2
    """The newest ones, so that one can break without loss."""


@dataclass(frozen=True)
class RunKeys(Open):
    """All keys that we read of a config file."""

    policy: PolicyKeys
    data: DataKeys
    logger: LoggerKeys
    aopsd: AOPSDConfig = field(default_factory=AOPSDConfig)
    checkpointing: CheckpointingKeys = field(default_factory=CheckpointingKeys)


def _defaults(block: type) -> dict[str, Any]:
    return {each.name: each.default for each in fields(block) if each.default is not MISSING}


# What a short config may leave out, for both engines.
NEMO_RL_DEFAULTS = {"policy": {"generation": _defaults(GenerationKeys)}, "checkpointing": _defaults(CheckpointingKeys)}

_ALL = {key: each for key, each in keys_of(RunKeys) if key.split(".")[0] != "aopsd"}
BLOCKS = sorted({key.rpartition(".")[0] for key in _ALL} - {""})
LOCAL_KEYS = tuple(key for key in _ALL if key not in BLOCKS)
REQUIRED_KEYS = tuple(key for key in LOCAL_KEYS if _ALL[key].default is MISSING)
