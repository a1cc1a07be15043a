r"""Does a statement give the final answer away, also in another form of the same value?

`dag.words_answer` compares texts; this compares values as well: `0.5` against `\frac{1}{2}`, `2^3 \cdot 13` against
104. Whoever judges a graph (build, check, stats, browse, the start of training) asks here, so that all say the same.
A statement is cut into formulas, and the grader's pieces compare them with the answer. Not every formula counts:

- anywhere: what a claim names ("the answer is", a box);
- in a last checkpoint: the value that it ends in (`x = 5`, `x = 5 cm since ...`), one whose name follows (`5 = x`), the
  values of a list that it ends in (`x = 1 or x = 2`), and any value too peculiar for a coincidence;
- in an inner checkpoint: the value that it ends in, if it is peculiar (no integer below 100).

Not covered: a value that has to be worked out from words, numbers in words, and decimals rounded to fewer than two
places.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import networkx as nx

from nemo_aopsd.data.closed_form import closed_form, same_number
from nemo_aopsd.data.dag import Fault, answer_leak, build_graph, find_faults, is_no_claim, words_answer
from nemo_aopsd.grading import exact, grade_answer
from nemo_aopsd.grading.normalize import Answer, normalize
from nemo_aopsd.grading.structure import Shape, read_shape, same_shape

_LONGEST = 4000  # characters of a statement that is still read
_LONGEST_ALGEBRA = 120
_MOST_VALUES = 60
_HEAVY = re.compile(r"\d{5}|\^[^+*/]{0,9}\^|!|\^\s*\{?\s*-?\d{3}|(?:\{|\(){8}")  # algebra on these may take long


def _set(text: str) -> str:
    return "|".join(text.split())


_UNITS = _set("in of or as by if so at on to is we an be no do am are cm mm km kg ft lb")
_FUNCTIONS = _set("sqrt sin cos tan log ln exp pi")
_CHANGES = _set(
    "times more less fewer mod modulo plus minus divided multiplied dozens? hundred thousand million billion half"
    " halves thirds? squared cubed factorial choose"
)
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])|\u00b0", ""),
        (r"\\(?:text[a-z]*|math(?:rm|bf|it|sf)|mbox|operatorname|emph)\s*\{([^{}]*)\}(?:\s*\^\s*\{?[23]\}?)?", r" \1 "),
        (r"\\q?quad(?![a-zA-Z])|\\(?:left|right)(?![a-zA-Z])|~", " "),
        (r"\\%|\s*\b(?:percent|pct)\b", "%"),
        (r"\\\$|[\u20ac\u00a3]", " "),
        (r"\\(?:[pb]?mod)(?![a-zA-Z])", " mod "),
        (r"(?<=[\d)])\*\*(?=[\d(])", "^"),
        (r"\*\*([^*]*)\*\*", r" \1 "),
    )
)
_SPACE = r"(?:\{,\s?\}|\\[,!;: ]|,\\!|[\u00a0\u2009\u202f]|'| (?! ))"
_THOUSANDS = {
    commas: re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{separator}\s?\d{{3}}(?!\d))+")
    for commas, separator in ((False, rf"(?:{_SPACE}|,(?!\s))"), (True, _SPACE))
}
_BLANKS = re.compile(r"\s{3,}")
_ASIDE = re.compile(r"(?<=[\s$])\((?![=:])[^()]*(?:(?<![\\A-Za-z])[A-Za-z]{4,}|[=<>])[^()]*\)")
_REASON = re.compile(
    r"(?<![\w\\=])(?:since|because|as|where|when(?:ever)?|for|if|provided|mod|modulo)\b", re.IGNORECASE
)
_TOKEN = re.compile(
    r"(?P<other>!=|<=|>=|\\(?:neq?|leq?|geq?|not)(?![a-zA-Z])\s*=?|[<>])"
    r"|(?P<equals>=|\u2248|\u2261|\\(?:approx|equiv|in|to|Rightarrow|implies)(?![a-zA-Z])|(?<!\d):|:(?!\d))"
    r"|(?P<comma>[,;])"
    r"|(?P<edge>\$|\\[()[\]]|[\"'`?]|\.(?!\d)|\\(?:boxed|fbox|framebox)(?![a-z])|(?<=\d)\s*[msghL]\b(?!\s*[=^_+*/(-]))"
    rf"|(?P<word>(?<![A-Za-z\\])(?!(?:{_FUNCTIONS})\b)(?:(?:{_UNITS})\b|[A-Za-z]{{3,}}|a(?=\s[A-Za-z]{{3}})))"
    r"|(?P<formula>\\[{}]|\\[A-Za-z]+|\d+(?:\.\d+)?|\.\d+|[A-Za-z]+|[^\s])",
)
_CONCLUSION = r"is|are|be|was|were|becomes?|equals?|gives?|giving|yields?|yielding|totals|leaves|obtains?|gets?"
_FILLER = (
    r"to|exactly|just|only|precisely|simply|then|thus|therefore|hence|indeed|the|a|an|values?|number|integer|fraction"
    r"|total|of|about|approximately|also"
)
_CONCLUDES = re.compile(
    rf"(?:(?:(?<![!<>])=|:|\u2248|\u2261|\\(?:approx|equiv|in)|\b(?:{_CONCLUSION})\b)[\s$({{]*)"
    rf"(?:(?:{_FILLER})\b[\s$,]*|\\\()*$",
    re.IGNORECASE,
)
_CLAIM = re.compile(
    r"(?<![\w\\])answers?\b(?:[\s$*\"':=,`]|\\\(|\b(?:is|are|equals?|equal|must|be|comes|out|as|here|so|final"
    rf"|{_FILLER})\b)*|\\(?:boxed|fbox)\s*",
    re.IGNORECASE,
)
_TAIL = re.compile(r"[\s$.,;:!?*)}\]\"'`\\]*(?:[A-Za-z]+[\s$.,;:!?*)}\]\"'`\\]*){0,4}")
_BOUND = re.compile(rf"\s*(?:{_CHANGES})\b|-[A-Za-z]|[\s$]*\\sqrt")
_JOINS = re.compile(r"[\s$({\[\\]*(?:(?:,|;|and|or)[\s$({\[\\]*)+")


@dataclass(frozen=True, slots=True)
class _Formula:
    """A piece of a statement, between words and relations."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The answer; `number` is that of a single value, if it has one."""

    given: str
    answer: Answer
    shape: Shape
    number: Fraction | float | None
    is_words: bool

    @property
    def is_peculiar(self) -> bool:
        """Too unlikely for a coincidence: no integer below 100, no letter, no short word."""
        if self.is_words or self.shape.kind != "value":
            return len(self.answer.text) > 2
        if self.number is None:
            return len(self.answer.text) > 2
        return not (isinstance(self.number, Fraction) and self.number.denominator == 1 and abs(self.number) < 100)


