"""MiniLLM: exact reverse KL of each token, and policy gradient on the gaps of the rest of the response."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from nemo_aopsd.method.objectives.base import BaseObjective, clipped_surrogate, token_mean
from nemo_aopsd.method.objectives.divergences import reverse_kl
from nemo_aopsd.types import Signal, TopK, TrainRow


class MiniLLM(BaseObjective):
    """L = mean_t RKL_t - mean_t min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t),  A_t = clip(R_{t+1}, -C, C).

    R_{t+1} = 1 / max(1, T - t) sum_{t' > t} (log q - log p_old)(y_t'), 0 at the last token (MiniLLM, arXiv 2306.08543,
    section 2.2, with gamma 1). The paper divides by T - t - 1, one short of the number of terms. Left out: sampling
    from a mixture with the teacher, and the language-model loss on a corpus. `whiten` is its code's, not its text's.
    """

    signal = Signal(sampled=True, full=True)
    needs_old_logprobs = True

    def prepare(self, rows: list[TrainRow]) -> list[TrainRow]:
        """Rows with A. Whitening has the statistics of all valid tokens of the step."""
        returns = [mean_of_the_rest(row.gap, row.mask) for row in rows]
        counted = torch.cat([values[row.mask] for row, values in zip(rows, returns, strict=True)]) if rows else None
        if self.config.whiten and counted is not None and len(counted) > 1:
            deviation, mean = torch.std_mean(counted)
            returns = [(values - mean) / (deviation + 1e-6) for values in returns]
        bound = self.config.advantage_clip
        return [replace(row, advantages=found.clamp(-bound, bound)) for row, found in zip(rows, returns, strict=True)]

    def divergence(self, student_logprobs: Tensor, teacher: Tensor | TopK) -> Tensor:
        assert not isinstance(teacher, TopK), "the signal is full"
        return reverse_kl(student_logprobs, teacher)

    def __call__(
        self,
        logprobs: Tensor,  # [B, S], with gradient
        *,
        divergence: Tensor,  # [B, S], with gradient
        old_logprobs: Tensor,  # [B, S]
        advantages: Tensor,  # [B, S]
        mask: Tensor,  # [B, S] bool
        num_tokens: float,
        num_rows: float,
        **_unread: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        surrogate, binds = clipped_surrogate(logprobs, old_logprobs, advantages, mask, self.config)
        loss = self.reduce(divergence - surrogate, mask, num_tokens, num_rows)
        return loss, {
            "train/loss": loss.detach(),
            "train/divergence": token_mean(divergence.detach(), mask, num_tokens),
            "train/frac_ratio_clipped": token_mean(binds.float(), mask, num_tokens),
            "train/mean_abs_advantage": token_mean(advantages.abs(), mask, num_tokens),
        }


def mean_of_the_rest(values: Tensor, mask: Tensor) -> Tensor:
    """[T]: at each token the mean of `values` [T] over the valid tokens behind it; 0 where there is none.

    Summed from the end: the total less the sum so far would cancel to little but rounding near the end.
    """
    valid = torch.where(mask, values, 0.0)
    sums = pad(valid, (0, 1)).flip(0).cumsum(0).flip(0)[1:]
    counts = mask.sum() - mask.cumsum(0)
    return torch.where(counts > 0, sums / counts.clamp(min=1), 0.0)
