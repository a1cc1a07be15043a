"""An answer with equivalent rewritings and near misses, and the table of the functions that make them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple


class Answer(NamedTuple):
    """`same` are responses that state `gold` in another way, `other` responses that miss it narrowly."""

    gold: str
    same: list[str]
    other: list[str]


Dice = random.Random


KINDS: dict[str, Callable[[Dice], Answer]] = {}


def kind(make: Callable[[Dice], Answer]) -> Callable[[Dice], Answer]:
    KINDS[make.__name__] = make
    return make


def two(dice: Dice, low: int = 2, high: int = 40) -> tuple[int, int]:
    """Two distinct numbers."""
    one, other = dice.sample(range(low, high), 2)
    return one, other


def grouped(number: int, separator: str) -> str:
    return f"{number:,}".replace(",", separator)
