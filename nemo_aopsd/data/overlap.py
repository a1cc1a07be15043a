r"""Is a question one of an evaluation set, with instructions around it or other names for its variables?

Questions are cut into words. Runs of eight words that two questions share are marked in both; if they cover 75 % of the
shorter one, it is the same question. So "Put your final answer in \boxed{}." before or after it hides nothing,
while the phrases of a contest ("where m and n are relatively prime positive integers") cover too little to count.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

_RUN = 8  # words
_COVERED = 0.75
_SHORTEST = 5  # words of a question that is looked for at all
LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|text|textbf|mathrm|mathbf|operatorname|q?quad|[lc]?dots|[bB]igg?[lr]?)(?![a-zA-Z])"
    r"|\\[,;:! ()\[\]]"
)
_GREEK = re.compile(r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|omega|(?:var)?phi|psi|(?:var)?epsilon)(?![a-zA-Z])")
_WORD = re.compile(r"[^\W\d_]+|\d+")
_NAME = re.compile(r"[^\W\d_]|[A-Z]{2,4}")  # of a variable, or of a figure by its points
_VARIABLE = "?"


def words(text: str) -> tuple[str, ...]:
    r"""Words and numbers without case, punctuation and layout; all variables are the same word.

    >>> words("Find $\\left(x+10\\right)^2$ if $AB$ is even.") == words("find (\\theta + 10)^{2}, if PQ is even")
    True
    """
    text = _GREEK.sub(" x ", LAYOUT.sub(" ", unicodedata.normalize("NFKC", text)))
    text = re.sub(r"\\[dt]frac", "frac", text)
    return tuple(_VARIABLE if _NAME.fullmatch(word) else word.casefold() for word in _WORD.findall(text))


class Questions:
    """Those of an evaluation set."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._num_words: list[int] = []
        self._runs: defaultdict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)  # (question, first word)
        for question, text in enumerate(texts):
            found = words(text)
            length = min(_RUN, len(found))
            for start in range(len(found) - length + 1 if length >= _SHORTEST else 0):
                self._runs[found[start : start + length]].append((question, start))
            self._num_words.append(len(found))
        self._lengths = {len(run) for run in self._runs}

    def has(self, text: str) -> bool:
        """Whether the text repeats one of them."""
        given = words(text)
        covered: defaultdict[int, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
        for length in self._lengths:
            for start in range(len(given) - length + 1):
                for question, at in self._runs.get(given[start : start + length], ()):
                    covered[question][0].update(range(start, start + length))
                    covered[question][1].update(range(at, at + length))
        return any(
            min(len(ours), len(theirs)) >= _COVERED * min(len(given), self._num_words[question])
            for question, (ours, theirs) in covered.items()
        )
