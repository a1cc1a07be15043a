"""Which way would an update point? Before any training, the update of each context and weighting against correctness.

The yardstick is the policy gradient of correctness from fresh answers: REINFORCE, a problem's mean reward the baseline.
It and each update are formed by groups of problems, which give each cosine its interval. Nothing is updated. At the
weights that answered, the surrogate's gradient is a sum over tokens, w_t g_t grad log p_t. So its part at untriggered
tokens is formed once for all weightings of a context.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, Protocol

import torch
from rich.console import Console
from torch import Tensor

from nemo_aopsd.analysis.diagnostics.yardstick import Bearing, Gradient, Yardstick, sketch
from nemo_aopsd.config.nemo_rl_keys import PolicyKeys
from nemo_aopsd.config.schema import CONTINUED, Config, ObjectiveConfig, Weighting
from nemo_aopsd.console import slow, track
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Engine, Objective, Tokenizer
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import derive_seed
from nemo_aopsd.method.context import donors_for, student_prompts
from nemo_aopsd.method.leaks import leak_patterns, mentions_context
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.objectives.base import BaseObjective, token_mean
from nemo_aopsd.method.reward import rewarded
from nemo_aopsd.method.rollout import Collection, Draft, Scored
from nemo_aopsd.method.step import collect
from nemo_aopsd.method.weighting import weighed
from nemo_aopsd.run.records import rollout_record
from nemo_aopsd.thoughts import whole_text
from nemo_aopsd.types import Generation, TrainRow

WEIGHTINGS: tuple[Weighting, ...] = (
    "uniform", "continuation", "normalised", "gap_matched", "gap_only", "shuffled", "constant", "zero_triggered"
)  # fmt: skip
GROUPS = 8  # of the problems that have right and wrong answers
Keep = Callable[[str, list[dict[str, Any]]], None]  # name of a file, and lines more of it


class GradientEngine(Engine, Protocol):
    """An engine that can form gradients without a step; the local one does."""

    def gradient(self, rows: list[TrainRow], objective: Objective) -> Gradient: ...


@dataclass(frozen=True, slots=True)
class Arm:
    """One context with one weighting: the whole update, then its part at triggered tokens, each as of a `Bearing`.

    `less_uniform` is the cosine less that of uniform weights. Cosines are None where a gradient is 0.
    """

    context: str
    weighting: str
    cosine: float | None
    error: float | None
    less_uniform: float | None
    less_uniform_error: float | None
    triggered_cosine: float | None
    triggered_less_uniform: float | None
    triggered_less_uniform_error: float | None
    triggered_norm: float
    untriggered_norm: float


@dataclass(frozen=True, slots=True)
class Signal:
    """What a context's teacher said, in nats; None where no rollout has it, as if all were dropped.

    `leaks` is the share of probes whose continuation names the context.
    """

    context: str
    rollouts: int
    dropped: int
    progress: float | None
    mean_abs_gap: float | None
    mean_gap: float | None  # minus the KL of the student from the teacher, estimated on the student's own tokens
    triggered: float | None  # share of tokens
    surprise: float | None  # mean L
    weight: float | None
    leaks: float | None


@dataclass(frozen=True, slots=True)
class Direction:
    """All that `aopsd diagnose direction` found."""

    yardstick: Yardstick
    signals: list[Signal]
    arms: list[Arm]


def diagnose_direction(
    config: Config,
    problems: Sequence[Problem],
    engine: GradientEngine,
    kinds: Sequence[str],
    num_answers: int,
    keep: Keep = lambda name, records: None,
) -> Direction:
    """One rollout of each problem under each of `kinds`, and `num_answers` fresh ones for the yardstick.

    `keep` gets what was sampled, for the files `answers` and `rollouts`, before a gradient is formed. Raises UserError
    if no problem has right and wrong answers: then there is nothing to compare with.
    """
    yardstick = measure_correctness(config, problems, engine, num_answers, keep)
    signals, arms = [], []
    for kind in kinds:
        with slow(f"{kind}: rollouts of {len(problems)} problems, gaps and probes"):
            collected, signal = _collect(config, problems, engine, kind)
        records = [rollout_record(*pair, engine.tokenizer, kind) for pair in collected.pairs()]
        keep("rollouts", [{"context": kind, **record} for record in records])
        signals.append(signal)
        arms += _arms(config, collected.scored, engine, kind, yardstick)
    return Direction(yardstick, signals, arms)


def _answer_record(draft: Draft, group: int | None, tokenizer: Tokenizer) -> dict[str, Any]:
    tokens = draft.output.tokens
    return {
        "problem_id": draft.problem.id,
        "response_text": whole_text(draft.student_prompt, tokens, tokenizer),
        "num_tokens": len(tokens),
        "finished": draft.output.finished,
        "correct": bool(draft.reward),
        "undecided": draft.undecided,
        "group": group,
    }


def measure_correctness(
    config: Config, problems: Sequence[Problem], engine: GradientEngine, num_answers: int, keep: Keep
) -> Yardstick:
    """Sample `num_answers` answers a problem, and form the gradient of their correctness by groups of problems."""
    tokenizer, aopsd = engine.tokenizer, config.aopsd
    asked = [problem for problem in problems for _ in range(num_answers)]
    prompts = student_prompts(asked, tokenizer, aopsd.prompts, aopsd.thinking.student)
    outputs: list[Generation] = []
    size = config.policy.get("generation_batch_size") or PolicyKeys.generation_batch_size
    for start in track(range(0, len(prompts), size), "answers, batches", Console(stderr=True)):
        seed = derive_seed(aopsd.seed, "direction", start)
        outputs += engine.student.generate(prompts[start : start + size], config.rollout, seed)
    drafts = [rewarded(Draft(*row), tokenizer) for row in zip(asked, prompts, outputs, strict=True)]
    right = [draft.reward or 0.0 for draft in drafts]
    means = [mean(right[start : start + num_answers]) for start in range(0, len(right), num_answers)]
    mixed = [index for index, rate in enumerate(means) if 0 < rate < 1]
    alike = [index for index, rate in enumerate(means) if rate in (0, 1)]
    num_groups = min(GROUPS, len(mixed)) or GROUPS
    group_of = {index: place % num_groups for kind in (mixed, alike) for place, index in enumerate(kind)}  # in turn
    owners = [index // num_answers for index in range(len(drafts))]
    keep("answers", [_answer_record(d, group_of[i], tokenizer) for d, i in zip(drafts, owners, strict=True)])
    if not mixed:
        cut, limit = sum(not draft.output.finished for draft in drafts), config.rollout.max_new_tokens
        most = f"{cut} of the answers were cut off: raise policy.generation.max_new_tokens={limit}."
        other = "Take more --answers, more --problems or problems of another difficulty."
        raise UserError(
            f"{len(right)} answers, {sum(right):.0f} right: no problem has right and wrong answers, so correctness has "
            f"no direction. {most if 2 * cut > len(drafts) else other}"
        )
    used = [index for index, owner in enumerate(owners) if 0 < means[owner] < 1]
    rows = [_answer_row(prompts[i], outputs[i].tokens, right[i] - means[owners[i]]) for i in used]
    with slow(f"the gradient of their correctness, from {len(rows)} answers"):
        groups = [group_of[owners[index]] for index in used]
        parts = _by_group(rows, groups, num_groups, engine, _Correctness(ObjectiveConfig()))
    group_of_id = {problem.id: group_of[index] for index, problem in enumerate(problems)}
    num_undecided = sum(draft.undecided for draft in drafts)
    return Yardstick(parts, group_of_id, len(right), int(sum(right)), len(mixed), len(means), num_undecided)


def _by_group(
    rows: Sequence[TrainRow], groups: Sequence[int], num_groups: int, engine: GradientEngine, objective: Objective
) -> Tensor:
    """Of each group of `rows` its part of the gradient of all of them: [groups, numbers of a sketch]."""
    is_mean_of_tokens = objective.config.aggregation == "token_mean"
    counts = [row.mask.sum().item() if is_mean_of_tokens else float(row.mask.any()) for row in rows]
    whole, parts = sum(counts) or 1.0, []  # where no row counts, each gradient is 0
    for number in range(num_groups):
        own = [index for index, group in enumerate(groups) if group == number]
        share = sum(counts[index] for index in own) / whole
        parts.append(share * sketch(engine.gradient([rows[index] for index in own], objective)))
    return torch.stack(parts)


class _Correctness(BaseObjective):
    """L = -mean_t A log p_t."""

    def __call__(
        self,
        logprobs: Tensor,  # [B, S], with gradient
        *,
        advantages: Tensor | None,  # [B, S]
        mask: Tensor,
        num_tokens: float,
        **_unread: Tensor | float | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        assert advantages is not None, "every row has them"
        return -token_mean(advantages * logprobs, mask, num_tokens), {}


def _answer_row(prompt: list[int], response: list[int], advantage: float) -> TrainRow:
    ones = torch.ones(len(response))
    return TrainRow(prompt, response, None, None, ones, ones.bool(), advantages=advantage * ones)


def _collect(
    config: Config, problems: Sequence[Problem], engine: GradientEngine, kind: str
) -> tuple[Collection, Signal]:
    """Rollouts scored under the context, with continuation weights; the same answers for every context."""
    aopsd = replace(
        config.aopsd,
        context=replace(config.aopsd.context, kind=kind, on_overlong="drop"),
        weighting="continuation",
        objective=replace(config.aopsd.objective, name="pg", reward="none"),
        num_generations_per_prompt=1,
        curriculum=replace(config.aopsd.curriculum, name="shuffle"),
    )
    donors = donors_for(list(problems), kind, aopsd.seed)
    found = collect(
        problems, engine, build_objective(aopsd.objective), replace(config, aopsd=aopsd), donors=donors, seed=aopsd.seed
    )
    gaps = [value for row in found.scored if (gap := row.gap) is not None for value in gap.tolist()]
    probes = [probe for row in found.scored for probe in row.probes]
    reached = [draft.progress for draft in found.drafts if draft.progress is not None]
    patterns = leak_patterns(aopsd.prompts)
    texts = [engine.tokenizer.decode([probe.anchor, *probe.suffix]) for probe in probes]
    leaks = [float(mentions_context(text, patterns)) for text in texts]
    surprises, weights = [probe.nll for probe in probes if probe.nll is not None], [probe.weight for probe in probes]
    counts = (len(found.scored), len(found.drafts) - len(found.scored))
    of_gaps = (_mean([abs(gap) for gap in gaps]), _mean(gaps), len(probes) / len(gaps) if gaps else None)
    return found, Signal(kind, *counts, _mean(reached), *of_gaps, _mean(surprises), _mean(weights), _mean(leaks))


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _arms(config: Config, rows: list[Scored], engine: GradientEngine, kind: str, yardstick: Yardstick) -> Iterator[Arm]:
    aopsd, objective = config.aopsd, build_objective(replace(config.aopsd.objective, name="pg", reward="none"))
    train_rows = [row.train_row(aopsd, objective) for row in rows]
    marks = [torch.zeros(len(row.response)) for row in train_rows]
    for row, mark in zip(rows, marks, strict=True):
        mark[[probe.position for probe in row.probes]] = 1.0
    groups = [yardstick.group_of[row.draft.problem.id] for row in rows]

    def gradient(weights: Sequence[Tensor]) -> Tensor:
        weighted = [replace(row, weights=values) for row, values in zip(train_rows, weights, strict=True)]
        return _by_group(weighted, groups, len(yardstick.parts), engine, objective)

    rest = gradient([1 - mark for mark in marks])
    norm_of_rest = rest.sum(0).norm().item()
    uniform: tuple[Bearing, Bearing] | None = None  # the first of WEIGHTINGS
    for weighting in track(WEIGHTINGS, f"{kind}: updates by weighting", Console(stderr=True)):
        again = weighed(rows, replace(aopsd, weighting=weighting), derive_seed(aopsd.seed, "weights"))  # as a step does
        update = gradient([row.weights * mark for row, mark in zip(again, marks, strict=True)])
        elsewhere = aopsd.probes.untriggered_weight if weighting in (*CONTINUED, "gap_only") else 1.0
        triggered, whole = yardstick.bearing(update), yardstick.bearing(update + elsewhere * rest)
        uniform = uniform or (whole, triggered)
        more, more_triggered = whole.less(uniform[0]), triggered.less(uniform[1])
        norms = triggered.norm, elsewhere * norm_of_rest
        yield Arm(kind, weighting, whole.cosine, whole.error, *more, triggered.cosine, *more_triggered, *norms)
