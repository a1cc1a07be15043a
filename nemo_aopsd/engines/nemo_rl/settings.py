"""What this engine reads from NeMo RL's blocks, and every setting with which it could not work or would learn wrongly.

All that is wrong is listed at once, before a GPU is taken: set-up takes minutes, and several of these faults would
not stop a run but spoil it. Facts of NeMo RL are those of v0.7.0; file names are below its `nemo_rl/`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from nemo_aopsd.config import Config
from nemo_aopsd.config_checks import select
from nemo_aopsd.errors import UserError

_MEGATRON, _DTENSOR, _VLLM = "policy.megatron_cfg", "policy.dtensor_cfg", "policy.generation.vllm_cfg"
_SIZES = (
    *("cluster.num_nodes", "cluster.gpus_per_node"),
    *("policy.train_global_batch_size", "policy.train_micro_batch_size", "policy.logprob_batch_size"),
    *("policy.make_sequence_length_divisible_by", "policy.max_total_sequence_length"),
    *(
        f"{_VLLM}.{name}"
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size", "max_model_len")
    ),
)
_MEGATRON_SIZES = tuple(
    f"{_MEGATRON}.{name}_parallel_size"
    for name in ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor")
)
_EXPERT_SIZES = _MEGATRON_SIZES[1], *_MEGATRON_SIZES[3:]  # experts have their own way through the same GPUs
_DTENSOR_SIZES = (f"{_DTENSOR}.tensor_parallel_size", f"{_DTENSOR}.context_parallel_size")
# Tokens that a rank's share of a batch must be a multiple of (models/megatron/data.py); for a recipe not listed 16.
_FP8_MULTIPLE = {"blockwise": 128, "mxfp8": 32}


@dataclass(frozen=True)
class Settings:
    """Sizes are GPUs, rows or tokens, as their names say."""

    backend: Literal["megatron", "dtensor"]
    model_name: str
    tokenizer_name: str
    num_nodes: int
    gpus_per_node: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    context_parallel_size: int
    sampler_parallel_size: int  # GPUs of one vLLM engine
    train_global_batch_size: int
    train_micro_batch_size: int
    logprob_batch_size: int
    packs_rows: bool  # rows are grouped by tokens, not by number
    divisible_by: int  # row lengths are padded to a multiple of it
    max_total_sequence_length: int

    @property
    def data_parallel_size(self) -> int:
        """Copies of the model that share a training batch."""
        model_size = self.tensor_parallel_size * self.pipeline_parallel_size * self.context_parallel_size
        return self.num_nodes * self.gpus_per_node // model_size

    @property
    def scoring_rows_multiple(self) -> int:
        """What the number of rows of a log-prob call must be a multiple of."""
        return self.data_parallel_size * (1 if self.packs_rows else self.logprob_batch_size)


@dataclass(frozen=True)
class Fault:
    """One setting that cannot stay. `key` is dotted, or names an environment variable; texts have no full stop."""

    key: str
    found: Any
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key} is {_shown(self.found)}; expected {self.expected}. {self.remedy}."


class _Unreadable(Exception):
    """A rule needs a size that is itself listed as a fault."""


def read_settings(config: Config, environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings of a config that the core's checks have passed. Raises UserError with one line for each fault."""
    tree = _Tree(config.raw)
    faults = [*_broken_sizes(tree)]
    for rule in _RULES:
        faults += _apply(rule, tree)
    faults += _environment_faults(tree, environment)
    if faults:
        raise UserError("config, for aopsd.engine=nemo_rl:\n" + "\n".join(f"- {fault}" for fault in faults))
    return Settings(
        backend="megatron" if tree.uses_megatron else "dtensor",
        model_name=tree["policy.model_name"],
        tokenizer_name=tree["policy.tokenizer.name"] or tree["policy.model_name"],
        num_nodes=tree.size("cluster.num_nodes"),
        gpus_per_node=tree.size("cluster.gpus_per_node"),
        tensor_parallel_size=tree.tensor,
        pipeline_parallel_size=tree.pipeline,
        context_parallel_size=tree.context,
        sampler_parallel_size=tree.size(f"{_VLLM}.tensor_parallel_size"),
        train_global_batch_size=tree.size("policy.train_global_batch_size"),
        train_micro_batch_size=tree.size("policy.train_micro_batch_size"),
        logprob_batch_size=tree.size("policy.logprob_batch_size"),
        packs_rows=bool(tree.token_budgets),
        divisible_by=tree.size("policy.make_sequence_length_divisible_by"),
        max_total_sequence_length=tree.size("policy.max_total_sequence_length"),
    )


