r"""Does a statement give the final answer away, also in another form of the same value?

Values count and not texts: `0.5` is `\frac{1}{2}`, and `2^3 \cdot 13` is 104. Whoever judges a graph (build,
check, stats, browse, the start of training) asks here, so that all say the same. A statement is cut into formulas,
and the grader's pieces compare them with the answer. Not every formula counts:

- anywhere: what a claim names ("the answer is", a box);
- in a last checkpoint: the value that it ends in (`x = 5`, `x = 5 cm since ...`, and of a number `Tom pays 60`,
  but not `a multiple of 60`), one whose name follows (`5 = x`), the values of a list that it ends in (`x = 1 or x = 2`)
  and any value too peculiar for a coincidence;
- in an inner checkpoint: the value that it ends in, if it is peculiar (no integer below 100).

Not covered: a value that has to be worked out from words, numbers in words, numbers too large to be worked out, and
decimals rounded to fewer than two places.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice
from typing import Any

import networkx as nx

from nemo_aopsd.data.closed_form import Number, closed_form, same_number
from nemo_aopsd.data.dag import Fault, build_graph, find_faults
from nemo_aopsd.grading import exact, grade_answer
from nemo_aopsd.grading.normalize import Answer, normalize
from nemo_aopsd.grading.structure import Shape, read_shape, same_shape

_LONGEST = 4000  # characters of a statement that is still read
_LONGEST_ALGEBRA = 120
_MOST_FORMULAS = 60
_OPERATIONS = {"\\frac", "\\cdot", "\\times", "\\sqrt", "\\over"}
_HEAVY = re.compile(r"\d{5}|\^[^+*/]{0,9}\^|!|\^\s*\{?\s*-?\d{3}|(?:\{|\(){8}")  # algebra on these may take long

_SHORT_WORDS = "in|of|or|as|by|if|so|at|on|to|is|we|an|be|no|do|am|are|cm|mm|km|kg|ft|lb"
_SHORT_WORDS += "|" + _SHORT_WORDS.title()  # at the beginning of a sentence
_FRACTION_GLYPH = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_THOUSANDS = re.compile(
    r"(?<![\d.,])\d{1,3}(?:(?:\{,\s?\}|\\[,!;: ]|,\\!|[\u00a0\u2009\u202f]|'| (?! )|,(?!\s))\s?\d{3}(?!\d))+"
)
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\u2212", "-"),
        (r"\u2044", "/"),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])|\u00b0", ""),
        (r"\\(?:boxed|fbox|framebox)\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}", r" answer \1 ' "),
        (r"\\(?:text[a-z]*|math(?:rm|bf|it|sf)|mbox|operatorname|emph)\s*\{([^{}]*)\}(?:\s*\^\s*\{?[23]\}?)?", r" \1 "),
        (r"\\q?quad(?![a-zA-Z])|\\(?:left|right)(?![a-zA-Z])|~|\\(?=\$)|\*\*", " "),
        (r"\\%|\s*\b(?:percent|pct)\b", "%"),
        (r"\\(?:[pb]?mod)(?![a-zA-Z])", " mod "),
        (r"\s+", " "),
    )
)
_ASIDE = re.compile(r"(?<=[\s$])\((?![=:])[^()]*(?:(?<![\\A-Za-z])[A-Za-z]{4,}|[=<>])[^()]*\)")
_REASON = re.compile(r"(?<![\w\\=])(?:since|because|as|where|when(?:ever)?|for|if|provided|mod|modulo)\b", re.I)
_SYMBOLS = (  # of a formula: no word, no relation, and commas in brackets only
    r"\\(?!(?:neq?|leq?|geq?|not|approx|equiv|in|to|Rightarrow|implies)(?![a-zA-Z]))(?:[A-Za-z]+|[{}])"
    r"|\.\d|(?<=\d):(?=\d)|\([^()$]*,[^()$]*\)|(?<![A-Za-z\\])(?:sqrt|pi|log|ln)(?![A-Za-z])"
    rf"|(?<![A-Za-z\\])(?!(?:{_SHORT_WORDS})(?![A-Za-z])|a [A-Za-z]{{3}})[A-Za-z]{{1,2}}(?![A-Za-z])"
    r"|\(|[^(A-Za-z\\<>=,;:$\"'`?.\u2248\u2261]+"
)
_FORMULA = re.compile(rf"(?:{_SYMBOLS})+")
_LIST = re.compile(rf"(?:{_SYMBOLS}|[,;=$]|\\in(?![A-Za-z])|\b(?:and|or)\b)+")
_CONCLUSION = r"is|are|be|was|were|becomes?|equals?|gives?|giving|yields?|yielding|totals|leaves|obtains?|gets?"
_FILLER = (
    r"to|exactly|just|only|precisely|simply|then|thus|therefore|hence|indeed|the|a|an|values?|number|integer|fraction"
    r"|total|of|about|approximately|also"
)
_CONCLUDES = re.compile(
    rf"(?:(?:(?<![!<>])=|:|\u2248|\u2261|\\(?:approx|equiv|in)|\b(?:{_CONCLUSION})(?![A-Za-z]))[\s$({{]*)"
    rf"(?:(?:{_FILLER})\b[\s$,]*|\\\()*$",
    re.I,
)
_RELATES = re.compile(  # words behind which a number is no result: "a multiple of 9", "at least 3", "base 7", "case 2"
    r"\b(?:of|by|than|mod|modulo|base|with|from|into|in|at|on|per|each|every|least|most|under|below|above|over|until|up"
    r"|case|cases|step|part|equations?|lemma|theorem|type|degree|order|size|length|radius|side|sides|between|and|or"
    r"|times|plus|minus|not|never|without|same|first|next|last|another|other|exceeds?|divides?|for)[\s$({]*$",
    re.I,
)
_NUMBER = re.compile(r"[\s$]*-?\d[\d.,/]*%?[\s$]*")
_CLAIM = re.compile(
    r"(?<![\w\\])answers?\b(?:[\s$*\"':=,`]|\\\(|\b(?:is|are|equals?|equal|must|be|comes|out|as|here|so|final"
    rf"|{_FILLER})(?![A-Za-z]))*",
    re.I,
)
_DENIED = re.compile(
    r"\b(?:no|neither|not|if|whether|unless|suppose|supposing|assume|assuming)"
    r"(?:\W+(?:that|the|an?|any|such|possible|final|correct))*\W*$",
    re.I,
)
_AS_TEXT = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3}|[<>]|\\[lg]e(?![a-z])")  # answers in words, and inequalities
_TAIL = re.compile(r"[\s$.,;:!?*)}\]\"'`\\]*(?:[A-Za-z]+[\s$.,;:!?*)}\]\"'`\\]*){0,4}")
_CHANGED = re.compile(  # words that change the value before them
    r"\s*(?:times|more|less|fewer|mod|modulo|plus|minus|divided|multiplied|dozens?|hundred|thousand|million|billion|half"
    r"|halves|thirds?|squared|cubed|factorial|choose)\b|-[A-Za-z]|[\s$]*\\sqrt"
)
_NAME_FOLLOWS = re.compile(r"[\s$]*=(?=.*[A-Za-z])(?!.*(?:[=<>]|(?<![\\A-Za-z])[A-Za-z]{4}))")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The answer; `number` is that of a single value, if it has one."""

    answer: Answer
    shape: Shape
    number: Number | None

    @property
    def is_peculiar(self) -> bool:
        """Too unlikely for a coincidence: no integer below 100, no letter, no short word."""
        if self.number is None:
            return len(self.answer.text) > 2
        return not (self.number == int(self.number) and abs(self.number) < 100)


