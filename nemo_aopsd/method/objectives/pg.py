"""Clipped policy gradient on the weighted sampled-token gap (eq:weighted-advantage)."""

from torch import Tensor

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.method.objectives.base import BaseObjective, clipped_surrogate, token_mean
from nemo_aopsd.types import Signal


class PolicyGradient(BaseObjective):
    """L = -1/N sum_t min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t), N = valid tokens of the whole batch.

    A_t = clip(sg[w_t (log q - log p_theta)], -C, C) is recomputed from the current student in every forward, and
    rho_t = p_theta / p_old. With the student unchanged since collection the gradient is -A_t grad log p_theta / N:
    a token that the teacher prefers gains probability, one that it disfavours loses. Where `reward` is set, A_t is
    that of `with_reward`.
    """

    signal = Signal(sampled=True)
    needs_old_logprobs = True

    def __init__(self, config: ObjectiveConfig):
        super().__init__(config)
        self.needs_reward = self.needs_reward or config.reward != "none"  # a subclass may always need it

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
        advantages: Tensor | None = None,  # [B, S], the reward's
        **_unread: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        bound = self.config.advantage_clip
        of_teacher = weighted_advantage(logprobs, teacher_logprobs, weights)
        advantage = with_reward(of_teacher.clamp(-bound, bound), advantages, self.config)
        surrogate, binds = clipped_surrogate(logprobs, old_logprobs, advantage, mask, self.config)

        loss = -self.reduce(surrogate, mask, num_tokens, num_rows)
        metrics = {
            "train/loss": loss.detach(),
            "train/frac_clipped": token_mean((of_teacher.abs() > bound).float(), mask, num_tokens),
            "train/frac_ratio_clipped": token_mean(binds.float(), mask, num_tokens),
            "train/mean_abs_advantage": token_mean(advantage.abs(), mask, num_tokens),
        }
        return loss, metrics


def weighted_advantage(logprobs: Tensor, teacher_logprobs: Tensor, weights: Tensor) -> Tensor:
    """sg[w (log q - log p_theta)], before the clip; any shape, no gradient."""
    return (weights * (teacher_logprobs - logprobs)).detach()


def with_reward(of_teacher: Tensor, of_reward: Tensor | None, config: ObjectiveConfig) -> Tensor:
    """The advantage of both, any shape: of a teacher's, after its clip, and of a reward's that is GRPO's.

    `added`: the sum of the two, the reward's times `reward_weight`.
    `direction`: the reward's, times clip(e^(sign(reward's) teacher's), 1 - eps, 1 + eps) with eps = `evidence_clip`
    (RLSD, arXiv 2604.03128): the reward says which way a response goes, the teacher how much each token counts.
    """
    if config.reward == "none":
        return of_teacher
    assert of_reward is not None, "`needs_reward`"
    if config.reward == "added":
        return of_teacher + config.reward_weight * of_reward
    evidence = (of_reward.sign() * of_teacher).exp()
    return of_reward * evidence.clamp(1 - config.evidence_clip, 1 + config.evidence_clip)
