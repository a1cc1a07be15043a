"""majority@N: is the most frequent answer of a problem's N samples correct?

Samples vote with their final answers; one without an answer does not vote, and a problem where none votes is wrong.
All correct answers are one class. Wrong ones are in one class if their texts are equal or the grader takes one for the
other; answers that the grader could not judge are compared as texts only. Where several classes share the most votes
the credit is the chance that a fair draw among them is right, 1 / (number of such classes) or 0: no order of samples
or strings decides a tie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_aopsd.grading import extract_answer, grade


@dataclass(frozen=True, slots=True)
class Vote:
    """`credit` in [0, 1]; `tied` if several classes share the most votes."""

    credit: float
    tied: bool


def vote(lines: Sequence[Mapping[str, Any]]) -> Vote:
    """The vote of one problem's samples, from `response_text`, `correct` and `reason` of their lines."""
    num_correct = sum(line["correct"] for line in lines)
    classes = _wrong_classes([line for line in lines if not line["correct"] and line["reason"] != "no_answer"])
    most = max([num_correct, *classes])
    num_top = (num_correct == most) + classes.count(most)
    if most == 0:
        return Vote(0.0, False)
    return Vote(1 / num_top if num_correct == most else 0.0, num_top > 1)


def _wrong_classes(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """Sizes of the classes of equal answers; the first of a class stands for it."""
    first: list[tuple[str, bool]] = []  # (answer, can the grader read it)
    sizes: list[int] = []
    for line in lines:
        answer, readable = extract_answer(line["response_text"]) or "", line["reason"] != "ungradable"
        for index, (other, other_readable) in enumerate(first):
            if answer == other or (readable and other_readable and grade(f"\\boxed{{{answer}}}", other).correct):
                sizes[index] += 1
                break
        else:
            first.append((answer, readable))
            sizes.append(1)
    return sizes