LEAK_REMEDY = "Take the final answer's value out of the node's statement, or drop the node"


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
    has_claim = "answer" in statement.lower() or "box" in statement
    concludes = is_last or wanted.is_peculiar
    if not (has_claim or concludes) or not wanted.answer.text or len(statement) > _LONGEST:
        return False
    text, is_value = _plain_fractions(statement), wanted.shape.kind == "value"
    if is_value:
        text = _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    claims = [text[claim.end() :] for claim in _CLAIM.finditer(text) if not _DENIED.search(text[: claim.start()][-60:])]
    if wanted.number is None and _AS_TEXT.search(wanted.answer.text):
        return _in_words(text, claims, wanted.answer.text, is_last=is_last)
    pieces = _claimed(claims, wanted)
    if concludes:
        pieces = chain(pieces, _concluded(text, wanted, is_last=is_last))
    return any(_same(piece, wanted) for piece in pieces)


@lru_cache(maxsize=4096)
def _read_answer(answer: str) -> _Wanted:
    given = normalize(_plain_fractions(answer))
    shape = read_shape(given.text) if exact.rational(given.text) is None else Shape("value", (given.text,))
    return _Wanted(given, shape, closed_form(shape.items[0]) if shape.kind == "value" else None)


def _plain_fractions(text: str) -> str:
    """Glyphs of fractions as `1/2` behind a blank, so that two and a half in two characters is a mixed number."""
    return _FRACTION_GLYPH.sub(lambda glyph: " " + unicodedata.normalize("NFKC", glyph[0]).replace("\u2044", "/"), text)


