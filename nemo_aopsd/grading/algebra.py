"""Comparison of answers that need algebra: shapes, then values with sympy. Runs in the grading process only.

Numbers, expressions and equations are compared here, because math-verify rounds to absolute decimals, so that 0.001736
is 1/576. What is left goes to its `verify`.
"""

import re
from functools import lru_cache
from typing import Any

import sympy
from math_verify import ExprExtractionConfig, LatexExtractionConfig, verify
from math_verify import parse as find

from nemo_aopsd.grading import exact
from nemo_aopsd.grading.budget import LONGEST, check_text
from nemo_aopsd.grading.formula import is_zero, parse
from nemo_aopsd.grading.normalize import name_sets, normalize
from nemo_aopsd.grading.regions import same_region
from nemo_aopsd.grading.structure import Shape, read_shape, same_name, same_shape

_DIGITS = 40
_TIGHT_COMMA = re.compile(r"(?<![\d,.])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")
_APPROXIMATION = re.compile(r"\\approx(?![a-z])")
_LEFT_SIDE = re.compile(r"[A-Za-z0-9_+\-*/\\ ()|:'{}]+")
_NO_BLANKS = r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # Thai, Lao, Japanese, Chinese, Korean
_NUMBER_EDGE = re.compile(rf"(?<={_NO_BLANKS})(?=[-0-9])|(?<=[0-9])(?={_NO_BLANKS})")
_POINTS = ((7, 11), (-5, 3), (13, 17), (-3, 19), (2, 23))  # numerators and denominators of test values
_FAR_POINTS = ((6, 1), (5, 1), (-20, 3))  # for rounding brackets, which are the same in between


def same_answer(predicted: str, gold: str) -> bool:
    """True if two answers mean the same. Raises Overspent, or whatever sympy raises."""
    check_text(predicted, longest=LONGEST)
    given, wanted = name_sets(normalize(predicted)), name_sets(normalize(gold))
    decided = exact.same(given, wanted)
    if decided is not None:
        return decided
    if given.percent and not wanted.percent:
        return same_value(f"({given.text})/100", wanted.text)
    if wanted.percent and not given.percent and same_value(given.text, f"({wanted.text})/100"):
        return True
    return any(_same_reading(one, other) for one in _readings(given.text) for other in _readings(wanted.text))


def _readings(text: str) -> list[str]:
    """A comma before three digits groups them, or separates two items: both readings of a text are tried."""
    grouped = _TIGHT_COMMA.sub(lambda match: match[0].replace(",", ""), text)
    return [text] if grouped == text else [grouped, text]


def _same_reading(predicted: str, gold: str) -> bool:
    decided = same_region(predicted, gold)
    if decided is None:
        left, right = read_shape(predicted), read_shape(gold)
        if _is_equation(left, right) or _is_equation(right, left):
            return _by_algebra(predicted, gold)
        if left.kind == right.kind == "value" and not same_name(left.names[0], right.names[0]):
            return False
        decided = same_shape(left, right, same_value)
    return same_value(predicted, gold) if decided is None else decided


def _is_equation(one: Shape, other: Shape) -> bool:
    """`y = x/2` against `x = 2y` or `2y - x = 0`: no value with a name."""
    if one.kind != "value" or other.kind != "value" or not one.names[0]:
        return False
    return bool(re.search(r"[A-Za-z].*=", other.items[0])) or (
        not same_name(one.names[0], other.names[0]) and one.names[0] in other.items[0] and len(one.names[0]) == 1
    )


@lru_cache(maxsize=4096)
def same_value(predicted: str, gold: str) -> bool:
    """Compare two values, or two structures whose shapes differ."""
    gold = _exact_part(gold)
    gold = gold.rpartition("=")[2].strip() if gold.count("=") > 1 else gold
    predicted = _right_side(_exact_part(predicted), gold)
    decided = exact.same(normalize(predicted), normalize(gold))
    if decided is not None:
        return decided
    shapes = read_shape(predicted), read_shape(gold)
    if {shape.kind for shape in shapes} != {"value"} or (predicted, gold) != (shapes[0].items[0], shapes[1].items[0]):
        decided = same_shape(*shapes, same_value)
        if decided is not None:
            return decided
    return _by_algebra(predicted, gold)


def _exact_part(text: str) -> str:
    """`1/3` of `1/3 \\approx 0.33`, and `11` of `x \\approx 11`."""
    first, *rest = _APPROXIMATION.split(text)
    return (rest[0] if rest and not re.search(r"[0-9]", first) else first).strip().removeprefix("+").strip()


