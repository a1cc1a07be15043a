"""Numbers, words and clock times, decided exactly and in microseconds."""

from __future__ import annotations

import re
from fractions import Fraction

from nemo_aopsd.grading.normalize import Answer

_INTEGER = re.compile(r"([+-]?)\s*([1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)")
_DECIMAL = re.compile(r"([+-]?)\s*([0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)\.([0-9]*)")
_SCIENTIFIC = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})")
_COMMA_DECIMAL = re.compile(r"[+-]?[0-9]+,[0-9]+")
_QUOTIENT = re.compile(r"([+-]?)\s*(?:\\frac\{\s*(-?[0-9]+)\s*\}\{\s*(-?[0-9]+)\s*\}|([0-9]+)\s*/\s*([0-9]+))")
_MIXED = re.compile(r"([+-]?)\s*([0-9]+)(?:\s*\\frac\{([0-9]+)\}\{([0-9]+)\}|\s+([0-9]+)/([0-9]+))")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?(?:\s*([ap])\.?m\.?)?", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")
_BASED = re.compile(r"([0-9A-Za-z]+)_\{?([0-9]+)\}?")
_FUNCTIONS = {"sin", "cos", "tan", "log", "exp", "arcsin", "arccos", "arctan", "sqrt", "infty"}
_ROUNDED_DIGITS = 12  # as many significant digits make a decimal stand for the number that it rounds
_FLOAT_DIGITS = 15  # of a decimal that math-verify has read
_LONGEST = 1000


def integer(text: str) -> str | None:
    """Canonical digits; a string, because `int` refuses more than 4,300 of them."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    digits = match[2].replace(",", "").lstrip("0") or "0"
    return "-" + digits if match[1] == "-" and digits != "0" else digits


def rational(text: str) -> Fraction | None:
    r"""The value of an integer, decimal, fraction or mixed number; None for anything else.

    A digit run before a proper fraction is a mixed number, never a product.

    >>> rational("-2\\frac{1}{4}"), rational(".5"), rational("1,000"), rational("\\frac{3}{0}")
    (Fraction(-9, 4), Fraction(1, 2), Fraction(1000, 1), None)
    """
    if len(text) > _LONGEST:
        return None
    if (digits := integer(text)) is not None:
        return Fraction(int(digits))
    if (match := _DECIMAL.fullmatch(text)) and (match[2] or match[3]):
        value = Fraction(f"{(match[2] or '0').replace(',', '')}.{match[3] or '0'}")
        return -value if match[1] == "-" else value
    if match := _SCIENTIFIC.fullmatch(text):
        return Fraction(match[1]) * Fraction(10) ** int(match[2])
    if match := _QUOTIENT.fullmatch(text):
        above, below = int(match[2] or match[4]), int(match[3] or match[5])
        return _signed(match[1], above, below) if below else None
    if match := _MIXED.fullmatch(text):
        above, below = int(match[3] or match[5]), int(match[4] or match[6])
        return _signed(match[1], int(match[2]) * below + above, below) if 0 < above < below else None
    return None


def _signed(sign: str, above: int, below: int) -> Fraction:
    return Fraction(-above if sign == "-" else above, below)


def same_rational(predicted: Answer, gold: Answer) -> bool | None:
    """Whether both are the same number; None if one of them is not a number.

    Percent signs: `50%` is 1/2, and also 50 where the gold answer is 50, since a question for a percentage often has a
    bare number as its answer. `150%` is 3/2 only.
    """
    given, wanted = rational(predicted.text), rational(gold.text)
    if given is None and wanted is not None and "." in gold.text and _COMMA_DECIMAL.fullmatch(predicted.text):
        given = rational(predicted.text.replace(",", "."))
    if wanted is None and given is not None and "." in predicted.text and _COMMA_DECIMAL.fullmatch(gold.text):
        wanted = rational(gold.text.replace(",", "."))
    if given is None or wanted is None:
        return None
    if predicted.percent and not gold.percent:
        return given / 100 == wanted or (given == wanted and 0 <= given <= 100)
    if gold.percent and not predicted.percent:
        return given in (wanted, wanted / 100)
    return given == wanted or rounds_to(predicted.text, wanted)


def rounds_to(decimal: str, value: Fraction) -> bool:
    """True if a decimal of at least twelve significant digits is `value` rounded or cut there."""
    given = rational(decimal)
    if given is None or significant_digits(decimal) < _ROUNDED_DIGITS:
        return False
    step = Fraction(1, 10 ** len(decimal.partition(".")[2]))
    return abs(given - value) < step


def trusted_digits(decimal: str) -> int:
    """To how many digits a decimal must agree with the irrational number it stands for; 0 if it has too few for one."""
    digits = significant_digits(decimal)
    return min(digits, _FLOAT_DIGITS) - 1 if digits >= _ROUNDED_DIGITS else 0


def significant_digits(decimal: str) -> int:
    """Number of digits of a decimal from the first that is not zero; 0 for anything else."""
    match = _DECIMAL.fullmatch(decimal)
    return len((match[2] + match[3]).replace(",", "").lstrip("0")) if match else 0


def same_words(predicted: str, gold: str, *, marked: bool) -> bool | None:
    """Equal but for case and blanks; None unless the gold answer is in words.

    Four letters make a word; fewer may be a product of variables, unless the answer was `marked` as text.
    """
    if not _WORDS.fullmatch(gold) or gold.lower() in _FUNCTIONS or not (marked or len(gold) >= 4):
        return None
    return _letters(predicted) == _letters(gold)


def _letters(text: str) -> str:
    return " ".join(text.strip("() .").lower().split())


def same_clock(predicted: str, gold: str) -> bool | None:
    """Equal as times of day, missing seconds read as zero; None unless both are times."""
    one, other = _CLOCK.fullmatch(predicted.strip()), _CLOCK.fullmatch(gold.strip())
    if one is None or other is None:
        return None
    hour, minute, second, half = one.groups()
    other_hour, other_minute, other_second, other_half = other.groups()
    if (half or "").lower() != (other_half or "").lower() and half and other_half:
        return False
    return (int(hour), minute, second or "00") == (int(other_hour), other_minute, other_second or "00")


def same_in_base(predicted: str, gold: str) -> bool | None:
    """Equal as numbers with a base as index; None if neither has one. A gold answer with a base needs one in return.

    >>> same_in_base("10_2", "2_3"), same_in_base("204", "204_5"), same_in_base("1", "1")
    (True, False, None)
    """
    given, wanted = _BASED.fullmatch(predicted), _BASED.fullmatch(gold)
    if given and given[1].isdigit() and gold.isdecimal():
        wanted = _BASED.fullmatch(f"{gold}_10")
    if wanted is None or not wanted[1].isdigit():
        return None
    if given is None:
        return False
    try:
        first, second = int(given[1], int(given[2])), int(wanted[1], int(wanted[2]))
    except ValueError:  # a digit that the base does not have
        return predicted == gold
    return first == second
