"""One rollout on its way through a step: a `Draft` in stages 1 to 3, `Scored` from stage 4 on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nemo_aopsd.config.schema import AOPSDConfig
from nemo_aopsd.data.dag import largest_closed_subset, progress
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.method.judge import Verdict
from nemo_aopsd.method.probes import Probe
from nemo_aopsd.types import Generation, Tokens, TopK, TrainRow

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_aopsd.engine import Objective


@dataclass(frozen=True, slots=True)
class Draft:
    """A response and what each side has read; None for what its objective does not ask for."""

    problem: Problem
    student_prompt: Tokens
    output: Generation
    is_demonstration: bool = False  # the data's solution, not the student's answer
    reward: float | None = None
    undecided: bool = False  # the grader could not tell, so the reward is that of a wrong answer
    advantage: float | None = None  # of the reward, among all answers to its problem
    verdict: Verdict | None = None
    reached: frozenset[str] | None = None  # R
    teacher_prompt: Tokens | None = None
    fits: bool = True  # False: no room for the teacher's row, so neither scored nor trained on

    def judged(self, verdict: Verdict) -> Draft:
        """With the verdict, and R: its largest subset that is closed under prerequisites (eq:dag-progress)."""
        return replace(self, verdict=verdict, reached=largest_closed_subset(self.problem.graph, verdict.judged))

    def in_loss(self, aopsd: AOPSDConfig) -> bool:
        """Whether the loss counts its tokens."""
        return self.output.finished or self.is_demonstration or not aopsd.mask_truncated

    @property
    def progress(self) -> float | None:
        """r(y); None if there is no readable verdict."""
        if self.verdict is None or self.verdict.failed or self.reached is None:
            return None
        return progress(self.problem.graph, self.reached)


@dataclass(frozen=True, slots=True)
class Scored:
    """A draft that fits, with log-probs of its response under both prompts; None for what its objective does not read.

    Raises ValueError unless each score has one value a token: otherwise broadcasting or padding could turn a missing
    value into a false gap.
    """

    draft: Draft
    weights: Tensor  # w_t, [T]
    student_logprobs: Tensor | None = None  # [T]
    teacher_logprobs: Tensor | None = None  # [T]
    top_k: TopK | None = None
    probes: list[Probe] = field(default_factory=list)

    def __post_init__(self) -> None:
        wanted = len(self.draft.output.tokens)
        scores = (self.weights, self.student_logprobs, self.teacher_logprobs, self.top_k and self.top_k.ids)
        if any(score is not None and len(score) != wanted for score in scores):
            raise ValueError("an engine returned another number of log-probs than the response has tokens")

    @property
    def gap(self) -> Tensor | None:
        """g_t = log q - log p of the sampled tokens, [T] (eq:opsd-gap); None where the objective reads none."""
        if self.teacher_logprobs is None or self.student_logprobs is None:
            return None
        return self.teacher_logprobs - self.student_logprobs

    def train_row(self, aopsd: AOPSDConfig, objective: Objective) -> TrainRow:
        """What the update sees of it."""
        import torch

        draft, output = self.draft, self.draft.output
        num_tokens = len(output.tokens)
        return TrainRow(
            prompt=draft.student_prompt,
            response=output.tokens,
            old_logprobs=self.student_logprobs,
            teacher_logprobs=self.teacher_logprobs,
            weights=self.weights,
            mask=torch.full((num_tokens,), draft.in_loss(aopsd)),
            sampler_logprobs=output.logprobs,
            teacher_prompt=draft.teacher_prompt if objective.signal.full else None,
            top_k=self.top_k,
            reward=draft.reward,
            advantages=None if draft.advantage is None else torch.full((num_tokens,), draft.advantage),
        )


@dataclass(frozen=True, slots=True)
class Collection:
    """Stages 1 to 5 of a step: every draft, those of them that fit with their scores, and seconds by stage."""

    drafts: list[Draft]
    scored: list[Scored]
    seconds: dict[str, float]

    def pairs(self) -> Iterator[tuple[Draft, Scored | None]]:
        """Each draft with its scores; None for one that was left out."""
        scored = iter(self.scored)
        return ((draft, next(scored) if draft.fits else None) for draft in self.drafts)


@dataclass(frozen=True, slots=True)
class StepResult(Collection):
    """All six stages: the collection, and the engine's metrics of the update."""

    train_metrics: dict[str, float]
