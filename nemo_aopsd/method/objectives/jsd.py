"""Generalised Jensen-Shannon divergence over the whole vocabulary."""

from __future__ import annotations

from torch import Tensor

from nemo_aopsd.method.objectives.base import whole
from nemo_aopsd.method.objectives.distillation import Distillation
from nemo_aopsd.method.objectives.divergences import jensen_shannon
from nemo_aopsd.types import TopK


class JensenShannon(Distillation):
    """D_t = beta KL(P || M) + (1 - beta) KL(S || M), M = beta P + (1 - beta) S (GKD, arXiv 2306.13649)."""

    def divergence(self, student_logprobs: Tensor, teacher: Tensor | TopK) -> Tensor:
        return jensen_shannon(student_logprobs, whole(teacher), self.config.jsd_beta)