def find_graph_faults(raw: Any, answer: str | None) -> list[Fault]:
    """`dag.find_faults`, with the leaks by value of a graph that is otherwise sound; errors first.

    A last warning, undecided_answer, is for a checkpoint whose value is too large to be compared with the answer.
    """
    faults = find_faults(raw, None)
    if not answer or any(fault.is_error for fault in faults):
        return find_faults(raw, answer)
    verdicts = list(_verdicts(build_graph(raw), answer))
    leaks = [answer_leak(node, statement) for node, statement, verdict in verdicts if verdict]
    undecided = [
        Fault("undecided_answer", f"node {node!r}: look at it, too large to compare: {statement[:80]}", is_error=False)
        for node, statement, verdict in verdicts
        if verdict is None
    ]
    return [*leaks, *faults, *undecided]


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
    has_claim = "answer" in statement.lower() or "boxed" in statement or "fbox" in statement
    if not (has_claim or is_last or wanted.is_peculiar) or not wanted.answer.text:
        return False
    if len(statement) > _LONGEST:
        return None
    text = _clean(statement, keep_commas=wanted.shape.kind != "value")
    return _first_decided(
        verdict
        for verdicts in (
            _claims(text, wanted) if has_claim else (),
            _conclusions(text, wanted, is_last=is_last) if is_last or wanted.is_peculiar else (),
        )
        for verdict in verdicts
    )


def _verdicts(graph: nx.DiGraph, answer: str) -> Iterator[tuple[str, str, bool | None]]:
    for node, statement in graph.nodes(data="statement"):
        yield node, statement, judge_statement(statement, answer, is_last=not graph.succ[node])


def _first_decided(verdicts: Iterable[bool | None]) -> bool | None:
    """True if one is, else None if one is, else False."""
    found: bool | None = False
    for verdict in verdicts:
        if verdict:
            return True
        found = None if verdict is None else found
    return found


@lru_cache(maxsize=4096)
def _read_answer(answer: str) -> _Wanted:
    given = normalize(_glyphs(answer))
    shape = read_shape(given.text) if exact.rational(given.text) is None else Shape("value", (given.text,))
    number = closed_form(shape.items[0]) if shape.kind == "value" else None
    return _Wanted(answer, given, shape, number, bool(re.fullmatch(r"[a-zA-Z .()]*", given.text)))


