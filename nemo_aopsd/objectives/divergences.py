"""Divergences of one position's next-token distributions, from log-probs: [..., V] and [..., V] to [...].

P is the teacher, S the student (methods: section 1.1). No gradient is cut here: callers give teachers without one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nemo_aopsd.types import TopK


def forward_kl(student: Tensor, teacher: Tensor, token_clip: float | None = None) -> Tensor:
    """sum_v min(P (log P - log S), tau). Without tau the KL; with it, it can fall below 0, and a clipped entry has no
    gradient (OPSD, arXiv 2601.18734, release of 18 March 2026: only the upper side is clipped)."""
    terms = teacher.exp() * (teacher - student)
    return (terms if token_clip is None else terms.clamp(max=token_clip)).sum(-1)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """sum_v S (log S - log P)."""
    return (student.exp() * (student - teacher)).sum(-1)


def jensen_shannon(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """beta KL(P || M) + (1 - beta) KL(S || M), M = beta P + (1 - beta) S, 0 < beta < 1 (GKD, arXiv 2306.13649)."""
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return beta * forward_kl(mixture, teacher) + (1 - beta) * forward_kl(mixture, student)


def top_k_forward_kl(student: Tensor, teacher: TopK, form: str) -> Tensor:
    """Forward KL [N] on the teacher's top k, in one of four forms; Z_P and Z_S are the masses of the top k.

    none:            sum_k P (log P - log S)                         least where all student mass is on the top k
    renorm:          the same of P / Z_P and S / Z_S                 blind to student mass outside of the top k
    teacher_renorm:  the same of P / Z_P and S                       least where all student mass is on the top k
    tail:            `none` + (1 - Z_P) (log(1 - Z_P) - log(1 - Z_S))    least at S = P, on the top k and in sum

    At k = V all four are the whole forward KL (methods: section 2.9).
    """
    ids, inside = teacher.ids.long(), teacher.logprobs
    chosen = student.gather(-1, ids)
    if form == "renorm":
        chosen = chosen.log_softmax(-1)
    if form in ("renorm", "teacher_renorm"):
        inside = inside.log_softmax(-1)
    value = forward_kl(chosen, inside)
    return value + _tail(student, ids, inside) if form == "tail" else value


def _tail(student: Tensor, ids: Tensor, inside: Tensor) -> Tensor:
    """The last term of `tail`. The student's tail is summed itself: 1 - Z_S would cancel to nothing."""
    rest = 1 - inside.exp().sum(-1)
    exists = rest > ids.shape[-1] * torch.finfo(inside.dtype).eps  # else it is rounding, and log 0 would come of it
    outside = student.scatter(-1, ids, -torch.inf)
    student_rest = torch.where(exists.unsqueeze(-1), outside, student).logsumexp(-1)
    term = rest * (torch.where(exists, rest, 1.0).log() - student_rest)
    return torch.where(exists, term, 0.0)
