"""Reverse KL over the whole vocabulary."""

from __future__ import annotations

from torch import Tensor

from nemo_aopsd.method.objectives.distillation import Distillation
from nemo_aopsd.method.objectives.divergences import reverse_kl


class ReverseKL(Distillation):
    """D_t = sum_v S_t (log S_t - log P_t): what the sampled-token policy gradient estimates, without its variance."""

    def divergence(self, student_logprobs: Tensor, teacher: Tensor) -> Tensor:
        return reverse_kl(student_logprobs, teacher)
