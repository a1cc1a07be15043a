"""Forward KL on the teacher's K most likely tokens, 8 K bytes of supervision a token."""

from __future__ import annotations

from torch import Tensor

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.method.objectives.base import likeliest
from nemo_aopsd.method.objectives.distillation import Distillation
from nemo_aopsd.method.objectives.divergences import top_k_forward_kl
from nemo_aopsd.types import Signal, TopK


class TopKForwardKL(Distillation):
    """D_t = the form `top_k_form` of `forward_kl_on_top_k`; no token is clamped at 0.

    `train/frac_negative`: tokens whose truncated sum is below 0, which some other implementations clamp.
    """

    def __init__(self, config: ObjectiveConfig):
        super().__init__(config)
        self.signal = Signal(top_k=config.top_k)
        self.top_k_form = config.top_k_form

    def divergence(self, student_logprobs: Tensor, teacher: Tensor | TopK) -> Tensor:
        return top_k_forward_kl(student_logprobs, likeliest(teacher), self.top_k_form)
