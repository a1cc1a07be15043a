"""Every setting with which this engine could not work or would learn wrongly, before a GPU is taken.

All that is wrong is listed at once: set-up takes minutes, and several of these faults would not stop a run but spoil
it. Facts of NeMo RL are those of v0.7.0; file names are below its `nemo_rl/`. Sizes: size_refusals.py, and those that
the model decides: model_refusals.py. What the doctor asks for as well: cluster/rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from nemo_aopsd.cluster.faults import Fault, Rule, must_be, shown
from nemo_aopsd.cluster.rules import broken_sizes, environment_faults
from nemo_aopsd.cluster.tree import DTENSOR, MEGATRON, VLLM, Tree, Unreadable, is_size
from nemo_aopsd.config.schema import CONTINUED
from nemo_aopsd.engines.nemo_rl.model_refusals import MODEL_RULES, ModelRule
from nemo_aopsd.engines.nemo_rl.size_refusals import SIZE_RULES
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.config_json import ModelConfig, find_model_config

_NO_LIMIT = 1_000_000  # steps, in NeMo RL's own recipes
TRACKERS = ("wandb", "swanlab", "tensorboard", "mlflow")


def find_faults(tree: Tree, environment: Mapping[str, str]) -> list[Fault]:
    """One for each setting that cannot stay, of the config and of the driver's environment."""
    faults: list[Fault] = [*broken_sizes(tree)]
    rules: list[Rule] = [*_RULES, *SIZE_RULES]
    name = tree["policy.model_name"]
    try:
        model = find_model_config(str(name), tree["policy.hf_config_overrides"])
        if model:
            rules += [_of(rule, model) for rule in MODEL_RULES]
    except UserError as error:
        remedy = "Download it again"
        faults.append(Fault("policy.model_name", name, f"a config.json with one JSON object ({error})", remedy))
    for rule in rules:
        with suppress(Unreadable):  # a size that the rule needs is broken, which is listed
            faults.extend(rule(tree))
    return [*faults, *environment_faults(tree, environment)]


def _of(rule: ModelRule, model: ModelConfig) -> Rule:
    return lambda tree: rule(tree, model)


def _backend(tree: Tree) -> Iterator[Fault]:
    if tree.uses_megatron == tree.uses_dtensor:
        yield Fault(
            f"{MEGATRON}.enabled",
            tree.uses_megatron,
            f"the opposite of {DTENSOR}.enabled, which is {shown(tree.uses_dtensor)}: one backend trains",
            f"Set {MEGATRON}.enabled=true {DTENSOR}.enabled=false",
        )
    if tree.uses_dtensor and tree[f"{DTENSOR}._v2"]:  # models/policy/workers/dtensor_policy_worker_v2.py
        why = (
            "version 2 takes its reference after loading a checkpoint, so a resumed run's teacher would be its student"
        )
        yield must_be(tree, f"{DTENSOR}._v2", False, why, "use Megatron")
    if tree.uses_dtensor and tree[f"{DTENSOR}.cpu_offload"]:
        why = "weights are gathered over NCCL to be hashed and exported, which takes them on the GPU only"
        yield must_be(tree, f"{DTENSOR}.cpu_offload", False, why, "use Megatron")


def _teacher(tree: Tree) -> Iterator[Fault]:
    key = "aopsd.teacher.weights"
    if tree[key] != "frozen":
        yield must_be(tree, key, "frozen", "this engine keeps the initial weights and no others", "aopsd.engine=local")
    key = f"{MEGATRON}.peft.enabled" if tree.uses_megatron else f"{DTENSOR}.lora_cfg.enabled"
    if tree[key]:
        yield must_be(tree, key, False, "this engine trains all weights")
    key = "grpo.skip_reference_policy_logprobs_calculation"
    if tree[key]:
        why = "the teacher's log-probs are the reference's; nothing of the block `grpo` is read here"
        yield must_be(tree, key, False, why, "leave it out")


def _grpo(tree: Tree) -> Iterator[Fault]:
    """What NeMo RL's loop would read there and ours reads in its own block: said twice, it must be said alike."""
    why = "of the block `grpo` nothing is read"
    for name in ("num_prompts_per_step", "num_generations_per_prompt", "max_num_epochs", "seed"):
        key, ours = f"grpo.{name}", tree[f"aopsd.{name}"]
        if tree[key] not in (None, ours):
            yield must_be(tree, key, ours, why, f"aopsd.{name}={shown(tree[key])} as well")
    key, ours = "grpo.max_num_steps", tree["aopsd.max_num_steps"]
    if is_size(tree[key]) and tree[key] < (ours or _NO_LIMIT):
        yield must_be(tree, key, ours or _NO_LIMIT, why, f"aopsd.max_num_steps={tree[key]} as well")


def _sampler(tree: Tree) -> Iterator[Fault]:
    for key, value, why in (
        ("policy.generation.backend", "vllm", "probes and the log-probs of branches are made in vLLM"),
        ("policy.generation.colocated.enabled", True, "vLLM takes turns with the trainer on the same GPUs"),
        ("policy.generation.stop_strings", None, "a response ends with an end token, which the loss counts"),
        ("policy.generation.stop_token_ids", None, "the model's own end tokens end every response"),
        (f"{VLLM}.async_engine", False, "probes need the engine in the worker's own process"),
    ):
        if tree[key] != value:
            yield must_be(tree, key, value, why)
    key = "policy.generation.temperature"
    if tree[key] != 1:  # models/megatron/train.py
        yield must_be(tree, key, 1.0, "NeMo RL divides the trainer's logits by it, and gaps are those at temperature 1")
    key = f"{VLLM}.enable_prefix_caching"
    if tree["aopsd.weighting"] in CONTINUED and tree[key] is False:
        yield must_be(tree, key, True, "each probe would read its whole prefix again", "aopsd.weighting=uniform")


