"""The numbers behind the figures, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def competence_counts(competences: Sequence[float], num_bins: int = 10) -> np.ndarray:
    """Problems per competence bin of [0, 1]; the last bin holds 1 itself."""
    return np.histogram(competences, bins=num_bins, range=(0.0, 1.0))[0]


def bin_means(rows: Sequence[Sequence[float]], max_bins: int) -> tuple[np.ndarray, int]:
    """Means of at most `max_bins` consecutive groups of rows, and the size of a group."""
    values = np.array(rows, dtype=float)
    size = max(1, math.ceil(len(values) / max_bins))
    return np.array([values[start : start + size].mean(axis=0) for start in range(0, len(values), size)]), size


def percent(share: float) -> str:
    """Digits that matter: 51.8 %, 3.08 %, 0.0041 %, and 0 % only for nothing. The space does not break."""
    value = 100 * share
    form = ".0f" if value in (0, 100) else ".1f" if value >= 10 else ".2f" if value >= 0.1 else ".2g"
    return f"{value:{form}}\u00a0%"


def duration(seconds: float) -> str:
    """Seconds as people say them: 4.2 s, 42 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
