"""From graded lines to numbers: one benchmark, and the unweighted mean over several.

Intervals are 95 %. Problems are the independent units: bootstrap intervals resample problems, never single responses.
Wilson intervals are given for the one plain rate, problems solved by any of their N samples (pass@N), and in place of
a bootstrap where all problems have 0 or all have 1, for there it would have no width.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from nemo_aopsd.errors import UserError
from nemo_aopsd.grading import extract_answer, grade
from nemo_aopsd.stats import macro_bootstrap_interval, mean_pass_at_k, pass_at_k, wilson_interval

Summary = dict[str, Any]
RATES = ("truncation_rate", "leak_rate")


def check_same_problems(
    which: str, first: Iterable[str], second: Iterable[str], remedy: str = "Compare evaluations of the same file."
) -> None:
    """Raises UserError if two evaluations, which `which` names, are not of the same problems."""
    if odd := sorted(set(first) ^ set(second)):
        raise UserError(f"{which}: {len(odd)} problems are in one of the two only, such as {odd[0]!r}. {remedy}")


def summarize(lines: Sequence[Mapping[str, Any]], num_samples: int) -> Summary:
    """Counts, rates and intervals of the lines of one benchmark, `num_samples` a problem.

    pass@k for every k up to `num_samples`; pass@1 is avg@N.
    """
    by_problem: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        by_problem.setdefault(line["problem_id"], []).append(line)
    correct = {problem: sum(line["correct"] for line in group) for problem, group in by_problem.items()}
    solved = sum(count > 0 for count in correct.values())
    leaks, truncated = sum(line["leak"] for line in lines), sum(not line["finished"] for line in lines)
    votes = [vote(group) for group in by_problem.values()]
    credits, ks = [one.credit for one in votes], range(1, num_samples + 1)
    return {
        "num_problems": len(correct),
        "num_samples": num_samples,
        "num_responses": len(lines),
        "num_correct": sum(correct.values()),
        "pass_at_k": {str(k): mean_pass_at_k(correct.values(), num_samples, k) for k in ks},
        "pass_at_k_interval": {
            str(k): _interval([[pass_at_k(num_samples, count, k) for count in correct.values()]]) for k in ks
        },
        "num_solved": solved,
        "solved_wilson_interval": _ends(wilson_interval(solved, len(correct))),
        "majority": {**_credits([credits]), "ties": sum(one.tied for one in votes), "credit_per_problem": credits},
        "correct_per_problem": correct,
        "leak_rate": leaks / len(lines),
        "leak_count": leaks,
        "truncation_rate": truncated / len(lines),
        "truncation_count": truncated,
        "mean_tokens": fmean([line["num_tokens"] for line in lines]),
        "no_answer": sum(line["reason"] == "no_answer" for line in lines),
        "ungradable": sum(line["reason"] == "ungradable" for line in lines),
    }


def macro_average(summaries: Sequence[Summary]) -> Summary:
    """The unweighted mean over benchmarks (the paper's "Avg."), and counts summed over them.

    Intervals resample the problems within each benchmark. All have the same N, without which pass@k has no mean.
    """
    (num_samples,) = {summary["num_samples"] for summary in summaries}
    ks = range(1, num_samples + 1)
    return {
        "num_benchmarks": len(summaries),
        "num_samples": num_samples,
        **{key: sum(summary[key] for summary in summaries) for key in _COUNTS},
        "pass_at_k": {str(k): fmean([summary["pass_at_k"][str(k)] for summary in summaries]) for k in ks},
        "pass_at_k_interval": {str(k): _interval(per_problem(summaries, k)) for k in ks},
        "majority": {
            **_credits([summary["majority"]["credit_per_problem"] for summary in summaries]),
            "ties": sum(summary["majority"]["ties"] for summary in summaries),
        },
        **{key: fmean([summary[key] for summary in summaries]) for key in (*RATES, "mean_tokens")},
    }


_COUNTS = ("num_problems", "num_responses", "num_correct", "num_solved", "no_answer", "ungradable")


def per_problem(summaries: Sequence[Summary], k: int) -> list[list[float]]:
    """pass@k of each problem of each benchmark."""
    return [
        [pass_at_k(summary["num_samples"], count, k) for count in summary["correct_per_problem"].values()]
        for summary in summaries
    ]


def _credits(groups: Sequence[Sequence[float]]) -> Summary:
    """Credits of the problems of each benchmark: their mean over benchmarks, and their sum."""
    return {
        "rate": fmean(map(fmean, groups)),
        "count": math.fsum(math.fsum(group) for group in groups),
        "interval": _interval(groups),
    }


def _interval(groups: Sequence[Sequence[float]]) -> dict[str, float]:
    """Of the mean over benchmarks of each one's mean; Wilson counts as many trials as would vary like that mean."""
    if {value for group in groups for value in group} in ({0.0}, {1.0}):
        trials = round(len(groups) ** 2 / sum(1 / len(group) for group in groups))
        return _ends(wilson_interval(trials * int(groups[0][0]), trials))
    return _ends(macro_bootstrap_interval(groups))


def _ends(interval: tuple[float, float]) -> dict[str, float]:
    return {"low": interval[0], "high": interval[1]}


class Vote(NamedTuple):
    """`credit` in [0, 1]; `tied` if several classes share the most votes."""

    credit: float
    tied: bool


def vote(lines: Sequence[Mapping[str, Any]]) -> Vote:
    """majority@N: is the most frequent answer of a problem's N samples correct?

    Samples vote with their final answers. One without an answer does not vote; a problem where none votes is wrong.
    All correct answers are one class. Wrong ones are in one class if their texts are equal or the grader takes one for
    the other; answers that the grader could not judge are compared as texts only. Where several classes share the most
    votes, the credit is the chance that a fair draw among them is right, 1 / (number of such classes) or 0: no order
    of samples or strings decides a tie.
    """
    num_correct = sum(line["correct"] for line in lines)
    classes = _wrong_classes([line for line in lines if not line["correct"] and line["reason"] != "no_answer"])
    most = max([num_correct, *classes])
    num_top = (num_correct == most) + classes.count(most)
    if most == 0:
        return Vote(0.0, False)
    return Vote(1 / num_top if num_correct == most else 0.0, num_top > 1)


def _wrong_classes(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """Sizes of the classes of equal answers; the first of a class stands for it."""
    sizes: dict[tuple[str, bool], int] = {}  # by answer, and whether the grader can read it
    for line in lines:
        answer, readable = extract_answer(line["response_text"]) or "", line["reason"] != "ungradable"
        for other, other_readable in sizes:
            if answer == other or (readable and other_readable and grade(f"\\boxed{{{answer}}}", other).correct):
                sizes[other, other_readable] += 1
                break
        else:
            sizes[answer, readable] = 1
    return [*sizes.values()]
