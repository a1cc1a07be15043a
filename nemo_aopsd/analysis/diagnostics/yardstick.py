"""The gradient of correctness as a yardstick, and the cosine of an update with it, with its interval.

Groups of problems have a gradient each: their spread gives the intervals, so no second sample is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from statistics import stdev

import torch
from torch import Tensor

from nemo_aopsd.stats import T_95

Gradient = list[Tensor]  # one a parameter


@dataclass(frozen=True, slots=True)
class Bearing:
    """A gradient's norm, and of each group of problems what it adds to the cosine with the yardstick.

    `shares` is None where one of the two gradients is 0. Intervals are 95 %, Student's t over the groups.
    """

    norm: float
    shares: list[float] | None

    @property
    def cosine(self) -> float | None:
        return None if self.shares is None else sum(self.shares)

    @property
    def error(self) -> float | None:
        """The cosine is known plus or minus this."""
        return None if self.shares is None else _half_width(self.shares)

    def less(self, other: Bearing) -> tuple[float, float] | tuple[None, None]:
        """This cosine less the other's, and half of its interval: paired by group, so what both share falls out."""
        if self.shares is None or other.shares is None:
            return None, None
        differences = [own - its for own, its in zip(self.shares, other.shares, strict=True)]
        return sum(differences), _half_width(differences)


def _half_width(parts: Sequence[float]) -> float:
    """Of the 95 % interval of a sum of `parts`, one a group; infinite for one group, which has no spread."""
    num = len(parts)
    return T_95[num] * math.sqrt(num) * stdev(parts) if num > 1 else math.inf


@dataclass(frozen=True)
class Yardstick:
    """The policy gradient of correctness, as the sum of those of groups of problems."""

    groups: list[Gradient]
    num_answers: int
    num_right: int
    num_mixed: int  # problems with right and wrong answers: the others have no gradient
    num_problems: int
    num_undecided: int = 0  # answers that the grader could not judge, counted as wrong

    @cached_property
    def _products(self) -> list[list[float]]:
        """Of each group with each; formed once, as a gradient is as large as the model."""
        found = [[0.0] * len(self.groups) for _ in self.groups]
        for (i, one), (j, other) in combinations_with_replacement(enumerate(self.groups), 2):
            found[i][j] = found[j][i] = dot(one, other)
        return found

    def _product(self, some: slice, others: slice) -> float:
        return sum(sum(row[others]) for row in self._products[some])

    @property
    def agreement(self) -> float:
        """The cosine of two halves, every second group and the rest; 0 if one of them is 0."""
        one, other = slice(0, None, 2), slice(1, None, 2)
        squares = self._product(one, one), self._product(other, other)
        return _cosine(self._product(one, other), *squares) or 0.0

    @property
    def ceiling(self) -> float:
        """What a perfect update would show against so noisy a whole: sqrt(2 h / (1 + h)) at agreement h."""
        agreement = max(self.agreement, 0.0)
        return math.sqrt(2 * agreement / (1 + agreement))

    def bearing(self, gradient: Gradient) -> Bearing:
        """Its intervals are over other problems and other answers of the yardstick, for this gradient."""
        square, whole = dot(gradient, gradient), self._product(slice(None), slice(None))
        products = [dot(gradient, group) for group in self.groups]
        norms = math.sqrt(max(square * whole, 0.0))
        return Bearing(math.sqrt(square), [product / norms for product in products] if norms else None)


def dot(one: Gradient, other: Gradient) -> float:
    """The inner product of two gradients, summed in float64."""
    return sum(torch.dot(a.flatten().double(), b.flatten().double()).item() for a, b in zip(one, other, strict=True))


def _cosine(product: float, square: float, other_square: float) -> float | None:
    """None if one of the two squares is 0."""
    norms = math.sqrt(max(square * other_square, 0.0))
    return product / norms if norms else None
