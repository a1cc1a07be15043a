r"""Does a statement give the final answer away, also in another form of the same value?

`dag.words_answer` compares texts; this compares values as well: `0.5` against `\frac{1}{2}`, `2^3 \cdot 13` against
104. Whoever judges a graph (build, check, stats, browse, the start of training) asks here, so that all say the same.
`latex_values` reads the values; here is decided which of them count, for a coincidence inside the route is no leak:

- anywhere: what a claim names ("the answer is", a box);
- in a last checkpoint: the value that it ends in (`x = 5`, `x = 5 cm since ...`), one whose name follows (`5 = x`), the
  values of a list that it ends in (`x = 1 or x = 2`), and any value too peculiar for a coincidence;
- in an inner checkpoint: the value that it ends in, if it is peculiar (no integer below 100).

Not covered: a value that has to be worked out from words, numbers in words, and decimals rounded to
fewer than two places.
"""

from __future__ import annotations

import cmath
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import networkx as nx

from nemo_aopsd.dag import Fault, answer_leak, build_graph, find_faults, is_no_claim, words_answer
from nemo_aopsd.grading.normalize import normalize
from nemo_aopsd.grading.structure import read_shape
from nemo_aopsd.latex_values import (
    BINDING,
    Reader,
    Token,
    Undecided,
    Value,
    clean,
    find_values,
    read_whole,
    tokens,
    words,
)

Tokens = Sequence[Token]

