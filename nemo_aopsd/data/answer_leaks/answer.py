"""What an answer is as values, and when another value is the same."""

from __future__ import annotations

import cmath
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from nemo_aopsd.data.answer_leaks.arithmetic import Number, Undecided
from nemo_aopsd.data.answer_leaks.reader import BINDING, Value, read_whole
from nemo_aopsd.data.answer_leaks.text import clean, tokens
from nemo_aopsd.grading.normalize import normalize
from nemo_aopsd.grading.structure import read_shape


@dataclass(frozen=True, slots=True)
class Answer:
    """What the answer is as values. `kind` is text if it cannot be read as any; then `texts` are compared."""

    kind: Literal["value", "list", "tuple", "text"]
    values: tuple[Value, ...]
    brackets: str
    symbols: frozenset[str]
    is_percent: bool
    is_peculiar: bool
    texts: tuple[str, ...]

    @property
    def keeps_commas(self) -> bool:
        return self.kind in ("list", "tuple")


@lru_cache(maxsize=4096)
def read_answer(answer: str) -> Answer:
    given = normalize(answer)
    listed = tokens(clean(answer))
    texts = tuple(token.text for token in listed if token.kind != "edge")
    symbols = _unknowns(given.text)
    if re.fullmatch(r"[a-zA-Z .()]*", given.text):  # words, a letter: no formula
        return Answer("text", (), "", frozenset(), False, len("".join(texts)) > 2, texts)
    if not given.text.startswith(("(", "[", "\\{", "{")) and (value := _read_member(given.text, symbols)):
        return _value_answer(value, symbols, given.percent, texts)
    shape = read_shape(given.text)
    symbols = frozenset().union(*map(_unknowns, shape.items))
    values = tuple(_read_member(item, symbols) for item in shape.items)
    if shape.kind == "union" or not values or None in values:
        return Answer("text", (), "", frozenset(), False, len("".join(texts)) > 2, texts)
    if shape.kind == "value":
        return _value_answer(values[0], symbols, given.percent, texts)
    return Answer(shape.kind, values, shape.brackets, symbols, False, True, texts)


def _read_member(text: str, symbols: frozenset[str]) -> Value | None:
    try:
        return read_whole(text, symbols)
    except Undecided:
        return None


def _value_answer(value: Value, symbols: frozenset[str], is_percent: bool, texts: tuple[str, ...]) -> Answer:
    number = value.number
    if is_percent and not value.is_percent:  # `normalize` has cut the sign off
        number = number / 100 if number is not None else None
        value = Value(value.start, value.end, number, True)
    is_small = isinstance(number, Fraction) and number.denominator == 1 and abs(number) < 100
    is_letter = len("".join(texts)) <= 2 and bool(symbols)
    return Answer("value", (value,), "", symbols, is_percent, not is_small and not is_letter, texts)


def _unknowns(text: str) -> frozenset[str]:
    """Letters and Greek letters of a formula; `i`, `e` and names of functions are none."""
    listed = tokens(clean(text))
    letters = {
        letter
        for token in listed
        if token.kind == "word" and token.text not in ("e", "i", "pi", "sqrt", "mod")
        for letter in token.text
    }
    known = BINDING | {"\\pi", "\\infty", "\\over", "\\boxed", "\\lfloor", "\\rfloor", "\\lceil", "\\rceil"}
    return frozenset(letters | {token.text for token in listed if token.kind == "cmd" and token.text not in known})


def is_same(value: Value, wanted: Value, is_percent: bool) -> bool | None:
    """Equal, or the decimal to which the answer rounds; 50 % is 1/2, and 50 where the answer leaves the sign out."""
    if value.number is None or wanted.number is None:
        return None
    if _equal(value.number, wanted.number) or _rounds_to(wanted.number, value):
        return True
    if value.is_percent != is_percent:
        factor = Fraction(100) if value.is_percent else Fraction(1, 100)
        return _equal(value.number * factor, wanted.number)
    return False


def _equal(one: Number, other: Number) -> bool | None:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    try:
        one, other = complex(one), complex(other)
    except OverflowError:  # an exact number beyond the floats, and one within
        return False
    if cmath.isinf(one) or cmath.isinf(other):
        return None if cmath.isinf(one) and cmath.isinf(other) else False
    return cmath.isclose(one, other, rel_tol=1e-10, abs_tol=1e-12)


def _rounds_to(exact: Number, value: Value) -> bool:
    if value.places < 2 or isinstance(exact, complex) or not isinstance(value.number, Fraction):
        return False
    if not isinstance(exact, Fraction):
        exact = Fraction(exact) if abs(exact) < 1e300 else Fraction(0)
    return 2 * abs(value.number - exact) <= Fraction(1, 10**value.places)
