"""What the local engine reads from NeMo RL's blocks, typed; defaults stand in `config/nemo_rl_keys.py`."""

import importlib.util
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from nemo_aopsd.config.keys import beside, where
from nemo_aopsd.config.nemo_rl_keys import OptimizerKeys, OptimizerKwargs, PolicyKeys
from nemo_aopsd.config.schema import Config, TeacherConfig
from nemo_aopsd.errors import UserError, tell_all
from nemo_aopsd.models.config_json import how_to_have
from nemo_aopsd.models.gguf import named_gguf
from nemo_aopsd.models.limits import check_has_tokenizer, check_limits


@dataclass(frozen=True)
class Settings:
    """The `policy` block as this engine understands it. Sizes are rows, lengths are tokens."""

    model: Path  # a Hugging Face directory, or one .gguf file
    tokenizer: Path
    optimizer: OptimizerKwargs  # with an `lr`
    teacher: TeacherConfig
    judge: Path | None  # of `aopsd.judge.model`
    max_total_sequence_length: int
    precision: str = PolicyKeys.precision
    generation_batch_size: int = PolicyKeys.generation_batch_size
    logprob_batch_size: int = PolicyKeys.logprob_batch_size
    train_micro_batch_size: int = PolicyKeys.train_micro_batch_size
    logprob_mb_tokens: int | None = None  # in place of the number of rows, as the next
    train_mb_tokens: int | None = None
    max_grad_norm: float = PolicyKeys.max_grad_norm
    enforce_eager: bool = PolicyKeys.enforce_eager
    prefix_cache_gb: float = PolicyKeys.prefix_cache_gb


_OPTIONAL = tuple(each.name for each in fields(Settings) if each.default is not MISSING)


def read_settings(config: Config) -> Settings:
    """Settings of a config that `load_config` has passed. Raises UserError on what only this engine knows."""
    policy, judge = config.policy, config.aopsd.judge
    by_tokens = policy.get("dynamic_batching") or {}
    model, tokenizer, optimizer, of_judge = tell_all(
        lambda: _model_path(config, policy["model_name"], "policy.model_name"),
        lambda: _tokenizer_path(config),
        lambda: _optimizer(config),
        lambda: _model_path(config, judge.model, "aopsd.judge.model") if judge.has_own_model else None,
    )
    return Settings(
        model=model,
        tokenizer=tokenizer,
        optimizer=optimizer,
        teacher=config.aopsd.teacher,
        judge=of_judge,
        max_total_sequence_length=policy["max_total_sequence_length"],
        **{key: by_tokens.get(key) for key in ("logprob_mb_tokens", "train_mb_tokens") if by_tokens.get("enabled")},
        **{key: policy[key] for key in _OPTIONAL if policy.get(key) is not None},
    )


def _optimizer(config: Config) -> OptimizerKwargs:
    block, place = config.policy.get("optimizer") or {}, where(config, "policy.optimizer.name")
    name = block.get("name", OptimizerKeys.name)
    if name.rpartition(".")[2] != "AdamW":
        raise UserError(f"{place}: policy.optimizer.name is {name!r}; the local engine has {OptimizerKeys.name} only.")
    kwargs = {key: value for key, value in (block.get("kwargs") or {}).items() if key not in ("foreach", "fused")}
    known = [each.name for each in fields(OptimizerKwargs)]
    if set(kwargs) - set(known) or kwargs.get("lr") is None:
        found, place = ", ".join(map(str, kwargs)) or "no key", where(config, "policy.optimizer.kwargs")
        wanted = f"lr (required), {', '.join(known[1:])}"
        raise UserError(f"{place}: policy.optimizer.kwargs has {found}; expected {wanted}.")
    if "betas" in kwargs:
        kwargs["betas"] = tuple(kwargs["betas"])
    return OptimizerKwargs(**kwargs)


def _model_path(config: Config, name: str, key: str) -> Path:
    path = _existing(config, name, key)
    if path.suffix == ".gguf":
        if importlib.util.find_spec("gguf") is None:
            raise UserError(f"{path}: reading GGUF needs the package gguf. Run: pip install gguf")
    elif not (path / "config.json").is_file() or not [*path.glob("*.safetensors"), *path.glob("*.bin")]:
        remedy = named_gguf(path) or "Copy the model again."
        raise UserError(f"{path}: expected config.json and weights (*.safetensors or *.bin). {remedy}")
    check_limits(config, path)
    return path


def _tokenizer_path(config: Config) -> Path:
    policy = config.policy
    own = (policy.get("tokenizer") or {}).get("name")
    key = "policy.model_name" if own is None else "policy.tokenizer.name"
    path = _existing(config, policy["model_name"] if own is None else own, key)
    check_has_tokenizer(path)
    return path


def _existing(config: Config, name: str, key: str) -> Path:
    path = Path(name)
    if not (path.is_file() if path.suffix == ".gguf" else path.is_dir()):
        wanted = "a Hugging Face model directory or a .gguf file on disk; the local engine downloads nothing"
        found = f"{where(config, key)}: {key}={name}: no such model (looked from {Path.cwd()})"
        remedy = beside(key, name, where(config, key)) or f" {how_to_have(name, key)}."
        raise UserError(f"{found}. Expected {wanted}.{remedy}")
    return path