_CONCLUSIONS = words(
    r"= : \approx \equiv \in is are be was were becomes become equal equals gives give yields yield giving yielding"
    " totals leaves obtain obtains get gets"
)
_FILLERS = words(
    "to exactly just only precisely simply then thus therefore hence indeed the a an value number integer fraction"
    r" total of about approximately also , \{ { ( ["
)
_CLAIM_FILLERS = words("is are = : equals equal must be comes out as here so * \" ' ` final") | {
    word for word in _FILLERS if word.isalpha() or word == ","
}
_REASONS = words("since because as where when whenever for if provided mod modulo")
_SEPARATORS = words(r", ; and or = ( ) [ ] { } \{ \}")
_CLOSING = words(r""". , ; : ! ? * ) ] } \} " '""")
_NUMBER_LIKE = re.compile(r"\d|\\(?:pi|infty)|[\u00bc-\u00be\u2150-\u215f]|\be\b|\bi\b")
_MOST_FILLERS, _MOST_WORDS_AFTER = 6, 4


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the answer is as values. `kind` is text if it cannot be read as any; then `texts` are compared."""

    kind: Literal["value", "list", "tuple", "text"]
    values: tuple[Value, ...]
    brackets: str
    symbols: frozenset[str]
    is_percent: bool
    is_peculiar: bool
    texts: tuple[str, ...]

    @property
    def keeps_commas(self) -> bool:
        return self.kind in ("list", "tuple")


def find_graph_faults(raw: Any, answer: str | None) -> list[Fault]:
    """`dag.find_faults`, with the leaks by value of a graph that is otherwise sound; errors first.

    A last warning, undecided_answer, is for a checkpoint whose value is too large to be compared with the answer.
    """
    faults = find_faults(raw, answer)
    if not answer or any(fault.is_error and fault.kind != "states_answer" for fault in faults):
        return faults
    verdicts = list(_verdicts(build_graph(raw), answer))
    leaks = [answer_leak(node, statement) for node, statement, verdict in verdicts if verdict]
    undecided = [
        Fault("undecided_answer", f"node {node!r}: look at it, too large to compare: {statement[:80]}", is_error=False)
        for node, statement, verdict in verdicts
        if verdict is None
    ]
    return [*leaks, *(fault for fault in faults if not fault.is_error), *undecided]


def find_answer_leaks(graph: nx.DiGraph, answer: str) -> Iterator[Fault]:
    """A `states_answer` fault for each checkpoint that gives `answer` away, as text or by its value."""
    for node, statement, verdict in _verdicts(graph, answer):
        if verdict:
            yield answer_leak(node, statement)


def states_answer(statement: str, answer: str, *, is_last: bool) -> bool:
    """True if the statement gives the answer away; `is_last` says that nothing else requires it.

    >>> states_answer("So the chance is 0.5.", r"\\frac{1}{2}", is_last=True)
    True
    >>> states_answer("x = 2", "2", is_last=False)
    False
    """
    return bool(judge_statement(statement, answer, is_last=is_last))


def judge_statement(statement: str, answer: str, *, is_last: bool) -> bool | None:
    """`states_answer`, or None if that cannot be decided: a number is too large, or the statement too long to read."""
    if words_answer(statement, answer, is_last=is_last):
        return True
    wanted = _read_answer(answer)
    has_claim = "answer" in statement.lower() or "boxed" in statement
    if not has_claim and not is_last and not wanted.is_peculiar:
        return False
    if wanted.kind != "text" and not wanted.symbols and not _NUMBER_LIKE.search(statement):
        return False
    listed = tokens(clean(statement, keep_commas=wanted.keeps_commas))
    verdicts: Iterator[bool | None] = iter([_Reading(listed, wanted).is_claimed()] if has_claim else [])
    if is_last or wanted.is_peculiar:
        clauses = (_Reading(clause, wanted).concludes(is_last=is_last) for clause in _main_clauses(listed))
        verdicts = itertools.chain(verdicts, clauses)
    return _first_decided(verdicts)


def _first_decided(verdicts: Iterator[bool | None]) -> bool | None:
    """True if one is, else None if one is, else False."""
    found: bool | None = False
    for verdict in verdicts:
        if verdict:
            return True
        found = None if verdict is None else found
    return found


def _verdicts(graph: nx.DiGraph, answer: str) -> Iterator[tuple[str, str, bool | None]]:
    for node, statement in graph.nodes(data="statement"):
        yield node, statement, judge_statement(statement, answer, is_last=not graph.succ[node])


class _Reading:
    """A clause with its values, held against the answer."""

    def __init__(self, listed: Tokens, wanted: _Answer) -> None:
        self.listed, self.wanted = listed, wanted
        self.values: list[Value] = []
        self.is_cut = False
        if wanted.kind == "text":
            return
        try:
            for value in find_values(listed, Reader(listed, wanted.symbols)):
                self.values.append(value)
        except Undecided:
            self.is_cut = True

    def is_claimed(self) -> bool | None:
        """An explicit claim: "the answer is ...", a box."""
        verdicts = []
        for index, token in enumerate(self.listed):
            is_answer = token.kind == "word" and token.text.lower() in ("answer", "answers")
            if not is_answer and token.text not in ("\\boxed", "\\fbox"):
                continue
            if is_answer and is_no_claim(" ".join(word.text for word in self.listed[max(0, index - 8) : index])):
                continue
            place = index + is_answer
            for _ in range(_MOST_FILLERS):
                if place < len(self.listed) and (
                    self.listed[place].kind == "edge"
                    or (is_answer and self.listed[place].text.lower() in _CLAIM_FILLERS)
                ):
                    place += 1
            verdicts.append(self._compare_from(place))
        return _first_decided(iter(verdicts))

    def concludes(self, *, is_last: bool) -> bool | None:
        """The clause ends in the answer, or, if it is the last, names it."""
        if self.wanted.kind == "text":
            return self._ends_in_text()
        verdicts = []
        end = self._end()
        if self.wanted.kind in ("list", "tuple"):
            if self.values and self._is_end(self.values[-1].end, end):
                verdicts.append(self._compare_run(self._run_before(len(self.values) - 1)))
        else:
            if self.values and self._is_end(self.values[-1].end, end) and self._is_concluded(self.values[-1].start):
                verdicts.append(self._same(self.values[-1]))
            if is_last:
                verdicts += [self._same(value) for value in self.values if self._is_named_after(value)]
                if self.wanted.is_peculiar:
                    verdicts += [self._same(value) for value in self.values if not self._is_left_side(value)]
        if self.is_cut:
            verdicts.append(None)
        return _first_decided(iter(verdicts))

    def _compare_from(self, place: int) -> bool | None:
        """The value that begins at a token, or the list of values from there."""
        for index, value in enumerate(self.values):
            if value.start >= place:
                between = self.listed[place : value.start]
                if not all(token.kind == "edge" or token.text in _SEPARATORS or _is_name(token) for token in between):
                    return False
                if self.wanted.kind == "value":
                    return self._same(value) if value.start == place else False
                return self._compare_run(self._run_after(index))
        return None if self.is_cut else False

    def _same(self, value: Value) -> bool | None:
        return _is_same(value, self.wanted.values[0], self.wanted.is_percent)

    def _compare_run(self, run: list[Value]) -> bool | None:
        """Values in a row against those of a list, in any order, or of a tuple."""
        wanted = self.wanted
        if wanted.kind == "tuple":
            if len(run) < len(wanted.values) or not self._has_brackets(run[-len(wanted.values)].start, run[-1].end):
                return False
            pairs = zip(run[-len(wanted.values) :], wanted.values, strict=True)
            verdicts = [_is_same(value, other, is_percent=False) for value, other in pairs]
            return None if None in verdicts and False not in verdicts else all(verdicts)
        found = [[_is_same(value, other, is_percent=False) for other in wanted.values] for value in run]
        extra = any(not any(row) for row in found)
        missing = any(not any(column) for column in zip(*found, strict=True))
        if not extra and not missing:
            return True
        return None if any(verdict is None for row in found for verdict in row) else False

    def _has_brackets(self, start: int, end: int) -> bool:
        """Those of the answer, if there are any; they matter to an interval."""
        before = self.listed[start - 1].text if start else ""
        after = self.listed[end].text if end < len(self.listed) else ""
        if before not in ("(", "[") and after not in (")", "]"):
            return self.wanted.brackets == "()"
        return before + after == self.wanted.brackets

    def _run_before(self, last: int) -> list[Value]:
        first = last
        while first and self._is_separated(self.values[first - 1], self.values[first]):
            first -= 1
        return self.values[first : last + 1]

    def _run_after(self, first: int) -> list[Value]:
        last = first
        while last + 1 < len(self.values) and self._is_separated(self.values[last], self.values[last + 1]):
            last += 1
        return self.values[first : last + 1]

    def _is_separated(self, one: Value, other: Value) -> bool:
        between = self.listed[one.end : other.start]
        return any(token.text in (",", ";", "and", "or") for token in between) and all(
            token.kind == "edge" or token.text in _SEPARATORS or _is_name(token) for token in between
        )

    def _end(self) -> int:
        end = len(self.listed)
        while end and (self.listed[end - 1].kind == "edge" or self.listed[end - 1].text in _CLOSING):
            end -= 1
        return end

    def _is_end(self, place: int, end: int) -> bool:
        """Nothing but a few words (units, say) and marks stands between."""
        rest = [token for token in self.listed[place:end] if token.kind != "edge" and token.text not in _CLOSING]
        return len(rest) <= _MOST_WORDS_AFTER and all(token.kind == "word" for token in rest)

    def _is_concluded(self, start: int) -> bool:
        """An equals sign, "is" or the like stands before, with nothing but fillers between."""
        for back in range(start - 1, max(-1, start - 2 - _MOST_FILLERS), -1):
            token = self.listed[back]
            if token.text.lower() in _CONCLUSIONS and token.kind != "edge":
                return not self._is_no_conclusion(back)
            if token.kind != "edge" and token.text.lower() not in _FILLERS:
                return False
        return False

    def _is_no_conclusion(self, place: int) -> bool:
        """`!=`, `<=`, or the colon of a ratio."""
        token, before = self.listed[place], self.listed[place - 1] if place else None
        if before is None:
            return False
        if token.text == ":":
            return before.kind == "num" and not token.after_blank
        return token.text == "=" and before.text in ("!", "<", ">", "\\not") and not token.after_blank

    def _is_left_side(self, value: Value) -> bool:
        place = value.end
        while place < len(self.listed) and self.listed[place].kind == "edge":
            place += 1
        return place < len(self.listed) and self.listed[place].text == "="

    def _is_named_after(self, value: Value) -> bool:
        """`11 = m + n` at the end: on the right is a formula and nothing else."""
        if not self._is_left_side(value):
            return False
        right = self.listed[value.end :]
        marks = [token for token in right if token.text in _CONCLUSIONS]
        has_words = any(token.kind == "word" and len(token.text) > 3 for token in right)
        return len(marks) == 1 and not has_words and any(token.kind in ("word", "cmd") for token in right)

    def _ends_in_text(self) -> bool:
        listed = [token for token in self.listed[: self._end()] if token.kind != "edge"]
        size = len(self.wanted.texts)
        if not size or [token.text for token in listed[-size:]] != list(self.wanted.texts):
            return False
        return size == len(listed) or listed[-size - 1].text.lower() in _CONCLUSIONS | {",", "so", "that"}


def _main_clauses(listed: Tokens) -> Iterator[Tokens]:
    """The statement without asides in brackets, and what stands before its last words of reason ("since ...")."""
    whole = _without_asides(listed)
    yield whole
    reasons = [
        place
        for place, token in enumerate(whole)
        if token.kind == "word" and token.text.lower() in _REASONS and place and whole[place - 1].text not in ("=",)
    ]
    for place in reasons[-3:]:
        rest = whole[place:]
        if any(token.text in ("=", "is", "are") or token.kind == "num" for token in rest):
            yield whole[:place]


def _without_asides(listed: Tokens) -> Tokens:
    """Without brackets after a value or a mark that hold words or relations: `12 (since z = 3)`."""
    kept: list[Token] = []
    opened: list[int] = []
    for token in listed:
        kept.append(token)
        if token.text == "(":
            opened.append(len(kept) - 1)
        elif token.text == ")" and opened:
            start = opened.pop()
            inner = kept[start + 1 : -1]
            is_aside = any(
                (part.kind == "word" and len(part.text) > 3) or part.text in ("=", "<", ">", "\\le", "\\ge", "mod")
                for part in inner
            )
            if is_aside and inner[0].text not in ("=", ":") and kept[start].after_blank:
                del kept[start:]
    return kept


def _is_name(token: Token) -> bool:
    return (token.kind == "word" and len(token.text) <= 2) or token.text == "_"


def _is_same(value: Value, wanted: Value, is_percent: bool) -> bool | None:
    """Equal, or the decimal to which the answer rounds; 50 % is 1/2, and 50 where the answer leaves the sign out."""
    if value.number is None or wanted.number is None:
        return None
    if _equal(value.number, wanted.number) or _rounds_to(wanted.number, value):
        return True
    if value.is_percent != is_percent:
        factor = Fraction(100) if value.is_percent else Fraction(1, 100)
        return _equal(value.number * factor, wanted.number)
    return False


def _equal(one: Any, other: Any) -> bool | None:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    try:
        one, other = complex(one), complex(other)
    except OverflowError:  # an exact number beyond the floats, and one within
        return False
    if cmath.isinf(one) or cmath.isinf(other):
        return None if cmath.isinf(one) and cmath.isinf(other) else False
    return cmath.isclose(one, other, rel_tol=1e-10, abs_tol=1e-12)


def _rounds_to(exact: Any, value: Value) -> bool:
    if value.places < 2 or isinstance(exact, complex) or not isinstance(value.number, Fraction):
        return False
    if not isinstance(exact, Fraction):
        exact = Fraction(exact) if abs(exact) < 1e300 else Fraction(0)
    return 2 * abs(value.number - exact) <= Fraction(1, 10**value.places)


@lru_cache(maxsize=4096)
def _read_answer(answer: str) -> _Answer:
    given = normalize(answer)
    listed = tokens(clean(answer))
    texts = tuple(token.text for token in listed if token.kind != "edge")
    symbols = _unknowns(given.text)
    if re.fullmatch(r"[a-zA-Z .()]*", given.text):  # words, a letter: no formula
        return _Answer("text", (), "", frozenset(), False, len("".join(texts)) > 2, texts)
    if not given.text.startswith(("(", "[", "\\{", "{")) and (value := _read_member(given.text, symbols)):
        return _value_answer(value, symbols, given.percent, texts)
    shape = read_shape(given.text)
    symbols = frozenset().union(*map(_unknowns, shape.items))
    values = tuple(_read_member(item, symbols) for item in shape.items)
    if shape.kind == "union" or not values or None in values:
        return _Answer("text", (), "", frozenset(), False, len("".join(texts)) > 2, texts)
    if shape.kind == "value":
        return _value_answer(values[0], symbols, given.percent, texts)
    return _Answer(shape.kind, values, shape.brackets, symbols, False, True, texts)


def _read_member(text: str, symbols: frozenset[str]) -> Value | None:
    try:
        return read_whole(text, symbols)
    except Undecided:
        return None


def _value_answer(value: Value, symbols: frozenset[str], is_percent: bool, texts: tuple[str, ...]) -> _Answer:
    number = value.number
    if is_percent and not value.is_percent:  # `normalize` has cut the sign off
        number = number / 100 if number is not None else None
        value = Value(value.start, value.end, number, True)
    is_small = isinstance(number, Fraction) and number.denominator == 1 and abs(number) < 100
    is_letter = len("".join(texts)) <= 2 and bool(symbols)
    return _Answer("value", (value,), "", symbols, is_percent, not is_small and not is_letter, texts)


def _unknowns(text: str) -> frozenset[str]:
    """Letters and Greek letters of a formula; `i`, `e` and names of functions are none."""
    listed = tokens(clean(text))
    letters = {
        letter
        for token in listed
        if token.kind == "word" and token.text not in ("e", "i", "pi", "sqrt", "mod")
        for letter in token.text
    }
    known = BINDING | {"\\pi", "\\infty", "\\over", "\\boxed", "\\lfloor", "\\rfloor", "\\lceil", "\\rceil"}
    return frozenset(letters | {token.text for token in listed if token.kind == "cmd" and token.text not in known})


def same_value(text: str, answer: str) -> bool:
    """Equal as values (a decimal also if the answer rounds to it), or as texts."""
    wanted = _read_answer(answer)
    listed = [token for token in tokens(clean(text, keep_commas=wanted.keeps_commas)) if token.kind != "edge"]
    if tuple(token.text for token in listed) == wanted.texts:
        return bool(listed)
    if wanted.kind == "text":
        return False
    if wanted.kind == "value":
        value = read_whole(text, wanted.symbols)
        return bool(value and _is_same(value, wanted.values[0], wanted.is_percent))
    reading = _Reading(listed, wanted)
    return bool(reading.values and reading._compare_run(reading.values))


@lru_cache(maxsize=65536)
def rational(text: str) -> Fraction | None:
    r"""The exact value of plain arithmetic, LaTeX or not; None for anything else.

    >>> rational(r"-\frac{3}{4} \cdot 2"), rational("2^{10}"), rational("1,024"), rational("x + 1")
    (Fraction(-3, 2), Fraction(1024, 1), Fraction(1024, 1), None)
    """
    value = _read_member(text, frozenset())
    return value.number if value and isinstance(value.number, Fraction) else None
