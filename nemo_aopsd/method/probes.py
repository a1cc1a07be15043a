"""Continuation probes (sec:selective): at high-gap tokens, what would the teacher say next, and does it surprise?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING

from nemo_aopsd.config.schema import ProbeConfig
from nemo_aopsd.engine import LanguageModel
from nemo_aopsd.method.weighting import UNSURPRISED, Surprise, continuation_weight, triggered
from nemo_aopsd.types import Branch, Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Probe:
    """One probed token. `nll` is L_t in nats a token, None if nothing is scored (the anchor ended the text)."""

    position: int
    gap: float
    anchor: int
    suffix: Tokens
    nll: float | None
    weight: float


def run_probes(
    student: LanguageModel,
    teacher: LanguageModel,
    student_prompts: list[Tokens],
    teacher_prompts: list[Tokens],
    responses: list[Tokens],
    gaps: list[Tensor],
    config: ProbeConfig,
    past: Surprise = UNSURPRISED,
    *,
    in_loss: Sequence[bool],
) -> list[list[Probe]]:
    """The probes of each rollout, by position, with continuation weights (eq:continuation-nll).

    A positive gap anchors at the student's token, a negative one at the teacher's greedy choice. Both are one
    branch of at most k tokens whose first token is the anchor, so one greedy call serves both signs. For
    `probes.betas=auto`, `past` is what the steps before have seen; of this one only the rollouts that the loss counts
    are looked at (`in_loss`).
    """
    starts_B = [
        [Branch(t, [response[t]] if gap[t] > 0 else []) for t in triggered(gap, config)]
        for response, gap in zip(responses, gaps, strict=True)
    ]
    branches_B = teacher.continue_greedily(teacher_prompts, responses, starts_B, config.length)
    logprobs_B = student.branch_logprobs(student_prompts, responses, branches_B)
    probes_B = [
        [_probe(branch, gap, logprobs, config) for branch, logprobs in zip(branches, logprobs_N, strict=True)]
        for branches, gap, logprobs_N in zip(branches_B, gaps, logprobs_B, strict=True)
    ]
    betas = past.after(surprises(compress(probes_B, in_loss))).betas(config)
    return [
        [replace(probe, weight=continuation_weight(probe.gap, probe.nll, betas)) for probe in probes]
        for probes in probes_B
    ]


def surprises(probes_B: Iterable[list[Probe]]) -> list[tuple[float, float | None]]:
    """Gap and L of each probe."""
    return [(probe.gap, probe.nll) for probes in probes_B for probe in probes]


def _probe(branch: Branch, gap: Tensor, logprobs: Tensor, config: ProbeConfig) -> Probe:
    anchor, *suffix = branch.tokens
    # Rounding may leave a certain token at a log-prob of +1e-7; clamp keeps a NaN, which the weight then refuses.
    scored = logprobs if config.score_anchor else logprobs[1:]
    nll = (-scored.mean()).clamp(min=0).item() if len(scored) else None
    return Probe(branch.position, gap[branch.position].item(), anchor, suffix, nll, weight=1.0)
