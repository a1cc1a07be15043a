"""How strongly the teacher is followed at a triggered token (sec:selective), and controls that test what matters."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

from nemo_aopsd.config.schema import ProbeConfig

if TYPE_CHECKING:
    from torch import Tensor


def band_pass(nll: float, beta: float) -> float:
    """w = (L / beta) exp(1 - L / beta), peak 1 at L = beta (eq:continuation-weight).

    >>> band_pass(2.5, beta=2.5), band_pass(0.0, beta=1.0)
    (1.0, 0.0)
    """
    if not (nll >= 0 and beta > 0):
        raise ValueError(f"expected nll >= 0 and beta > 0, got {nll} and {beta}")
    if math.isinf(nll):
        return 0.0
    return nll / beta * math.exp(1 - nll / beta)


def continuation_weight(gap: float, nll: float | None, config: ProbeConfig) -> float:
    """The weight of one probed token; an empty suffix (`nll` None) keeps weight 1."""
    if nll is None:
        return 1.0
    return band_pass(nll, config.beta_positive if gap > 0 else config.beta_negative)


def step_weights(weights: Sequence[float], weighting: str, seed: int, max_weight: float) -> list[float]:
    """What `weighting` makes of the continuation weights of a step's triggered tokens, given in any fixed order.

    `shuffled` permutes the weights at random (seeded). On average one token per step keeps its weight, so with few
    tokens the control is weak, and with one it does nothing. `constant` gives all of them the mean: the same amount,
    without selection. `normalised` divides by the mean, so that selecting takes nothing away on average; no weight
    exceeds `max_weight`, and weights that are all 0 stay so. `continuation` changes nothing.
    """
    if not weights:
        return []
    if weighting == "normalised":
        scale = mean(weights) or 1.0
        return [min(weight / scale, max_weight) for weight in weights]
    if weighting == "shuffled":
        return random.Random(f"{seed}/shuffled").sample(weights, len(weights))
    if weighting == "constant":
        return [mean(weights)] * len(weights)
    return list(weights)


def gap_weights(gap: Tensor, weighting: str, config: ProbeConfig) -> Tensor:
    """Weights [T] that need no continuation, from the gap [T]: 1 below the threshold, at it and above by `weighting`.

    `gap_only` is the band-pass of |gap| in the place of the surprise, with `untriggered_weight` below the threshold;
    `zero_triggered` is 0, `uniform` is 1.
    """
    import torch

    weights = torch.ones(len(gap))
    triggered = gap.abs() >= config.threshold
    if weighting == "zero_triggered":
        weights[triggered] = 0.0
    if weighting == "gap_only":
        weights[~triggered] = config.untriggered_weight
        for position in triggered.nonzero().flatten().tolist():
            value = gap[position].item()
            weights[position] = band_pass(abs(value), config.beta_positive if value > 0 else config.beta_negative)
    return weights
