r"""Does a statement give the final answer away, also in another form of the same value?

Values count and not texts: `0.5` is `\frac{1}{2}`, and `2^3 \cdot 13` is 104. Whoever judges a graph (build,
check, stats, browse, the start of training) asks here, so that all say the same. A statement is cut into formulas,
and the grader's pieces compare them with the answer. Not every formula counts:

- anywhere: what a claim names ("the answer is", a box);
- in a last checkpoint: the value that it ends in (`x = 5`, `x = 5 cm since ...`), one whose name follows (`5 = x`), the
  values of a list that it ends in (`x = 1 or x = 2`), and any value too peculiar for a coincidence;
- in an inner checkpoint: the value that it ends in, if it is peculiar (no integer below 100).

Not covered: a value that has to be worked out from words, numbers in words, numbers too large to be worked out, and
decimals rounded to fewer than two places.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import networkx as nx

from nemo_aopsd.data.closed_form import Number, closed_form, same_number
from nemo_aopsd.data.dag import Fault, build_graph, find_faults
from nemo_aopsd.grading import exact, grade_answer
from nemo_aopsd.grading.normalize import Answer, normalize
from nemo_aopsd.grading.structure import Shape, read_shape, same_shape

_LONGEST = 4000  # characters of a statement that is still read
_LONGEST_ALGEBRA = 120
_MOST_VALUES = 60
_HEAVY = re.compile(r"\d{5}|\^[^+*/]{0,9}\^|!|\^\s*\{?\s*-?\d{3}|(?:\{|\(){8}")  # algebra on these may take long

_CHANGES = (  # words that change the value before them
    "times|more|less|fewer|mod|modulo|plus|minus|divided|multiplied|dozens?|hundred|thousand|million|billion|half"
    "|halves|thirds?|squared|cubed|factorial|choose"
)
_UNITS = "in|of|or|as|by|if|so|at|on|to|is|we|an|be|no|do|am|are|cm|mm|km|kg|ft|lb"  # words of two letters, too
_FRACTION_GLYPH = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\u2044", "/"),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])|\u00b0", ""),
        (r"\\(?:text[a-z]*|math(?:rm|bf|it|sf)|mbox|operatorname|emph)\s*\{([^{}]*)\}(?:\s*\^\s*\{?[23]\}?)?", r" \1 "),
        (r"\\q?quad(?![a-zA-Z])|\\(?:left|right)(?![a-zA-Z])|~", " "),
        (r"\\%|\s*\b(?:percent|pct)\b", "%"),
        (r"\\\$|[\u20ac\u00a3]", " "),
        (r"\\(?:[pb]?mod)(?![a-zA-Z])", " mod "),
        (r"\*\*([^*]*)\*\*", r" \1 "),
        (r"(?<=\bis)(?=\d)|\s+", " "),
    )
)
_SPACE = r"(?:\{,\s?\}|\\[,!;: ]|,\\!|[\u00a0\u2009\u202f]|'| (?! ))"
_THOUSANDS = {
    commas: re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{separator}\s?\d{{3}}(?!\d))+")
    for commas, separator in ((False, rf"(?:{_SPACE}|,(?!\s))"), (True, _SPACE))
}
_ASIDE = re.compile(r"(?<=[\s$])\((?![=:])[^()]*(?:(?<![\\A-Za-z])[A-Za-z]{4,}|[=<>])[^()]*\)")
_REASON = re.compile(r"(?<![\w\\=])(?:since|because|as|where|when(?:ever)?|for|if|provided|mod|modulo)\b", re.I)
_TOKEN = re.compile(
    r"(?P<other>!=|<=|>=|\\(?:neq?|leq?|geq?|not)(?![a-zA-Z])\s*=?|[<>])"
    r"|(?P<equals>=|\u2248|\u2261|\\(?:approx|equiv|in|to|Rightarrow|implies)(?![a-zA-Z])|(?<!\d):|:(?!\d))"
    r"|(?P<comma>[,;])"
    r"|(?P<edge>\$|\\[()[\]]|[\"'`?]|\.(?!\d)|\\(?:boxed|fbox|framebox)(?![a-z])|(?<=\d)\s*[msghL]\b(?!\s*[=^_+*/(-]))"
    rf"|(?P<word>(?<![A-Za-z\\])(?!(?:sqrt|sin|cos|tan|log|ln|exp|pi)\b)"
    rf"(?:(?:{_UNITS})\b|[A-Za-z]{{3,}}|a(?=\s[A-Za-z]{{3}})))"
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
    re.I,
)
_CLAIM = re.compile(
    r"(?<![\w\\])answers?\b(?:[\s$*\"':=,`]|\\\(|\b(?:is|are|equals?|equal|must|be|comes|out|as|here|so|final"
    rf"|{_FILLER})\b)*|\\(?:boxed|fbox)\s*",
    re.I,
)
_AS_TEXT = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3}|[<>]|\\[lg]e(?![a-z])")  # answers in words, and inequalities
_DENIED = re.compile(
    r"\b(?:no|neither|not|if|whether|unless|suppose|supposing|assume|assuming)"
    r"(?:\W+(?:that|the|an?|any|such|possible|final|correct))*\W*$",
    re.I,
)
_TAIL = re.compile(r"[\s$.,;:!?*)}\]\"'`\\]*(?:[A-Za-z]+[\s$.,;:!?*)}\]\"'`\\]*){0,4}")
_BOUND = re.compile(rf"\s*(?:{_CHANGES})\b|-[A-Za-z]|[\s$]*\\sqrt")
_JOINS = re.compile(r"[\s$(){}\[\\=]*(?:(?:,|;|and|or|\\in)[\s$({\[\\=]*)*")


@dataclass(frozen=True, slots=True)
class _Formula:
    """A piece of a statement, between words and relations."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The answer; `number` is that of a single value, if it has one."""

    answer: Answer
    shape: Shape
    number: Number | None

    @property
    def is_value(self) -> bool:
        return self.shape.kind == "value"

    @property
    def is_peculiar(self) -> bool:
        """Too unlikely for a coincidence: no integer below 100, no letter, no short word."""
        if self.number is None:
            return len(self.answer.text) > 2
        return not (self.number == int(self.number) and abs(self.number) < 100)