class _Tree:
    """The resolved config by dotted key, and the few values that many rules need."""

    def __init__(self, raw: dict[str, Any]):
        self._raw = raw

    def __getitem__(self, key: str) -> Any:
        """The value; None where there is none."""
        return select(self._raw, key)

    def size(self, key: str) -> int:
        if not _is_size(self[key]):
            raise _Unreadable(key)
        return self[key]

    @property
    def uses_megatron(self) -> bool:
        return bool(self[f"{_MEGATRON}.enabled"])

    @property
    def uses_dtensor(self) -> bool:
        return bool(self[f"{_DTENSOR}.enabled"])

    @property
    def backend(self) -> str:
        """The block of the training backend."""
        return _MEGATRON if self.uses_megatron else _DTENSOR

    @property
    def tensor_key(self) -> str:
        return f"{self.backend}.tensor_{'model_' if self.uses_megatron else ''}parallel_size"

    @property
    def tensor(self) -> int:
        return self.size(self.tensor_key)

    @property
    def pipeline(self) -> int:
        return self.size(f"{_MEGATRON}.pipeline_model_parallel_size") if self.uses_megatron else 1

    @property
    def context(self) -> int:
        return self.size(f"{self.backend}.context_parallel_size")

    @property
    def num_gpus(self) -> int:
        return self.size("cluster.num_nodes") * self.size("cluster.gpus_per_node")

    @property
    def model_parallel_sizes(self) -> dict[str, int]:
        """GPUs of one copy of the model are their product."""
        return {"TP": self.tensor, "PP": self.pipeline, "CP": self.context}

    @property
    def is_packed(self) -> bool:
        return bool(self["policy.sequence_packing.enabled"])

    @property
    def token_budgets(self) -> list[str]:
        """The blocks by which rows are grouped by tokens; without any, by number."""
        return [name for name in ("sequence_packing", "dynamic_batching") if self[f"policy.{name}.enabled"]]

    @property
    def fp8_multiple(self) -> int:
        """1 where training is not in FP8."""
        if not (self.uses_megatron and self[f"{_MEGATRON}.fp8_cfg.enabled"]):
            return 1
        return _FP8_MULTIPLE.get(self[f"{_MEGATRON}.fp8_cfg.fp8_recipe"], 16)


Rule = Callable[[_Tree], Iterator[Fault]]


def _apply(rule: Rule, tree: _Tree) -> list[Fault]:
    faults: list[Fault] = []
    with suppress(_Unreadable):  # `_broken_sizes` lists it
        for fault in rule(tree):
            faults.append(fault)
    return faults


def _must_be(tree: _Tree, key: str, value: Any, why: str, otherwise: str = "") -> Fault:
    """A fault with one right value; `otherwise` is another way out."""
    wanted = _shown(value)
    return Fault(key, tree[key], f"{wanted}: {why}", f"Set {key}={wanted}" + (f", or {otherwise}" if otherwise else ""))


