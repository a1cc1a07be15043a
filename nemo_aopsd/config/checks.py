"""What a value of the config may be: choices, ranges, and settings that contradict each other.

Works on the resolved tree: our block, and the parts of NeMo RL's blocks that our loop reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from nemo_aopsd.config.keys import flatten
from nemo_aopsd.config.schema import CHOICES, CONTINUED

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
    "policy.optimizer.name",
    *("policy.logprob_batch_size", "policy.generation_batch_size", "policy.prefix_cache_gb"),
    "policy.enforce_eager",
    *(f"policy.optimizer.kwargs.{name}" for name in ("lr", "weight_decay", "betas", "eps")),
    *(f"policy.generation.{name}" for name in ("temperature", "top_p", "top_k")),
    *(f"checkpointing.{name}" for name in ("enabled", "checkpoint_dir", "save_period", "keep_top_k")),
)

# The blocks that hold them, such as `policy.optimizer`.
BLOCKS = sorted({key[: dot.start()] for key in LOCAL_KEYS for dot in re.finditer(r"\.", key)})
_MAY_BE_NULL = (
    *("aopsd.max_num_steps", "aopsd.max_response_tokens", "aopsd.max_train_seconds"),
    *("aopsd.probes.max_per_rollout", "aopsd.objective.token_clip", "aopsd.objective.support"),
    "policy.tokenizer.name",
)
_ABSENT = object()
# Objectives that engine can make of what NeMo RL's trainer hands a loss.
_ON_A_SUPPORT = ("fkl", "dash")
_ON_NEMO_RL = ("pg", "topk_fkl", *_ON_A_SUPPORT)

Tree = dict[str, Any]
Fault = tuple[str, str]  # dotted key, what is wrong with it


def find_faults(tree: Tree) -> Iterator[Fault]:
    """Every setting that cannot work, as its dotted key and a message that says what it may be."""
    yield from _wrong_choices(tree)
    yield from _out_of_range(tree)
    yield from _truncated_sampling(tree)
    yield from _contradictions(tree)
    yield from _unfit_for_the_objective(tree)
    yield from _unwritable(tree)


def find_non_blocks(tree: Tree) -> Iterator[Fault]:
    """What stands where a block must stand; interpolation is left alone until it is resolved."""
    for key in BLOCKS:
        value = select(tree, key)
        if value is not None and not isinstance(value, dict) and not (isinstance(value, str) and "${" in value):
            yield key, f"must be a block of `key: value` lines; got {value!r}."


def select(tree: Tree, key: str, absent: Any = None) -> Any:
    """The value of a dotted key; `absent` where there is none.

    >>> select({"a": {"b": 1}}, "a.b"), select({"a": {"b": 1}}, "a.c")
    (1, None)
    """
    value: Any = tree
    for part in key.split("."):
        value = value.get(part, absent) if isinstance(value, dict) else absent
    return value


def _wrong_choices(tree: Tree) -> Iterator[Fault]:
    choices = {f"aopsd.{key}": names for key, names in CHOICES.items()}
    if select(tree, "aopsd.engine") == "local":
        choices["policy.precision"] = ("float32", "bfloat16")
    for key, names in choices.items():
        value = select(tree, key, _ABSENT)
        if value is not _ABSENT and value not in names:
            yield key, f"must be one of {', '.join(names)}; got {value!r}."


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Finite, in single precision too."""
    return (_is_int(value) or isinstance(value, float)) and abs(value) < 1e38


def _is_temperature(value: Any) -> bool:
    return _is_number(value) and 0.01 <= value <= 100