def _in_words(text: str, claims: list[str], answer: str, *, is_last: bool) -> bool:
    """Answers such as "no solution" or `x > 3` are compared as texts."""
    words = rf"\W*{re.escape(answer)}(?!\w)"
    ends = is_last and re.search(rf"(?:=|\b(?:{_CONCLUSION}|so|that)\b){words}\W*$", text, re.I)
    return bool(ends) or any(re.match(words, claim, re.I) for claim in claims)


def _claimed(claims: list[str], wanted: _Wanted) -> Iterator[str]:
    """What is called the answer, or boxed."""
    for claim in claims:
        first = next(_formulas(claim[:400], wanted), None)
        if first and not re.search(r"[^\s$({\\]", claim[: first.start()]) and not _CHANGED.match(claim, first.end()):
            yield first[0]


def _concluded(text: str, wanted: _Wanted, *, is_last: bool) -> Iterator[str]:
    """What the main clause ends in, or names: with and without its reasons ("since ...")."""
    whole, is_value = _ASIDE.sub("", text), wanted.shape.kind == "value"
    for end in [len(whole), *[match.start() for match in _REASON.finditer(whole) if match.start()][-3:]]:
        clause = whole[:end]
        formulas = list(islice(_formulas(clause, wanted), _MOST_FORMULAS))
        if not formulas or (end < len(whole) and not re.search(r"=|\d|\b(?:is|are)\b", whole[end:])):
            continue
        last = formulas[-1]
        is_end = _TAIL.fullmatch(clause, last.end()) and not _CHANGED.match(clause, last.end())
        before = clause[: last.start()]
        states = is_last and _NUMBER.fullmatch(last[0]) and re.search(r"[A-Za-z,][\s$({]*$", before)
        if is_end and (not is_value or _CONCLUDES.search(before) or (states and not _RELATES.search(before))):
            yield last[0]
        for formula in formulas if is_last and is_value else []:
            is_named = re.match(r"[\s$]*=", clause[formula.end() :])
            is_whole = wanted.is_peculiar and not is_named and not _CHANGED.match(clause, formula.end())
            if is_whole or _NAME_FOLLOWS.match(clause, formula.end()):
                yield formula[0]


def _formulas(text: str, wanted: _Wanted) -> Iterator[re.Match[str]]:
    """The longest runs of symbols; of lists, if the answer is one."""
    runs = (_FORMULA if wanted.shape.kind == "value" else _LIST).finditer(text)
    return (run for run in runs if re.search(r"[\w%]", run[0]))


def _same(piece: str, wanted: _Wanted) -> bool:
    """Is the piece of a statement the answer, in whatever form?"""
    piece = piece.replace("$", " ").strip(" ,;=")
    for opening, closing in ("()", "[]", "{}"):  # one that has no partner
        if piece.count(opening) != piece.count(closing) and "," not in piece:
            piece = piece.removeprefix(opening) if piece.startswith(opening) else piece.removesuffix(closing)
    given = normalize(piece)
    if given.text == wanted.answer.text:
        return True
    if wanted.shape.kind == "value":
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
    names = [set(re.findall(r"\\[a-zA-Z]+|[a-zA-Z]", text)) - _OPERATIONS for text in (given, wanted)]
    if given == wanted or names[0] != names[1] or len(given) > _LONGEST_ALGEBRA or _HEAVY.search(f"{given} {wanted}"):
        return given == wanted
    return grade_answer(given, wanted).correct
