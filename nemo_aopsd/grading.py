"""Is the final answer right? The last box after the thoughts counts, and nothing else does.

Integers and identical strings are decided here, in microseconds. All else goes to math-verify, which stops itself
by SIGALRM and therefore works only in the main thread: off it, an answer that needs math-verify raises RuntimeError.
Not covered: plus-minus signs, mixed numbers, units in words, prose answers; decimals are equal to six places.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Reason = Literal["correct", "wrong", "no_answer", "ungradable"]

# Order matters: a line break `\\` is no escape of the brace after it, but may stand for `\` before `boxed`.
_BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox|framebox)\s*\{)|\\\\(?!boxed|fbox|framebox)|\\[{}]|(?P<brace>[{}])")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[!,;: ]\s*|~|[\u00a0\u2009\u202f]")
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\b")
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)|°|\\degree\b")
_INTEGER = re.compile(r"([+-]?)([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)")
_TIMEOUT = 5  # seconds for each of reading and comparing


@dataclass(frozen=True, slots=True)
class Grade:
    """`ungradable` (math-verify raised or ran out of time) is not correct either, but is counted apart."""

    correct: bool
    reason: Reason


def is_correct(text: str, answer: str) -> bool:
    """True if the last box of `text` equals `answer`. Raises what `grade` raises."""
    return grade(text, answer).correct


def grade(text: str, answer: str) -> Grade:
    """Compare the last box of a response with the verified answer.

    Raises RuntimeError off the main thread if math-verify is needed, ValueError if `answer` is blank.

    >>> grade(r"so \\boxed{0{,}204}, no: \\boxed{\\text{204}.}", "204")
    Grade(correct=True, reason='correct')
    """
    if not answer.strip():
        raise ValueError("the verified answer is blank")
    extracted = extract_answer(text)
    if extracted is None or not extracted.strip():
        return Grade(False, "no_answer")
    reason = _compare(extracted, answer)
    return Grade(reason == "correct", reason)


def extract_answer(text: str) -> str | None:
    r"""Content of the last balanced `\boxed{...}` (or fbox, framebox) outside `<think>` blocks; None if none.

    A thought that was never closed hides what follows it, so a truncated thought gives no answer.

    >>> extract_answer("<think>\\boxed{1}</think> \\boxed {\\frac{1}{2}} \\boxed{3")
    '\\frac{1}{2}'
    """
    text = text.rpartition("</think>")[2].partition("<think>")[0]
    opened: list[tuple[int, int] | None] = []  # (start of the box, start of its content); None for a plain brace
    best_start, best = -1, None
    for match in _BRACES.finditer(text):
        if match["box"]:
            opened.append((match.start(), match.end()))
        elif match["brace"] == "{":
            opened.append(None)
        elif match["brace"] == "}" and opened and (box := opened.pop()) and box[0] > best_start:
            best_start, best = box[0], text[box[1] : match.start()]
    return best


@lru_cache(maxsize=8192)
def _compare(predicted: str, answer: str) -> Reason:
    predicted, answer = _bare(predicted), _bare(answer)
    light, light_answer = _clean(predicted), _clean(answer)
    integers = _integer(light), _integer(light_answer)
    if None not in integers:
        return "correct" if integers[0] == integers[1] else "wrong"
    return "correct" if light == light_answer else _math_verify(predicted, answer)


def _bare(answer: str) -> str:
    answer = answer.replace("\u2212", "-").strip()
    if _BOX.match(answer):
        answer = extract_answer(answer) or answer
    return _DEGREES.sub("", answer.strip("$ \n\t").removesuffix("."))


def _clean(answer: str) -> str:
    while answer != (answer := _WRAPPED.sub(r"\1", answer)):
        pass
    return _SPACING.sub("", answer.replace("{,}", ",").replace("\\$", "")).strip("$ ").removesuffix(".").strip()


def _integer(text: str) -> str | None:
    """Canonical digits; a string, because `int` refuses more than 4,300 of them."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    digits = match[2].replace(",", "").lstrip("0") or "0"
    return "-" + digits if match[1] == "-" and digits != "0" else digits


def _math_verify(predicted: str, answer: str) -> Reason:
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            f"answer {answer!r} against {predicted!r} needs math-verify, whose time-out (SIGALRM) works only in the "
            "main thread. Grade there, or in a process of its own."
        )
    from math_verify import verify
    from math_verify.errors import TimeoutException  # a BaseException

    try:
        equal = verify(_parse(answer), _parse(predicted), timeout_seconds=_TIMEOUT, raise_on_error=True)
    except (Exception, TimeoutException):  # sympy raises all kinds; every one is counted
        return "ungradable"
    return "correct" if equal else "wrong"


def _parse(answer: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    config = [LatexExtractionConfig(boxed_match_priority=0)]
    return parse(f"\\boxed{{{answer}}}", config, parsing_timeout=_TIMEOUT, raise_on_error=True)
