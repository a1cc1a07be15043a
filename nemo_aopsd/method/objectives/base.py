"""What all objectives share: the neutral declarations, the two means over tokens, and the clipped surrogate."""

import torch
from torch import Tensor

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.types import Signal, TopK, TrainRow

_MOST_LOG_RATIO = 20.0  # nats


class BaseObjective:
    """Reads nothing of the teacher, is on policy and has no advantage; each objective says where it differs."""

    signal = Signal()
    on_policy_rate = 1.0
    needs_old_logprobs = False
    needs_reward = False

    def __init__(self, config: ObjectiveConfig):
        self.config = config

    def prepare(self, rows: list[TrainRow]) -> list[TrainRow]:
        return rows

    def divergence(self, student_logprobs: Tensor, teacher: Tensor | TopK) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} compares no distributions")

    def reduce(self, values: Tensor, mask: Tensor, num_tokens: float, num_rows: float) -> Tensor:
        """This micro-batch's share of the mean of `values` [B, S] that `aggregation` names.

        token_mean: sum over b, t of m l / N.    seq_mean: 1/B sum over b of (sum over t of m l / sum over t of m).
        """
        if self.config.aggregation == "token_mean":
            return token_mean(values, mask, num_tokens)
        lengths = mask.sum(-1).clamp(min=1)
        return (torch.where(mask, values, 0.0).sum(-1) / lengths).sum() / num_rows


def token_mean(values: Tensor, mask: Tensor, num_tokens: float) -> Tensor:
    """sum m l / N. `where`, since padding may hold anything and 0 * inf would poison the sum."""
    return torch.where(mask, values, 0.0).sum() / num_tokens


def clipped_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, config: ObjectiveConfig
) -> tuple[Tensor, Tensor]:
    """PPO's min(rho A, clip(rho, 1 - eps, 1 + eps) A), to be maximised, and where the clip binds; both [B, S].

    rho = p_theta / p_old, its log held within +-20 as verl does, without gradient beyond: an overflow
    times an advantage of 0 would be NaN. Masked tokens must not reach exp.
    """
    ratio = torch.where(mask, logprobs - old_logprobs, 0.0).clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO).exp()
    clipped = ratio.clamp(1 - config.ratio_clip_min, 1 + config.ratio_clip_max)
    return torch.minimum(ratio * advantages, clipped * advantages), clipped * advantages < ratio * advantages
