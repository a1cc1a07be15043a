"""The grader against labelled cases and evaluation golds, and the command that does it for a user's files."""

import pytest
from typer.testing import CliRunner

from nemo_aopsd.cli.app import app
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_jsonl, write_jsonl
from nemo_aopsd.grading import grade
from nemo_aopsd.grading.cases import grade_cases, load_cases
from tests import REPO, shared

WRAPPINGS = [
    "\\boxed{%s}",
    "\\boxed{$%s$}",
    "\\boxed {%s}.",
    "<think>\\boxed{7}</think>\n\\fbox{%s}",
    "\\boxed{\\text{The answer is } %s}",
    "\\boxed{x = %s}",
    "\\boxed{\\displaystyle %s.}",
    "\\boxed{\\boxed{%s}}",
    "\\(\\boxed{ %s\\, }\\)",
    "\\boxed{\\left(%s\\right)}",
    "\\boxed{%s\\text{ units}}",
    "\\[\n\\boxed{\\{%s\\}}\n\\]",
]
DISAGREEMENTS = {  # each is explained in docs/grading.md
    *("g0139", "g0368"),  # decimals of few digits
    *("g0187", "g0282", "p099"),
}


def golds():
    names = ("aime24", "aime25", "hmmt_feb25", "brumo25")
    return [str(row["answer"]) for name in names for _, row in read_jsonl(shared(f"{name}.jsonl"))]


def test_golds_of_the_evaluation_sets_match_themselves_in_every_wrapping():
    answers = golds()
    assert len(answers) == 120
    failed = [wrap % answer for answer in answers for wrap in WRAPPINGS if not grade(wrap % answer, answer).correct]
    assert failed == []
    assert [answer for answer in answers if grade(f"\\boxed{{{answer} + 1}}", answer).reason != "wrong"] == []


def test_no_gold_matches_the_gold_of_another_problem():
    distinct = sorted(set(golds()))
    assert len(distinct) == 110
    confused = [(one, other) for one in distinct for other in distinct if one < other and grade_of(one, other)]
    assert confused == []


def test_equivalent_pairs_and_near_misses_of_real_golds():
    loaded = load_cases(shared("grading_pairs.jsonl"))
    graded = list(zip(loaded, grade_cases(loaded), strict=True))
    assert sum(case.expected and not given.correct for case, given in graded) <= 4  # of 439: 1 %
    assert sum(given.correct and not case.expected for case, given in graded) == 0  # of 409: 0.2 %


def grade_of(one, other):
    return grade(f"\\boxed{{{one}}}", other).reason != "wrong"


def test_labelled_cases_agree_but_for_the_explained_ones():
    loaded = [case for name in ("cases", "probes") for case in load_cases(shared(f"grading_{name}.jsonl"))]
    judged = [(c, g) for c, g in zip(loaded, grade_cases(loaded), strict=True) if c.expected is not None]
    differing = {case.name for case, given in judged if given.correct != case.expected}
    assert differing <= DISAGREEMENTS
    explained = (REPO / "docs/grading.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in explained for name in DISAGREEMENTS)
    assert {case.name for case, given in judged if given.correct and not case.expected} <= {"g0187"}
    assert len(judged) - len(differing) >= 0.99 * len(judged)


ROWS = [
    {"id": "a", "gold": "1/2", "output": "\\boxed{0.5}", "expected": True},
    {"id": "b", "gold": "7", "output": "The answer is 7", "expected": True},
    {"id": "c", "gold": 7, "output": "\\boxed{8}", "expected": True},
    {"id": "d", "gold": "7", "output": "8", "expected": False, "adjudicated": None, "output_kind": "bare_answer"},
    {"id": "e", "gold": "\\boxed{7}", "output": "7", "expected": True, "output_kind": "bare_answer"},
]


def invoke(*arguments):
    return CliRunner().invoke(app, ["grade", *map(str, arguments)], catch_exceptions=False)


def test_disagreements_are_printed_and_the_last_line_counts(tmp_path):
    file = tmp_path / "cases.jsonl"
    write_jsonl(file, ROWS)
    lines = invoke("--cases", file, "--out", tmp_path / "out.jsonl").output.splitlines()
    assert lines[0].startswith("c: expected correct, graded wrong: gold '7'")
    assert "d: set aside as a convention, graded wrong" in lines
    assert lines[-2:] == ["1 set aside as conventions", "3 of 4 agree"]
    assert [row["correct"] for _, row in read_jsonl(tmp_path / "out.jsonl")] == [True, True, False, False, True]
    assert invoke("--cases", file, "--boxed").output.splitlines()[-1] == "2 of 4 agree"


def test_responses_have_one_line_each(tmp_path):
    rows = [
        {"id": "a", "answer": 7, "output": "\\boxed{7}"},
        {"id": "a", "answer": "7", "output": "7"},
        {"id": "b", "answer": "()", "output": "\\boxed{3}"},
    ]
    write_jsonl(tmp_path / "responses.jsonl", rows)
    lines = invoke(tmp_path / "responses.jsonl").output.splitlines()
    assert lines[:2] == ["a: correct", "a: no_answer"] and lines[2].startswith("b: ungradable (ValueError: math-verify")
    assert len(lines) == 5 and lines[-1] == "1 of 3 correct"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no rows"),
        ("{", "broken JSON"),
        ("[]", "cases.jsonl:1: expected a JSON object on each line, got a JSON array"),
        (b"\n\xe9", "cases.jsonl:2: byte 0 is not UTF-8. Save the file as UTF-8."),
        ('{"gold": "1", "output": "1"}', "gold, output, expected"),
        ('{"gold": "1", "output": "1", "expected": 1}', "not true, false or null"),
        ('{"gold": " ", "output": "1", "expected": true}', "gold is ' '"),
        ('{"gold": "1", "output": null, "expected": true}', "output is None"),
    ],
)
def test_a_broken_file_names_its_line(tmp_path, content, message):
    path = tmp_path / "cases.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match="cases") as caught:
        load_cases(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "one file"), (["x.jsonl", "--cases", "y.jsonl"], "one file"), (["x.jsonl", "--boxed"], "--boxed goes with")],
)
def test_one_kind_of_file_at_a_time(arguments, message):
    with pytest.raises(UserError, match=message):
        invoke(*arguments)
