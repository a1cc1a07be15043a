"""GKD: a divergence on the student's own responses in some steps, on the data's solutions in the others."""

from __future__ import annotations

from torch import Tensor

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.method.objectives.base import whole
from nemo_aopsd.method.objectives.distillation import Distillation
from nemo_aopsd.method.objectives.divergences import forward_kl, jensen_shannon, reverse_kl
from nemo_aopsd.types import TopK


class GeneralizedDistillation(Distillation):
    """L = (1 - lambda) E_data[D] + lambda E_student[D], by a seeded coin a step (GKD, arXiv 2306.13649, section 3).

    lambda is `on_policy_rate`, D is `divergence`; with lambda 1 and fkl it is `fkl` without a clip.
    """

    def __init__(self, config: ObjectiveConfig):
        super().__init__(config)
        self.on_policy_rate = config.on_policy_rate

    def divergence(self, student_logprobs: Tensor, teacher: Tensor | TopK) -> Tensor:
        if self.config.divergence == "jsd":
            return jensen_shannon(student_logprobs, whole(teacher), self.config.jsd_beta)
        return {"fkl": forward_kl, "rkl": reverse_kl}[self.config.divergence](student_logprobs, whole(teacher))
