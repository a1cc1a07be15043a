"""How strongly the teacher is followed at a probed token (sec:selective)."""

from __future__ import annotations

import math

from nemo_aopsd.config import ProbeConfig


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
