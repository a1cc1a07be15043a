"""Reverse KL over the whole vocabulary."""

from __future__ import annotations

from torch import Tensor

from nemo_aopsd.method.objectives.base import whole
from nemo_aopsd.method.objectives.distillation import Distillation
from nemo_aopsd.method.objectives.divergences import reverse_kl
from nemo_aopsd.types import TopK


class ReverseKL(Distillation):
    """D_t = sum_v S_t (log S_t - log P_t): what the sampled-token policy gradient estimates, without its variance."""

    def divergence(self, student_logprobs: Tensor, teacher: Tensor | TopK) -> Tensor:
        return reverse_kl(student_logprobs, whole(teacher))
