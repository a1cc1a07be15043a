"""Directions of gradients: the gradient of correctness as a yardstick, and the cosine of an update with it.

Both are formed by groups of problems, so that leaving out one group after the other (the jackknife) says how far a
cosine would move with other problems and other answers. A group's gradient is kept as a sketch: as large as the model,
eight of them would not fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import stdev

import torch
from torch import Tensor

from nemo_aopsd.stats import T_95

Gradient = list[Tensor]  # one a parameter
SIZE = 1_048_573  # numbers of a sketch; a prime, so that the columns of a matrix do not meet again and again
_PIECE = 64 * SIZE  # entries that get their signs at once


def sketch(gradient: Gradient, size: int = SIZE) -> Tensor:
    """`gradient` as at most `size` numbers, float64 on the CPU, whose inner products are those of the gradients.

    Of a model with fewer entries they are the entries. Else each entry has a random sign, the same in every call, and
    goes to the place that its index modulo `size` names: the inner product of two sketches is off by about
    |a| |b| / sqrt(size), a cosine by 0.001. (Charikar, Chen and Farach-Colton 2002, "Finding frequent items in data
    streams"; Johnson and Lindenstrauss 1984.)
    """
    if sum(part.numel() for part in gradient) <= size:
        return torch.cat([part.detach().flatten().double().cpu() for part in gradient])
    found, start = torch.zeros(size, device=gradient[0].device), 0
    for number, part in enumerate(gradient):
        generator = torch.Generator(part.device).manual_seed(number)
        for piece in part.detach().flatten().split(_PIECE):
            signs = torch.randint(0, 2, piece.shape, generator=generator, device=piece.device, dtype=torch.int8)
            signed = torch.where(signs.bool(), piece, -piece).float()
            ends = start % size, -(start + len(piece)) % size
            found += torch.nn.functional.pad(signed, ends).view(-1, size).sum(0)
            start += len(piece)
    return found.double().cpu()


@dataclass(frozen=True, slots=True)
class Bearing:
    """An update's norm, its cosine with the yardstick, and that without each group of problems in turn.

    The cosine is None where one of the two gradients is 0; `without` is empty where it is so without some group.
    """

    norm: float
    cosine: float | None
    without: list[float]

    @property
    def error(self) -> float | None:
        """The cosine is known plus or minus this: a 95 % interval over other problems and answers of both sides."""
        return None if self.cosine is None else _half_width(self.without)

    def less(self, other: Bearing) -> tuple[float, float] | tuple[None, None]:
        """This cosine less the other's, and half of its interval: paired by group, so what both share falls out."""
        if self.cosine is None or other.cosine is None:
            return None, None
        if not (self.without and other.without):
            return self.cosine - other.cosine, math.inf
        apart = [one - another for one, another in zip(self.without, other.without, strict=True)]
        return self.cosine - other.cosine, _half_width(apart)


def _half_width(without: list[float]) -> float:
    """Of the 95 % interval, by the values without each group; infinite for one group, which has no spread."""
    num = len(without)
    return T_95[num] * (num - 1) / math.sqrt(num) * stdev(without) if num > 1 else math.inf


@dataclass(frozen=True)
class Yardstick:
    """The policy gradient of correctness, as the sum of those of groups of problems."""

    parts: Tensor  # [groups, numbers of a sketch]
    group_of: dict[str, int]  # of each problem by its id, of those without a gradient, too
    num_answers: int
    num_right: int
    num_mixed: int  # problems with right and wrong answers: the others have no gradient
    num_problems: int
    num_undecided: int = 0  # answers that the grader could not judge, counted as wrong

    @property
    def agreement(self) -> float:
        """The cosine of two halves, every second group and the rest; 0 if one of them is 0."""
        one, other = self.parts[0::2].sum(0), self.parts[1::2].sum(0)
        products = (torch.dot(a, b).item() for a, b in ((one, other), (one, one), (other, other)))
        return _cosine(*products) or 0.0

    @property
    def ceiling(self) -> float:
        """What a perfect update would show against so noisy a whole: sqrt(2 h / (1 + h)) at agreement h."""
        agreement = max(self.agreement, 0.0)
        return math.sqrt(2 * agreement / (1 + agreement))

    def bearing(self, update: Tensor) -> Bearing:
        """Of an update [groups, numbers of a sketch] by the same groups."""
        products = [a @ b.T for a, b in ((update, self.parts), (update, update), (self.parts, self.parts))]
        without = [_cosine(*(_left(product, group) for product in products)) for group in range(len(update))]
        whole = [product.sum().item() for product in products]
        kept = [cosine for cosine in without if cosine is not None]
        return Bearing(math.sqrt(whole[1]), _cosine(*whole), kept if len(kept) == len(without) else [])


def _left(products: Tensor, group: int) -> float:
    """The sum of `products` [groups, groups] without those of one group."""
    kept = [number for number in range(len(products)) if number != group]
    return products[kept][:, kept].sum().item()


def _cosine(product: float, square: float, other_square: float) -> float | None:
    """None if one of the two squares is 0."""
    norms = math.sqrt(max(square * other_square, 0.0))
    return product / norms if norms else None
