"""Clipped policy gradient on the weighted sampled-token gap (eq:weighted-advantage)."""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_aopsd.config import ObjectiveConfig


class PolicyGradient:
    """L = -1/N sum_t min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t), N = valid tokens of the whole batch.

    A_t = clip(sg[w_t (log q - log p_theta)], -C, C) is formed anew from the current student in every forward, and
    rho_t = p_theta / p_old. With the student unchanged since collection the gradient is -A_t grad log p_theta / N:
    a token that the teacher prefers gains probability, one that it disfavours loses.
    """

    def __init__(self, config: ObjectiveConfig):
        self.config = config

    def __call__(
        self,
        logprobs: Tensor,  # [B, S], with gradient
        *,
        old_logprobs: Tensor,  # [B, S]
        teacher_logprobs: Tensor,  # [B, S]
        weights: Tensor,  # [B, S]
        mask: Tensor,  # [B, S] bool
        num_tokens: float,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics, both sums over this micro-batch divided by `num_tokens`, so that they add up."""
        bound = self.config.advantage_clip
        advantage = weighted_advantage(logprobs, teacher_logprobs, weights)
        clipped_advantage = advantage.clamp(-bound, bound)

        # Padding may hold anything: it must not reach exp, where 0 * inf would poison the sum.
        ratio = torch.where(mask, logprobs - old_logprobs, 0.0).exp()
        clipped_ratio = ratio.clamp(1 - self.config.ratio_clip_min, 1 + self.config.ratio_clip_max)
        surrogate = torch.minimum(ratio * clipped_advantage, clipped_ratio * clipped_advantage)

        def mean(values: Tensor) -> Tensor:
            return torch.where(mask, values, 0.0).sum() / num_tokens

        loss = -mean(surrogate)
        metrics = {
            "train/loss": loss.detach(),
            "train/frac_clipped": mean((advantage.abs() > bound).float()),
            "train/frac_ratio_clipped": mean((clipped_ratio * clipped_advantage < ratio * clipped_advantage).float()),
            "train/mean_abs_advantage": mean(clipped_advantage.abs()),
        }
        return loss, metrics


def weighted_advantage(logprobs: Tensor, teacher_logprobs: Tensor, weights: Tensor) -> Tensor:
    """sg[w (log q - log p_theta)], before the clip; any shape, no gradient."""
    return (weights * (teacher_logprobs - logprobs)).detach()
