r"""The number that a closed form stands for: `\frac12` is 1/2, `2^3 \cdot 13` is 104.

No computer algebra system is needed: LaTeX is rewritten as a Python expression, which Python's own parser reads.
Rationals are exact, roots and the like are floats. A number beyond 4096 bits is `inf`, or `nan` where even its sign or
size is unknown, so that no tower of powers takes time.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

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


def _is_beyond(*numbers: Number) -> bool:
    return any(isinstance(number, float) and not math.isfinite(number) for number in numbers)


def _times(one: Number, other: Number) -> Number:
    if _is_beyond(one, other) and min(abs(one), abs(other)) < 1:  # an unknown number of any size
        return math.nan
    return one * other


def _over(one: Number, other: Number) -> Number:
    return math.nan if _is_beyond(one, other) else one / other


def _power(base: Number, exponent: Number) -> Number:
    if _is_beyond(base, exponent):
        return math.inf if base > 1 and exponent >= 1 else math.nan
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        size = max(abs(base.numerator), base.denominator).bit_length()
        if abs(base) in (0, 1):
            exponent = exponent if abs(exponent) < 2 else 2 + exponent % 2
        elif size * abs(exponent) > _MOST_BITS:
            return math.inf if base > 1 and exponent > 0 else math.nan
        return base ** int(exponent)
    return _real(lambda x: x ** float(exponent), base)


def _real(function: Callable[[float], float | complex], number: Number) -> float:
    if _is_beyond(number):
        return math.nan
    value = function(float(number))
    if isinstance(value, complex):
        raise ValueError("no real number")
    return value


def _factorial(number: Number) -> Number:
    if not isinstance(number, Fraction) or number.denominator > 1 or number < 0:
        return math.nan if _is_beyond(number) else math.gamma(-1)  # ValueError
    return Fraction(math.factorial(int(number))) if number <= 450 else math.inf


def _binomial(above: Number, below: Number) -> Number:
    if _is_beyond(above, below):
        return math.nan
    if above.as_integer_ratio()[1] > 1 or below.as_integer_ratio()[1] > 1 or min(above, below) < 0:
        raise ValueError("binomials are of whole numbers")
    return Fraction(math.comb(int(above), int(below))) if above <= 4000 else math.nan


def _rounded(function: Callable[[Number], int]) -> Callable[[Number], Number]:
    return lambda number: math.nan if _is_beyond(number) else Fraction(function(number))


_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "frac": _over,
    "binom": _binomial,
    "factorial": _factorial,
    "abs": abs,
    "sqrt": lambda number, degree=Fraction(2): _power(number, _over(Fraction(1), degree)),
    "log": lambda number, base=math.e: _over(_real(math.log, number), _real(math.log, base)),
    "floor": _rounded(math.floor),
    "ceil": _rounded(math.ceil),
} | {
    name: lambda number, function=function: _real(function, number)
    for name, function in (("exp", math.exp), ("ln", math.log), ("sin", math.sin), ("cos", math.cos), ("tan", math.tan))
}
_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _times,
    ast.Div: _over,
    ast.Pow: _power,
}


@lru_cache(maxsize=8192)
def closed_form(text: str) -> Number | None:
    """The value of a text in the spelling of `grading.normalize`; None if it is no number.

    `inf` is a number that is too large to be worked out, `nan` one of which nothing is known.

    >>> closed_form("2\\\\frac{1}{3}"), closed_form("{10 \\\\over 3}"), closed_form("9^{9^9}"), closed_form("2x")
    (Fraction(7, 3), Fraction(10, 3), inf, None)
    """
    if len(text) > _LONGEST:
        return math.nan if re.fullmatch(r"[\d.+\-*/^(){}\s,\\a-z]*", text) and re.search(r"\d", text) else None
    value = exact.rational(text)
    if value is not None:
        return value
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    if not _EXPRESSION.fullmatch(text) or re.search(r"-\s*-|//", text):
        return None
    try:
        return _evaluate(ast.parse(text.strip(), mode="eval").body)
    except OverflowError:
        return math.nan
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, MemoryError, RecursionError):
        return None


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
        return math.copysign(math.inf, number) if number.denominator == 1 else math.nan
    return number


def same_number(one: Number, other: Number) -> bool | None:
    """Equal exactly, or to ten digits if one of them is a float; None if that is not known."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    try:
        if math.isnan(one) or math.isnan(other) or (math.isinf(one) and math.isinf(other)):
            return None
        return math.isclose(one, other, rel_tol=1e-10, abs_tol=1e-12)
    except OverflowError:  # an exact number beyond the floats
        return False