def _right_side(text: str, gold: str) -> str:
    """The end of a calculation such as `m + n = 204`, unless the gold answer is an equation, too."""
    left, equals, right = text.rpartition("=")
    if equals and "=" not in gold and not re.search(r"[<>!\\]$|\\(?:le|ge|ne)(?![a-z])|[<>]", left):
        text = right if _LEFT_SIDE.fullmatch(left.split("=")[0].strip()) else text
    return text.strip().removeprefix("+").strip()


def _by_algebra(predicted: str, gold: str) -> bool:
    wanted, given = parse(gold), parse(predicted)
    if wanted is None:
        raise ValueError(f"math-verify cannot read the gold answer {gold!r}")
    return given is not None and _same_parsed(given, wanted, predicted, gold)


def _same_parsed(given: Any, wanted: Any, predicted: str, gold: str) -> bool:
    decided = None
    if isinstance(given, sympy.Expr) and isinstance(wanted, sympy.Expr):
        decided = _same_expression(given, wanted, exact.trusted_digits(predicted) or exact.trusted_digits(gold))
    elif isinstance(given, sympy.Eq) and isinstance(wanted, sympy.Eq):
        decided = _same_equation(given, wanted)
    if decided is not None:
        return decided
    return bool(verify([wanted], [given], float_rounding=12, timeout_seconds=None, raise_on_error=True))  # type: ignore[arg-type]


def _same_expression(given: Any, wanted: Any, digits: int) -> bool | None:
    """Equal as numbers, or at points where unknowns have values; None for what cannot be worked out."""
    if any(expression.atoms(sympy.Integral, sympy.Derivative, sympy.Sum) for expression in (given, wanted)):
        return None
    given, wanted = _exact_numbers(given), _exact_numbers(wanted)
    if {str(symbol) for symbol in given.free_symbols | wanted.free_symbols} == {"i"}:  # the unit, as in `1 + 2i`
        unit = dict.fromkeys(given.free_symbols | wanted.free_symbols, sympy.I)
        given, wanted = given.subs(unit), wanted.subs(unit)
    if given.free_symbols != wanted.free_symbols:
        return False
    if digits and not given.free_symbols:
        return _close(given, wanted, digits)
    found = [is_zero(given.subs(point) - wanted.subs(point)) for point in _points(given.free_symbols, given, wanted)]
    return None if None in found and False not in found else all(found)


def _exact_numbers(expression: Any) -> Any:
    return expression.xreplace({number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)})


def _same_equation(given: Any, wanted: Any) -> bool | None:
    """Whether one side's difference is a constant multiple of the other's."""
    given, wanted = (_exact_numbers(equation.lhs - equation.rhs) for equation in (given, wanted))
    if given.free_symbols != wanted.free_symbols:
        return False
    first, *rest = [(given.subs(point), wanted.subs(point)) for point in _points(given.free_symbols, given, wanted)]
    if is_zero(first[0]) or is_zero(first[1]):
        return None
    found = [is_zero(one * first[1] - other * first[0]) for one, other in rest]
    return None if None in found and False not in found else all(found)


def _points(symbols: set[Any], *formulas: Any) -> list[dict[Any, Any]]:
    """Five places for the unknowns, some of them negative, and more if a formula has rounding brackets."""
    ordered = sorted(symbols, key=str)
    rounds = any(formula.has(sympy.floor, sympy.ceiling) for formula in formulas)
    points = _POINTS + _FAR_POINTS if rounds else _POINTS
    return [
        {symbol: sympy.Rational(*points[(shift + index) % len(points)]) + index for index, symbol in enumerate(ordered)}
        for shift in range(len(points) if ordered else 1)
    ]


def _close(one: Any, other: Any, digits: int) -> bool | None:
    """Whether a decimal agrees with the number that it stands for; None if one of them is not a finite number."""
    sizes = [abs(expression.evalf(_DIGITS)) for expression in (one, other)]
    if not all(size.is_number and size.is_finite for size in sizes):
        return None
    return bool(abs((one - other).evalf(_DIGITS)) <= max(sizes) / 10**digits)


def same_anywhere(text: str, gold: str) -> bool | None:
    """Compare with what math-verify finds in a text without a box; None if it finds nothing."""
    configs = [LatexExtractionConfig(), ExprExtractionConfig()]
    text = _NUMBER_EDGE.sub(" ", text)  # math-verify takes a number only between blanks or signs
    found = find(text, configs, parsing_timeout=None)  # type: ignore[arg-type]
    if not found:
        return None
    if same_answer(str(found[-1]), gold):
        return True
    wanted = parse(normalize(gold).text)
    objects = [item for item in found if not isinstance(item, str)]
    return wanted is not None and any(_same_parsed(item, wanted, str(found[-1]), gold) for item in objects)