def find_graph_faults(raw: Any, answer: str | None) -> list[Fault]:
    """`dag.find_faults`, with the leaks by value of a graph that is otherwise sound; errors first."""
    faults = find_faults(raw)
    if not answer or any(fault.is_error for fault in faults):
        return faults
    return [*find_answer_leaks(build_graph(raw), answer), *faults]


def find_answer_leaks(graph: nx.DiGraph, answer: str) -> Iterator[Fault]:
    """A `states_answer` fault for each checkpoint that gives `answer` away, as text or by its value."""
    for node in graph:
        statement: str = graph.nodes[node]["statement"]
        if states_answer(statement, answer, is_last=not graph.succ[node]):
            yield Fault("states_answer", f"node {node!r}: {statement[:80]}")


def states_answer(statement: str, answer: str, *, is_last: bool) -> bool:
    """True if the statement gives the answer away; `is_last` says that nothing else requires it.

    >>> states_answer("So the chance is 0.5.", r"\\frac{1}{2}", is_last=True)
    True
    >>> states_answer("x = 2", "2", is_last=False)
    False
    """
    wanted = _read_answer(answer)
    has_claim = "answer" in statement.lower() or "boxed" in statement or "fbox" in statement
    concludes = is_last or wanted.is_peculiar
    if not (has_claim or concludes) or not wanted.answer.text or len(statement) > _LONGEST:
        return False
    text = _clean(statement, keep_commas=not wanted.is_value)
    if wanted.number is None and _AS_TEXT.search(wanted.answer.text):
        return _in_words(text, wanted.answer.text, is_last=is_last)
    claimed = has_claim and any(_same(value, wanted) for value in _claims(text, wanted))
    return claimed or (concludes and any(_same(value, wanted) for value in _conclusions(text, wanted, is_last=is_last)))


@lru_cache(maxsize=4096)
def _read_answer(answer: str) -> _Wanted:
    given = normalize(_plain_fractions(answer))
    shape = read_shape(given.text) if exact.rational(given.text) is None else Shape("value", (given.text,))
    return _Wanted(given, shape, closed_form(shape.items[0]) if shape.kind == "value" else None)


def _plain_fractions(text: str) -> str:
    """Glyphs of fractions as LaTeX, so that two and a half in two characters is a mixed number."""
    return _FRACTION_GLYPH.sub(
        lambda match: "\\frac{{{}}}{{{}}}".format(
            *Fraction(unicodedata.numeric(match[0])).limit_denominator(10).as_integer_ratio()
        ),
        text,
    )


