"""Every setting with which this engine could not work or would train wrongly, checked before it uses a GPU.

All that is wrong is listed at once: set-up takes minutes, and several of these faults would not stop a run but spoil
it. What NeMo RL v0.7.0 itself refuses at its start with a clear message is left to it. File names are below its
`nemo_rl/`. Sizes that the model decides: model_refusals.py. What the doctor asks for as well: cluster/rules.py.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import prod
from typing import Any

from nemo_aopsd.cluster.rules import Fault, Rule, broken_sizes, environment_faults, gpu_faults, must_be
from nemo_aopsd.cluster.tree import DTENSOR, MEGATRON, VLLM, Tree, Unreadable, is_size
from nemo_aopsd.config.extension import is_own
from nemo_aopsd.config.keys import typed
from nemo_aopsd.config.schema import TOP_K_KEYS, continues
from nemo_aopsd.engines.nemo_rl.model_refusals import MODEL_RULES
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.config_json import find_model_config

# Our recipes for NeMo RL's own scripts, each known by a block that only it has. `aopsd train` can read them, but would
# train something else, or nothing. Other blocks are allowed: a config of AOPSD may build on a recipe of NeMo RL's.
_STOCK = {
    "sft": "python examples/run_sft.py --config FILE (docs/nemo_rl.md)",
    "env.aopsd_progress": "python -m nemo_aopsd.baselines.run_stock examples/run_grpo.py --config FILE "
    "(docs/nemo_rl_environment.md)",
}
_NO_LIMIT = 1_000_000  # steps, in NeMo RL's own recipes
TRACKERS = ("wandb", "swanlab", "tensorboard", "mlflow")


def refuse_stock_recipe(tree: Tree) -> None:
    """Raises UserError with the command that the recipe is for."""
    for block, command in _STOCK.items():
        if tree[block]:
            found = f"with the block `{block}` this is a recipe for a script of NeMo RL's"
            wanted = "a config of AOPSD, such as examples/configs/aopsd_qwen3_4b_megatron.yaml"
            remedy = f"From the NeMo RL folder run: {command}. If it is meant for AOPSD, remove the block."
            raise UserError(f"config: {found}; expected {wanted}. {remedy}")


def find_faults(tree: Tree, environment: Mapping[str, str]) -> list[Fault]:
    """One for each setting that cannot stay, of the config and of the driver's environment."""
    found = [*broken_sizes(tree)]
    for rule in _RULES:
        with suppress(Unreadable):  # a size that the rule needs is broken, which is listed
            found.extend(rule(tree))
    return [*found, *environment_faults(tree, environment)]


def _only(tree: Tree, key: str, value: Any, why: str, otherwise: str = "") -> Iterator[Fault]:
    if tree[key] != value:
        yield must_be(tree, key, value, why, otherwise)


def _off(tree: Tree, key: str, why: str, otherwise: str = "") -> Iterator[Fault]:
    """The setting must be false or absent."""
    if tree[key]:
        yield must_be(tree, key, False, why, otherwise)


def _backend(tree: Tree) -> Iterator[Fault]:
    if tree.uses_megatron == tree.uses_dtensor:
        expected = f"the opposite of {DTENSOR}.enabled, which is {typed(tree.uses_dtensor)}: one backend trains"
        remedy = f"Set {MEGATRON}.enabled=true {DTENSOR}.enabled=false"
        yield Fault(f"{MEGATRON}.enabled", tree.uses_megatron, expected, remedy)
    if tree.uses_dtensor:  # models/policy/workers/dtensor_policy_worker_v2.py
        why = "version 2 takes its reference after loading a checkpoint, so a resumed teacher would be the student"
        yield from _off(tree, f"{DTENSOR}._v2", why, "use Megatron")
        why = "hashes and exports gather weights over NCCL, which works on the GPU only"
        yield from _off(tree, f"{DTENSOR}.cpu_offload", why, "use Megatron")


def _teacher(tree: Tree) -> Iterator[Fault]:
    why = "this engine keeps the initial weights and no others"
    yield from _only(tree, "aopsd.teacher.weights", "frozen", why, "aopsd.engine=local")
    key = f"{MEGATRON}.peft.enabled" if tree.uses_megatron else f"{DTENSOR}.lora_cfg.enabled"
    yield from _off(tree, key, "this engine trains all weights")


def _grpo(tree: Tree) -> Iterator[Fault]:
    """Keys of block `grpo` that have a counterpart in `aopsd`. Ours counts, so if both are set, they must be equal."""
    why = "AOPSD reads the key of its own block, not this one"
    for name in ("num_prompts_per_step", "num_generations_per_prompt", "max_num_epochs", "seed"):
        key, ours = f"grpo.{name}", tree[f"aopsd.{name}"]
        if tree[key] not in (None, ours):
            yield must_be(tree, key, ours, why, f"aopsd.{name}={typed(tree[key])} as well")
    key, ours = "grpo.max_num_steps", tree["aopsd.max_num_steps"]
    if is_size(tree[key]) and tree[key] < (ours or _NO_LIMIT):
        yield must_be(tree, key, ours or _NO_LIMIT, why, f"aopsd.max_num_steps={tree[key]} as well")


