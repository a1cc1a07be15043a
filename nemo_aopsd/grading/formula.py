"""LaTeX to sympy by math-verify's reader, and exact numbers. Runs in the grading process only."""

import re
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from sympy.core.evalf import PrecisionExhausted

from nemo_aopsd.grading import exact
from nemo_aopsd.grading.budget import check_numbers, check_text, uncounted

_MOST_DIGITS = 400  # two exact numbers that agree so far are equal
_MIXED = re.compile(r"(?<![\d.^_}])(\d+)\s*(\\frac\{\d+\}\{\d+\})")
# Products without a sign, of which the reader makes sums (`2(3)` would be 5), and what is no formula at all.
_SIDE_BY_SIDE = re.compile(
    r"(?<=[0-9)\]])(?<![_^][0-9])\s*(?=[(\[])|(?<=[)\]])\s*(?=[0-9]|\\frac)|(\\frac\{[^{}]*\}\{[^{}]*\})\s*(?=\()"
)
# A function without brackets takes what stands before the next sign of a product; the reader goes on behind it.
_FACTOR = (
    r"(?:\d++(?:\.\d++)?|[A-Za-z]|\\(?:pi|theta|alpha|beta)(?![a-z])|\\frac\{[^{}]*\}\{[^{}]*\}|\\sqrt\{[^{}]*\})\s*"
)
_BARE_CALL = re.compile(
    r"(\\(?:(?:arc)?(?:sin|cos|tan)|cot|sec|csc|ln|log)(?![a-z])(?:\s*[_^]\s*(?:\{[^{}]*\}|\w))*)"
    rf"\s*((?:{_FACTOR})++)(?=\\(?:cdot|times)|\*)"
)
_NO_FORMULA = re.compile(r"[0-9]\s*(?:'|\^\s*\{?\\prime)|(?<![\\A-Za-z_^}0-9])[0-9]+\s+[0-9]")  # minutes of arc; `2 3`


@lru_cache(maxsize=4096)
def parse(answer: str) -> Any:
    """A sympy object, None if the text is no formula."""
    check_text(answer)
    if _NO_FORMULA.search(answer):
        return None
    answer = _MIXED.sub(lambda number: f"({number[1]}+{number[2]})" if exact.rational(number[0]) else number[0], answer)
    answer = _BARE_CALL.sub(r"\1(\2)", _SIDE_BY_SIDE.sub(r"\1\\cdot ", answer))
    answer = re.sub(r"(?<![A-Za-z\\])e(?![A-Za-z])", "{e}", answer)
    if not re.search(r"\\int|\\frac\{d[^{}]*\}\{d", answer):  # no differential: `ds` is a product
        answer = re.sub(r"(\\[A-Za-z]+)|d", lambda match: match[1] or "\\eta ", answer)
    try:
        with uncounted():
            found = latex2sympy(
                answer,
                is_real=None,
                convert_degrees=False,
                normalization_config=None,  # type: ignore[arg-type]
                conversion_config=ConversionConfig(lowercase_symbols=False),  # `R` is not `r`
            )
    except Exception:  # it raises all kinds; whatever it is, this is no formula
        return None
    check_numbers(found)
    return found


def is_zero(number: Any) -> bool | None:
    """Exactly, or to `_MOST_DIGITS` digits; None if it is no finite number."""
    if number.is_Rational:
        return bool(number == 0)
    try:
        value = number.evalf(2, maxn=_MOST_DIGITS, strict=True)
    except PrecisionExhausted:
        return True
    return bool(value == 0) if value.is_number and value.is_finite else None


def same_number(one: Any, other: Any) -> bool:
    """Whether two exact numbers are equal."""
    return bool(one == other) or is_zero(one - other) is True
