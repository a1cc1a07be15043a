"""How concentrated gaps are: shares of tokens and of the sum of |gap|, by threshold (the paper's Figure 1b)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class GapMass:
    """Token counts and sums of |gap| by bin of |gap|: one pass, constant memory. `marks` become edges, in nats."""

    def __init__(self, marks: Iterable[float] = ()) -> None:
        self.edges = np.unique(np.concatenate([np.linspace(0.0, 10.0, 201), [*marks]]))
        self.tokens = np.zeros(len(self.edges), dtype=np.int64)  # last bin: at or above the last edge
        self.mass = np.zeros(len(self.edges))

    def add(self, gaps: np.ndarray) -> None:
        """Count finite `gaps` [T], in nats, signed."""
        size = np.abs(gaps)
        bins = np.searchsorted(self.edges, size, side="right") - 1
        self.tokens += np.bincount(bins, minlength=len(self.edges))
        self.mass += np.bincount(bins, weights=size, minlength=len(self.edges))

    def shares(self) -> tuple[np.ndarray, np.ndarray]:
        """Share of tokens with |gap| >= each edge, and their share of the sum of |gap| (0 if there is no gap)."""
        mass = above(self.mass)
        return above(self.tokens) / max(self.tokens.sum(), 1), mass / mass[0] if mass[0] else mass

    def at(self, mark: float) -> tuple[float, float]:
        """Both shares at one threshold, which must be an edge.

        >>> gaps = GapMass([1.0])
        >>> gaps.add(np.array([0.5, -1.0, 2.5, 0.0]))
        >>> gaps.at(1.0)
        (0.5, 0.875)
        """
        index = int(np.flatnonzero(self.edges == mark)[0])
        tokens, mass = self.shares()
        return float(tokens[index]), float(mass[index])


def above(bins: np.ndarray) -> np.ndarray:
    """What lies in each bin and those after it."""
    return np.cumsum(bins[::-1])[::-1]
