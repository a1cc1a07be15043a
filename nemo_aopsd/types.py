"""The values that modules pass to each other.

One convention for alignment: **log-prob i belongs to token i**. Lists are ragged, one entry a rollout;
padding exists only inside an engine. Log-probs, gaps and NLLs are in nats.

Suffixes of names and shapes:  B rollouts of a step, T tokens of one response, N branches of one response,
V vocabulary, S padded length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Tokens = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to decode. `temperature` 0 is greedy; `top_p` 1 and `top_k` 0 are off.

    `with_logprobs` asks for `Generation.logprobs`, which an engine may give unasked.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    with_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled response, without its prompt. A finished one ends with an end-of-sequence token."""

    tokens: Tokens
    finished: bool
    logprobs: Tensor | None = None  # [T] float32 at temperature 1, as the sampler saw them; None where none asks


@dataclass(frozen=True, slots=True)
class Branch:
    """A short side path off a response: prompt, then `response[:position]`, then `tokens`.

    A probe is a branch: its first token is the anchor, the rest is the teacher's suffix.
    """

    position: int
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Signal:
    """What an objective reads of the teacher; nothing else of it is computed.

    `sampled`: log-probs of the response's own tokens, at collection. `top_k`: its k most likely tokens at each
    position, at collection, and with `entropy` that of its whole distribution. `full`: that distribution itself, one
    chunk of positions at a time inside the update.
    """

    sampled: bool = False
    top_k: int = 0
    entropy: bool = False
    full: bool = False

    @property
    def payload(self) -> int:
        """Bytes of supervision a token; 0 without a teacher, and where a full distribution stays within the update.

        For a sampled token its id and log-prob, its weight and its mask; each of the top k is an id and a log-prob.
        """
        return 0 if self.full else 13 * self.sampled + 8 * self.top_k + 4 * self.entropy


@dataclass(frozen=True, slots=True)
class TopK:
    """The K most likely tokens at each of T positions, most likely first."""

    ids: Tensor  # [T, K] int32
    logprobs: Tensor  # [T, K] float32, of the softmax over the whole vocabulary
    entropy: Tensor  # [T] float32, of the whole distribution, in nats


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One response as the update sees it; what its objective does not read is None."""

    prompt: Tokens
    response: Tokens
    old_logprobs: Tensor | None  # [T] float32, student at collection time
    teacher_logprobs: Tensor | None  # [T] float32
    weights: Tensor  # [T] float32; of ours at least 0, and above 1 only with `normalised` and `gap_matched`
    mask: Tensor  # [T] bool, tokens that the loss counts
    sampler_logprobs: Tensor | None = None  # [T] float32, `Generation.logprobs`
    teacher_prompt: Tokens | None = None  # for a full signal
    top_k: TopK | None = None
    reward: float | None = None
    advantages: Tensor | None = None  # [T] float32, of the reward among a problem's answers; or `Objective.prepare`'s

    @property
    def gap(self) -> Tensor:
        """[T], the teacher's log-probs minus the student's at collection; for an objective that reads both."""
        assert self.teacher_logprobs is not None and self.old_logprobs is not None
        return self.teacher_logprobs - self.old_logprobs
