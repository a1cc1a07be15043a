"""Clipped policy gradient on the weighted sampled-token gap (eq:weighted-advantage)."""

from torch import Tensor

from nemo_aopsd.method.objectives.base import BaseObjective, clipped_surrogate, token_mean
from nemo_aopsd.types import Signal


class PolicyGradient(BaseObjective):
    """L = -1/N sum_t min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t), N = valid tokens of the whole batch.

    A_t = clip(sg[w_t (log q - log p_theta)], -C, C) is recomputed from the current student in every forward, and
    rho_t = p_theta / p_old. With the student unchanged since collection the gradient is -A_t grad log p_theta / N:
    a token that the teacher prefers gains probability, one that it disfavours loses.
    """

    signal = Signal(sampled=True)
    needs_old_logprobs = True

    def __call__(
        self,
        logprobs: Tensor,  # [B, S], with gradient
        *,
        old_logprobs: Tensor,  # [B, S]
        teacher_logprobs: Tensor,  # [B, S]
        weights: Tensor,  # [B, S]
        mask: Tensor,  # [B, S] bool
        num_tokens: float,
        num_rows: float,
        **_unread: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        bound = self.config.advantage_clip
        advantage = weighted_advantage(logprobs, teacher_logprobs, weights)
        clipped_advantage = advantage.clamp(-bound, bound)
        surrogate, binds = clipped_surrogate(logprobs, old_logprobs, clipped_advantage, mask, self.config)

        loss = -self.reduce(surrogate, mask, num_tokens, num_rows)
        metrics = {
            "train/loss": loss.detach(),
            "train/frac_clipped": token_mean((advantage.abs() > bound).float(), mask, num_tokens),
            "train/frac_ratio_clipped": token_mean(binds.float(), mask, num_tokens),
            "train/mean_abs_advantage": token_mean(clipped_advantage.abs(), mask, num_tokens),
        }
        return loss, metrics


def weighted_advantage(logprobs: Tensor, teacher_logprobs: Tensor, weights: Tensor) -> Tensor:
    """sg[w (log q - log p_theta)], before the clip; any shape, no gradient."""
    return (weights * (teacher_logprobs - logprobs)).detach()