def _glyphs(text: str) -> str:
    """Fractions and superscripts of one character as LaTeX, so `2\u00bd` is a mixed number."""
    if text.isascii():
        return text
    for char in {char for char in text if not char.isascii()}:
        kind, plain = unicodedata.decomposition(char), unicodedata.normalize("NFKC", char)
        if kind.startswith("<fraction>"):
            above, _, below = plain.partition("\u2044")
            text = text.replace(char, f"\\frac{{{above}}}{{{below or 1}}}")
        elif kind.startswith("<super>"):
            text = text.replace(char, f"^{{{plain}}}")
    return text.replace("\u2044", "/").replace("\u2212", "-").replace("\u221a", "\\sqrt ")


def _clean(statement: str, *, keep_commas: bool) -> str:
    text = _THOUSANDS[keep_commas].sub(lambda match: re.sub(r"\D", "", match[0]), _glyphs(_BLANKS.sub("  ", statement)))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def _claims(text: str, wanted: _Wanted) -> Iterator[bool | None]:
    """Explicit ones: "the answer is ...", a box."""
    for match in _CLAIM.finditer(text):
        if match[0].startswith("\\") or not is_no_claim(text[: match.start()]):
            rest = text[match.end() : match.end() + 400]
            if match[0].startswith("\\"):
                rest = _braced(rest)
            if wanted.is_words:
                yield bool(re.match(rf"[\s$(]*{re.escape(wanted.answer.text)}(?!\w)", rest))
                continue
            run = _run(rest, _formulas(rest), 0, step=1)
            if run and not re.search(r"[^\s$({\\]", rest[: run[0].start]) and not _BOUND.match(rest, run[0].end):
                yield _same_run(run if wanted.shape.kind != "value" else run[:1], wanted)


def _braced(text: str) -> str:
    """The content of the braces that a text begins with."""
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[1:position]
    return text[1:]


def _conclusions(text: str, wanted: _Wanted, *, is_last: bool) -> Iterator[bool | None]:
    """The main clause ends in the answer, or names it: with and without its reasons ("since ...")."""
    whole = _ASIDE.sub("", text)
    reasons = [match.start() for match in _REASON.finditer(whole) if match.start()][-3:]
    for end in [len(whole), *reasons]:
        clause = whole[:end]
        if end < len(whole) and not re.search(r"=|\d|\b(?:is|are)\b", whole[end:]):
            continue
        if wanted.is_words:
            yield _ends_in_words(clause, wanted.answer.text)
            continue
        formulas = _formulas(clause)
        if not formulas:
            continue
        last = formulas[-1]
        is_end = _TAIL.fullmatch(clause, last.end) and not _BOUND.match(clause, last.end)
        if wanted.shape.kind != "value":
            if is_end:
                yield _same_run(_run(clause, formulas, len(formulas) - 1, step=-1), wanted)
                if last.text.startswith(("(", "[", "\\{")) or is_last:
                    yield _same(last.text, wanted)
            continue
        if is_end and _CONCLUDES.search(clause[: last.start]):
            yield _same(last.text, wanted)
        if is_last:
            yield from (_same(formula.text, wanted) for formula in _named_after(clause, formulas, wanted))


def _ends_in_words(clause: str, words: str) -> bool:
    end = rf"(?:^|(?:\b(?:{_CONCLUSION}|so|that)\b|[=,])[\s$(]+)\s*{re.escape(words)}[\s$.,;:!?*)}}\"']*$"
    return bool(re.search(end, clause))


def _named_after(clause: str, formulas: list[_Formula], wanted: _Wanted) -> Iterator[_Formula]:
    """Values with their name on the right, as in `11 = m + n`; and all values, if the answer is a peculiar one."""
    for formula in formulas[:_MOST_VALUES]:
        rest = clause[formula.end :]
        if re.match(r"[\s$]*=", rest):
            tail = re.sub(r"\\[a-z]+", "", rest)
            if rest.count("=") == 1 and re.search("[A-Za-z]", rest) and not re.search("[A-Za-z]{4}|[<>]", tail):
                yield formula
        elif wanted.is_peculiar and not _BOUND.match(clause, formula.end):
            yield formula


