"""Arithmetic that no number can hold up: exact up to 4096 bits, then `inf`, or Undecided where that says nothing.

Rationals are exact; roots, logarithms and the like are floats.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from fractions import Fraction

Number = Fraction | float | complex

MOST_BITS = 4096


class Undecided(ArithmeticError):
    """A number beyond all bounds, of which nothing is known; or a text that has used up its budget of steps."""


class NoValueError(Exception):
    """What stands here is no value."""


def _is_huge(number: Number) -> bool:
    return isinstance(number, float) and math.isinf(number)


def plus(one: Number, other: Number) -> Number:
    if _is_huge(one) and _is_huge(other) and one != other:
        raise Undecided
    return one if _is_huge(one) else other if _is_huge(other) else one + other


def times(one: Number, other: Number) -> Number:
    for huge, factor in ((one, other), (other, one)):
        if _is_huge(huge):
            if isinstance(factor, complex) or abs(factor) < 1:
                raise Undecided
            return huge if factor > 0 else -huge
    return one * other


def over(one: Number, other: Number) -> Number:
    if _is_huge(one) or _is_huge(other):
        raise Undecided
    return one / other


def power(base: Number, exponent: Number) -> Number:
    if isinstance(base, complex) or isinstance(exponent, complex):
        return _finite(complex(base) ** complex(exponent))
    if _is_huge(base) or _is_huge(exponent):
        if base > 1 and exponent >= 1:
            return math.inf
        raise Undecided
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        return _rational_power(base, exponent)
    return _finite(complex(base) ** float(exponent) if base < 0 else float(base) ** float(exponent))


def _rational_power(base: Fraction, exponent: Fraction) -> Number:
    size = max(abs(base.numerator), base.denominator).bit_length()
    if exponent.denominator == 1:
        if base in (-1, 0, 1) and exponent > 2:
            return base ** (2 + int(exponent % 2))
        if size * abs(exponent) <= MOST_BITS:
            return base ** int(exponent)
        if base > 1 and exponent > 0:
            return math.inf
        raise Undecided
    if base >= 0 and exponent.denominator <= 64 and size * abs(exponent) <= MOST_BITS:
        roots = [_exact_root(part, exponent.denominator) for part in (base.numerator, base.denominator)]
        if None not in roots and roots[1]:
            return Fraction(*roots) ** exponent.numerator
    return _finite(complex(base) ** float(exponent) if base < 0 else float(base) ** float(exponent))


def _exact_root(number: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(number)
    else:
        root = round(float(number) ** (1 / degree)) if number.bit_length() < 900 else 0
    return root if root**degree == number else None


def factorial(number: Number) -> Number:
    if not isinstance(number, Fraction) or number.denominator > 1 or number < 0:
        raise NoValueError
    return Fraction(math.factorial(int(number))) if number <= 450 else math.inf


def binomial(n: Number, k: Number) -> Number:
    if not all(isinstance(part, Fraction) and part.denominator == 1 and part >= 0 for part in (n, k)):
        raise NoValueError
    if min(k, n - k) > 400 or n.numerator.bit_length() > 64:
        raise Undecided
    return Fraction(math.comb(int(n), int(k)))


def apply(function: Callable[[complex], complex], number: Number) -> Number:
    if _is_huge(number):
        raise Undecided
    return _finite(function(complex(number)))


def _finite(number: complex) -> Number:
    if isinstance(number, complex):
        if not cmath.isfinite(number):
            raise Undecided
        return number.real if abs(number.imag) <= 1e-13 * abs(number) else number
    if not math.isfinite(number):
        raise Undecided
    return number
