r"""The number that a closed form stands for: `\frac12` is 1/2, `2^3 \cdot 13` is 104.

LaTeX is rewritten as a Python expression, which Python's own parser reads. Rationals are exact, roots and the like are
floats. Powers of more than 4096 bits are not worked out, so no tower of powers takes time.
"""

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
_EXPRESSION = re.compile(r"(?:[\d.+\-*/(),\s[\]]|\b(?:pi|e|sqrt|frac|binom|factorial|abs|ln|log)\b)*")


def _power(base: Number, exponent: Number) -> Number:
    if not isinstance(base, Fraction) or exponent != int(exponent):
        return math.pow(base, exponent)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
    if bits * abs(exponent) > _MOST_BITS:
        raise OverflowError
    return base ** int(exponent)


def _factorial(number: Number) -> float:
    return math.gamma(number + 1)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "frac": operator.truediv,
    "binom": lambda above, below: _factorial(above) / _factorial(below) / _factorial(above - below),
    "factorial": _factorial,
    "abs": abs,
    "sqrt": lambda number, degree=2: _power(number, Fraction(1) / degree),
    "log": math.log,
    "ln": math.log,
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
    return value if isinstance(value, Fraction) or math.isfinite(value) else None


def _evaluate(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=int() | float() as value):
            return Fraction(str(value))
        case ast.Name(id="pi" | "e" as name):
            return getattr(math, name)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return -_evaluate(operand) if isinstance(sign, ast.USub) else _evaluate(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_evaluate(left), _evaluate(right))
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*map(_evaluate, arguments))
        case ast.Call(func=ast.Subscript(value=ast.Name(id="sqrt" | "log" as name), slice=index), args=[argument]):
            return _FUNCTIONS[name](_evaluate(argument), _evaluate(index))
    raise ValueError(f"no arithmetic: {type(node).__name__}")


def same_number(one: Number, other: Number) -> bool:
    """Equal exactly, or to ten digits if one of them is a float."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    try:
        return math.isclose(one, other, rel_tol=1e-10, abs_tol=1e-12)
    except OverflowError:  # an exact number beyond the floats
        return False
