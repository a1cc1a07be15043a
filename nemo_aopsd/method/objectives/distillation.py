"""What the objectives that minimise a divergence at every token share."""

from typing import Any

from torch import Tensor

from nemo_aopsd.method.objectives.base import BaseObjective, token_mean
from nemo_aopsd.types import Signal

_ROUNDING = 1e-5  # nats; a KL of equal distributions in float32 is 0 but for this


class Distillation(BaseObjective):
    """L = mean over tokens of D_t; a subclass says which D in `divergence`. Without gradient through the sampling."""

    signal = Signal(full=True)
    top_k_form = "none"  # of `forward_kl_on_top_k`, where only the teacher's top k are compared
    token_clip: float | None = None  # tau

    def __call__(
        self, logprobs: Tensor, *, divergence: Tensor, mask: Tensor, num_tokens: float, num_rows: float, **_unread: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.reduce(self.token_losses(divergence, mask), mask, num_tokens, num_rows)
        return loss, {
            "train/loss": loss.detach(),
            "train/divergence": token_mean(divergence.detach(), mask, num_tokens),
            "train/frac_negative": token_mean((divergence.detach() < -_ROUNDING).float(), mask, num_tokens),
        }

    def token_losses(self, divergence: Tensor, mask: Tensor) -> Tensor:
        """[B, S] from the divergences [B, S]."""
        return divergence