def _sampler_sizes(tree: Tree) -> Iterator[Fault]:
    if tree.size(f"{VLLM}.pipeline_parallel_size") > 1:  # models/generation/vllm/vllm_generation.py
        why = "NeMo RL has pipeline stages in vLLM with the asynchronous engine only"
        yield must_be(tree, f"{VLLM}.pipeline_parallel_size", 1, why, f"raise {VLLM}.tensor_parallel_size")
    key, tensor = f"{VLLM}.expert_parallel_size", tree.size(f"{VLLM}.tensor_parallel_size")
    if tree.size(key) > tensor:
        why = f"as {VLLM}.tensor_parallel_size; beyond it vLLM's engines wait for each other, also for one without rows"
        yield must_be(tree, key, tensor, why)


def _sampler_fp8(tree: Tree) -> Iterator[Fault]:
    key = f"{VLLM}.kv_cache_dtype"
    if str(tree[key]).startswith("fp8"):  # algorithms/grpo.py, refit_policy_generation
        yield must_be(tree, key, "auto", "a refit on the same GPUs drops the scales of an FP8 cache")
    key = "loss_fn.use_importance_sampling_correction"
    if tree[f"{VLLM}.precision"] == "fp8" and not tree[key]:
        why = f"with {VLLM}.precision=fp8 rollouts come from a visibly different distribution"
        yield must_be(tree, key, True, why, f"{VLLM}.precision=bfloat16")


def _loss(tree: Tree) -> Iterator[Fault]:
    key = "loss_fn.reference_policy_kl_penalty"
    if tree[key] != 0:  # absent, it is 0.01: algorithms/loss/loss_functions.py
        yield must_be(
            tree, key, 0.0, "the initial weights score the teacher's prompt only, so no penalty can be formed"
        )
    key = "aopsd.objective.aggregation"
    if tree["aopsd.objective.name"] == "pg" and tree[key] != "token_mean":
        why = "NeMo RL's loss has a switch of its own for it"
        yield must_be(tree, key, "token_mean", why, "with it loss_fn.token_level_loss=false for a mean over responses")
    key, chunk = f"{MEGATRON}.defer_fp32_logits", tree["policy.logprob_chunk_size"]
    if tree.uses_megatron and chunk and not tree[key]:
        yield must_be(tree, key, True, f"policy.logprob_chunk_size={chunk} needs it", "policy.logprob_chunk_size=null")
    key = "policy.sequence_packing.fuse_loss"
    if tree[key] and (tree.fp8_multiple > 1 or tree.pipeline > 1):  # algorithms/loss/utils.py
        why = "the fused loss breaks on the padding that FP8 and pipeline stages add to a pack"
        yield must_be(tree, key, False, why)


def _top_k(tree: Tree) -> Iterator[Fault]:
    if tree["aopsd.objective.name"] not in ("topk_fkl", "fkl", "dash"):
        return
    local = "aopsd.engine=local"
    if tree.uses_dtensor:
        why = "the teacher's normaliser is taken in Megatron's forward"
        yield must_be(tree, f"{DTENSOR}.enabled", False, why, local)
    for key, why in (
        ("policy.sequence_packing.fuse_loss", "the fused loss takes log-probs of sampled tokens alone"),
        (f"{MEGATRON}.use_linear_ce_fusion_loss", "it gives log-probs of the sampled tokens alone, no logits"),
    ):
        if tree[key]:
            yield must_be(tree, key, False, why, local)


def _precision(tree: Tree) -> Iterator[Fault]:
    key = f"{MEGATRON}.fp8_cfg.fp8_param"
    if tree.fp8_multiple > 1 and tree[key] and tree.tensor > 1:
        yield must_be(tree, key, False, f"with {tree.tensor_key}={tree.tensor} it gave NaN (NVIDIA-NeMo/RL issue 1164)")
    overlap = f"{MEGATRON}.distributed_data_parallel_config.overlap_param_gather"
    if tree.fp8_multiple > 1 and tree[key] and tree[f"{MEGATRON}.fp8_cfg.fp8_recipe"] == "mxfp8" and tree[overlap]:
        why = "MXFP8 weights are gathered through the gradients' buffer, which is not there when vLLM is refitted"
        yield must_be(tree, overlap, False, why, f"{key}=false")


def _trackers(tree: Tree) -> Iterator[Fault]:
    """Each reads its own block as it is (utils/logger.py)."""
    on = [name for name in TRACKERS if tree[f"logger.{name}_enabled"]]
    needed = {f"logger.{name}": f"logger.{name}_enabled" for name in on if name != "tensorboard"}
    if tree["logger.monitor_gpus"]:
        needed["logger.gpu_monitoring"] = "logger.monitor_gpus"
        if not on:
            why = "no tracker is on to take what it measures"
            yield must_be(tree, "logger.monitor_gpus", False, why, "logger.tensorboard_enabled=true")
    for key, switch in needed.items():
        if not isinstance(tree[key], dict):
            yield Fault(key, tree[key], f"a block, since {switch} is true", f"Add {key}, or set {switch}=false")


_RULES: tuple[Rule, ...] = (
    _backend,
    _teacher,
    _grpo,
    _sampler,
    _sampler_sizes,
    _sampler_fp8,
    _loss,
    _top_k,
    _precision,
    _trackers,
)
