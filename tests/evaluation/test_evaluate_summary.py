"""Majority votes, macro averages and their counts, by hand."""

import re

import pytest

from nemo_aopsd.evaluation.figure import pass_at_k_figure
from nemo_aopsd.evaluation.summary import Vote, macro_average, per_problem, summarize, vote
from nemo_aopsd.evaluation.tables import ends
from nemo_aopsd.stats import macro_bootstrap_interval, wilson_interval


def line(answer, *, correct=False, reason=None, problem="p", **changes):
    text = "no box" if answer is None else f"\\boxed{{{answer}}}"
    reason = reason or ("correct" if correct else "no_answer" if answer is None else "wrong")
    values = {"finished": True, "leak": False, "num_tokens": 10}
    return {"problem_id": problem, "response_text": text, "correct": correct, "reason": reason, **values, **changes}


RIGHT = line("7", correct=True)
NONE = line(None)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([RIGHT], Vote(1.0, False)),
        ([line("8")], Vote(0.0, False)),
        ([RIGHT, RIGHT, line("8")], Vote(1.0, False)),
        ([RIGHT, line("8"), line("8")], Vote(0.0, False)),
        ([RIGHT, line("8")], Vote(0.5, True)),
        ([RIGHT, line("8"), line("9")], Vote(1 / 3, True)),
        ([RIGHT, line("8"), line("8"), line("9"), line("9")], Vote(0.0, True)),
        ([RIGHT, NONE, NONE, NONE], Vote(1.0, False)),  # silence is no vote
        ([NONE, NONE], Vote(0.0, False)),
        # right answers are one class however they are written
        ([RIGHT, line("7.0", correct=True), line("8"), line("8"), line("\\frac{14}{2}", correct=True)], Vote(1, False)),
        # so are wrong ones that the grader takes for each other
        ([RIGHT, line("\\frac{1}{2}"), line("0.5")], Vote(0.0, False)),
        # an answer that it could not judge is compared as text only
        ([RIGHT, line("0.5", reason="ungradable"), line("\\frac{1}{2}")], Vote(1 / 3, True)),
        ([RIGHT, line("??", reason="ungradable"), line("??", reason="ungradable")], Vote(0.0, False)),
    ],
)
def test_votes_by_hand(lines, expected):
    assert vote(lines) == expected
    assert vote(lines[::-1]) == expected  # the order of samples decides nothing


def benchmark(counts, num_samples, **changes):
    """One problem a count; wrong samples all differ, so a problem's majority is right if it has two right ones."""
    lines = [
        line(f"{100 + sample}", problem=f"p{index}", **changes)
        if sample >= count
        else line("7", correct=True, problem=f"p{index}", **changes)
        for index, count in enumerate(counts)
        for sample in range(num_samples)
    ]
    return summarize(lines, num_samples)


def test_one_benchmark_by_hand():
    found = benchmark([0, 1, 4, 4], 4)
    assert (found["num_problems"], found["num_responses"], found["num_correct"], found["num_solved"]) == (4, 16, 9, 3)
    assert found["pass_at_k"] == {
        "1": pytest.approx(9 / 16),
        "2": pytest.approx((0 + 1 / 2 + 2) / 4),
        "3": pytest.approx((0 + 3 / 4 + 2) / 4),
        "4": 0.75,
    }
    low, high = wilson_interval(3, 4)
    assert found["solved_wilson_interval"] == {"low": low, "high": high}
    majority = found["majority"]
    assert majority["credit_per_problem"] == [0.0, 0.25, 1.0, 1.0]
    assert (majority["rate"], majority["count"]) == (0.5625, 2.25)
    assert majority["ties"] == 2
    assert majority["interval"]["low"] < 0.5625 < majority["interval"]["high"]


def test_where_all_problems_are_right_or_all_wrong_an_interval_is_wilson_s():
    """A bootstrap would have no width. A mean of 2 and of 6 problems varies like one of 4 / (1/2 + 1/6) = 6."""
    for count, rate in ((0, 0.0), (2, 1.0)):
        one, other = benchmark([count] * 2, 2), benchmark([count] * 6, 2)
        for found, trials in ((one, 2), (other, 6), (macro_average([one, other]), 6)):
            low, high = wilson_interval(int(rate) * trials, trials)
            intervals = [*found["pass_at_k_interval"].values(), found["majority"]["interval"]]
            assert intervals == 3 * [{"low": low, "high": high}]
    assert ends(**benchmark([1, 1, 1], 2)["pass_at_k_interval"]["1"]) == "[no interval: all alike]"


def test_responses_by_hand():
    lines = [
        line(None, problem="a", finished=False, num_tokens=20),
        line("1", problem="a", leak=True, num_tokens=2),
        line("1", problem="b", finished=False, num_tokens=6),
        line("2", problem="b", reason="ungradable", num_tokens=4),
    ]
    found = summarize(lines, 2)
    assert (found["truncation_rate"], found["truncation_count"]) == (0.5, 2)
    assert (found["leak_rate"], found["leak_count"]) == (0.25, 1)
    assert (found["mean_tokens"], found["no_answer"], found["ungradable"]) == (8, 1, 1)


def test_the_mean_over_benchmarks_weighs_each_alike():
    one, other = benchmark([2, 0, 1], 2, num_tokens=30, finished=False), benchmark([2], 2)
    found = macro_average([one, other])
    assert found["pass_at_k"] == {"1": pytest.approx((0.5 + 1) / 2), "2": pytest.approx((2 / 3 + 1) / 2)}
    for k in (1, 2):
        low, high = macro_bootstrap_interval(per_problem([one, other], k))
        assert found["pass_at_k_interval"][str(k)] == {"low": low, "high": high}
    assert per_problem([one, other], 1) == [[1.0, 0.0, 0.5], [1.0]]
    assert (found["num_benchmarks"], found["num_problems"], found["num_responses"]) == (2, 4, 8)
    assert (found["num_correct"], found["num_solved"]) == (5, 3)
    assert (found["truncation_rate"], found["leak_rate"], found["mean_tokens"]) == (0.5, 0.0, 20.0)
    assert found["majority"]["count"] == one["majority"]["count"] + other["majority"]["count"]
    assert found["majority"]["rate"] == pytest.approx((one["majority"]["rate"] + 1) / 2)


def test_the_figure_has_a_panel_a_benchmark_and_one_for_the_mean():
    parts = {name: benchmark([index, 2, 0], 4) for index, name in enumerate("ab")}
    figure = pass_at_k_figure({"benchmarks": parts, "macro": macro_average(list(parts.values()))})
    titles = re.findall(r">([a-z ]+) \(n = (\d+)\)<", figure)
    assert titles == [("a", "3"), ("b", "3"), ("mean over benchmarks", "6")]


def test_no_mean_over_different_numbers_of_samples():
    with pytest.raises(ValueError, match="unpack"):
        macro_average([benchmark([1], 1), benchmark([1], 2)])
