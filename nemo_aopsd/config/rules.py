"""Settings that are valid alone but contradict each other."""

from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

from nemo_aopsd.config.extension import is_own
from nemo_aopsd.config.keys import Fault, Tree, select
from nemo_aopsd.config.nemo_rl_keys import RunKeys
from nemo_aopsd.config.schema import AOPSDConfig, EvaluationConfig

# Objectives that engine nemo_rl can make of what NeMo RL's trainer hands a loss: `pg` with the log-probs of sampled
# tokens, the others with those of the teacher's top k.
_ON_NEMO_RL = ("pg", "topk_fkl", "fkl", "dash")


def probe_room(aopsd: AOPSDConfig) -> int:
    """Tokens that a row needs for a probe behind the response; 0 if the weighting makes none."""
    return aopsd.probes.length if aopsd.continues else 0


def evaluation_faults(evaluation: EvaluationConfig) -> Iterator[Fault]:
    """What no range of a single key can say."""
    if 0 < evaluation.temperature < 0.01:  # overflows
        found = evaluation.temperature
        yield "aopsd.evaluation.temperature", f"must be 0 (greedy) or a number from 0.01 to 100; got {found!r}."


def with_scoring(run: RunKeys, tree: Tree) -> RunKeys:
    """`run` with a scorer instead of `auto`: the sampler, but for what docs/verification.md does not list with it.

    On the local engine probes go on from what the student's pass leaves, so there it is the trainer that scores.
    """
    if run.aopsd.scoring != "auto":
        return run
    by_trainer = (
        (run.aopsd.engine == "local" and run.aopsd.continues)
        or is_own(run.aopsd.objective.name)
        or run.aopsd.probes.keep_cache  # which is for the trainer's turn
        or bool(select(tree, "policy.megatron_cfg.fp8_cfg.enabled"))
        or bool(select(tree, "policy.dtensor_cfg.enabled"))
        or (select(tree, "policy.megatron_cfg.pipeline_model_parallel_size") or 1) != 1
        or (select(tree, "policy.megatron_cfg.context_parallel_size") or 1) != 1
        or select(tree, "policy.generation.vllm_cfg.precision") == "fp8"
    )
    return replace(run, aopsd=replace(run.aopsd, scoring="trainer" if by_trainer else "sampler"))


def contradictions(run: RunKeys) -> Iterator[Fault]:
    """All of them."""
    yield from _numbers(run)
    yield from _lengths(run)
    yield from _of_the_objective(run)
    yield from _on_nemo_rl(run) if run.aopsd.engine == "nemo_rl" else _on_the_local_engine(run)


def _wrong(run: RunKeys, key: str, wanted: str, then: str) -> Fault:
    """A key that must be what is `wanted`; `then` is why, or what to do."""
    return key, f"must be {wanted}; got {attrgetter(key)(run)!r}. {then}"


def _numbers(run: RunKeys) -> Iterator[Fault]:
    curriculum = run.aopsd.curriculum.name
    if curriculum != "shuffle" and not is_own(curriculum) and run.aopsd.num_prompts_per_step % 4:
        wanted = "a multiple of 4, so that a batch can mix easy : own : hard as 1:2:1"
        yield _wrong(run, "aopsd.num_prompts_per_step", wanted, "Or set aopsd.curriculum.name=shuffle.")
    yield from evaluation_faults(run.aopsd.evaluation)


def without_room(aopsd: AOPSDConfig, max_new_tokens: int, row: int) -> Iterator[tuple[str, int, int]]:
    """Lengths beside which no prompt fits in `row` tokens: key, value, and tokens of a probe that come on top.

    `max_new_tokens` are those of a response in training.
    """
    probe = probe_room(aopsd)
    lengths = [
        ("policy.generation.max_new_tokens", max_new_tokens, probe),
        ("aopsd.judge.max_new_tokens", aopsd.judge.verdict_tokens, 0),
        ("aopsd.probes.length", probe, 0),
        ("aopsd.evaluation.max_new_tokens", aopsd.evaluation.max_new_tokens if aopsd.evaluation.data_path else 0, 0),
    ]
    return (each for each in lengths if each[1] and each[1] + each[2] >= row)


def _lengths(run: RunKeys) -> Iterator[Fault]:
    """A prompt must fit beside the longest response, verdict and probe."""
    row = run.policy.max_total_sequence_length
    for key, length, more in without_room(run.aopsd, run.policy.generation.max_new_tokens, row):
        room = f"a prompt and aopsd.probes.length={more}" if more else "a prompt"
        yield key, f"must leave room for {room} within policy.max_total_sequence_length={row}; got {length}."