def _sampler(tree: Tree) -> Iterator[Fault]:
    for key, value, why in (
        ("policy.generation.backend", "vllm", "probes and the log-probs of branches are made in vLLM"),
        ("policy.generation.colocated.enabled", True, "vLLM takes turns with the trainer on the same GPUs"),
        ("policy.generation.stop_strings", None, "a response ends with an end token, which the loss counts"),
        ("policy.generation.stop_token_ids", None, "the model's own end tokens end every response"),
        # NeMo RL divides the trainer's logits by it: models/megatron/train.py
        ("policy.generation.temperature", 1, "gaps are those of log-probs at temperature 1"),
        (f"{VLLM}.async_engine", False, "probes need the engine in the worker's own process"),
    ):
        yield from _only(tree, key, value, why)
    key = f"{VLLM}.enable_prefix_caching"
    if continues(tree["aopsd.weighting"]) and tree[key] is False:
        yield must_be(tree, key, True, "each probe would read its whole prefix again", "aopsd.weighting=uniform")
    key = f"{VLLM}.kv_cache_dtype"
    if str(tree[key]).startswith("fp8"):  # algorithms/grpo.py, refit_policy_generation
        yield must_be(tree, key, "auto", "a refit on the same GPUs drops the scales of an FP8 cache")
    key, why = "loss_fn.use_importance_sampling_correction", "FP8 rollouts come from a visibly different distribution"
    if tree[f"{VLLM}.precision"] == "fp8" and not tree[key]:
        yield must_be(tree, key, True, why, f"{VLLM}.precision=bfloat16")
    key, tensor = f"{VLLM}.expert_parallel_size", tree.size(f"{VLLM}.tensor_parallel_size")
    if tree.size(key) > tensor:
        why = f"as {VLLM}.tensor_parallel_size; beyond it vLLM's engines wait for each other, even for one without rows"
        yield must_be(tree, key, tensor, why)


def _scoring(tree: Tree) -> Iterator[Fault]:
    """vLLM's log-probs of what it sampled must be those that a prefill would give."""
    if (scoring := tree["aopsd.scoring"]) == "trainer":
        return
    why = f"with aopsd.scoring={scoring}; with a cut, vLLM's log-probs are those of what the cut left"
    for key, value, off in (
        ("policy.generation.top_p", 1, (None, 1)),
        ("policy.generation.top_k", None, (None, 0, -1)),
    ):
        if tree[key] not in off:
            yield must_be(tree, key, value, why, "aopsd.scoring=trainer")
    if scoring == "sampler" and tree[f"{VLLM}.precision"] == "fp8":
        why = "in FP8, decoding and prefill round differently"
        yield must_be(tree, "aopsd.scoring", "prefill", why, f"{VLLM}.precision=bfloat16")


def _loss(tree: Tree) -> Iterator[Fault]:
    why = "the initial weights score the teacher's prompt only, so no penalty can be formed"
    yield from _only(tree, "loss_fn.reference_policy_kl_penalty", 0, why)  # absent, it is 0.01
    if tree["aopsd.objective.name"] == "pg":
        why, otherwise = "NeMo RL's loss has a switch of its own", "with it loss_fn.token_level_loss=false"
        yield from _only(tree, "aopsd.objective.aggregation", "token_mean", why, otherwise)
    if tree.fp8_multiple > 1 or tree.pipeline > 1:  # algorithms/loss/utils.py
        why = "the fused loss breaks on the padding that FP8 and pipeline stages add to a pack"
        yield from _off(tree, "policy.sequence_packing.fuse_loss", why)


def _top_k(tree: Tree) -> Iterator[Fault]:
    name, linear = tree["aopsd.objective.name"], f"{MEGATRON}.use_linear_ce_fusion_loss"
    if is_own(name):
        yield from _off(tree, linear, "it gives log-probs to NeMo RL's own losses only")
    if name not in TOP_K_KEYS:
        return
    for key, why in (
        (f"{DTENSOR}.enabled", "the teacher's normaliser is taken in Megatron's forward"),
        ("policy.sequence_packing.fuse_loss", "the fused loss takes log-probs of sampled tokens alone"),
        (linear, "it gives log-probs of the sampled tokens alone, no logits"),
    ):
        yield from _off(tree, key, why, "aopsd.engine=local")


