"""Is the final answer right? Only the last box after the thoughts counts, or the last ones in a row.

Numbers, words, clock times and identical texts are decided here, in microseconds. All else goes to a process of its own
(`process`), where shapes and sets are compared, and values by sympy (`algebra`). Its work is bounded by counting
(`budget`), and a last timer kills it, so `grade` may be called from any thread; in an event loop `grade_async` blocks
nobody.
What is equal to what, and where this differs from math-verify: docs/grading.md.
"""

import asyncio
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from nemo_aopsd.grading import exact
from nemo_aopsd.grading.budget import LONGEST
from nemo_aopsd.grading.extract import announced_answer, extract_answer, is_formula, joined_answer, tagged_answer
from nemo_aopsd.grading.normalize import name_sets, normalize
from nemo_aopsd.grading.process import POOL, GradingCrash, GradingTimeout

__all__ = ["Grade", "Reason", "extract_answer", "grade", "grade_anywhere", "grade_async"]

Reason = Literal["correct", "wrong", "no_answer", "ungradable"]

_SAID: dict[Reason, str] = {
    "correct": "Its answer is right.",
    "wrong": "Its answer is wrong.",
    "no_answer": "It gives no answer, so it counts as wrong.",
    "ungradable": "Its answer cannot be graded, so it counts as wrong.",
}


@dataclass(frozen=True, slots=True)
class Grade:
    """`ungradable` is not correct either, but is counted apart; `cause` then says why.

    Causes: `too much work`, `too long`, `time-out`, or the exception.
    """

    correct: bool
    reason: Reason
    cause: str = field(default="", compare=False)

    def __str__(self) -> str:
        return _SAID[self.reason] + (f" ({self.cause})" if self.cause else "")


def grade(text: str, answer: str) -> Grade:
    """Compare the last box of a response with the verified answer.

    Blocks for seconds on an idle machine, for a minute at most, and for up to two more if a grading process
    must first be started: it loads sympy, which takes long on a busy machine. Raises ValueError if `answer` is blank.

    >>> grade(r"so \\boxed{0{,}204}, no: \\boxed{\\text{204}.}", "204").reason
    'correct'
    """
    return grade_answer(joined_answer(text), answer)


async def grade_async(text: str, answer: str) -> Grade:
    """`grade` for a coroutine: other tasks of the event loop go on while an answer is compared."""
    return await asyncio.to_thread(grade, text, answer)


def grade_answer(predicted: str | None, answer: str) -> Grade:
    """Compare an extracted answer, None if there was none."""
    if not answer.strip():
        raise ValueError("the verified answer is blank")
    if predicted is None or not predicted.strip():
        return _graded(None)
    if predicted.strip() == answer.strip():
        return _graded(True)
    if len(predicted) <= LONGEST:
        return _compare_short(predicted, answer)
    given, wanted = exact.integer(predicted.strip()), exact.integer(answer.strip())
    return _graded(given == wanted) if given and wanted else Grade(False, "ungradable", "too long")


def grade_anywhere(text: str, answer: str) -> Grade:
    """As `grade`, but a text without a box counts by an answer tag, or else by what math-verify finds in it.

    For test suites of other graders only: it pays an answer that a truncated response mentions on its way.
    """
    predicted = announced_answer(text) or joined_answer(text)
    if predicted is None:
        predicted = tagged_answer(text)
    if predicted is None and is_formula(text):
        predicted = text
    return _ask("anywhere", text, answer) if predicted is None else grade_answer(predicted, answer)


@lru_cache(maxsize=8192)
def _compare_short(predicted: str, answer: str) -> Grade:
    decided = exact.same(name_sets(normalize(predicted)), name_sets(normalize(answer)))
    if decided is not None:
        return _graded(decided)
    return _ask("same", predicted, answer)


def _ask(operation: str, predicted: str, answer: str) -> Grade:
    try:
        return _graded(POOL.ask(operation, predicted, answer))
    except GradingTimeout:
        return Grade(False, "ungradable", "time-out")
    except GradingCrash as error:
        return Grade(False, "ungradable", str(error))


def _graded(equal: bool | None) -> Grade:
    return Grade(bool(equal), "no_answer" if equal is None else "correct" if equal else "wrong")
