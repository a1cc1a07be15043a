r"""Values in a text of prose and LaTeX: `So $x = \frac12$ cm` holds the value 1/2.

A text is cleaned once (glyphs, spacing, thousands, units, degrees), cut into tokens, and read by recursive descent.
Rationals are exact; roots, logarithms and the like are floats; unknowns have fixed odd values, so that `n(n+1)/2` and
`\frac{n^2+n}{2}` come out equal. Neither size nor nesting can hold the reader up: exact numbers have at most 4096 bits,
what is beyond is `inf` or, where that decides nothing, `Undecided`; and a text has a budget of steps.
"""

from __future__ import annotations

import cmath
import math
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

Number = Fraction | float | complex

_MOST_BITS, _MOST_DEPTH, _MOST_STEPS = 4096, 40, 10_000
_GLYPHS = {
    **dict.fromkeys("\u2212\u2013\ufe63\uff0d", "-"),
    **dict.fromkeys("\u00d7\u00b7\u22c5\u2217\u2219", "*"),
    **dict.fromkeys("\u00f7\u2044\u2215", "/"),
    **dict.fromkeys("\u00a0\u2009\u202f\u2008\u2006\u2005", "\\,"),
    "\u03c0": "\\pi ",
    "\u221e": "\\infty ",
    "\u221a": " sqrt ",
    "\u2248": "\\approx ",
    "\u2261": "\\equiv ",
    "\u2208": "\\in ",
    "\u2260": "\\ne ",
    "\u00b0": "",
}
_SEPARATOR = r"(?:\{,\s?\}|\\[,!;: ]|,\\!|~|'| (?! ))"
_THOUSANDS = {
    commas: re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{separator}\s?\d{{3}}(?!\d))+")
    for commas, separator in ((False, rf"(?:{_SEPARATOR}|,(?!\s))"), (True, _SEPARATOR))
}
_REWRITES = (
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])"), ""),
    (
        re.compile(
            r"\\(?:text[a-z]*|mathrm|mathbf|mathit|mathsf|mbox|operatorname|emph)\s*\{([^{}]*)\}(?:\s*\^\s*\{?[23]\}?)?"
        ),
        r" $\1$ ",
    ),
    (re.compile(r"\\[,!;: >]|~|\\(?:left|right|q?quad|displaystyle|limits|[bB]ig+[lr]?)(?![a-zA-Z])"), " "),
    (re.compile(r"\\%|\b(?:percent|pct)\b"), "%"),
    (re.compile(r"\\\$|[\u20ac\u00a3]"), " "),
    (re.compile(r"\\[pb]?mod(?![a-zA-Z])"), " mod "),
    (re.compile(r"(?<=[\d)])\*\*(?=[\d(])"), "^"),
    (re.compile(r"\*\*([^*]*)\*\*"), r" \1 "),
)
_TOKEN = re.compile(
    r"(?P<cmd>\\[a-zA-Z]+)|(?P<edge>\$|\\[()\[\]])|(?P<num>\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3}(?![a-zA-Z\d]))?|\.\d+)"
    r"|(?P<word>[a-zA-Z]+)|(?P<op>\\.|[^\s\\])|\\"
)
_FRACTIONS, _BINOMIALS = {"\\frac", "\\dfrac", "\\tfrac", "\\cfrac"}, {"\\binom", "\\dbinom", "\\tbinom"}
_TIMES, _OVER = {"*", "\\cdot", "\\times", "\\ast"}, {"/", "\\div"}
_BRACKETS = {"(": ")", "[": "]", "{": "}", "|": "|", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": cmath.tan,
    "cot": lambda x: 1 / cmath.tan(x),
    "sec": lambda x: 1 / cmath.cos(x),
    "csc": lambda x: 1 / cmath.sin(x),
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "exp": cmath.exp,
    "ln": cmath.log,
    "log": cmath.log,
    "lg": cmath.log10,
}
_CONSTANTS: dict[str, Number] = {"e": math.e, "i": 1j, "pi": math.pi}
_NAMED = {"sqrt", *_FUNCTIONS, *_CONSTANTS}
_OPERATORS = {"+", "-", "^", "_", "!", "\\sqrt", "sqrt", "\\pm", "\\mp", "\\sum", "\\prod", "\\int"}
BINDING = _OPERATORS | _TIMES | _OVER | _FRACTIONS | _BINOMIALS | {f"\\{name}" for name in _FUNCTIONS}


