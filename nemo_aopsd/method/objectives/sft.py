"""Supervised fine-tuning on the data's solutions."""

from typing import Any

from torch import Tensor

from nemo_aopsd.method.objectives.base import BaseObjective


class SupervisedFineTuning(BaseObjective):
    """L = -mean_t log p_theta(s_t | x, s_<t) over the tokens of the solution and its end token; the prompt has no loss.

    A solution that was cut to the rollout limit has no end token: the model must not learn to stop there.
    """

    on_policy_rate = 0.0

    def __call__(
        self, logprobs: Tensor, *, mask: Tensor, num_tokens: float, num_rows: float, **_unread: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss = -self.reduce(logprobs, mask, num_tokens, num_rows)
        return loss, {"train/loss": loss.detach()}
