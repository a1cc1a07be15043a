"""Work is counted and not timed: a verdict depends on the answers alone."""

import gc
import io
import json

import pytest

from nemo_aopsd.files import jsonl
from nemo_aopsd.grading import algebra, budget, grade
from nemo_aopsd.grading.budget import Overspent
from nemo_aopsd.grading.worker import answer_requests

FACTORIALS = "26! \\times 33554432", "2^{25} \\cdot 26!"


def calls(predicted, gold):
    """The smallest budget that suffices, given that the formulas are parsed."""
    low, high = 0, 2**18
    while low < high:
        middle = (low + high) // 2
        algebra.same_value.cache_clear()
        try:
            with budget.budget(middle):
                assert algebra.same_answer(predicted, gold)
            high = middle
        except Overspent:
            low = middle + 1
    return low


@pytest.fixture
def no_collection():
    """Finalizers of other tests' garbage would be counted wherever a collection falls."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_comparison_costs_the_same_whatever_was_compared_before():
    algebra.same_answer(*FACTORIALS)
    first = calls(*FACTORIALS)
    for answers in (("\\frac{9}{\\sqrt{23}}", "\\frac{9 \\sqrt{23}}{23}"), ("x^2+2x+1", "(x+1)^2"), FACTORIALS):
        assert algebra.same_answer(*answers)
    assert 0 < first < 100_000 and calls(*FACTORIALS) == first


def test_beyond_its_budget_a_comparison_ends_and_the_next_one_is_decided():
    asked = [("same", "x^{9^{9^9}}", "x+2"), ("same", "2+x", "x+2"), ("same", "3", "()"), ("anywhere", "no idea", "7")]
    requests = (dict(zip(("operation", "predicted", "gold"), request, strict=True)) for request in asked)
    replies = io.StringIO()
    answer_requests(io.StringIO(jsonl(requests)), replies)
    beyond, decided, unread, empty = map(json.loads, replies.getvalue().splitlines())
    assert beyond["error"].startswith("too much work") and decided == {"verdict": True} and empty == {"verdict": None}
    assert unread["error"].startswith("ValueError: math-verify cannot read the gold answer")


@pytest.mark.parametrize(
    "answer", ["2^{2^{2^{2^{2^2}}}}", "(10^7)!", "{" * 16 + "x" + "}" * 16, "x+" * 501 + "1", "|x" * 13]
)
def test_what_is_too_large_is_undecided_and_says_so(answer):
    given = grade(f"\\boxed{{{answer}}}", "\\sqrt{7}")
    assert (given.correct, given.reason) == (False, "ungradable") and given.cause.startswith("too much work")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("2004! \\cdot 2005", "2005!"),
        ("2021^{2021}", "2021 \\cdot 2021^{2020}"),
        ("10^{\\frac{\\sqrt{13}-5}{6}}", "10^{\\frac{-5+\\sqrt{13}}{6}}"),
        ("e^{\\frac{2431}{50}}", "e^{48.62}"),
    ],
)
def test_large_numbers_of_real_answers_are_compared(answer, gold):
    assert grade(f"\\boxed{{{answer}}}", gold).reason == "correct"
