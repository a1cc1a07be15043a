"""GKD, reverse KL and Jensen-Shannon: a divergence of whole distributions, in some steps on the data's solutions."""

from torch import Tensor

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.method.objectives.distillation import Distillation
from nemo_aopsd.method.objectives.divergences import forward_kl, jensen_shannon, reverse_kl
from nemo_aopsd.types import TopK


class GeneralizedDistillation(Distillation):
    """L = (1 - lambda) E_data[D] + lambda E_student[D], by a seeded coin a step (GKD, arXiv 2306.13649, section 3).

    lambda is `on_policy_rate`, D is `divergence`; with lambda 1 and fkl it is `fkl` without a clip.

    rkl  lambda 1 and D_t = sum_v S_t (log S_t - log P_t): what the sampled-token policy gradient estimates, without its
         variance
    jsd  lambda 1 and D_t = beta KL(P || M) + (1 - beta) KL(S || M), M = beta P + (1 - beta) S
    """

    def __init__(self, config: ObjectiveConfig):
        super().__init__(config)
        self.kind = config.name
        if config.name == "gkd":
            self.kind, self.on_policy_rate = config.divergence, config.on_policy_rate

    def divergence(self, student_logprobs: Tensor, teacher: Tensor | TopK) -> Tensor:
        assert not isinstance(teacher, TopK), "the signal is full"
        if self.kind == "jsd":
            return jensen_shannon(student_logprobs, teacher, self.config.jsd_beta)
        return {"fkl": forward_kl, "rkl": reverse_kl}[self.kind](student_logprobs, teacher)
