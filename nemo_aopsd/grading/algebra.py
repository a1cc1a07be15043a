"""Comparison of answers that need algebra: shapes, then math-verify on values. Runs in the grading process only.

math-verify's own time-outs are off, because the process is killed from outside. What it calls equal is checked again:
it rounds to absolute decimals, so it takes 0.001736 for 1/576 and 1/2004! for 1/2006!.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from nemo_aopsd.grading import exact
from nemo_aopsd.grading.normalize import normalize
from nemo_aopsd.grading.structure import read_shape, same_shape

_NO_TIMEOUT: Any = None  # math-verify takes it, but declares a number
_DIGITS = 40
_MOST_DIGITS = 400
_CLOSE = 30  # decimal digits to which closed forms must agree
_APPROXIMATION = re.compile(r"\\approx(?![a-z])|\u2248")
_LEFT_SIDE = re.compile(r"[A-Za-z0-9_+\-*/\\ ()|:'{}]+")
_MARKED = re.compile(r"\s*\$?\s*\\(?:text|textbf|mbox|mathrm|textrm)\b")
_NO_BLANKS = r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # Thai, Lao, Japanese, Chinese, Korean
_NUMBER_EDGE = re.compile(rf"(?<={_NO_BLANKS})(?=[-0-9])|(?<=[0-9])(?={_NO_BLANKS})")
_POINTS = ((7, 11), (-5, 3), (13, 17), (-3, 19), (2, 23))  # numerators and denominators of test values


def same_answer(predicted: str, gold: str) -> bool:
    """True if two answers mean the same. Raises whatever sympy raises."""
    given, wanted = normalize(predicted), normalize(gold)
    if given.unit is not None and wanted.unit is not None and given.unit != wanted.unit:
        return False
    if given.text == wanted.text and given.percent == wanted.percent:
        return True
    marked = bool(_MARKED.match(gold))
    decided = exact.same_clock(given.text, wanted.text)
    if decided is None:
        decided = exact.same_words(given.text, wanted.text, marked=marked)
    if decided is None:
        decided = exact.same_rational(given, wanted)
    if decided is not None:
        return decided
    left, right = read_shape(given.text), read_shape(wanted.text)
    if left.kind == right.kind == "value" and left.names != right.names and all(left.names + right.names):
        return False
    if _one_sided(left.names, wanted.text) or _one_sided(right.names, given.text):
        return _by_algebra(given.text, wanted.text)
    if given.percent != wanted.percent:
        return _same_percent(given.text, wanted.text, given.percent)
    decided = same_shape(left, right, same_value)
    return same_value(given.text, wanted.text) if decided is None else decided


def _one_sided(names: tuple[str, ...], other: str) -> bool:
    """`y = x/2` against `x = 2y` or `2y - x = 0`: an equation, and not a value with a name."""
    return any(names) and bool(re.search(r"[A-Za-z].*=", other)) and read_shape(other).names == ("",)


def _same_percent(predicted: str, gold: str, predicted_has_it: bool) -> bool:
    hundredth = (f"({predicted})/100", gold) if predicted_has_it else (predicted, f"({gold})/100")
    return same_value(*hundredth) or (not predicted_has_it and same_value(predicted, gold))


@lru_cache(maxsize=4096)
def same_value(predicted: str, gold: str) -> bool:
    """Compare two values, or two structures whose shapes differ."""
    predicted, gold = _right_side(_exact_part(predicted), gold), _exact_part(gold)
    if predicted == gold:
        return True
    decided = exact.same_in_base(predicted, gold)
    if decided is None:
        decided = exact.same_rational(normalize(predicted), normalize(gold))
    if decided is not None:
        return decided
    shapes = read_shape(predicted), read_shape(gold)
    if {shape.kind for shape in shapes} != {"value"} and (predicted, gold) != (shapes[0].items[0], shapes[1].items[0]):
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
    given, wanted = parse(predicted), parse(gold)
    if not wanted:
        raise ValueError(f"math-verify cannot read the gold answer {gold!r}")
    if not given:
        return False
    return _same_parsed(given, wanted, predicted, gold)


def _same_parsed(given: tuple[Any, ...], wanted: tuple[Any, ...], predicted: str, gold: str) -> bool:
    from math_verify import verify

    decided = _same_closed_form(given[0], wanted[0], predicted, gold)
    if decided is not None:
        return decided
    return bool(verify(list(wanted), list(given), float_rounding=12, timeout_seconds=None, raise_on_error=True))


@lru_cache(maxsize=4096)
def parse(answer: str) -> tuple[Any, ...]:
    """What math-verify reads: a sympy object and the text; empty if nothing."""
    from math_verify import LatexExtractionConfig
    from math_verify import parse as read

    answer = re.sub(r"(?<![A-Za-z\\])e(?![A-Za-z])", "{e}", answer)
    config = [LatexExtractionConfig(boxed_match_priority=0)]
    return tuple(read(f"\\boxed{{{answer}}}", config, parsing_timeout=_NO_TIMEOUT, raise_on_error=True))


def reads(answer: str, _gold: str) -> bool:
    """Whether math-verify makes an object of it, and not only a text."""
    return any(not isinstance(item, str) for item in parse(answer))


def _same_closed_form(given: Any, wanted: Any, predicted: str, gold: str) -> bool | None:
    """Equal to 30 digits, as numbers or at points where unknowns have values; None for anything else."""
    import sympy

    if not (isinstance(given, sympy.Expr) and isinstance(wanted, sympy.Expr)):
        return None
    if any(expression.atoms(sympy.Integral, sympy.Derivative, sympy.Sum) for expression in (given, wanted)):
        return None
    given, wanted = (
        expression.xreplace({number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)})
        for expression in (given, wanted)
    )
    if {str(symbol) for symbol in given.free_symbols | wanted.free_symbols} == {"i"}:  # the unit, as in `1 + 2i`
        unit = dict.fromkeys(given.free_symbols | wanted.free_symbols, sympy.I)
        given, wanted = given.subs(unit), wanted.subs(unit)
    digits = exact.trusted_digits(predicted) or exact.trusted_digits(gold) or _CLOSE
    if given.free_symbols != wanted.free_symbols:
        return False
    symbols = sorted(given.free_symbols, key=str)
    if not symbols:
        return _close(given, wanted, digits)
    for shift in range(len(_POINTS)):
        values = {
            symbol: sympy.Rational(*_POINTS[(shift + index) % len(_POINTS)]) + index
            for index, symbol in enumerate(symbols)
        }
        if _close(given.subs(values), wanted.subs(values), digits) is not True:
            return False
    return True


def _close(one: Any, other: Any, digits: int) -> bool | None:
    """Whether two numbers agree to so many digits; None if one of them is not a finite number.

    Two rationals must be equal. Others may differ by 10^-digits times the larger of them; from `_CLOSE` digits on, by
    no more than 10^-digits however large they are.
    """
    if one == other or (one.is_Rational and other.is_Rational):
        return bool(one == other)
    sizes = [abs(expression.evalf(_DIGITS)) for expression in (one, other)]
    if not all(size.is_number and size.is_finite for size in sizes):
        return None
    difference = abs((one - other).evalf(_DIGITS, maxn=_MOST_DIGITS))
    scale = max(sizes) if digits < _CLOSE else min(1, max(sizes))
    return bool(difference <= scale / 10**digits)


def same_anywhere(text: str, gold: str) -> bool | None:
    """Compare with what math-verify finds in a text without a box; None if it finds nothing."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig
    from math_verify import parse as read

    configs = [LatexExtractionConfig(), ExprExtractionConfig()]
    text = _NUMBER_EDGE.sub(" ", text)  # math-verify takes a number only between blanks or signs
    found = read(text, configs, parsing_timeout=_NO_TIMEOUT)
    if not found:
        return None
    if same_answer(str(found[-1]), gold):
        return True
    wanted = parse(normalize(gold).text)
    return bool(wanted) and _same_parsed(tuple(found), wanted, str(found[-1]), gold)
