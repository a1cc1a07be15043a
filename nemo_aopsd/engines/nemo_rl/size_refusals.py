"""Sizes that do not fit together: GPUs, rows and tokens. Facts of NeMo RL are those of v0.7.0."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from nemo_aopsd.cluster.faults import Fault, Rule, must_be
from nemo_aopsd.cluster.rules import gpu_faults
from nemo_aopsd.cluster.tree import MEGATRON, VLLM, Tree, is_size
from nemo_aopsd.engines.nemo_rl.model_refusals import FIRST, LAST


def _sequence_parallel(tree: Tree) -> Iterator[Fault]:
    if not tree.uses_megatron:
        return
    key, has_experts = f"{MEGATRON}.sequence_parallel", tree.size(f"{MEGATRON}.expert_model_parallel_size") > 1
    if tree[key] and tree.tensor == 1:
        yield must_be(tree, key, False, f"{tree.tensor_key} is 1", f"{tree.tensor_key}=2")
    if not tree[key] and tree.tensor > 1 and has_experts:
        yield must_be(tree, key, True, "Megatron trains experts under tensor parallelism with it only")


def _stage_keys(tree: Tree) -> Iterator[Fault]:
    """Megatron's other ways to cut a pipeline, and what is no number of layers."""
    if not tree.uses_megatron:
        return
    splits = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
    for name in (*splits, "pipeline_model_parallel_layout", "virtual_pipeline_model_parallel_size"):
        if tree[f"{MEGATRON}.{name}"]:
            why = "NeMo RL v0.7.0 does not hand it to Megatron, which would cut the pipeline evenly all the same"
            yield must_be(tree, f"{MEGATRON}.{name}", None, why, f"{FIRST} or {LAST}")
    for key in (FIRST, LAST):
        if tree[key] is not None and not is_size(tree[key]):
            yield Fault(key, tree[key], "null, or a whole number of at least 1", f"Set {key}=null")


def _batch(tree: Tree) -> Iterator[Fault]:
    key, batch = "policy.train_global_batch_size", tree.size("policy.train_global_batch_size")
    rollouts = tree["aopsd.num_prompts_per_step"] * tree["aopsd.num_generations_per_prompt"]
    if batch != rollouts:
        why = "aopsd.num_prompts_per_step x aopsd.num_generations_per_prompt, one update a step"
        yield must_be(tree, key, rollouts, why)
    model_size, micro = prod(tree.model_parallel_sizes.values()), tree.size("policy.train_micro_batch_size")
    if tree.num_gpus % model_size:
        return  # `gpu_faults` lists it
    copies = tree.num_gpus // model_size
    if batch % (copies if tree.token_budgets else copies * micro):
        by_number = "" if tree.token_budgets else f" x policy.train_micro_batch_size {micro}"
        yield Fault(
            key,
            batch,
            f"a multiple of the {copies} data-parallel copies{by_number}",
            "Change aopsd.num_prompts_per_step, cluster.gpus_per_node or the parallel sizes",
        )


def _lengths(tree: Tree) -> Iterator[Fault]:
    longest, multiple = tree.size("policy.max_total_sequence_length"), tree["policy.make_sequence_length_divisible_by"]
    padded = longest + -longest % multiple if is_size(multiple) else longest
    needs = {f"{VLLM}.max_model_len": longest}
    needs |= {
        f"policy.{block}.{kind}_mb_tokens": padded for block in tree.token_budgets for kind in ("train", "logprob")
    }
    for key, need in needs.items():
        if is_size(tree[key]) and tree[key] < need:
            why = f"policy.max_total_sequence_length is {longest}, and a teacher's row may be as long"
            yield Fault(key, tree[key], f"at least {need}: {why}", f"Set {key}={need}")


def _padding(tree: Tree) -> Iterator[Fault]:
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


def _packing(tree: Tree) -> Iterator[Fault]:
    key, other = "policy.sequence_packing.enabled", f"{tree.backend}.context_parallel_size"
    if tree.context > 1 and tree.is_packed != tree.uses_megatron:
        kind = "packed" if tree.uses_megatron else "unpacked"
        yield must_be(tree, key, tree.uses_megatron, f"context parallelism takes {kind} rows only here", f"{other}=1")
    key = "policy.dynamic_batching.enabled"
    if tree[key] and (tree.is_packed or tree.pipeline > 1):  # models/policy/lm_policy.py
        yield must_be(tree, key, False, "it works neither with sequence packing nor with pipeline stages")


def _accuracy(tree: Tree) -> Iterator[Fault]:
    key, train = "policy.logprob_batch_size", tree.size("policy.train_micro_batch_size")
    if tree.tensor >= 4 and tree.size(key) != train:  # models/policy/lm_policy.py
        why = f"as policy.train_micro_batch_size; with {tree.tensor_key}={tree.tensor} log-probs depend on that number"
        yield must_be(tree, key, train, why)


SIZE_RULES: tuple[Rule, ...] = (
    gpu_faults,
    _sequence_parallel,
    _batch,
    _lengths,
    _padding,
    _packing,
    _accuracy,
    _stage_keys,
)
