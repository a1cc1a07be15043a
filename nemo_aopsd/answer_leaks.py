r"""Does a statement give the final answer away, also in another form of the same value?

`dag.words_answer` compares texts; this compares values as well: `0.5` against `\frac{1}{2}`, `2^3 \cdot 13` against
104. Whoever judges a graph (build, check, stats, browse, the start of training) asks here, so that all say the same.
The arithmetic of rationals is done here, in microseconds; other answers are compared by `grading`.
A coincidence of values inside the route is no leak, so what counts is: a claim ("the answer is"), a last checkpoint
that ends in or names the value, and an inner checkpoint that ends in a value too peculiar for a coincidence.
Not covered: a value that has to be worked out from words, and decimals rounded to fewer than two places.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

import networkx as nx

from nemo_aopsd import grading
from nemo_aopsd.dag import Fault, answer_leak, build_graph, find_faults, words_answer

_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_REWRITES = (
    (re.compile(r"[\u2212\u2013]"), "-"),
    (
        re.compile(r"\$|\\[()\[\]!,;: ]|\\left|\\right|\\displaystyle|\\boxed|\\text\s*\{[^{}]*\}|\\q?quad|°|\^\\circ"),
        " ",
    ),
    (re.compile(r"(?<=\d)(?:\{,\}|,)(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\cdot|\\times|×|·|\u2217"), "*"),
    (re.compile(r"\\?%"), "/100"),
    (re.compile(r"[{\[]"), "("),
    (re.compile(r"[}\]]"), ")"),
    (re.compile(r"\^"), "**"),
)
_ARITHMETIC = re.compile(r"[\d.+\-*/()\s]+")
_CONCLUSION = re.compile(r"=|≈|\\approx|\bis\b|\bare\b|\bequals?\b|\bgives?\b|\byields?\b|:", re.IGNORECASE)
_CLAIM = re.compile(r"\banswer\b\W*(?:is|=|:|equals)?|\\boxed", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.^/*+\-])\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?(?![\w^/*+]|\.\d|\s*[=^/*+\-])")
_TAIL = re.compile(r"(?:\s+[A-Za-z]+){1,4}\s*$")  # units and the like after a value
_LONGEST = 120  # characters of a candidate; values that end a statement are short


def find_graph_faults(raw: Any, answer: str | None) -> list[Fault]:
    """`dag.find_faults`, with the leaks by value of a graph that is otherwise sound; errors first."""
    faults = find_faults(raw, answer)
    if not answer or any(fault.is_error and fault.kind != "states_answer" for fault in faults):
        return faults
    warnings = [fault for fault in faults if not fault.is_error]
    return [*find_answer_leaks(build_graph(raw), answer), *warnings]


def find_answer_leaks(graph: nx.DiGraph, answer: str) -> Iterator[Fault]:
    """A `states_answer` fault for each checkpoint that gives `answer` away, as text or by its value."""
    for node, statement in graph.nodes(data="statement"):
        if states_answer(statement, answer, is_last=not graph.succ[node]):
            yield answer_leak(node, statement)


def states_answer(statement: str, answer: str, *, is_last: bool) -> bool:
    """True if the statement gives the answer away; `is_last` says that nothing else requires it.

    >>> states_answer("So the chance is 0.5.", r"\\frac{1}{2}", is_last=True)
    True
    >>> states_answer("x = 2", "2", is_last=False)
    False
    """
    if words_answer(statement, answer, is_last=is_last):
        return True
    if any(
        same_value(text, answer) for claim in _CLAIM.finditer(statement) for text in _values(statement[claim.end() :])
    ):
        return True
    peculiar = _is_peculiar(answer)
    if not is_last and not peculiar:
        return False
    if any(same_value(text, answer) for text in _values(_CONCLUSION.split(statement)[-1])):
        return True
    return is_last and peculiar and any(same_value(match[0], answer) for match in _NUMBER.finditer(statement))


def _values(text: str) -> Iterator[str]:
    """The text as a value, without its full stop, and without words after it."""
    text = text.strip().rstrip(".;,!").strip()
    if 0 < len(text) <= _LONGEST:
        yield text
        if (shorter := _TAIL.sub("", text)) != text:
            yield shorter


def _is_peculiar(answer: str) -> bool:
    """Neither an integer below 100 nor a letter or two; those turn up in any calculation."""
    value = rational(answer)
    return len(_plain(answer)) > 2 if value is None else value.denominator > 1 or abs(value) >= 100


def same_value(text: str, answer: str) -> bool:
    """Equal as rationals (a decimal also if the answer rounds to it), as texts, or by `grading`."""
    given, wanted = rational(text), rational(answer)
    if given is not None and wanted is not None:
        return given == wanted or _rounds_to(wanted, text, given)
    if given is not None or (wanted is not None and not re.search(r"\\sqrt|\\binom|!|\^", text)):
        return False
    return _plain(text) == _plain(answer) or (_is_closed(text) and grading.is_correct(f"\\boxed{{{text}}}", answer))


@lru_cache(maxsize=65536)
def rational(text: str) -> Fraction | None:
    r"""The exact value of plain arithmetic, LaTeX or not; None for anything else.

    >>> rational(r"-\frac{3}{4} \cdot 2"), rational("2^{10}"), rational("1,024"), rational("x + 1")
    (Fraction(-3, 2), Fraction(1024, 1), Fraction(1024, 1), None)
    """
    if len(text) > _LONGEST or not any(char.isdecimal() for char in text):
        return None
    while text != (text := _FRACTION.sub(r"((\1)/(\2))", text)):
        pass
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    if not _ARITHMETIC.fullmatch(text):
        return None
    text = re.sub(r"(?<![\d.])0+(?=\d)", "", text.strip())  # 007 is no Python literal
    try:
        return _evaluate(ast.parse(text, mode="eval").body, text)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr, text: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            return Fraction(ast.get_source_segment(text, node))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _evaluate(operand, text)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _evaluate(left, text), _evaluate(right, text)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return a / b
                case ast.Pow() if b.denominator == 1 and abs(b) <= 256 and a.numerator.bit_length() <= 64:
                    return a ** int(b)
    raise ValueError("not arithmetic")


def _rounds_to(exact: Fraction, text: str, given: Fraction) -> bool:
    places = re.search(r"\.(\d{2,})\s*\W*$", text)
    return bool(places) and 2 * abs(given - exact) <= Fraction(1, 10 ** len(places[1]))


def _plain(text: str) -> str:
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return re.sub(r"\s", "", text)


def _is_closed(text: str) -> bool:
    """No letters but those of commands and of pi and e: a value, not a formula or a sentence."""
    return len(text) <= 80 and not re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+|\bpi\b|\be\b|\bi\b", "", text))
