"""How much work one comparison may take, in units that are the same on every machine, busy or not.

The length and depth of a formula bound its parser. Then the size of its numbers bounds what is worked out in C, and
Python calls are counted, because the rest of sympy is Python.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LONGEST = 4000  # characters of a whole answer
_MOST_CALLS = 400_000  # ordinary answers take below 50,000
_MOST_BITS = 2**20  # of a number, 315,000 digits
_MOST_CHARACTERS = 1000  # of one value
_MOST_DEPTH, _MOST_BARS = 15, 12  # of brackets, of `|`; the parser's time doubles with each
_FACTORIALS = ("factorial", "binomial", "factorial2", "subfactorial")
_SYMBOL = 8.0  # no unknown is given a larger value than that


class Overspent(BaseException):
    """A comparison went beyond its budget. No `Exception`: sympy catches those and goes on."""


@contextmanager
def budget(calls: int = _MOST_CALLS) -> Iterator[None]:
    """Raise Overspent in the block after so many calls. What sympy remembers of earlier ones is dropped before."""
    from sympy.core.cache import clear_cache

    left = calls

    def count(_frame: Any, _event: str, _argument: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Overspent(f"more than {calls} calls")

    clear_cache()
    with _traced(count):
        yield


@contextmanager
def uncounted() -> Iterator[None]:
    """Leave out what a limit of its own bounds: counting doubles the time."""
    with _traced(None):
        yield


@contextmanager
def _traced(function: Callable[[Any, str, Any], None] | None) -> Iterator[None]:
    """Python calls it at each call in the block, if there is one."""
    before = sys.gettrace()
    sys.settrace(function)
    try:
        yield
    finally:
        sys.settrace(before)


def check_text(text: str, longest: int = _MOST_CHARACTERS) -> None:
    """Raise Overspent for a text that is too long, or nested too deep, for the parser."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(depth, deepest)
    if len(text) > longest or deepest > _MOST_DEPTH or text.count("|") > _MOST_BARS:
        raise Overspent(f"{len(text)} characters, brackets {deepest} deep, {text.count('|')} bars")


def check_numbers(formula: Any) -> None:
    """Raise Overspent if a power or factorial in the formula, as parsed, has more than `_MOST_BITS` bits."""
    try:
        bits = _bits(formula)
    except OverflowError:
        bits = math.inf
    if not bits <= _MOST_BITS:
        raise Overspent(f"a number of more than {_MOST_BITS} bits")


def _bits(node: Any) -> float:
    """An upper bound of the bits of any number that the formula is worked out through."""
    if getattr(node, "is_Rational", False):
        return node.p.bit_length() + node.q.bit_length()
    parts = [_bits(part) for part in getattr(node, "args", ())]
    match type(node).__name__:
        case "Pow":
            return max(parts[1], parts[0] * (1 + _size(node.args[1])))
        case name if name in _FACTORIALS:
            return parts[0] * (1 + _size(node.args[0]))
    return 1 + sum(parts)


def _size(node: Any) -> float:
    """An upper bound of the absolute value, as a float."""
    if getattr(node, "is_Rational", False):
        return abs(node.p / node.q)
    parts = [_size(part) for part in getattr(node, "args", ())]
    match type(node).__name__:
        case "Mul":
            return math.prod(parts)
        case "Pow" if getattr(node.args[1], "is_negative", False):
            return max(1.0, 1 / parts[0] if parts[0] else math.inf) ** parts[1]
        case "Pow":
            return max(1.0, parts[0]) ** parts[1]
        case name if name in _FACTORIALS:
            return 2 + parts[0] ** parts[0]
    return _SYMBOL + sum(parts)
