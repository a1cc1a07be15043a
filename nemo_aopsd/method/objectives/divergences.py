"""Divergences of one position's next-token distributions, from log-probs: [..., V] and [..., V] to [...].

P is the teacher, S the student (methods: section 1.1). No gradient is cut here: callers give teachers without one.
A log-prob may be -inf: 0 log 0 is 0, with the gradient 0, and where only the second side is 0, the sum is inf.
"""

import math

import torch
from torch import Tensor

from nemo_aopsd.types import TopK


def forward_kl(student: Tensor, teacher: Tensor, token_clip: float | None = None) -> Tensor:
    """sum_v min(P (log P - log S), tau). Without tau the KL; with it, it can fall below 0, and a clipped entry has no
    gradient (OPSD, arXiv 2601.18734, release of 18 March 2026: only the upper side is clipped)."""
    terms = _terms(teacher, student)
    return (terms if token_clip is None else terms.clamp(max=token_clip)).sum(-1)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """sum_v S (log S - log P)."""
    return _terms(student, teacher).sum(-1)


def jensen_shannon(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """beta KL(P || M) + (1 - beta) KL(S || M), M = beta P + (1 - beta) S, 0 < beta < 1 (GKD, arXiv 2306.13649)."""
    least = torch.finfo(teacher.dtype).min  # logaddexp of -inf and -inf has no gradient
    mixture = torch.logaddexp(teacher.clamp(min=least) + math.log(beta), student + math.log1p(-beta))
    return beta * forward_kl(mixture, teacher) + (1 - beta) * forward_kl(mixture, student)


def _terms(first: Tensor, second: Tensor) -> Tensor:
    """F (log F - log S), of the same shape; 0 where F is 0, in the gradient by both too."""
    return first.exp() * (first - second).masked_fill_(first == -torch.inf, 0.0)


def top_k_forward_kl(student: Tensor, teacher: TopK, form: str, token_clip: float | None = None) -> Tensor:
    """`forward_kl_on_top_k` of a student's whole log-softmax [N, V]: [N]."""
    ids = teacher.ids.long()
    rest = _logprob_of_rest(student, ids) if form == "tail" else None
    return forward_kl_on_top_k(student.gather(-1, ids), rest, teacher.logprobs, form, token_clip)


def forward_kl_on_top_k(
    student: Tensor, rest: Tensor | None, teacher: Tensor, form: str, token_clip: float | None = None
) -> Tensor:
    """Forward KL [...] on the teacher's top k, in one of four forms; Z_P and Z_S are the masses of the top k.

    `student`, `teacher`: log-probs [..., K] of the top k, of the softmax over the whole vocabulary. `rest` [...], for
    the form `tail`: log(1 - Z_S), summed over the other words, as 1 - Z_S would cancel to nothing.

    none:            sum_k P (log P - log S)                         least where all student mass is on the top k
    renorm:          the same of P / Z_P and S / Z_S                 blind to student mass outside of the top k
    teacher_renorm:  the same of P / Z_P and S                       least where all student mass is on the top k
    tail:            `none` + (1 - Z_P) (log(1 - Z_P) - log(1 - Z_S))    least at S = P, on the top k and in sum

    At k = V all four are the whole forward KL (methods: section 2.9); `renorm` is NaN where Z_S is 0. `token_clip`
    bounds the terms of single words, as in `forward_kl`; the last term of `tail` stands for many words, of which next
    to none would be clipped.
    """
    if form == "renorm":
        student = student.log_softmax(-1)
    if form in ("renorm", "teacher_renorm"):
        teacher = teacher.log_softmax(-1)
    value = forward_kl(student, teacher, token_clip)
    return value if rest is None else value + _tail(rest, teacher)


def _tail(rest: Tensor, teacher: Tensor) -> Tensor:
    """The last term of `tail`, from log(1 - Z_S) and the teacher's log-probs of the top k."""
    mass = 1 - teacher.exp().sum(-1)
    rounding = teacher.shape[-1] * torch.finfo(teacher.dtype).eps
    exists = mass > rounding  # else log 0 would come of it
    return torch.where(exists, mass * (torch.where(exists, mass, 1.0).log() - rest), 0.0)


def _logprob_of_rest(student: Tensor, ids: Tensor) -> Tensor:
    """log(1 - Z_S) [N]; 0 where the top k are all words: no teacher has mass elsewhere, so nothing reads it.

    The least number there is, not -inf, where the student has nothing left: logsumexp of nothing has no gradient.
    """
    if ids.shape[-1] == student.shape[-1]:
        return torch.zeros_like(student[..., 0])
    return student.scatter(-1, ids, torch.finfo(student.dtype).min).logsumexp(-1)
