r"""One value at a token, by recursive descent: `\frac12` is 1/2.

Unknowns have fixed odd values, so that `n(n+1)/2` and `\frac{n^2+n}{2}` come out equal. Nesting cannot hold the reader
up, and neither can length: a text has a budget of steps.
"""

from __future__ import annotations

import cmath
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from nemo_aopsd.data.answer_leaks import arithmetic
from nemo_aopsd.data.answer_leaks.arithmetic import MOST_BITS, NoValueError, Number, Undecided
from nemo_aopsd.data.answer_leaks.text import Token, clean, tokens

_MOST_DIGITS, _MOST_DEPTH, _MOST_STEPS = 1200, 40, 10_000
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
_END = Token("end", "", 0, True)
_INFINITY = Fraction(10**30 + 57, 9973)  # as an unknown: equal to itself only


@dataclass(frozen=True, slots=True)
class Value:
    """Tokens `start` to `end`. `number` is None if it is undecided; `places` are those of a plain decimal, else 0."""

    start: int
    end: int
    number: Number | None
    is_percent: bool = False
    places: int = 0


class Reader:
    """Values of a list of tokens, all within one budget of steps."""

    def __init__(self, listed: Sequence[Token], symbols: frozenset[str] = frozenset()) -> None:
        self._tokens, self._symbols = listed, symbols
        self._position = self._offset = self._depth = self._steps = 0  # `_offset`: digits used of a number

    def read(self, start: int) -> Value | None:
        """The longest value that begins at a token; None if there is none. Raises Undecided without steps left."""
        self._position, self._offset, self._depth = start, 0, 0
        try:
            number = self._expression()
        except (NoValueError, ZeroDivisionError, ValueError):
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
        except NoValueError:
            self._position, self._offset = place
            return None

    def _expression(self) -> Number:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise NoValueError
        total = self._term()
        while self._peek().text in ("+", "-"):
            place = self._position
            sign = 1 if self._next().text == "+" else -1
            term = self._try(self._term)
            if term is None:
                self._position = place
                break
            total = self._keep(arithmetic.plus(total, arithmetic.times(Fraction(sign), term)))
        if self._peek().text in ("\\over", "\\choose"):
            total = (arithmetic.over if self._next().text == "\\over" else arithmetic.binomial)(
                total, self._expression()
            )
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
            product = self._keep((arithmetic.over if text in _OVER else arithmetic.times)(product, factor))

    def _is_beside(self) -> bool:
        return self._peek().kind in ("word", "cmd") or self._peek().text in ("(", "{")

    def _beside(self) -> Number:
        return self._power(self._atom())

    def _factor(self) -> Number:
        if self._peek().text in ("+", "-"):
            sign = -1 if self._next().text == "-" else 1
            return arithmetic.times(Fraction(sign), self._factor_once())
        return self._power(self._mixed())

    def _factor_once(self) -> Number:
        if self._peek().text in ("+", "-"):  # `--5` is a slip or a dash
            raise NoValueError
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
                base = arithmetic.factorial(base)
            elif text == "%":
                self._next()
                base = arithmetic.over(base, Fraction(100))
            elif text == "^":
                self._next()
                base = self._keep(arithmetic.power(base, self._exponent()))
            else:
                return base

    def _exponent(self) -> Number:
        if self._peek().text in ("+", "-"):
            return arithmetic.times(Fraction(-1 if self._next().text == "-" else 1), self._atom())
        exponent = self._atom()
        if self._peek().text == "^":
            self._next()
            exponent = arithmetic.power(exponent, self._exponent())
        return exponent

    def _argument(self) -> Number:
        r"""A group, a command, or one digit or letter, as after `\frac`."""
        token = self._peek()
        if token.kind == "num":
            if not token.text[0].isdecimal():
                raise NoValueError
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
            if len(text) >= _MOST_DIGITS:
                raise Undecided
            return self._keep(Fraction(text))
        if text in _BRACKETS:
            return self._bracket(text)
        name = text.removeprefix("\\")
        if text in _FRACTIONS:
            return arithmetic.over(self._argument(), self._argument())
        if text in _BINOMIALS:
            return arithmetic.binomial(self._argument(), self._argument())
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
        raise NoValueError

    def _bracket(self, opening: str) -> Number:
        inner = self._expression()
        if self._next().text != _BRACKETS[opening]:
            raise NoValueError
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
        return arithmetic.power(
            self._argument() if token.kind == "cmd" else self._atom(), arithmetic.over(Fraction(1), degree)
        )

    def _function(self, name: str) -> Number:
        base, power = None, None
        if self._peek().text == "_":
            self._next()
            base = self._argument()
        if self._peek().text == "^":
            self._next()
            power = self._exponent()
        value = arithmetic.apply(_FUNCTIONS[name], self._beside())
        value = arithmetic.over(value, arithmetic.apply(cmath.log, base)) if base is not None else value
        return value if power is None else arithmetic.power(value, power)

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
        if bits > MOST_BITS:
            if number.denominator == 1:
                return math.copysign(math.inf, number)
            raise Undecided
        return number


def read_whole(text: str, symbols: frozenset[str] = frozenset(), *, keep_commas: bool = False) -> Value | None:
    """The text as one value; None if it is none. `symbols` are the unknowns that may occur.

    >>> read_whole("{10 \\\\over 3}").number, read_whole("2\\\\frac13").number, read_whole("7 eggs")
    (Fraction(10, 3), Fraction(7, 3), None)
    """
    listed = tokens(clean(text, keep_commas=keep_commas))
    inner = [token for token in listed if token.kind != "edge"]
    value = Reader(inner, symbols).read(0)
    return value if value and value.end == len(inner) else None
