"""What a value of the config may be: choices, ranges, and settings that contradict each other.

Works on the resolved tree: our block, and the parts of NeMo RL's blocks that our loop reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nemo_aopsd.config import CHOICES

REQUIRED_KEYS = (
    "policy.model_name",
    "policy.max_total_sequence_length",
    "policy.generation.max_new_tokens",
    "data.train.data_path",
    "logger.log_dir",
)
LOCAL_KEYS = (
    *REQUIRED_KEYS,
    *("policy.tokenizer.name", "policy.precision", "policy.max_grad_norm", "policy.train_micro_batch_size"),
    *("policy.logprob_batch_size", "policy.generation_batch_size", "policy.prefix_cache_gb"),
    *(f"policy.optimizer.kwargs.{name}" for name in ("lr", "weight_decay", "betas", "eps")),
    *(f"policy.generation.{name}" for name in ("temperature", "top_p", "top_k")),
    *(f"checkpointing.{name}" for name in ("enabled", "checkpoint_dir", "save_period", "keep_top_k")),
)

Tree = dict[str, Any]
Fault = tuple[str, str]  # dotted key, what is wrong with it


def find_faults(tree: Tree) -> Iterator[Fault]:
    """Every setting that cannot work, as its dotted key and a message that says what it may be."""
    yield from _wrong_choices(tree)
    yield from _out_of_range(tree)
    yield from _truncated_sampling(tree)
    yield from _contradictions(tree)


def select(tree: Tree, key: str) -> Any:
    """The value of a dotted key; None where there is none.

    >>> select({"a": {"b": 1}}, "a.b"), select({"a": {"b": 1}}, "a.c")
    (1, None)
    """
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _wrong_choices(tree: Tree) -> Iterator[Fault]:
    choices = {f"aopsd.{key}": names for key, names in CHOICES.items()}
    if select(tree, "aopsd.engine") == "local":
        choices["policy.precision"] = ("float32", "bfloat16")
    for key, names in choices.items():
        value = select(tree, key)
        if value is not None and value not in names:
            yield key, f"must be one of {', '.join(names)}; got {value!r}."


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_int(value) or isinstance(value, float)


# (keys, test, what the value must be). Values of null are left to the type check and to who reads them.
_RANGES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (
        (
            *("aopsd.num_prompts_per_step", "aopsd.num_generations_per_prompt"),
            *("aopsd.max_num_epochs", "aopsd.max_num_steps"),
            *("aopsd.judge.max_new_tokens", "aopsd.judge.max_attempt_tokens"),
            *("aopsd.probes.max_per_rollout", "aopsd.curriculum.num_initial_attempts"),
            *("aopsd.evaluation.num_samples", "aopsd.evaluation.max_new_tokens", "aopsd.evaluation.period"),
            *("policy.max_total_sequence_length", "policy.generation.max_new_tokens"),
            *("policy.train_micro_batch_size", "policy.logprob_batch_size", "policy.generation_batch_size"),
            *("checkpointing.save_period", "checkpointing.keep_top_k"),
        ),
        lambda value: _is_int(value) and value >= 1,
        "must be a whole number of at least 1",
    ),
    (
        ("aopsd.probes.length",),
        lambda value: _is_int(value) and value >= 2,
        "must be a whole number of at least 2: the anchor and one token of suffix",
    ),
    (
        ("aopsd.judge.num_retries", "aopsd.evaluation.top_k"),
        lambda value: _is_int(value) and value >= 0,
        "must be a whole number of at least 0",
    ),
    (
        (
            *("aopsd.objective.advantage_clip", "aopsd.objective.ratio_clip_min", "aopsd.objective.ratio_clip_max"),
            *("aopsd.probes.threshold", "aopsd.probes.beta_positive", "aopsd.probes.beta_negative"),
            *("policy.max_grad_norm", "policy.optimizer.kwargs.eps"),
        ),
        lambda value: _is_number(value) and value > 0,
        "must be a number above 0",
    ),
    (
        ("aopsd.evaluation.temperature", "policy.optimizer.kwargs.lr", "policy.optimizer.kwargs.weight_decay"),
        lambda value: _is_number(value) and value >= 0,
        "must be a number of at least 0",
    ),
    (
        ("aopsd.curriculum.ema", "aopsd.teacher.ema_decay"),
        lambda value: _is_number(value) and 0 <= value <= 1,
        "must be a number from 0 to 1",
    ),
    (
        ("aopsd.evaluation.top_p",),
        lambda value: _is_number(value) and 0 < value <= 1,
        "must be a number above 0 and at most 1",
    ),
    (
        ("policy.optimizer.kwargs.betas",),
        lambda value: isinstance(value, list) and len(value) == 2 and all(_is_number(b) and 0 <= b < 1 for b in value),
        "must be two numbers from 0 to below 1",
    ),
    (("checkpointing.enabled",), lambda value: isinstance(value, bool), "must be true or false"),
    (
        ("policy.model_name", "data.train.data_path", "logger.log_dir", "checkpointing.checkpoint_dir"),
        lambda value: isinstance(value, str),
        "must be a name or a path",
    ),
)


def _out_of_range(tree: Tree) -> Iterator[Fault]:
    for keys, test, expected in _RANGES:
        for key in keys:
            value = select(tree, key)
            if value is not None and not test(value):
                yield key, f"{expected}; got {value!r}."


def _truncated_sampling(tree: Tree) -> Iterator[Fault]:
    why = "The gap on a sampled token estimates the divergence only if tokens are drawn from the student's whole"
    prefix = "policy.generation"
    temperature, top_p, top_k = (select(tree, f"{prefix}.{name}") for name in ("temperature", "top_p", "top_k"))
    if not (_is_number(temperature) and temperature > 0):
        yield f"{prefix}.temperature", f"must be above 0; got {temperature!r}. {why} distribution, never greedily."
    if top_p not in (None, 1):
        yield f"{prefix}.top_p", f"must be 1 in training; got {top_p!r}. {why}, untruncated distribution."
    if top_k not in (None, -1, 0):
        yield f"{prefix}.top_k", f"must be null (off) in training; got {top_k!r}. {why}, untruncated distribution."


def _contradictions(tree: Tree) -> Iterator[Fault]:
    size, curriculum = select(tree, "aopsd.num_prompts_per_step"), select(tree, "aopsd.curriculum.name")
    if curriculum == "competence" and _is_int(size) and size % 4:
        yield (
            "aopsd.num_prompts_per_step",
            f"must be a multiple of 4, so that a bridge batch can mix easy : own : hard as 1:2:1; got {size}. "
            "Or set aopsd.curriculum.name=shuffle.",
        )
    row = select(tree, "policy.max_total_sequence_length")
    limits = ["policy.generation.max_new_tokens", "aopsd.judge.max_new_tokens"]
    if select(tree, "aopsd.evaluation.data_path") is not None:
        limits.append("aopsd.evaluation.max_new_tokens")
    for key in limits:
        response = select(tree, key)
        if _is_int(response) and _is_int(row) and response >= row:
            yield key, f"must leave room for a prompt within policy.max_total_sequence_length={row}; got {response}."