def _clean(statement: str, *, keep_commas: bool) -> str:
    text = re.sub(r"\s{3,}", "  ", _plain_fractions(statement).replace("\u2212", "-"))
    text = _THOUSANDS[keep_commas].sub(lambda match: re.sub(r"\D", "", match[0]), text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip()


def _in_words(text: str, answer: str, *, is_last: bool) -> bool:
    """Answers such as "no solution" or `x > 3` are compared as texts."""
    words = rf"\W*{re.escape(answer)}(?!\w)"
    claims = (claim for claim in _CLAIM.finditer(text) if not _is_denied(text, claim))
    ends = is_last and re.search(rf"(?:=|\b(?:{_CONCLUSION}|so|that)\b){words}\W*$", text, re.I)
    return bool(ends) or any(re.match(words, text[claim.end() :], re.I) for claim in claims)


def _is_denied(text: str, claim: re.Match[str]) -> bool:
    """ "No answer is 0", "if the answer is 0"; a box is never denied."""
    return not claim[0].startswith("\\") and bool(_DENIED.search(text[: claim.start()][-60:]))


def _claims(text: str, wanted: _Wanted) -> Iterator[str]:
    """What is called the answer, or boxed."""
    for match in _CLAIM.finditer(text):
        if not _is_denied(text, match):
            rest = text[match.end() : match.end() + 400]
            formulas = _formulas(_braced(rest) if match[0].startswith("\\") else rest)
            if formulas and not re.search(r"[^\s$({\\]", rest[: formulas[0].start]):
                run = formulas[:1] if wanted.is_value else _run(rest, formulas)
                if not _BOUND.match(rest, formulas[0].end):
                    yield rest[run[0].start : run[-1].end]


def _braced(text: str) -> str:
    """The content of the braces that a text begins with, led by a blank for the first of them."""
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return " " + text[1:position]
    return " " + text[1:]


def _conclusions(text: str, wanted: _Wanted, *, is_last: bool) -> Iterator[str]:
    """What the main clause ends in, or names: with and without its reasons ("since ...")."""
    whole = _ASIDE.sub("", text)
    reasons = [match.start() for match in _REASON.finditer(whole) if match.start()][-3:]
    for end in [len(whole), *reasons]:
        clause = whole[:end]
        formulas = _formulas(clause)
        if not formulas or (end < len(whole) and not re.search(r"=|\d|\b(?:is|are)\b", whole[end:])):
            continue
        last = formulas[-1]
        is_end = _TAIL.fullmatch(clause, last.end) and not _BOUND.match(clause, last.end)
        if is_end and not wanted.is_value:
            yield clause[_run(clause, formulas, is_end=True)[0].start : last.end]
        if is_end and (_CONCLUDES.search(clause[: last.start]) or not wanted.is_value):
            yield last.text
        if is_last and wanted.is_value:
            yield from _named_after(clause, formulas, wanted)


def _named_after(clause: str, formulas: list[_Formula], wanted: _Wanted) -> Iterator[str]:
    """Values with their name on the right, as in `11 = m + n`; and all values, if the answer is a peculiar one."""
    for formula in formulas[:_MOST_VALUES]:
        rest = clause[formula.end :]
        if re.match(r"[\s$]*=", rest):
            tail = re.sub(r"\\[a-z]+", "", rest)
            if rest.count("=") == 1 and re.search("[A-Za-z]", rest) and not re.search("[A-Za-z]{4}|[<>]", tail):
                yield formula.text
        elif wanted.is_peculiar and not _BOUND.match(clause, formula.end):
            yield formula.text


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


def _run(text: str, formulas: list[_Formula], *, is_end: bool = False) -> list[_Formula]:
    """The first formulas that nothing but commas, `and`, `or` and `=` separates; with `is_end` the last ones."""
    joined = [bool(_JOINS.fullmatch(text[one.end : other.start])) for one, other in pairwise(formulas)]
    if is_end:
        count = next((back for back, is_joined in enumerate(reversed(joined)) if not is_joined), len(joined))
        return formulas[len(joined) - count :]
    return formulas[: [*joined, False].index(False) + 1]


def _same(formula: str, wanted: _Wanted) -> bool:
    """Is the formula the answer, in whatever form?"""
    if wanted.number is not None and formula.isdecimal() and not wanted.answer.percent:
        return same_number(Fraction(formula[:1000]), wanted.number)
    given = normalize(formula)
    if given.text == wanted.answer.text:
        return True
    if wanted.is_value:
        return _same_value(given, wanted.shape.items[0], wanted.answer.percent)
    shape = read_shape(given.text)
    if wanted.shape.brackets == "()" and shape.kind == "list":
        shape = Shape("tuple", shape.items, brackets="()")
    return bool(same_shape(shape, wanted.shape, lambda one, other: _same_value(normalize(one), other, False)))


def _same_value(given: Answer, wanted: str, is_percent: bool) -> bool:
    """Equal, or the decimal to which the answer rounds; 50 % is 1/2, and 50 where the answer leaves the sign out."""
    one, other = closed_form(given.text), closed_form(wanted)
    if one is None or other is None:
        return one is other and _same_algebra(given.text, wanted)
    if same_number(one, other):
        return True
    if given.percent != is_percent and same_number(*((one / 100, other) if given.percent else (one, other / 100))):
        return True
    match = re.fullmatch(r"[+-]?\d*\.(\d{2,})", given.text)
    return bool(match) and 2 * abs(one - other) <= Fraction(1, 10 ** len(match[1]))


def _same_algebra(given: str, wanted: str) -> bool:
    """Of formulas with unknowns; the grading process is asked only if they are the same ones."""
    if given == wanted:
        return True
    if _names(given) != _names(wanted) or len(given) > _LONGEST_ALGEBRA or _HEAVY.search(given + " " + wanted):
        return False
    return grade_answer(given, wanted).correct


def _names(text: str) -> frozenset[str]:
    known = {"\\frac", "\\cdot", "\\times", "\\sqrt", "\\over"}
    return frozenset(re.findall(r"\\[a-zA-Z]+|[a-zA-Z]", text)) - known
