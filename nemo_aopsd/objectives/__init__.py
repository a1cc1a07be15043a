"""Training objectives: pure functions on per-token log-probs. An engine calls them inside its forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_aopsd.config import ObjectiveConfig


class Objective(Protocol):
    """A token-level objective on sampled-token log-probs. Loss and metrics add up over micro-batches."""

    def __call__(
        self,
        logprobs: Tensor,  # [B, S] float, current student, with gradient
        *,
        old_logprobs: Tensor,  # [B, S]
        teacher_logprobs: Tensor,  # [B, S]
        weights: Tensor,  # [B, S]
        mask: Tensor,  # [B, S] bool
        num_tokens: float,  # valid tokens of the whole batch
    ) -> tuple[Tensor, dict[str, Tensor]]: ...


def build_objective(config: ObjectiveConfig) -> Objective:
    """The objective that the config names."""
    from nemo_aopsd.objectives.pg import PolicyGradient

    return {"pg": PolicyGradient}[config.name](config)