# (keys, test, what the value must be). A key may be left out; null is a value like any other.
_RANGES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (
        (
            *("aopsd.num_prompts_per_step", "aopsd.num_generations_per_prompt"),
            "aopsd.max_num_epochs",
            *("aopsd.judge.max_new_tokens", "aopsd.judge.max_attempt_tokens"),
            *("aopsd.probes.max_per_rollout", "aopsd.curriculum.num_initial_attempts"),
            *("aopsd.max_response_tokens", "aopsd.objective.top_k", "aopsd.objective.support"),
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
        ("aopsd.max_num_steps", "aopsd.judge.num_retries", "aopsd.evaluation.top_k"),
        lambda value: _is_int(value) and value >= 0,
        "must be a whole number of at least 0",
    ),
    (
        (
            *("aopsd.objective.advantage_clip", "aopsd.objective.ratio_clip_min", "aopsd.objective.ratio_clip_max"),
            *("aopsd.objective.token_clip", "aopsd.objective.dash_kappa", "aopsd.max_train_seconds"),
            *("aopsd.probes.threshold", "aopsd.probes.beta_positive", "aopsd.probes.beta_negative"),
            *("policy.max_grad_norm", "policy.optimizer.kwargs.eps"),
        ),
        lambda value: _is_number(value) and value > 0,
        "must be a finite number above 0",
    ),
    (
        ("aopsd.objective.jsd_beta",),
        lambda value: _is_number(value) and 0 < value < 1,
        "must be a number between 0 and 1 (its ends are the divergences fkl and rkl)",
    ),
    (
        ("aopsd.objective.entropy_threshold", "aopsd.objective.entropy_weight"),
        lambda value: _is_number(value) and value >= 0,
        "must be a finite number of at least 0",
    ),
    (
        ("policy.optimizer.kwargs.lr", "policy.optimizer.kwargs.weight_decay", "policy.prefix_cache_gb"),
        lambda value: _is_number(value) and value >= 0,
        "must be a finite number of at least 0",
    ),
    (
        ("aopsd.evaluation.temperature",),
        lambda value: value == 0 or _is_temperature(value),
        "must be 0 (greedy) or a number from 0.01 to 100",
    ),
    (
        ("aopsd.curriculum.ema", "aopsd.teacher.ema_decay", "aopsd.objective.on_policy_rate"),
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
    (("checkpointing.enabled", "policy.enforce_eager"), lambda value: isinstance(value, bool), "must be true or false"),
    (
        (
            *("policy.model_name", "policy.tokenizer.name", "policy.optimizer.name"),
            *("data.train.data_path", "logger.log_dir", "checkpointing.checkpoint_dir"),
        ),
        lambda value: isinstance(value, str) and value.strip() != "" and "\0" not in value,
        "must be a name or a path",
    ),
)


def _out_of_range(tree: Tree) -> Iterator[Fault]:
    for keys, test, expected in _RANGES:
        for key in keys:
            value = select(tree, key, _ABSENT)
            left_out = value is _ABSENT or (value is None and key in _MAY_BE_NULL)
            if not left_out and not test(value):
                yield key, f"{expected}; got {value!r}."


def _truncated_sampling(tree: Tree) -> Iterator[Fault]:
    why = "The gap on a sampled token estimates the divergence only if tokens are drawn from the student's whole"
    prefix = "policy.generation"
    temperature, top_p, top_k = (select(tree, f"{prefix}.{name}") for name in ("temperature", "top_p", "top_k"))
    if not _is_temperature(temperature):
        found = f"must be a number from 0.01 to 100; got {temperature!r}"
        yield f"{prefix}.temperature", f"{found}. {why} distribution, never greedily."
    if top_p not in (None, 1):
        yield f"{prefix}.top_p", f"must be 1 in training; got {top_p!r}. {why}, untruncated distribution."
    if top_k not in (None, -1, 0):
        yield f"{prefix}.top_k", f"must be null (off) in training; got {top_k!r}. {why}, untruncated distribution."


def _contradictions(tree: Tree) -> Iterator[Fault]:
    size, curriculum = select(tree, "aopsd.num_prompts_per_step"), select(tree, "aopsd.curriculum.name")
    if curriculum != "shuffle" and _is_int(size) and size % 4:
        yield (
            "aopsd.num_prompts_per_step",
            f"must be a multiple of 4, so that a batch can mix easy : own : hard as 1:2:1; got {size}. "
            "Or set aopsd.curriculum.name=shuffle.",
        )
    if select(tree, "aopsd.engine") == "local" and select(tree, "aopsd.probes.keep_cache") is True:
        yield (
            "aopsd.probes.keep_cache",
            "must be false with aopsd.engine=local: it keeps vLLM awake, and this engine has none; its own cache is "
            "policy.prefix_cache_gb. Leave it out, or set aopsd.engine=nemo_rl.",
        )
    row = select(tree, "policy.max_total_sequence_length")
    has_probes = select(tree, "aopsd.weighting") in CONTINUED
    probe = select(tree, "aopsd.probes.length") if has_probes else 0
    limits = {"policy.generation.max_new_tokens": probe, "aopsd.judge.max_new_tokens": 0}
    if has_probes:
        limits["aopsd.probes.length"] = 0
    if select(tree, "aopsd.evaluation.data_path") is not None:
        limits["aopsd.evaluation.max_new_tokens"] = 0
    for key, more in limits.items():
        length = select(tree, key)
        if _is_int(length) and _is_int(row) and length + more >= row:
            room = f"a prompt and aopsd.probes.length={more}" if more else "a prompt"
            yield key, f"must leave room for {room} within policy.max_total_sequence_length={row}; got {length}."


def _unfit_for_the_objective(tree: Tree) -> Iterator[Fault]:
    objective, weighting = select(tree, "aopsd.objective.name"), select(tree, "aopsd.weighting")
    if objective != "pg" and weighting in CHOICES["weighting"] and weighting != "uniform":
        yield (
            "aopsd.weighting",
            f"must be uniform with aopsd.objective.name={objective}; got {weighting!r}. Only the objective pg "
            "weighs the gaps of sampled tokens.",
        )
    group = select(tree, "aopsd.num_generations_per_prompt")
    if objective == "grpo" and _is_int(group) and group < 2:
        yield (
            "aopsd.num_generations_per_prompt",
            f"must be at least 2 with aopsd.objective.name=grpo, which compares answers to one problem; got {group}. "
            "8 is usual.",
        )
    if select(tree, "aopsd.engine") != "nemo_rl":
        return
    if objective in _ON_A_SUPPORT and select(tree, "aopsd.objective.support") is None:
        yield (
            "aopsd.objective.support",
            f"must be a number K with aopsd.objective.name={objective} and aopsd.engine=nemo_rl; got None. The "
            "teacher's log-probs of all words fit into no batch: its K likeliest are compared, and the rest as "
            "one. docs/methods.md says how close that comes. Set 64 to begin with, or engine=local.",
        )
    if objective in CHOICES["objective.name"] and objective not in _ON_NEMO_RL:
        expected = f"must be {', '.join(_ON_NEMO_RL[:-1])} or {_ON_NEMO_RL[-1]} with aopsd.engine=nemo_rl"
        yield "aopsd.objective.name", f"{expected}; got {objective!r}. Use engine=local.{_stock_script(objective)}"


def _stock_script(objective: str) -> str:
    if objective not in ("sft", "grpo"):
        return ""
    return f" NeMo RL has its own script for it: examples/run_{objective}.py, by docs/nemo_rl.md."


def _unwritable(tree: Tree) -> Iterator[Fault]:
    """The run folder keeps the config as UTF-8, which has no halves of a surrogate pair."""
    for key, value in flatten(tree).items():
        if any("\ud800" <= character <= "\udfff" for character in f"{key}{value}"):
            yield key, f"holds bytes that are no text: {value!a}. Write it in UTF-8."
