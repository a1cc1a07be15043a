"""Numbers, words, clock times and numbers in a base: decided exactly and in microseconds."""

import re
from fractions import Fraction

from nemo_aopsd.grading.normalize import Answer

_INTEGER = re.compile(r"([+-]?)\s*([1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)")
_DECIMAL = re.compile(r"([+-]?)\s*([0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)\.([0-9]*)")
_SCIENTIFIC = re.compile(
    r"([+-]?[0-9]+(?:\.[0-9]+)?)\s*(?:[eE]|(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{?)\s*([+-]?[0-9]{1,3})\}?"
)
_COMMA_DECIMAL = re.compile(r"[+-]?[0-9]+,[0-9]+")
_QUOTIENT = re.compile(r"([+-]?)\s*(?:\\frac\{\s*(-?[0-9]+)\s*\}\{\s*(-?[0-9]+)\s*\}|([0-9]+)\s*/\s*([0-9]+))")
_MIXED = re.compile(r"([+-]?)\s*([0-9]+)(?:\s*\\frac\{([0-9]+)\}\{([0-9]+)\}|\s+([0-9]+)/([0-9]+))")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?(?:\s*([ap])\.?\s*m\.?)?", re.IGNORECASE)
_WORDS = re.compile(r"[a-z][a-z' -]*(?:,? [0-9]+)*")
_SHORT_WORDS = {"yes", "no", "odd", "even", "all", "none", "both", "true", "red"}  # others may be products of variables
_BASED = re.compile(
    r"\(?([0-9A-Za-z]+)\)?(?:_\{?\s*\(?\s*(?:base\s*)?|\s*\(?\s*(?:in )?base )([0-9]+|[a-z]+)\s*\)?\s*\}?"
)
_BASES = {
    word: base
    for base, word in enumerate(["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], start=2)
}
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


def same(predicted: Answer, gold: Answer) -> bool | None:
    """Whether two answers are the same, where that needs no algebra; None if it does."""
    if not predicted.text or (predicted.unit and gold.unit and predicted.unit != gold.unit):
        return False
    if predicted.text == gold.text and predicted.percent == gold.percent:
        return True
    for decide in (same_clock, same_words, same_in_base, same_rational):
        decided = decide(predicted, gold)
        if decided is not None:
            return decided
    return None


def same_rational(predicted: Answer, gold: Answer) -> bool | None:
    """Whether both are the same number; None if one of them is not a number.

    `50%` is 1/2. The sign may be left out where the verified answer has it, but not added.
    """
    given, wanted = rational(predicted.text), rational(gold.text)
    if given is None and wanted is not None and "." in gold.text and _COMMA_DECIMAL.fullmatch(predicted.text):
        given = rational(predicted.text.replace(",", "."))
    if wanted is None and given is not None and "." in predicted.text and _COMMA_DECIMAL.fullmatch(gold.text):
        wanted = rational(gold.text.replace(",", "."))
    if given is None or wanted is None:
        return None
    if predicted.percent and not gold.percent:
        return given / 100 == wanted
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


def is_words(answer: Answer) -> bool:
    """Whether an answer is in words: marked as text, or with a word of four letters. Fewer may be variables."""
    text = _letters(answer.text)
    words = re.split("[ -]", text)
    if not _WORDS.fullmatch(text) or not _FUNCTIONS.isdisjoint(words):
        return False
    return answer.is_text or text in _SHORT_WORDS or any(len(word) >= 4 and word.isalpha() for word in words)


def same_words(predicted: Answer, gold: Answer) -> bool | None:
    """Equal but for case, blanks, quotes and brackets; None unless one answer is in words, and the other may be."""
    if not is_words(gold) and not (is_words(predicted) and _WORDS.fullmatch(_letters(gold.text))):
        return None
    return _letters(predicted.text) == _letters(gold.text)


def _letters(text: str) -> str:
    return " ".join(text.strip("() .\"'`\u201c\u201d").lower().split())


def same_clock(predicted: Answer, gold: Answer) -> bool | None:
    """Equal as times of day; None unless both are times.

    Missing seconds are zero. Without am or pm a time is one of 24 hours, or that of the other answer's half.
    """
    one, other = _CLOCK.fullmatch(predicted.text), _CLOCK.fullmatch(gold.text)
    if one is None or other is None:
        return None
    if one[2] != other[2] or (one[3] or "00") != (other[3] or "00"):
        return False
    halves = (one[4] or "").lower(), (other[4] or "").lower()
    hours = int(one[1]), int(other[1])
    if "" in halves and max(hours) <= 12:
        return hours[0] == hours[1]
    return _hour(hours[0], halves[0]) == _hour(hours[1], halves[1])


def _hour(hour: int, half: str) -> int:
    return hour % 12 + 12 * (half == "p") if half and hour <= 12 else hour


def same_in_base(predicted: Answer, gold: Answer) -> bool | None:
    """Equal as numbers with a base as index; None if neither has one. A gold answer with a base needs one in return."""
    given, wanted = _in_base(predicted.text), _in_base(gold.text)
    if given is not None and wanted is None and gold.text.isdecimal():
        return given == int(gold.text[:_LONGEST])
    if wanted is None:
        return None
    return given == wanted


def _in_base(text: str) -> int | None:
    """The value of `52_8`, `(52)_8` or `52_{eight}`; None if it has no base, or a digit that its base lacks."""
    match = _BASED.fullmatch(text)
    if match is None or not re.search("[0-9]", match[1]):
        return None
    base = _BASES.get(match[2]) or (int(match[2]) if match[2].isdecimal() and len(match[2]) < 3 else 0)
    try:
        return int(match[1], base) if 2 <= base <= 36 else None
    except ValueError:
        return None
