"""OPSD and OP2SD: forward KL over the whole vocabulary, each entry clipped from above."""

from __future__ import annotations

from torch import Tensor

from nemo_aopsd.objectives.distillation import Distillation
from nemo_aopsd.objectives.divergences import forward_kl


class ForwardKL(Distillation):
    """D_t = sum_v min(P_t (log P_t - log S_t), tau), tau = `token_clip` (OPSD, arXiv 2601.18734, Eq. 8).

    `train/frac_negative`: tokens whose clipped sum is below 0.
    """

    def divergence(self, student_logprobs: Tensor, teacher: Tensor) -> Tensor:
        return forward_kl(student_logprobs, teacher, self.config.token_clip)
