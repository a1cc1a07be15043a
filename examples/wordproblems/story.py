"""What a word problem is made of: quantities that one operation each computes, and the sentences that tell of them."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that is computed: `left symbol right = value`. `label` is a noun phrase without digits."""

    label: str
    left: Quantity | int  # a number is one that the problem's text states
    symbol: str
    right: Quantity | int
    value: int

    @property
    def operands(self) -> tuple[Quantity | int, Quantity | int]:
        return self.left, self.right

    @property
    def parents(self) -> tuple[Quantity, ...]:
        """Quantities among the operands, each once."""
        return tuple(dict.fromkeys(operand for operand in self.operands if isinstance(operand, Quantity)))


@dataclass(frozen=True, slots=True)
class Story:
    """Sentences in order, the closing question, and the quantities in the order in which the text needs them.

    The last quantity is asked for; the others are the checkpoints.
    """

    sentences: tuple[str, ...]
    question: str
    quantities: tuple[Quantity, ...]

    @property
    def target(self) -> Quantity:
        return self.quantities[-1]

    @property
    def checkpoints(self) -> tuple[Quantity, ...]:
        return self.quantities[:-1]

    @property
    def text(self) -> str:
        return " ".join([*self.sentences, self.question])


def number_of(operand: Quantity | int) -> int:
    """The value of an operand."""
    return operand.value if isinstance(operand, Quantity) else operand


def compute(label: str, left: Quantity | int, symbol: str, right: Quantity | int) -> Quantity:
    """The quantity `left symbol right`.

    >>> compute("the cost of the pens", 3, "*", 4).value
    12
    """
    return Quantity(label, left, symbol, right, OPERATIONS[symbol](number_of(left), number_of(right)))


def is_sound(story: Story, largest: int) -> bool:
    """Do its numbers tell everything apart, and is every quantity needed?

    Values run from 2 to `largest`; a quotient is whole; every number of the text is an operand; no quantity has the
    value of another one or of a number of the text, so a value names its source, and no checkpoint states the answer.
    """
    given = {operand for item in story.quantities for operand in item.operands if isinstance(operand, int)}
    values = [item.value for item in story.quantities]
    used = {parent for item in story.quantities for parent in item.parents}
    return (
        all(2 <= value <= largest for value in values)
        and len(set(values)) == len(values)
        and given == {int(number) for number in re.findall(r"\d+", story.text)}
        and not given & set(values)
        and used == set(story.checkpoints)
        and all(number_of(item.left) % number_of(item.right) == 0 for item in story.quantities if item.symbol == "/")
    )
