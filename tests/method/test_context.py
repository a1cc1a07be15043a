"""What each side reads. Student and teacher share the question; only the teacher sees the privileged block."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nemo_aopsd.cluster.plan.workload import Assumed, _context_tokens
from nemo_aopsd.config.schema import CHOICES
from nemo_aopsd.data.dag import build_graph, serialize
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import (
    FIELD,
    check_problems,
    disclose,
    disclosed_share,
    donors_for,
    has_context,
    student_messages,
    teacher_messages,
)
from tests import raw_graph

DIAMOND = raw_graph("abcd", ["ab", "ac", "bd", "cd"])
PROBLEM = Problem(
    id="p1",
    problem="Find {context} and \\boxed{}.",
    answer="7",
    where="problems.jsonl:3",
    solution="First \\frac{1}{2}, then {problem}.",
    plan=("halve", "double"),
    subproblems=("Half of what?", "And twice?"),
    dag=build_graph(DIAMOND),
)
DONOR = replace(PROBLEM, id="p2", problem="Another question", solution="Another solution")


def teacher_text(kind, **options):
    (message,) = teacher_messages(PROBLEM, kind, "default", **options)
    assert message["role"] == "user"
    return message["content"]


def test_the_student_reads_the_bare_question():
    (message,) = student_messages(PROBLEM, "default")
    assert message["role"] == "user"
    assert message["content"].startswith(PROBLEM.problem + "\n")
    assert "\\boxed{}" in message["content"].removeprefix(PROBLEM.problem)
    for secret in (PROBLEM.solution, "halve", "Half of what?", "fact a"):
        assert secret not in message["content"]


@pytest.mark.parametrize(
    ("kind", "options", "block"),
    [
        ("solution", {}, "First \\frac{1}{2}, then {problem}."),
        ("plan", {}, "1. halve\n2. double"),
        ("subproblems", {}, "1. Half of what?\n2. And twice?"),
        ("dag_full", {}, serialize(PROBLEM.dag)),
        ("dag_frontier", {}, "[a] fact a next"),
        ("dag_frontier", {"mark_frontier": False}, "[a] fact a"),
        (
            "dag_frontier",
            {"reached": frozenset("ab")},
            "[a] fact a reached\n[b] fact b (requires: a) reached\n[c] fact c (requires: a) next",
        ),
        ("other_problem", {"donor": DONOR}, "Another solution"),
    ],
)
def test_the_teacher_reads_question_then_context_then_task(kind, options, block):
    text = teacher_text(kind, **options)
    assert text.startswith(PROBLEM.problem + "\n")
    assert text.count(f"\n{block}\n") == 1  # whole lines, and only once
    assert ("fact d" in text) == (kind == "dag_full")  # nothing beyond the frontier
    assert (PROBLEM.solution in text) == (kind == "solution")
    student = student_messages(PROBLEM, "default")[0]["content"]
    task = student.removeprefix(PROBLEM.problem).strip()
    assert text.endswith(task)


def test_none_is_the_students_prompt_to_the_byte():
    assert teacher_messages(PROBLEM, "none", "default") == student_messages(PROBLEM, "default")


def test_all_reached_equals_the_full_graph_up_to_marks():
    everything = frozenset("abcd")
    full = teacher_text("dag_full")
    assert teacher_text("dag_frontier", reached=everything, mark_frontier=False) == full
    marked = disclose(PROBLEM, everything)
    assert marked.replace(" reached", "") == serialize(PROBLEM.dag) and marked.count(" reached") == 4


@pytest.mark.parametrize("family", ["default", "tiny"])
@pytest.mark.parametrize("kind", CHOICES["context.kind"])
def test_every_context_stands_in_each_table_and_has_a_prompt_in_each_family(kind, family):
    student = student_messages(PROBLEM, family)
    for mark in (True, False):
        [message] = teacher_messages(PROBLEM, kind, family, mark_frontier=mark, donor=DONOR)
        assert (message in student) == (kind == "none")
    assert has_context(PROBLEM, kind)
    assert has_context(Problem("p3", "a question", "7", "problems.jsonl:4"), kind) == (FIELD[kind] is None)
    assert (disclosed_share(PROBLEM, kind, frozenset()) is None) == (FIELD[kind] != "dag")
    assert (_context_tokens(kind, Assumed()) > 0) == (kind != "none")


def test_disclosed_share_by_hand():
    assert disclosed_share(PROBLEM, "dag_full", frozenset()) == 1.0
    assert disclosed_share(PROBLEM, "dag_frontier", frozenset()) == 0.25  # the root
    assert disclosed_share(PROBLEM, "dag_frontier", frozenset("a")) == 0.75
    assert disclosed_share(PROBLEM, "dag_frontier", frozenset("abcd")) == 1.0
    assert disclosed_share(PROBLEM, "solution", frozenset()) is None


@pytest.mark.parametrize(
    ("kind", "curriculum", "lack", "field"),
    [
        ("solution", "shuffle", {"solution": None}, "solution"),
        ("solution", "shuffle", {"solution": " \n"}, "solution"),
        ("other_problem", "shuffle", {"solution": ""}, "solution"),
        ("plan", "shuffle", {"plan": ()}, "plan"),
        ("subproblems", "shuffle", {"subproblems": ()}, "subproblems"),
        ("dag_full", "shuffle", {"dag": None}, "dag"),
        ("dag_frontier", "shuffle", {"dag": None}, "dag"),
        ("solution", "competence", {"dag": None}, "dag"),
        ("solution", "competence_reversed", {"dag": None}, "dag"),
        ("solution", "global_terciles", {"dag": None}, "dag"),
    ],
)
def test_a_problem_that_lacks_its_context_is_named(kind, curriculum, lack, field):
    with pytest.raises(UserError, match=rf"problems\.jsonl:3: problem 'p1' has no `{field}`"):
        check_problems([DONOR, replace(PROBLEM, **lack)], kind, curriculum)


@pytest.mark.parametrize("texts", [["same"], ["same", "same"], ["same", " same\n", "same", "other", "third"]])
def test_other_problem_needs_donors_of_another_text(texts):
    problems = [replace(PROBLEM, id=f"p{i}", problem=text) for i, text in enumerate(texts)]
    with pytest.raises(UserError, match=r"problems\.jsonl:3: .*at least two problems.* 'p0' has \d of \d rows"):
        check_problems(problems, "other_problem", "shuffle")


@given(st.lists(st.integers(0, 9), min_size=2, max_size=40), st.integers(0, 5))
def test_every_problem_gives_once_and_never_to_its_own_text(texts, seed):
    assume(2 * max(map(texts.count, texts)) <= len(texts))
    problems = [replace(PROBLEM, id=f"p{i}", problem=f"question {text}") for i, text in enumerate(texts)]
    donors = donors_for(problems, "other_problem", seed)
    assert all(donors[problem.id].problem != problem.problem for problem in problems)
    assert sorted(donor.id for donor in donors.values()) == sorted(problem.id for problem in problems)
    assert donors == donors_for(problems, "other_problem", seed)


def test_the_seed_chooses_the_donors():
    problems = [replace(PROBLEM, id=f"p{i}", problem=f"question {i}") for i in range(725)]
    first, second = (donors_for(problems, "other_problem", seed) for seed in (0, 1))
    assert sum(first[key] == second[key] for key in first) < 10  # one is expected by chance


def test_wording_speaks_of_marks_only_where_there_are_some():
    reached = frozenset(list(PROBLEM.dag)[:1])

    def text(kind, **options):
        return teacher_messages(PROBLEM, kind, "default", reached=reached, **options)[0]["content"]

    assert "`reached`" in text("dag_frontier") and "`next`" in text("dag_frontier")
    for plain in (text("dag_full"), text("dag_frontier", mark_frontier=False)):
        assert "`reached`" not in plain and "earlier attempt" not in plain
