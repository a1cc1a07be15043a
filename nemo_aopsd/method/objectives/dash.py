"""DASH: forward KL with more weight after tokens of low divergence."""

import torch
from torch import Tensor

from nemo_aopsd.method.objectives.fkl import ForwardKL


class Dash(ForwardKL):
    """L = mean_t A_t,  A_T = r_T,  A_t = r_t + lambda_t A_{t+1},  lambda_t = sg[sigmoid(-kappa (r_t - mean r))].

    r_t is the clipped forward KL of `fkl`, its mean that of the response (DASH, arXiv 2608.06243, by published notes).
    Used in the equivalent form mean_t c_t r_t with the detached coefficients of `coefficients`: the gradient goes
    through r only. With constant r the coefficients tend to 2; `train/loss` over `train/divergence` is their mean.
    """

    def token_losses(self, divergence: Tensor, mask: Tensor) -> Tensor:
        return coefficients(divergence, mask, self.config.dash_kappa) * divergence


def coefficients(divergence: Tensor, mask: Tensor, kappa: float) -> Tensor:
    """c [B, S]: c_1 = 1, c_t = 1 + lambda_{t-1} c_{t-1} over the valid tokens; without gradient.

    Written c_t = 1 + carry_{t-1} with carry_t = lambda_t + lambda_t carry_{t-1} at a valid token and carry_t =
    carry_{t-1} at another one. These are affine maps, composed over spans that double: log2 S rounds, not S.
    """
    values = torch.where(mask, divergence.detach(), 0.0)
    mean = values.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    gate = torch.sigmoid(-kappa * (values - mean))
    slope, offset = torch.where(mask, gate, 1.0), torch.where(mask, gate, 0.0)
    span = 1
    while span < mask.shape[-1]:
        offset = offset + slope * _shifted(offset, span)
        slope = slope * _shifted(slope, span)
        span *= 2
    return 1 + _shifted(offset, 1)


def _shifted(values: Tensor, by: int) -> Tensor:
    """Each column moved `by` to the right, zeros before it."""
    return torch.nn.functional.pad(values, (by, 0))[..., : values.shape[-1]]
