"""An answer with equivalent rewritings and near misses, and the table of the functions that make them."""

import random
import textwrap
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

from jinja2 import Environment, StrictUndefined, Template


class Answer(NamedTuple):
    """`same` are responses that state `gold` in another way, `other` responses that miss it narrowly."""

    gold: str
    same: list[str]
    other: list[str]


Dice = random.Random
T = TypeVar("T")


KINDS: dict[str, Callable[[Dice], Answer]] = {}


def kind(make: Callable[[Dice], Answer]) -> Callable[[Dice], Answer]:
    KINDS[make.__name__] = make
    return make


def drawn(dice: Dice, table: str, **values: object) -> Answer:
    """One of the answers of a table.

    Each begins with a line of its spellings, of which one is drawn. Below are rewritings, in lines that begin with `=`,
    and near misses, in lines that begin with `!`. Texts of a line are parted by ` ; `; in «» stands what is filled in.
    """
    answers: list[tuple[list[str], list[str], list[str]]] = []
    for line in textwrap.dedent(table).strip("\n").split("\n"):
        mark, _, rest = line.partition(" ")
        if mark in ("=", "!"):
            answers[-1][1 + "=!".index(mark)].extend(rest.split(" ; "))
        else:
            answers.append((line.split(" ; "), [], []))
    spellings, *lists = _one_of(dice, answers)
    same, other = ([text for item in items if (text := _template(item).render(values))] for items in lists)
    return Answer(_template(_one_of(dice, spellings)).render(values), same, other)


def _one_of(dice: Dice, items: Sequence[T]) -> T:
    return dice.choice(items) if len(items) > 1 else items[0]


@cache
def _template(text: str) -> Template:
    marks = {"variable_start_string": "«", "variable_end_string": "»", "block_start_string": "«%"}
    return Environment(undefined=StrictUndefined, comment_start_string="«#", **marks).from_string(text)


def two(dice: Dice, low: int = 2, high: int = 40) -> tuple[int, int]:
    """Two distinct numbers."""
    one, other = dice.sample(range(low, high), 2)
    return one, other


def grouped(number: int, separator: str) -> str:
    return f"{number:,}".replace(",", separator)