def _optimizer(tree: Tree) -> Iterator[Fault]:
    key = "aopsd.keep_optimizer_on_gpu"
    for other, why in (
        (f"{DTENSOR}.enabled", "only Megatron's worker can keep it there"),
        (f"{MEGATRON}.optimizer.optimizer_cpu_offload", "that keeps it in host memory"),
        ("aopsd.probes.keep_cache", "the trainer scores beside vLLM, which takes that room"),
    ):
        if tree[other]:
            yield from _off(tree, key, f"{other} is true, and {why}")


def _fp8(tree: Tree) -> Iterator[Fault]:
    key = f"{MEGATRON}.fp8_cfg.fp8_param"
    if tree.fp8_multiple == 1 or not tree[key]:
        return
    if tree.tensor > 1:
        yield must_be(tree, key, False, f"with {tree.tensor_key}={tree.tensor} it gave NaN (NVIDIA-NeMo/RL issue 1164)")
    if tree[f"{MEGATRON}.fp8_cfg.fp8_recipe"] == "mxfp8":
        why = "MXFP8 weights are gathered through the gradients' buffer, which does not exist during a refit of vLLM"
        overlap = f"{MEGATRON}.distributed_data_parallel_config.overlap_param_gather"
        yield from _off(tree, overlap, why, f"{key}=false")


def _trackers(tree: Tree) -> Iterator[Fault]:
    """Each reads its own block as it is (utils/logger.py)."""
    needed = {f"logger.{name}": f"logger.{name}_enabled" for name in TRACKERS if name != "tensorboard"}
    needed["logger.gpu_monitoring"] = "logger.monitor_gpus"
    for key, switch in needed.items():
        if tree[switch] and not isinstance(tree[key], dict):
            yield Fault(key, tree[key], f"a block, since {switch} is true", f"Add {key}, or set {switch}=false")


def _sequence_parallel(tree: Tree) -> Iterator[Fault]:
    if not tree.uses_megatron:
        return
    key, has_experts = f"{MEGATRON}.sequence_parallel", tree.size(f"{MEGATRON}.expert_model_parallel_size") > 1
    if tree.tensor == 1:
        yield from _off(tree, key, f"{tree.tensor_key} is 1", f"{tree.tensor_key}=2")
    elif has_experts:
        yield from _only(tree, key, True, "Megatron trains experts under tensor parallelism with it only")


def _batch(tree: Tree) -> Iterator[Fault]:
    key, batch = "policy.train_global_batch_size", tree.size("policy.train_global_batch_size")
    rollouts = tree["aopsd.num_prompts_per_step"] * tree["aopsd.num_generations_per_prompt"]
    if rollouts % batch:
        expected = f"{rollouts} for one update a step (aopsd.num_prompts_per_step x num_generations_per_prompt), or a "
        yield Fault(key, batch, f"{expected}divisor of it for several", f"Set {key}={rollouts}")
    model_size, micro = prod(tree.model_parallel_sizes.values()), tree.size("policy.train_micro_batch_size")
    if tree.num_gpus % model_size:
        return  # `gpu_faults` lists it
    copies = tree.num_gpus // model_size
    if batch % (copies if tree.token_budgets else copies * micro):
        by_number = "" if tree.token_budgets else f" x policy.train_micro_batch_size {micro}"
        expected = f"a multiple of the {copies} data-parallel copies{by_number}"
        yield Fault(key, batch, expected, "Change aopsd.num_prompts_per_step, the GPUs or the parallel sizes")


def _lengths(tree: Tree) -> Iterator[Fault]:
    longest, multiple = tree.size("policy.max_total_sequence_length"), tree["policy.make_sequence_length_divisible_by"]
    padded = longest + -longest % multiple if is_size(multiple) else longest
    budgets = [f"policy.{block}.{kind}_mb_tokens" for block in tree.token_budgets for kind in ("train", "logprob")]
    for key, need in {f"{VLLM}.max_model_len": longest, **dict.fromkeys(budgets, padded)}.items():
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
    kind = "packed" if tree.uses_megatron else "unpacked"
    if tree.context > 1:
        why, otherwise = f"context parallelism takes {kind} rows only here", f"{tree.backend}.context_parallel_size=1"
        yield from _only(tree, "policy.sequence_packing.enabled", tree.uses_megatron, why, otherwise)


def _model(tree: Tree) -> Iterator[Fault]:
    name = tree["policy.model_name"]
    try:
        model = find_model_config(str(name), tree["policy.hf_config_overrides"])
    except UserError as error:
        yield Fault("policy.model_name", name, f"a config.json that can be read ({error})", "Download it again")
        return
    if model is None:
        return  # not on this machine: NeMo RL checks it
    for rule in MODEL_RULES:
        with suppress(Unreadable):
            yield from rule(tree, model)


_RULES: tuple[Rule, ...] = (
    *(_backend, _teacher, _grpo, _sampler, _scoring, _loss, _top_k, _optimizer, _fp8, _trackers),
    *(gpu_faults, _sequence_parallel, _batch, _lengths, _padding, _packing, _model),
)
