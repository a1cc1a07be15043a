"""Which part of a response is its final answer: the last balanced box after the thoughts."""

import re
from typing import NamedTuple

from nemo_aopsd.thoughts import after_thoughts

# Order matters: a line break `\\` is no escape of the brace after it, but may stand for `\` before `boxed`.
_BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\\\(?!boxed|fbox)|(?P<escaped>\\[{}])|(?P<brace>[{}])")
_SPACE = r"(?:\s|\\quad|\\qquad|\\[,;:! ()\[\]]|\$)*"
_NAME = r"[A-Za-z](?:_\w|_\{\w+\})?"
_JOINT = re.compile(
    rf"{_SPACE}(?:[,;+]+|or|\\text\{{\s*or\s*\}}){_SPACE}(?:{_NAME}{_SPACE}={_SPACE})?\\?|[^.!?\n]*\band\b[^.!?\n]*"
)
_LONGEST_JOINT = 32  # characters; more than that is a new thought
_UNCLOSED = re.compile(r"\\(?:boxed|fbox)\s*\{(.*)", re.DOTALL)
_TAGGED = re.compile(
    r"<answer>(.*?)</answer>|#### *([^\n]+)|final answer is:?\s*\$+([^$\n]{1,80})\$|^\s*\$+([^$]+)\$+\s*$", re.DOTALL
)
_ANNOUNCED = re.compile(r"[Ff]inal answer is:?\s*\$([^$\n]{1,80})\$\.?\s+I hope it is correct")
_FORMULA = re.compile(r"(?:\\[A-Za-z]+|and|or|[A-Za-z](?![a-z])|[\d_]|[^\w\n])+")


class _Box(NamedTuple):
    start: int
    inner: int
    end: int


def extract_answer(text: str) -> str | None:
    r"""Content of the last balanced `\boxed{...}` (or fbox) outside of thoughts; None if none.

    A thought that was never closed hides what follows it, so a truncated thought gives no answer.

    >>> extract_answer("<think>\\boxed{1}</think> \\boxed {\\frac{1}{2}} \\boxed{3")
    '\\frac{1}{2}'
    """
    text = after_thoughts(text)
    boxes = _boxes(text)
    return text[boxes[-1].inner : boxes[-1].end - 1] if boxes else None


def joined_answer(text: str) -> str | None:
    r"""As `extract_answer`, but boxes in a row, as one writes several roots, are one list.

    In a row means nothing between them but a comma or `or`, a name and `=`, or a few words around `and`.

    >>> joined_answer("$\\boxed{1}$ and $\\boxed{2}$")
    '1, 2'
    """
    text = after_thoughts(text)
    boxes = _boxes(text)
    if not boxes:
        return None
    last = len(boxes) - 1
    while last > 0 and _joined(text[boxes[last - 1].end : boxes[last].start]):
        last -= 1
    return ", ".join(text[box.inner : box.end - 1] for box in boxes[last:])


def _joined(between: str) -> bool:
    return len(between) <= _LONGEST_JOINT and _JOINT.fullmatch(between) is not None


def tagged_answer(text: str) -> str | None:
    """What a text without a box calls its answer: a tag, `####`, "final answer is", an unclosed box; None if none."""
    if unclosed := _UNCLOSED.search(text, max(text.rfind("\\" + name) for name in ("boxed", "fbox"))):
        return extract_answer(unclosed[0] + "}")
    tagged = ["".join(groups) for groups in _TAGGED.findall(text)]
    return tagged[-1] if tagged else None


def announced_answer(text: str) -> str | None:
    """That of the sentence with which few-shot prompts for MATH make a response end; None without it.

    >>> announced_answer("so 3. Final Answer: The final answer is $5$. I hope it is correct.")
    '5'
    """
    found = _ANNOUNCED.findall(text)
    return found[-1] if found else None


def is_formula(text: str) -> bool:
    """Whether a text is one line of mathematics, with no word in it but `and` and `or`.

    >>> is_formula("f(x)=2 or f(x)=3"), is_formula("it is 2")
    (True, False)
    """
    return _FORMULA.fullmatch(text.strip()) is not None


def _boxes(text: str) -> list[_Box]:
    r"""Balanced boxes in the order in which they start, a box inside a box in place of the outer one.

    The last box may end in `\}` if nothing else closes it: a stray backslash.
    """
    opened: list[tuple[int, int] | None] = []  # (start of the box, start of its content); None for a plain brace
    found: list[_Box] = []
    stray: _Box | None = None
    for match in _BRACES.finditer(text):
        if match["box"]:
            opened.append((match.start(), match.end()))
        elif match["brace"] == "{":
            opened.append(None)
        elif match["brace"] == "}" and opened and (box := opened.pop()) and not (found and found[-1].start > box[0]):
            found.append(_Box(*box, match.end()))
        elif match["escaped"] == "\\}" and opened and (box := opened[-1]):
            stray = _Box(*box, match.end())
    if stray and (stray.start, stray.inner) in opened and "\\{" not in text[stray.inner :]:
        found.append(stray)
    return found
