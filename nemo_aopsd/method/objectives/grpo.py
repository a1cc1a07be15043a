"""GRPO: the final answer's correctness, normalised within the responses to one problem."""

from torch import Tensor

from nemo_aopsd.method.objectives.base import BaseObjective, clipped_surrogate, token_mean


class GroupRelative(BaseObjective):
    """L = -mean_t min(rho_t A, clip(rho_t, 1 - eps, 1 + eps) A),  A = (R - mean R) / (std R + 1e-6) of the group.

    DeepSeekMath, arXiv 2402.03300, section 4.1, without its KL to a reference. `aggregation` seq_mean is the paper's
    mean. std is that of a sample (n - 1), as in the implementations in use. A: reward.py.
    """

    needs_old_logprobs = True
    needs_reward = True

    def __call__(
        self,
        logprobs: Tensor,  # [B, S], with gradient
        *,
        old_logprobs: Tensor,  # [B, S]
        advantages: Tensor,  # [B, S]
        mask: Tensor,  # [B, S] bool
        num_tokens: float,
        num_rows: float,
        **_unread: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        surrogate, binds = clipped_surrogate(logprobs, old_logprobs, advantages, mask, self.config)
        loss = -self.reduce(surrogate, mask, num_tokens, num_rows)
        return loss, {
            "train/loss": loss.detach(),
            "train/frac_ratio_clipped": token_mean(binds.float(), mask, num_tokens),
            "train/mean_abs_advantage": token_mean(advantages.abs(), mask, num_tokens),
        }