def _formulas(text: str) -> list[_Formula]:
    """The longest runs of symbols; commas and relations inside brackets are part of one."""
    found: list[_Formula] = []
    start = end = -1
    depth = 0
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind == "formula" or (depth > 0 and kind in ("comma", "equals", "other")):
            start = match.start() if start < 0 else start
            end = match.end()
            depth += (token in ("(", "[", "{", "\\{")) - (token in (")", "]", "}", "\\}"))
            continue
        if start >= 0:
            found += _formula(text, start, end)
        start, depth = -1, 0
    if start >= 0:
        found += _formula(text, start, end)
    return found


def _formula(text: str, start: int, end: int) -> list[_Formula]:
    """Without brackets at its ends that have no partner, and without an exclamation mark on no number."""
    for opening, closing in (("(", ")"), ("[", "]"), ("{", "}")):
        piece = text[start:end]
        if piece.count(opening) != piece.count(closing) and not re.search("[,;]", piece):
            start += piece.startswith(opening)
            end -= piece.endswith(closing) and not piece.startswith(opening)
    piece = text[start:end].strip()
    return [_Formula(piece, start, end)] if re.search(r"[\w%]", piece) else []


def _run(text: str, formulas: list[_Formula], index: int, step: int) -> list[_Formula]:
    """Values in a row, joined by commas, `and` or `or`, from one of them on; `x =` before a value is passed over."""
    values: list[_Formula] = []
    last: _Formula | None = None
    while 0 <= index < len(formulas) and len(values) < _MOST_VALUES:
        formula = formulas[index]
        if last is not None:
            first, second = (last, formula) if step > 0 else (formula, last)
            between = text[first.end : second.start]
            if re.fullmatch(r"[\s$]*(?:=|\\in)[\s$]*", between) and re.fullmatch(r"[A-Za-z](?:_\w)?", first.text):
                if step > 0:
                    values.pop()
                    values.append(formula)
                last, index = formula, index + step
                continue
            if not _JOINS.fullmatch(between):
                break
        values.append(formula)
        last, index = formula, index + step
    return values if step > 0 else values[::-1]


def _same_run(run: list[_Formula], wanted: _Wanted) -> bool | None:
    if len(run) == 1:
        return _same(run[0].text, wanted)
    texts = [re.sub(r"^(?:[A-Za-z]|\\[a-z]+)\s*=", "", formula.text) for formula in run]
    if wanted.shape.kind == "tuple" and wanted.shape.brackets == "()":
        return _same("(" + ", ".join(texts) + ")", wanted)
    return _same(", ".join(texts), wanted)


def _same(formula: str, wanted: _Wanted) -> bool | None:
    """Is the formula the answer, in whatever form?"""
    if wanted.number is not None and formula.isdecimal() and not wanted.answer.percent:
        return same_number(Fraction(formula[:1000]), wanted.number)
    given = normalize(formula)
    if given.text == wanted.answer.text:
        return True
    if wanted.shape.kind == "value":
        return _same_value(given, wanted.shape.items[0], wanted.answer.percent)
    undecided: list[None] = []

    def compare(one: str, other: str) -> bool:
        verdict = _same_value(normalize(one), other, is_percent=False)
        if verdict is None:
            undecided.append(None)
        return bool(verdict)

    found = same_shape(read_shape(given.text), wanted.shape, compare)
    return True if found else None if undecided else False


def _same_value(given: Answer, wanted: str, is_percent: bool) -> bool | None:
    """Equal, or the decimal to which the answer rounds; 50 % is 1/2, and 50 where the answer leaves the sign out."""
    one, other = closed_form(given.text), closed_form(wanted)
    if one is None or other is None:
        return _same_algebra(given.text, wanted) if one is other else False
    equal = same_number(one, other)
    if not equal and given.percent != is_percent:
        equal = same_number(*((one / 100, other) if given.percent else (one, other / 100)))
    if equal is False and (match := re.fullmatch(r"[+-]?\d*\.(\d{2,})", given.text)):
        return 2 * abs(one - other) <= Fraction(1, 10 ** len(match[1]))
    return equal


def _same_algebra(given: str, wanted: str) -> bool | None:
    """Of formulas with unknowns; the grading process is asked only if they are the same ones."""
    if given == wanted:
        return True
    if _names(given) != _names(wanted):
        return False
    if len(given) > _LONGEST_ALGEBRA or _HEAVY.search(given) or _HEAVY.search(wanted):
        return None
    verdict = grade_answer(given, wanted)
    return None if verdict.reason == "ungradable" else verdict.correct


def _names(text: str) -> frozenset[str]:
    known = {"\\frac", "\\cdot", "\\times", "\\sqrt", "\\over"}
    return frozenset(re.findall(r"\\[a-zA-Z]+|[a-zA-Z]", text)) - known
