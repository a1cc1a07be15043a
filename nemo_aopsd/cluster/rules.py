"""A setting with which the cluster engine could not work, and the rules that its refusals share with `aopsd doctor` and
`aopsd plan`: sizes and the environment.

Facts of NeMo RL are those of v0.7.0; file names are below its `nemo_rl/`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from nemo_aopsd.cluster.tree import DTENSOR, MEGATRON, VLLM, Tree, is_size
from nemo_aopsd.config.keys import typed
from nemo_aopsd.errors import UserError

_SIZES = (
    *("cluster.num_nodes", "cluster.gpus_per_node"),
    *("policy.train_global_batch_size", "policy.train_micro_batch_size", "policy.logprob_batch_size"),
    *("policy.make_sequence_length_divisible_by", "policy.max_total_sequence_length"),
    *(f"{VLLM}.{kind}_parallel_size" for kind in ("tensor", "pipeline", "expert")),
    f"{VLLM}.max_model_len",
)
_MEGATRON_SIZES = tuple(
    f"{MEGATRON}.{kind}_parallel_size"
    for kind in ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor")
)
_EXPERT_SIZES = _MEGATRON_SIZES[1], *_MEGATRON_SIZES[3:]  # experts have their own way through the same GPUs
_DTENSOR_SIZES = (f"{DTENSOR}.tensor_parallel_size", f"{DTENSOR}.context_parallel_size")


@dataclass(frozen=True)
class Fault:
    """A setting that cannot stay. `key` is dotted, or names an environment variable. No text ends with a full stop."""

    key: str
    found: Any
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key} is {typed(self.found)}; expected {self.expected}. {self.remedy}."


Rule = Callable[[Tree], Iterator[Fault]]


def must_be(tree: Tree, key: str, value: Any, why: str, otherwise: str = "") -> Fault:
    """A fault with one right value; `otherwise` is another way out."""
    remedy = f"Set {key}={typed(value)}" + (f", or {otherwise}" if otherwise else "")
    return Fault(key, tree[key], f"{typed(value)}: {why}", remedy)


def broken_sizes(tree: Tree) -> Iterator[Fault]:
    """Sizes that are not whole numbers of at least 1."""
    budgets = [f"policy.{block}.{kind}_mb_tokens" for block in tree.token_budgets for kind in ("train", "logprob")]
    for key in (*_SIZES, *(_MEGATRON_SIZES if tree.uses_megatron else _DTENSOR_SIZES), *budgets):
        if not is_size(tree[key]):
            yield Fault(key, tree[key], "a whole number of at least 1", f"Set {key}, as examples/configs does")


def gpu_faults(tree: Tree) -> Iterator[Fault]:
    """Parallel sizes whose product does not divide the GPUs."""
    sampler = f"{VLLM}.tensor_parallel_size"
    groups = {"trainer": tree.model_parallel_sizes, "sampler": {sampler: tree.size(sampler)}}
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


def environment_faults(tree: Tree, environment: Mapping[str, str]) -> Iterator[Fault]:
    """NeMo RL gives all of the driver's environment to every worker (distributed/worker_groups.py)."""
    sampler = tree[f"{VLLM}.env_vars"] or {}
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        for key, variables in ((name, environment), (f"{VLLM}.env_vars.{name}", sampler)):
            value = str(variables.get(name, ""))
            if "expandable_segments:true" in value.lower().replace(" ", ""):
                expected = "no expandable_segments: vLLM cannot sleep on such memory"
                yield Fault(key, value, expected, f"Unset it; for the trainer alone use {MEGATRON}.env_vars")
    name = "TORCH_CUDA_ARCH_LIST"
    if tree.uses_megatron and not environment.get(name):
        expected = "the GPUs' compute capability in the environment: the Megatron backend compiles for it"
        yield Fault(name, environment.get(name), expected, f"Run: export {name}=9.0, which is that of H100 and H200")


def refuse(faults: Iterable[Fault]) -> None:
    """Raises UserError with one line for each fault, if there are any."""
    if lines := [f"- {fault}" for fault in faults]:
        raise UserError("config, for aopsd.engine=nemo_rl:\n" + "\n".join(lines))
