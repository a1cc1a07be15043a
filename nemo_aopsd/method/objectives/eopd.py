"""EOPD: policy gradient everywhere, and forward KL on the teacher's top k where the teacher is unsure."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.method.objectives.base import token_mean
from nemo_aopsd.method.objectives.divergences import top_k_forward_kl
from nemo_aopsd.method.objectives.pg import PolicyGradient
from nemo_aopsd.types import Signal, TopK


class EntropyAware(PolicyGradient):
    """L = L_pg + alpha mean_t h_t KL_t,  h_t = 1[H(P_t) >= tau_H],  the mean over all valid tokens.

    KL_t is the form `teacher_renorm` of the top-k forward KL (EOPD, arXiv 2603.07079). The policy gradient is that of
    `pg`, so its advantage follows the current student where the paper has p_old: the same at one update a batch.
    """

    def __init__(self, config: ObjectiveConfig):
        super().__init__(replace(config, reward="none"))  # which only `pg` reads
        self.signal = Signal(sampled=True, top_k=config.top_k, entropy=True)

    def divergence(self, student_logprobs: Tensor, teacher: Tensor | TopK) -> Tensor:
        """KL_t [N], behind a shut gate too."""
        assert isinstance(teacher, TopK), "the signal asks for it"
        return top_k_forward_kl(student_logprobs, teacher, "teacher_renorm")

    def __call__(
        self,
        logprobs: Tensor,
        *,
        divergence: Tensor | None = None,  # [B, S], with gradient
        entropy: Tensor | None = None,  # [B, S]
        mask: Tensor,
        num_tokens: float,
        num_rows: float,
        **columns: Any,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        assert divergence is not None and entropy is not None  # of the teacher's top k
        policy_loss, metrics = super().__call__(
            logprobs, mask=mask, num_tokens=num_tokens, num_rows=num_rows, **columns
        )
        open_gates = entropy >= self.config.entropy_threshold
        gated = torch.where(open_gates, divergence, 0.0)
        loss = policy_loss + self.config.entropy_weight * self.reduce(gated, mask, num_tokens, num_rows)
        return loss, metrics | {
            "train/loss": loss.detach(),
            "train/divergence": token_mean(gated.detach(), mask, num_tokens),
            "train/gate_rate": token_mean(open_gates.float(), mask, num_tokens),
        }
