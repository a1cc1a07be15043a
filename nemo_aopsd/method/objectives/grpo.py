"""GRPO: the final answer's correctness, normalised within the responses to one problem."""

from dataclasses import replace

import torch
from torch import Tensor

from nemo_aopsd.method.objectives.base import BaseObjective, clipped_surrogate, token_mean
from nemo_aopsd.types import TrainRow


class GroupRelative(BaseObjective):
    """L = -mean_t min(rho_t A, clip(rho_t, 1 - eps, 1 + eps) A),  A = (R - mean R) / (std R + 1e-6) of the group.

    DeepSeekMath, arXiv 2402.03300, section 4.1, without its KL to a reference. `aggregation` seq_mean is the paper's
    mean. std is that of a sample (n - 1), as in the implementations in use.
    """

    needs_old_logprobs = True
    needs_reward = True

    def prepare(self, rows: list[TrainRow]) -> list[TrainRow]:
        return with_group_advantages(rows)

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


def with_group_advantages(rows: list[TrainRow]) -> list[TrainRow]:
    """Rows with their group's advantage at every token. A group is the rows of one prompt."""
    groups: dict[tuple[int, ...], list[float]] = {}
    for row in rows:
        groups.setdefault(tuple(row.prompt), []).append(_reward(row))
    return [
        replace(row, advantages=torch.full((len(row.response),), _advantage(row, groups[tuple(row.prompt)])))
        for row in rows
    ]


def _reward(row: TrainRow) -> float:
    assert row.reward is not None  # `needs_reward`
    return row.reward


def _advantage(row: TrainRow, rewards: list[float]) -> float:
    if len(rewards) < 2:
        raise ValueError(f"a group of one response has no relative reward (prompt of {len(row.prompt)} tokens)")
    group = torch.tensor(rewards, dtype=torch.float64)
    return ((_reward(row) - group.mean()) / (group.std() + 1e-6)).item()