def _shown(value: Any) -> str:
    """As YAML has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _broken_sizes(tree: _Tree) -> Iterator[Fault]:
    budgets = [f"policy.{block}.{kind}_mb_tokens" for block in tree.token_budgets for kind in ("train", "logprob")]
    for key in (*_SIZES, *(_MEGATRON_SIZES if tree.uses_megatron else _DTENSOR_SIZES), *budgets):
        if not _is_size(tree[key]):
            yield Fault(key, tree[key], "a whole number of at least 1", f"Set {key}, as examples/configs does")


def _backend(tree: _Tree) -> Iterator[Fault]:
    if tree.uses_megatron == tree.uses_dtensor:
        yield Fault(
            f"{_MEGATRON}.enabled",
            tree.uses_megatron,
            f"the opposite of {_DTENSOR}.enabled, which is {_shown(tree.uses_dtensor)}: one backend trains",
            f"Set {_MEGATRON}.enabled=true {_DTENSOR}.enabled=false",
        )
    if tree.uses_dtensor and tree[f"{_DTENSOR}._v2"]:  # models/policy/workers/dtensor_policy_worker_v2.py
        why = (
            "version 2 takes its reference after loading a checkpoint, so a resumed run's teacher would be its student"
        )
        yield _must_be(tree, f"{_DTENSOR}._v2", False, why, "use Megatron")
    if tree.uses_dtensor and tree[f"{_DTENSOR}.cpu_offload"]:
        why = "weights are gathered over NCCL to be hashed and exported, which takes them on the GPU only"
        yield _must_be(tree, f"{_DTENSOR}.cpu_offload", False, why, "use Megatron")


def _teacher(tree: _Tree) -> Iterator[Fault]:
    key = "aopsd.teacher.weights"
    if tree[key] != "frozen":
        yield _must_be(tree, key, "frozen", "this engine keeps the initial weights and no others", "aopsd.engine=local")
    key = f"{_MEGATRON}.peft.enabled" if tree.uses_megatron else f"{_DTENSOR}.lora_cfg.enabled"
    if tree[key]:
        yield _must_be(tree, key, False, "this engine trains all weights")


def _sampler(tree: _Tree) -> Iterator[Fault]:
    for key, value, why in (
        ("policy.generation.backend", "vllm", "probes and the log-probs of branches are made in vLLM"),
        ("policy.generation.colocated.enabled", True, "vLLM takes turns with the trainer on the same GPUs"),
        ("policy.generation.stop_strings", None, "a response ends with an end token, which the loss counts"),
        ("policy.generation.stop_token_ids", None, "the model's own end tokens end every response"),
        (f"{_VLLM}.async_engine", False, "probes need the engine in the worker's own process"),
    ):
        if tree[key] != value:
            yield _must_be(tree, key, value, why)
    key = "policy.generation.temperature"
    if tree[key] != 1:  # models/megatron/train.py
        yield _must_be(
            tree, key, 1.0, "NeMo RL divides the trainer's logits by it, and gaps are those at temperature 1"
        )
    key = f"{_VLLM}.enable_prefix_caching"
    if tree["aopsd.weighting"] == "continuation" and tree[key] is False:
        yield _must_be(tree, key, True, "each probe would read its whole prefix again", "aopsd.weighting=uniform")


def _sampler_sizes(tree: _Tree) -> Iterator[Fault]:
    if tree.size(f"{_VLLM}.pipeline_parallel_size") > 1:  # models/generation/vllm/vllm_generation.py
        why = "NeMo RL has pipeline stages in vLLM with the asynchronous engine only"
        yield _must_be(tree, f"{_VLLM}.pipeline_parallel_size", 1, why, f"raise {_VLLM}.tensor_parallel_size")
    key, tensor = f"{_VLLM}.expert_parallel_size", tree.size(f"{_VLLM}.tensor_parallel_size")
    if tree.size(key) > tensor:
        why = (
            f"as {_VLLM}.tensor_parallel_size; beyond it vLLM's engines wait for each other, also for one without rows"
        )
        yield _must_be(tree, key, tensor, why)


def _sampler_fp8(tree: _Tree) -> Iterator[Fault]:
    key = f"{_VLLM}.kv_cache_dtype"
    if str(tree[key]).startswith("fp8"):  # algorithms/grpo.py, refit_policy_generation
        yield _must_be(tree, key, "auto", "a refit on the same GPUs drops the scales of an FP8 cache")
    key = "loss_fn.use_importance_sampling_correction"
    if tree[f"{_VLLM}.precision"] == "fp8" and not tree[key]:
        why = f"with {_VLLM}.precision=fp8 rollouts come from a visibly different distribution"
        yield _must_be(tree, key, True, why, f"{_VLLM}.precision=bfloat16")


def _loss(tree: _Tree) -> Iterator[Fault]:
    key = "loss_fn.reference_policy_kl_penalty"
    if tree[key] != 0:  # absent, it is 0.01: algorithms/loss/loss_functions.py
        yield _must_be(
            tree, key, 0.0, "the initial weights score the teacher's prompt only, so no penalty can be formed"
        )
    key, chunk = f"{_MEGATRON}.defer_fp32_logits", tree["policy.logprob_chunk_size"]
    if tree.uses_megatron and chunk and not tree[key]:
        yield _must_be(tree, key, True, f"policy.logprob_chunk_size={chunk} needs it", "policy.logprob_chunk_size=null")
    key = "policy.sequence_packing.fuse_loss"
    if tree[key] and (tree.fp8_multiple > 1 or tree.pipeline > 1):  # algorithms/loss/utils.py
        why = "the fused loss breaks on the padding that FP8 and pipeline stages add to a pack"
        yield _must_be(tree, key, False, why)


def _gpus(tree: _Tree) -> Iterator[Fault]:
    sampler, sizes = tree.size(f"{_VLLM}.tensor_parallel_size"), tree.model_parallel_sizes
    groups = {"trainer": sizes, "sampler": {f"{_VLLM}.tensor_parallel_size": sampler}}
    if tree.uses_megatron:
        groups["experts"] = {key: tree.size(key) for key in _EXPERT_SIZES}
    for name, group in groups.items():
        if tree.num_gpus % prod(group.values()):
            listed = " x ".join(f"{key} {size}" for key, size in group.items())
            yield Fault(
                "cluster.gpus_per_node",
                tree["cluster.gpus_per_node"],
                f"all nodes' GPUs to be a multiple of {prod(group.values())}, for the {name} ({listed})",
                "Change cluster.gpus_per_node, cluster.num_nodes or these sizes",
            )


def _sequence_parallel(tree: _Tree) -> Iterator[Fault]:
    if not tree.uses_megatron:
        return
    key, has_experts = f"{_MEGATRON}.sequence_parallel", tree.size(f"{_MEGATRON}.expert_model_parallel_size") > 1
    if tree[key] and tree.tensor == 1:
        yield _must_be(tree, key, False, f"{tree.tensor_key} is 1", f"{tree.tensor_key}=2")
    if not tree[key] and tree.tensor > 1 and has_experts:
        yield _must_be(tree, key, True, "Megatron trains experts under tensor parallelism with it only")


def _batch(tree: _Tree) -> Iterator[Fault]:
    key, batch = "policy.train_global_batch_size", tree.size("policy.train_global_batch_size")
    rollouts = tree["aopsd.num_prompts_per_step"] * tree["aopsd.num_generations_per_prompt"]
    if batch != rollouts:
        why = "aopsd.num_prompts_per_step x aopsd.num_generations_per_prompt, one update a step"
        yield _must_be(tree, key, rollouts, why)
    model_size, micro = prod(tree.model_parallel_sizes.values()), tree.size("policy.train_micro_batch_size")
    if tree.num_gpus % model_size:
        return  # `_gpus` lists it
    copies = tree.num_gpus // model_size
    if batch % (copies if tree.token_budgets else copies * micro):
        by_number = "" if tree.token_budgets else f" x policy.train_micro_batch_size {micro}"
        yield Fault(
            key,
            batch,
            f"a multiple of the {copies} data-parallel copies{by_number}",
            "Change aopsd.num_prompts_per_step, cluster.gpus_per_node or the parallel sizes",
        )


def _lengths(tree: _Tree) -> Iterator[Fault]:
    longest, multiple = tree.size("policy.max_total_sequence_length"), tree["policy.make_sequence_length_divisible_by"]
    padded = longest + -longest % multiple if _is_size(multiple) else longest
    needs = {f"{_VLLM}.max_model_len": longest}
    needs |= {
        f"policy.{block}.{kind}_mb_tokens": padded for block in tree.token_budgets for kind in ("train", "logprob")
    }
    for key, need in needs.items():
        if _is_size(tree[key]) and tree[key] < need:
            why = f"policy.max_total_sequence_length is {longest}, and a teacher's row may be as long"
            yield Fault(key, tree[key], f"at least {need}: {why}", f"Set {key}={need}")


def _padding(tree: _Tree) -> Iterator[Fault]:
    """Row lengths of which every rank can take an equal share (models/megatron/data.py; for FP8 Transformer Engine)."""
    parts = {}
    if tree[f"{tree.backend}.sequence_parallel"] and tree.tensor > 1:
        parts[f"TP {tree.tensor} with sequence parallelism"] = tree.tensor
    if tree.context > 1:
        parts[f"2 x CP {tree.context}"] = 2 * tree.context
    if tree.fp8_multiple > 1 and not tree.is_packed:  # NeMo RL pads packs for FP8 by itself
        parts[f"{tree.fp8_multiple} for FP8 without packing"] = tree.fp8_multiple
    key, need = "policy.make_sequence_length_divisible_by", prod(parts.values())
    if tree.size(key) % need:
        yield Fault(key, tree[key], f"a multiple of {need}: {' x '.join(parts)}", f"Set {key}={need}")


def _packing(tree: _Tree) -> Iterator[Fault]:
    key, other = "policy.sequence_packing.enabled", f"{tree.backend}.context_parallel_size"
    if tree.context > 1 and tree.is_packed != tree.uses_megatron:
        kind = "packed" if tree.uses_megatron else "unpacked"
        yield _must_be(tree, key, tree.uses_megatron, f"context parallelism takes {kind} rows only here", f"{other}=1")
    key = "policy.dynamic_batching.enabled"
    if tree[key] and (tree.is_packed or tree.pipeline > 1):  # models/policy/lm_policy.py
        yield _must_be(tree, key, False, "it works neither with sequence packing nor with pipeline stages")


def _precision(tree: _Tree) -> Iterator[Fault]:
    key = f"{_MEGATRON}.fp8_cfg.fp8_param"
    if tree.fp8_multiple > 1 and tree[key] and tree.tensor > 1:
        yield _must_be(
            tree, key, False, f"with {tree.tensor_key}={tree.tensor} it gave NaN (NVIDIA-NeMo/RL issue 1164)"
        )
    overlap = f"{_MEGATRON}.distributed_data_parallel_config.overlap_param_gather"
    if tree.fp8_multiple > 1 and tree[key] and tree[f"{_MEGATRON}.fp8_cfg.fp8_recipe"] == "mxfp8" and tree[overlap]:
        why = "MXFP8 weights are gathered through the gradients' buffer, which is not there when vLLM is refitted"
        yield _must_be(tree, overlap, False, why, f"{key}=false")


def _accuracy(tree: _Tree) -> Iterator[Fault]:
    key, train = "policy.logprob_batch_size", tree.size("policy.train_micro_batch_size")
    if tree.tensor >= 4 and tree.size(key) != train:  # models/policy/lm_policy.py
        why = f"as policy.train_micro_batch_size; with {tree.tensor_key}={tree.tensor} log-probs depend on that number"
        yield _must_be(tree, key, train, why)


_RULES: tuple[Rule, ...] = (
    *(_backend, _teacher, _sampler, _sampler_sizes, _sampler_fp8, _loss),
    *(_gpus, _sequence_parallel, _batch, _lengths, _padding, _packing, _precision, _accuracy),
)


def _environment_faults(tree: _Tree, environment: Mapping[str, str]) -> Iterator[Fault]:
    """NeMo RL gives all of the driver's environment to every worker (distributed/worker_groups.py)."""
    sampler = tree[f"{_VLLM}.env_vars"] or {}
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        for key, variables in ((name, environment), (f"{_VLLM}.env_vars.{name}", sampler)):
            value = str(variables.get(name, ""))
            if "expandable_segments:true" in value.lower().replace(" ", ""):
                yield Fault(
                    key,
                    value,
                    "no expandable_segments: vLLM cannot sleep on such memory",
                    f"Unset it; for the trainer alone use {_MEGATRON}.env_vars",
                )
    if tree.uses_megatron and not environment.get("TORCH_CUDA_ARCH_LIST"):
        yield Fault(
            "TORCH_CUDA_ARCH_LIST",
            environment.get("TORCH_CUDA_ARCH_LIST"),
            "the GPUs' compute capability in the environment: the Megatron backend compiles for it",
            "Run: export TORCH_CUDA_ARCH_LIST=9.0 (H100, H200)",
        )
