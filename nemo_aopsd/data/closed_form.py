r"""The number that a closed form stands for: `\frac12` is 1/2, `2^3 \cdot 13` is 104.

No computer algebra system is needed: LaTeX is rewritten as a Python expression, which Python's own parser reads.
Rationals are exact, roots and the like are floats. Numbers beyond 4096 bits are not worked out, so that no tower of
powers takes time.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from nemo_aopsd.grading import exact

Number = Fraction | float

_MOST_BITS = 4096
_LONGEST = 400  # characters; Python's parser is slow on deep nesting
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\{([^{}]*)\\over(?![a-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"^([^{}]*)\\over(?![a-z])([^{}]*)$", r"\\frac{\1}{\2}"),
        (r"\\[dt]?binom", r"\\binom"),
        (r"\\log_(\w|\{[^{}]*\})\s*", r"\\log[\1]"),
        (r"\\(?:cdot|times|ast)(?![a-z])", "*"),
        (r"\\div(?![a-z])", "/"),
        (r"\\lfloor|\\lceil", lambda match: match[0].replace("\\l", "") + "("),
        (r"\\rfloor|\\rceil", ")"),
        (r"\|([^|]*)\|", r"abs(\1)"),
        (r"(\d+|\([^()]*\))!", r"factorial(\1)"),
        (r"\}\s*\{", ","),
        (r"[{]", "("),
        (r"[}]", ")"),
        (r"\^", "**"),
        (r"\\(\w+(?:\[[^][]*\])?)\s*(\d+|\\pi)", r"\\\1(\2)"),
        (r"(?<![a-z])\[([^][]*)\]", r"(\1)"),
        (r"\\", " "),
        (r"(?<=[\d)])\s*(?=[a-z(])|(?<=\))\s*(?=\d)|(?<=\bpi)\s*(?=[\da-z(])", "*"),
        (r"(?<![\d.])0+(?=\d)", ""),
    )
)
_EXPRESSION = re.compile(
    r"(?:[\d.+\-*/(),\s[\]]|\b(?:pi|e|sqrt|frac|binom|factorial|abs|floor|ceil|exp|ln|log|sin|cos|tan)\b)*"
)


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and exponent == int(exponent):
        if abs(base) == 1:
            return base ** int(exponent % 2)
        if max(abs(base.numerator), base.denominator).bit_length() * abs(exponent) > _MOST_BITS:
            raise OverflowError
        return base ** int(exponent)
    power = float(base) ** float(exponent)
    if isinstance(power, complex):
        raise ValueError("no real number")
    return power


def _factorial(number: Number) -> Fraction:
    if number > 450:
        raise OverflowError
    return Fraction(math.factorial(_whole(number)))


def _binomial(above: Number, below: Number) -> Fraction:
    if above > 4000:
        raise OverflowError
    return Fraction(math.comb(_whole(above), _whole(below)))


def _whole(number: Number) -> int:
    if number != int(number):
        raise ValueError(f"{number} is not whole")
    return int(number)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "frac": operator.truediv,
    "binom": _binomial,
    "factorial": _factorial,
    "abs": abs,
    "sqrt": lambda number, degree=2: _power(number, Fraction(1) / degree),
    "log": math.log,
    "ln": math.log,
    "floor": lambda number: Fraction(math.floor(number)),
    "ceil": lambda number: Fraction(math.ceil(number)),
    "exp": math.exp,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
}
_OPERATORS: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}


@lru_cache(maxsize=8192)
def closed_form(text: str) -> Number | None:
    """The value of a text in the spelling of `grading.normalize`; None if it is no number, or too large a one.

    >>> closed_form("2\\\\frac{1}{3}"), closed_form("{10 \\\\over 3}"), closed_form("9^{9^9}"), closed_form("2x")
    (Fraction(7, 3), Fraction(10, 3), None, None)
    """
    if len(text) > _LONGEST:
        return None
    value = exact.rational(text)
    if value is not None:
        return value
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    if not _EXPRESSION.fullmatch(text) or re.search(r"-\s*-|//", text):
        return None
    try:
        value = _evaluate(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, MemoryError, RecursionError):
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _evaluate(node: ast.AST) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value):
            return _bounded(Fraction(str(value)))
        case ast.Name(id="pi" | "e" as name):
            return math.pi if name == "pi" else math.e
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return -_evaluate(operand) if isinstance(sign, ast.USub) else _evaluate(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _bounded(_OPERATORS[type(sign)](_evaluate(left), _evaluate(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_evaluate, arguments)))
        case ast.Call(func=ast.Subscript(value=ast.Name(id="sqrt" | "log" as name), slice=index), args=[argument]):
            return _bounded(_FUNCTIONS[name](_evaluate(argument), _evaluate(index)))
    raise ValueError(f"no arithmetic: {type(node).__name__}")


def _bounded(number: Number) -> Number:
    if isinstance(number, Fraction) and max(abs(number.numerator), number.denominator).bit_length() > _MOST_BITS:
        raise OverflowError
    return number


def same_number(one: Number, other: Number) -> bool:
    """Equal exactly, or to ten digits if one of them is a float."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    try:
        return math.isclose(one, other, rel_tol=1e-10, abs_tol=1e-12)
    except OverflowError:  # an exact number beyond the floats
        return False
