"""An evaluation question is found behind instructions and other names; another problem of its contest is not it."""

import pytest

from nemo_aopsd.data.overlap import Questions
from nemo_aopsd.data.prepare import prepare
from nemo_aopsd.data.source import read_source
from nemo_aopsd.files import read_jsonl, write_jsonl
from tests import shared

QUESTION = (
    "Let $x$ and $y$ be positive reals such that $x + 3y = 17$ and triangle $ABC$ has sides $x$, $y$ and $7$. The "
    "least perimeter can be written as $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. "
    "Find $m+n$."
)
RENAMED = (
    QUESTION.replace("$x$", "$\\alpha$").replace("$y$", "$b$").replace("x + 3y", "\\alpha+3b").replace("ABC", "PQR")
)
OTHER = (
    "Two dice with $20$ faces are rolled until they show the same number. The expected number of rolls can be written "
    "as $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$."
)
BEFORE = "Solve the following problem. Think step by step, check each step, and state what you use.\n\nProblem: "
AFTER = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


@pytest.mark.parametrize("text", [QUESTION, RENAMED, QUESTION.replace("$", "\\(").replace("17", "$17$")])
@pytest.mark.parametrize(("before", "after"), [("", ""), (BEFORE, ""), ("", AFTER), (BEFORE, AFTER)])
def test_instructions_and_names_hide_nothing_on_either_side(text, before, after):
    assert Questions([QUESTION]).has(before + text + after)
    assert Questions([before + text + after]).has(QUESTION)


@pytest.mark.parametrize("text", [OTHER, BEFORE + OTHER + AFTER, "", "Find $m+n$.", BEFORE + AFTER])
def test_phrases_in_common_are_not_the_question(text):
    assert not Questions([QUESTION, "Find x.", ""]).has(text)


def test_a_row_that_only_adds_words_has_a_reason_of_its_own(tmp_path):
    for name, texts in (("eval", [QUESTION]), ("rows", [QUESTION, BEFORE + QUESTION, RENAMED + AFTER, OTHER])):
        write_jsonl(tmp_path / f"{name}.jsonl", ({"problem": text, "answer": "7"} for text in texts))
    held_out = tmp_path / "eval.jsonl"
    report = prepare(read_source(str(tmp_path / "rows.jsonl")), {}, [held_out], tmp_path / "out.jsonl")
    assert report.kept == 1
    assert report.left_out[f"also in {held_out}"] == 1
    assert report.left_out[f"also in {held_out}, with other words around it"] == 2


def questions_of(name):
    return [(where, record["problem"]) for where, record in read_jsonl(shared(f"{name}.jsonl"))]


@pytest.mark.parametrize(
    ("train", "held_out"),
    [("aime_1983_2023_train", ("aime24", "aime25", "brumo25", "hmmt_feb25")), ("gsm8k_train", ("gsm8k_test1000",))],
)
def test_real_sets_without_common_problems_raise_no_alarm_and_every_copy_is_found(train, held_out):
    evaluated = [question for name in held_out for question in questions_of(name)]
    questions = Questions(text for _, text in evaluated)
    assert [place for place, text in questions_of(train) if questions.has(text)] == []
    assert [place for place, text in evaluated if not questions.has(BEFORE + text + AFTER)] == []