def _of_the_objective(run: RunKeys) -> Iterator[Fault]:
    objective, weighting = run.aopsd.objective.name, run.aopsd.weighting
    if not run.aopsd.objective.weighs_gaps and weighting != "uniform":
        why = "Only the objective pg weighs the gaps of sampled tokens."
        yield _wrong(run, "aopsd.weighting", f"uniform with aopsd.objective.name={objective}", why)
    if is_own(objective) and (part := run.aopsd.objective.own_object).signal.sampled and not part.needs_old_logprobs:
        why = "Gaps are formed from the student's log-probs at collection. Add the line to the class."
        yield _wrong(run, "aopsd.objective.name", "one with `needs_old_logprobs = True` if its signal is sampled", why)
    if weighting in ("gap_matched", "gap_only") and run.aopsd.probes.betas == "auto":
        why = "That is the usual surprise of a continuation, and this weighting is by the gap. Leave it out."
        yield _wrong(run, "aopsd.probes.betas", f"fixed with aopsd.weighting={weighting}", why)
    reward = run.aopsd.objective.reward if objective == "pg" or is_own(objective) else "none"  # others do not read it
    if (objective == "grpo" or reward != "none") and run.aopsd.num_generations_per_prompt < 2:
        key = "name=grpo" if objective == "grpo" else f"reward={reward}"
        wanted = f"at least 2 with aopsd.objective.{key}, which compares answers to one problem"
        yield _wrong(run, "aopsd.num_generations_per_prompt", wanted, "8 is usual.")


def _on_the_local_engine(run: RunKeys) -> Iterator[Fault]:
    remedy = "Leave it out, or set aopsd.engine=nemo_rl."
    if run.aopsd.probes.keep_cache:
        wanted = "false with aopsd.engine=local, which has no vLLM, but a cache of its own (policy.prefix_cache_gb)"
        yield _wrong(run, "aopsd.probes.keep_cache", wanted, remedy)
    if run.aopsd.keep_optimizer_on_gpu:
        wanted = "false with aopsd.engine=local, which never moves its optimizer"
        yield _wrong(run, "aopsd.keep_optimizer_on_gpu", wanted, remedy)
    if run.aopsd.scoring == "prefill":
        wanted = "trainer or sampler with aopsd.engine=local, where one model samples and learns"
        yield _wrong(run, "aopsd.scoring", wanted, remedy)
    if run.policy.precision not in ("float32", "bfloat16"):
        yield "policy.precision", f"must be one of float32, bfloat16; got {run.policy.precision!r}."


def _on_nemo_rl(run: RunKeys) -> Iterator[Fault]:
    objective = run.aopsd.objective.name
    if run.aopsd.judge.has_own_model:
        why = "Only the local engine loads a model of its own for the judge."
        yield _wrong(run, "aopsd.judge.model", "student or teacher with aopsd.engine=nemo_rl", why)
    if run.aopsd.objective.top_k_key == "support" and run.aopsd.objective.support is None:
        wanted = f"a number K with aopsd.objective.name={objective} and aopsd.engine=nemo_rl"
        why = "Log-probs of all words fit into no batch (docs/methods.md). Set 64 to begin with, or engine=local."
        yield _wrong(run, "aopsd.objective.support", wanted, why)
    if is_own(objective):
        yield from _own_on_nemo_rl(run)
    elif objective not in _ON_NEMO_RL:
        stock = f" NeMo RL has its own script for it: examples/run_{objective}.py, by docs/nemo_rl.md."
        wanted = f"{', '.join(_ON_NEMO_RL[:-1])} or {_ON_NEMO_RL[-1]} with aopsd.engine=nemo_rl"
        remedy = f"Use engine=local.{stock if objective in ('sft', 'grpo') else ''}"
        yield _wrong(run, "aopsd.objective.name", wanted, remedy)


def _own_on_nemo_rl(run: RunKeys) -> Iterator[Fault]:
    """An objective of the user's own reads what NeMo RL's trainer hands any loss: log-probs of the sampled tokens."""
    name, signal = run.aopsd.objective.name, run.aopsd.objective.own_signal
    if signal.top_k or signal.full:
        read = "the teacher's top k" if signal.top_k else "whole distributions"
        why = f"It reads {read}, which NeMo RL's trainer hands to no loss as your class expects it. Use engine=local."
        wanted = "one that reads sampled tokens alone with aopsd.engine=nemo_rl"
        yield _wrong(run, "aopsd.objective.name", wanted, why)
    if run.aopsd.scoring != "trainer":
        why = "The sampler's log-probs and the trainer's, which the loss gets, come from different kernels."
        yield _wrong(run, "aopsd.scoring", f"trainer with aopsd.objective.name={name}", why)
