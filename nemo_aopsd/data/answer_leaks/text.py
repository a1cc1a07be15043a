"""A text of prose and LaTeX, cleaned once (glyphs, spacing, thousands, units, degrees) and cut into tokens."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

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


class Token(NamedTuple):
    """`kind`: num, word, cmd (`\\name`), edge (`$` and the like) or op; `start` is its place in the cleaned text."""

    kind: str
    text: str
    start: int
    after_blank: bool


def words(text: str) -> frozenset[str]:
    """The set of what stands between the blanks."""
    return frozenset(text.split())


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
