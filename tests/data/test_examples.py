"""The example problems and labelled attempts: sums that hold, clean graphs, files that are as they were verified."""

import hashlib
import json
import re
from collections import Counter
from itertools import pairwise

import networkx as nx
import pytest
import sympy as sp
from latex2sympy2_extended import latex2sympy

from nemo_aopsd.data.dag import largest_closed_subset
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.evaluation.judge_eval import load_cases
from nemo_aopsd.grading import extract_answer, grade
from tests import REPO, shared

FOLDER = REPO / "examples/data"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
PROBLEMS = load_problems(FOLDER / "problems.jsonl")
RAW = {record["id"]: record for record in map(json.loads, (FOLDER / "problems.jsonl").read_text().splitlines())}
LABELS = [json.loads(line) for line in (FOLDER / "judge_cases.jsonl").read_text(encoding="ascii").splitlines()]
CASES = list(zip(LABELS, load_cases(FOLDER / "judge_cases.jsonl", FOLDER / "problems.jsonl"), strict=True))
CONTESTS = ("aime24", "aime25", "hmmt_feb25", "brumo25", "aime_1983_2023_train", "reasoning_dags")

each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id)
each_case = pytest.mark.parametrize(("label", "case"), CASES, ids=[f"{x['problem_id']}-{x['kind']}" for x in LABELS])


def false_equations(text):
    """Neighbouring sides of the chains of equations in a text that consist of numbers only and differ."""
    wrong, count = [], 0
    for formula in re.findall(r"\$([^$]*)\$", text):
        sides = [re.sub(r"\\boxed\{(.*)\}$", r"\1", side.strip()) for side in formula.split("=")]
        for left, right in pairwise(sides):
            bare = re.sub(r"\\(frac|binom|sqrt|cdot|left|right)(?![a-z])", "", left + right)
            if left and right and not re.search(r"[a-zA-Z\\,|]", bare):
                count += 1
                if sp.simplify(latex2sympy(left) - latex2sympy(right)) != 0:
                    wrong.append((left, right))
    return wrong, count


def normalised(text):
    return re.sub(r"[^a-z0-9]", "", text.lower())


def test_equations_are_found_between_unknowns_and_boxes():
    text = r"$x=\frac{1}{2}\cdot 4=3$, then $y=x+1=3=\boxed{\frac{6}{2}}$ and $1,2=3$"
    assert false_equations(text) == ([(r"\frac{1}{2}\cdot 4", "3")], 2)


@pytest.mark.parametrize("name", ["problems", "judge_cases"])
def test_the_files_are_those_whose_answers_and_checkpoints_were_recomputed(name):
    """By programs that are no longer here (examples/data/README.md). Recompute what you change, then pin it anew."""
    assert f"`{hashlib.sha256((FOLDER / f'{name}.jsonl').read_bytes()).hexdigest()}`" in README


@each_problem
def test_numeric_equations_hold(problem):
    statements = [statement for _, statement in problem.graph.nodes(data="statement")]
    wrong, count = false_equations("\n".join([problem.solution, *statements]))
    assert wrong == [] and count >= 1


@each_problem
def test_graphs_are_small_in_order_and_give_no_answer_away(problem):
    raw, graph = RAW[problem.id]["dag"], problem.graph
    assert 5 <= len(graph) <= 9 and nx.is_weakly_connected(graph)
    assert max(degree for _, degree in graph.in_degree()) >= 2
    order = [node["id"] for node in raw["nodes"]]
    assert all(order.index(before) < order.index(after) for before, after in raw["edges"])
    edges = (r"(?<!\d)" * problem.answer[0].isdigit(), r"(?!\d)" * problem.answer[-1].isdigit())
    for text in (*(node["statement"] for node in raw["nodes"]), *problem.plan, *problem.subproblems):
        assert not re.search(edges[0] + re.escape(problem.answer) + edges[1], text), text


@each_problem
def test_solutions_box_the_answer_once_and_texts_are_plain(problem):
    assert 80 <= len(problem.solution.split()) <= 250
    assert problem.solution.count(r"\boxed{") == 1 and extract_answer(problem.solution) == problem.answer
    assert grade(problem.solution, problem.answer).correct
    assert len(problem.plan) >= 3 and len(problem.subproblems) >= 3
    assert all(question.endswith("?") for question in problem.subproblems)
    statements = [statement for _, statement in problem.graph.nodes(data="statement")]
    for text in (problem.problem, problem.solution, *problem.plan, *problem.subproblems, *statements):
        assert text.isascii() and text.isprintable() and text == text.strip(), text
        assert text.count("$") % 2 == 0 and text.count("{") == text.count("}"), text


@pytest.mark.parametrize("contest", CONTESTS)
def test_no_problem_shares_a_long_passage_with_a_contest(contest):
    path = shared(f"{contest}.jsonl")

    def passages(text, width=50):  # letters and digits
        text = normalised(text)
        return {text[start : start + width] for start in range(max(1, len(text) - width + 1))}

    known = set().union(*(passages(json.loads(line)["problem"]) for line in path.read_text().splitlines()))
    assert [problem.id for problem in PROBLEMS if known & passages(problem.problem)] == []


def test_no_text_occurs_twice():
    for texts in ([problem.problem for problem in PROBLEMS], [case.attempt for _, case in CASES]):
        assert set(Counter(map(normalised, texts)).values()) == {1}


def test_every_kind_of_attempt_is_there_as_often_as_the_readme_says():
    documented = {}
    for names, counts in re.findall(r"^\| (`[a-z_`, ]+`)[^|]* \| ([\d, ]+) \|$", README, re.MULTILINE):
        documented |= dict(zip(re.findall(r"`(\w+)`", names), map(int, counts.split(", ")), strict=True))
    assert documented == Counter(label["kind"] for label in LABELS) and len(documented) == 13
    checkpoints = sum(len(case.problem.dag) for _, case in CASES)
    established = sum(len(case.established) for _, case in CASES)
    (said,) = re.findall(r"(?m)^.*\bcheckpoints of these attempts\b[^.]*\.", README)
    assert sorted(map(int, re.findall(r"\d+", said))) == [established, checkpoints]


@each_case
def test_labels_fit_their_kind_and_rest_on_words_of_the_attempt(label, case):
    established, kind, graph = case.established, label["kind"], case.problem.dag
    assert label["established"] == list(label["because"]) == [node for node in graph if node in established]
    assert all(words and words in case.attempt for words in label["because"].values())
    assert (largest_closed_subset(graph, established) != established) == (kind == "later_without_earlier")
    if kind in ("nothing", "empty"):
        assert not established
    elif kind in ("all", "other_language"):
        assert established == set(graph)
    elif kind not in ("claimed", "later_without_earlier"):
        assert established and established < set(graph)


def test_cases_of_the_builtin_model_are_labelled_by_the_statements_that_they_make():
    cases = load_cases(FOLDER / "judge_cases_builtin.jsonl", REPO / "nemo_aopsd/builtin/data/train.jsonl")
    assert Counter(case.kind for case in cases) == {"nothing": 8, "some": 8, "all": 8}
    for case in cases:
        statements = dict(case.problem.graph.nodes.data("statement"))
        stated = {node for node, text in statements.items() if re.search(rf"(?<!\w){text}(?!\d)", case.attempt)}
        assert case.established == stated, case.problem.id