def words(text: str) -> frozenset[str]:
    """The set of what stands between the blanks."""
    return frozenset(text.split())


_SHORT_UNITS = words("cm mm km m s g kg ft in h L lb of or as by if so at on to is we it")
_CHANGES_VALUE = words(
    "times more less fewer mod modulo plus minus divided multiplied dozen dozens hundred thousand million billion half"
    " halves third thirds squared cubed factorial choose"
)


class Undecided(ArithmeticError):
    """A number beyond all bounds, of which nothing is known; or a text that has used up its budget of steps."""


class _NoValueError(Exception):
    """What stands here is no value."""


class Token(NamedTuple):
    """`kind`: num, word, cmd (`\\name`), edge (`$` and the like) or op; `start` is its place in the cleaned text."""

    kind: str
    text: str
    start: int
    after_blank: bool


@dataclass(frozen=True, slots=True)
class Value:
    """Tokens `start` to `end`. `number` is None if it is undecided; `places` are those of a plain decimal, else 0."""

    start: int
    end: int
    number: Number | None
    is_percent: bool = False
    places: int = 0


def clean(text: str, *, keep_commas: bool = False) -> str:
    r"""One spelling; `keep_commas` reads `1,234` as two numbers.

    >>> clean("$4{,}608$"), clean("7,500"), clean("90^\\circ"), clean("2½"), clean("x²")
    ('$4608$', '7500', '90', '2\\frac{1}{2}', 'x^{2}')
    """
    if not text.isascii():
        text = "".join(char if char.isascii() else _ascii(char) for char in text)
    text = _THOUSANDS[keep_commas].sub(lambda match: re.sub(r"\D", "", match[0]), text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


@lru_cache(maxsize=1024)
def _ascii(char: str) -> str:
    if char in _GLYPHS:
        return _GLYPHS[char]
    plain = unicodedata.normalize("NFKC", char)
    if unicodedata.decomposition(char).startswith("<fraction>"):
        above, _, below = plain.partition("\u2044")
        return f"\\frac{{{above}}}{{{below or 1}}}"
    if unicodedata.decomposition(char).startswith("<super>"):
        return f"^{{{plain}}}".replace("\u2212", "-")
    return plain


@lru_cache(maxsize=4096)
def tokens(cleaned: str) -> tuple[Token, ...]:
    """The tokens of a cleaned text."""
    found, previous = [], 0
    for match in _TOKEN.finditer(cleaned):
        if match.lastgroup:
            found.append(Token(match.lastgroup, match[0], match.start(), match.start() > previous))
        previous = match.end()
    return tuple(found)


def read_whole(text: str, symbols: frozenset[str] = frozenset(), *, keep_commas: bool = False) -> Value | None:
    """The text as one value; None if it is none. `symbols` are the unknowns that may occur.

    >>> read_whole("{10 \\\\over 3}").number, read_whole("2\\\\frac13").number, read_whole("7 eggs")
    (Fraction(10, 3), Fraction(7, 3), None)
    """
    listed = tokens(clean(text, keep_commas=keep_commas))
    inner = [token for token in listed if token.kind != "edge"]
    value = Reader(inner, symbols).read(0)
    return value if value and value.end == len(inner) else None


class Reader:
    """Values of a list of tokens, all within one budget of steps."""

    def __init__(self, listed: tuple[Token, ...] | list[Token], symbols: frozenset[str] = frozenset()) -> None:
        self._tokens, self._symbols = listed, symbols
        self._position = self._offset = self._depth = self._steps = 0  # `_offset`: digits used of a number

    def read(self, start: int) -> Value | None:
        """The longest value that begins at a token; None if there is none. Raises Undecided without steps left."""
        self._position, self._offset, self._depth = start, 0, 0
        try:
            number = self._expression()
        except (_NoValueError, ZeroDivisionError, ValueError):
            return None
        except (Undecided, OverflowError):
            self._step()
            return Value(start, max(self._position, start + 1), None)
        end = self._position
        if self._offset or end == start:
            return None
        last = self._tokens[end - 1]
        single = end - start == 1 + (self._tokens[start].text in ("+", "-"))
        decimals = last.text.partition(".")[2] if single and last.kind == "num" else ""
        return Value(start, end, number, last.text == "%", len(decimals) if decimals.isdecimal() else 0)

    def knows(self, token: Token) -> bool:
        """False for a word of prose, at which no value begins."""
        return token.kind != "word" or token.text in _NAMED or self._symbols.issuperset(token.text)

    def _step(self, cost: int = 1) -> None:
        self._steps += cost
        if self._steps > _MOST_STEPS:
            self._steps = _MOST_STEPS  # whatever is read next ends here, too
            raise Undecided("no steps left")

    @property
    def is_spent(self) -> bool:
        return self._steps >= _MOST_STEPS

    def _peek(self, ahead: int = 0) -> Token:
        if self._position + ahead >= len(self._tokens):
            return _END
        token = self._tokens[self._position + ahead]
        return token._replace(text=token.text[self._offset :]) if self._offset and not ahead else token

    def _next(self) -> Token:
        token = self._peek()
        self._position, self._offset = self._position + 1, 0
        return token

    def _try(self, read: Callable[[], Number]) -> Number | None:
        """What `read` reads, or None and no step forward."""
        place = self._position, self._offset
        try:
            return read()
        except _NoValueError:
            self._position, self._offset = place
            return None

    def _expression(self) -> Number:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise _NoValueError
        total = self._term()
        while self._peek().text in ("+", "-"):
            place = self._position
            sign = 1 if self._next().text == "+" else -1
            term = self._try(self._term)
            if term is None:
                self._position = place
                break
            total = self._keep(_plus(total, _times(Fraction(sign), term)))
        if self._peek().text in ("\\over", "\\choose"):
            total = (_over if self._next().text == "\\over" else _binomial)(total, self._expression())
        self._depth -= 1
        return total

    def _term(self) -> Number:
        product = self._factor()
        while True:
            place, text = self._position, self._peek().text
            if text in _TIMES or text in _OVER:
                self._next()
                factor = self._try(self._factor)
            else:
                factor = self._try(self._beside) if self._is_beside() else None
            if factor is None:
                self._position = place if text in _TIMES or text in _OVER else self._position
                return product
            product = self._keep((_over if text in _OVER else _times)(product, factor))

    def _is_beside(self) -> bool:
        return self._peek().kind in ("word", "cmd") or self._peek().text in ("(", "{")

    def _beside(self) -> Number:
        return self._power(self._atom())

    def _factor(self) -> Number:
        if self._peek().text in ("+", "-"):
            sign = -1 if self._next().text == "-" else 1
            return _times(Fraction(sign), self._factor_once())
        return self._power(self._mixed())

    def _factor_once(self) -> Number:
        if self._peek().text in ("+", "-"):  # `--5` is a slip or a dash
            raise _NoValueError
        return self._power(self._mixed())

    def _mixed(self) -> Number:
        """An atom, or a mixed number: digits before a proper fraction are added to it."""
        is_digits = self._peek().text.isdecimal()
        whole = self._atom()
        if not is_digits or self._offset:
            return whole
        place = self._position
        token, slash, below = self._peek(), self._peek(1).text, self._peek(2).text
        part: Number | None = None
        if token.text in _FRACTIONS:
            part = self._try(self._atom)
        elif token.text.isdecimal() and token.after_blank and slash == "/" and below.isdecimal() and int(below):
            self._position += 3
            part = Fraction(int(token.text), int(below))
        if isinstance(part, Fraction) and 0 < part < 1:
            return whole + part
        self._position, self._offset = place, 0
        return whole

    def _power(self, base: Number) -> Number:
        while True:
            text = self._peek().text
            if text == "!" and self._peek(1).text != "=":
                self._next()
                base = _factorial(base)
            elif text == "%":
                self._next()
                base = _over(base, Fraction(100))
            elif text == "^":
                self._next()
                base = self._keep(_raise(base, self._exponent()))
            else:
                return base

    def _exponent(self) -> Number:
        if self._peek().text in ("+", "-"):
            return _times(Fraction(-1 if self._next().text == "-" else 1), self._atom())
        exponent = self._atom()
        if self._peek().text == "^":
            self._next()
            exponent = _raise(exponent, self._exponent())
        return exponent

    def _argument(self) -> Number:
        r"""A group, a command, or one digit or letter, as after `\frac`."""
        token = self._peek()
        if token.kind == "num":
            if not token.text[0].isdecimal():
                raise _NoValueError
            self._offset += 1
            if self._offset == len(self._tokens[self._position].text):
                self._position, self._offset = self._position + 1, 0
            return Fraction(int(token.text[0]))
        return self._atom()

    def _atom(self) -> Number:
        self._step()
        token = self._next()
        text = token.text
        if token.kind == "num":
            return self._keep(Fraction(text)) if len(text) < 1200 else _beyond()
        if text in _BRACKETS:
            return self._bracket(text)
        name = text.removeprefix("\\")
        if text in _FRACTIONS:
            return _over(self._argument(), self._argument())
        if text in _BINOMIALS:
            return _binomial(self._argument(), self._argument())
        if text in ("\\boxed", "\\fbox") and self._peek().text == "{":
            return self._atom()
        if name == "sqrt":
            return self._root(token)
        if text == "\\infty":
            return _INFINITY
        if name in _FUNCTIONS and (token.kind == "cmd" or self._peek().text == "("):
            return self._function(name)
        if text in self._symbols or (token.kind == "word" and self._symbols.issuperset(text)):
            return self._unknowns(token)
        if name in _CONSTANTS and (token.kind == "word" or name == "pi"):
            return _CONSTANTS[name]
        raise _NoValueError

    def _bracket(self, opening: str) -> Number:
        inner = self._expression()
        if self._next().text != _BRACKETS[opening]:
            raise _NoValueError
        if opening == "|":
            return abs(inner)
        if opening.startswith("\\l"):
            if isinstance(inner, complex) or not math.isfinite(inner):
                raise Undecided
            return Fraction(math.floor(inner) if "floor" in opening else math.ceil(inner))
        return inner

    def _root(self, token: Token) -> Number:
        degree: Number = Fraction(2)
        if self._peek().text == "[":
            self._next()
            degree = self._bracket("[")
        return _raise(self._argument() if token.kind == "cmd" else self._atom(), _over(Fraction(1), degree))

    def _function(self, name: str) -> Number:
        base, power = None, None
        if self._peek().text == "_":
            self._next()
            base = self._argument()
        if self._peek().text == "^":
            self._next()
            power = self._exponent()
        value = _apply(_FUNCTIONS[name], self._beside())
        value = _over(value, _apply(cmath.log, base)) if base is not None else value
        return value if power is None else _raise(value, power)

    def _unknowns(self, token: Token) -> Number:
        names = [token.text] if token.kind == "cmd" else list(token.text)
        if self._peek().text == "_":
            self._next()
            index = self._position
            self._argument()
            names[-1] += "_" + "".join(part.text for part in self._tokens[index : self._position]).strip("{}")
        product: Number = Fraction(1)
        for name in names:
            product *= Fraction(zlib.crc32(name.encode()) % 900_001 + 100_003, 9973)
        return self._keep(product)

    def _keep(self, number: Number) -> Number:
        """The number, if it is of bearable size; large ones cost more steps."""
        if not isinstance(number, Fraction):
            return number
        bits = number.numerator.bit_length() + number.denominator.bit_length()
        self._step(bits // 64)
        if bits > _MOST_BITS:
            if number.denominator == 1:
                return math.copysign(math.inf, number)
            raise Undecided
        return number


_END = Token("end", "", 0, True)
_INFINITY = Fraction(10**30 + 57, 9973)  # as an unknown: equal to itself only


def _beyond() -> Number:
    raise Undecided


def _is_huge(number: Number) -> bool:
    return isinstance(number, float) and math.isinf(number)


def _plus(one: Number, other: Number) -> Number:
    if _is_huge(one) and _is_huge(other) and one != other:
        raise Undecided
    return one if _is_huge(one) else other if _is_huge(other) else one + other


def _times(one: Number, other: Number) -> Number:
    for huge, factor in ((one, other), (other, one)):
        if _is_huge(huge):
            if isinstance(factor, complex) or abs(factor) < 1:
                raise Undecided
            return huge if factor > 0 else -huge
    return one * other


def _over(one: Number, other: Number) -> Number:
    if _is_huge(one) or _is_huge(other):
        raise Undecided
    return one / other


def _raise(base: Number, exponent: Number) -> Number:
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
        if size * abs(exponent) <= _MOST_BITS:
            return base ** int(exponent)
        if base > 1 and exponent > 0:
            return math.inf
        raise Undecided
    if base >= 0 and exponent.denominator <= 64 and size * abs(exponent) <= _MOST_BITS:
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


def _factorial(number: Number) -> Number:
    if not isinstance(number, Fraction) or number.denominator > 1 or number < 0:
        raise _NoValueError
    return Fraction(math.factorial(int(number))) if number <= 450 else math.inf


def _binomial(n: Number, k: Number) -> Number:
    if not all(isinstance(part, Fraction) and part.denominator == 1 and part >= 0 for part in (n, k)):
        raise _NoValueError
    if min(k, n - k) > 400 or n.numerator.bit_length() > 64:
        raise Undecided
    return Fraction(math.comb(int(n), int(k)))


def _apply(function: Callable[[complex], complex], number: Number) -> Number:
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


def find_values(listed: tuple[Token, ...] | list[Token], reader: Reader) -> Iterator[Value]:
    """Values in order that stand for themselves: no operator, index or name is bound to them on either side.

    Raises Undecided where the budget of steps ends.
    """
    position = 0
    while position < len(listed):
        if reader.is_spent:
            raise Undecided
        if not reader.knows(listed[position]) or not _may_start(listed, position):
            position += 1
            continue
        value = reader.read(position)
        if value is None:
            position += 1
            continue
        if not _is_bound(listed, value.end):
            yield value
        position = value.end


def _may_start(listed: tuple[Token, ...] | list[Token], position: int) -> bool:
    token = listed[position]
    if token.kind in ("edge", "end") or token.text in ("!", "^", "_", "%", "*", "/", ")", "]", "}"):
        return False
    if not position:
        return True
    before = listed[position - 1]
    if before.kind in ("num", "word") and not token.after_blank:
        return False
    if token.text in ("-", "+"):
        is_name = before.kind == "word" and len(before.text) < 3 and before.text not in _SHORT_UNITS
        if before.kind == "num" or is_name or before.text in (")", "]", "}"):
            return False
    if before.text == "." and not token.after_blank and position > 1 and listed[position - 2].kind == "num":
        return False
    return before.text not in BINDING and before.text != "%" and before.kind != "num"


def _is_bound(listed: tuple[Token, ...] | list[Token], end: int) -> bool:
    has_edge = False
    while end < len(listed) and listed[end].kind == "edge":
        has_edge, end = True, end + 1
    if end == len(listed):
        return False
    token = listed[end]
    if token.kind == "word":
        if token.text in _CHANGES_VALUE:
            return True
        return not has_edge and len(token.text) < 3 and token.text not in _SHORT_UNITS
    if token.kind == "num":
        return not has_edge
    if token.text == "." and end + 1 < len(listed):
        return listed[end + 1].kind == "num" and not listed[end + 1].after_blank
    return token.text in BINDING or (token.text in ("(", "[", "{") and not has_edge)
