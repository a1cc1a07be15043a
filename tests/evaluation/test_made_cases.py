"""Attempts that label themselves: what stands in each, by hand, and what cannot be labelled."""

import random

import pytest

from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.made_cases import draw, make_cases
from nemo_aopsd.files import write_jsonl
from tests import REPO, raw_graph, shared

FIRST, SECOND, THIRD = "Ten pens cost 10*2 = 20 dollars.", "With the fee that is 20+5 = 25.", "She pays with 40."
SOLUTION = f"{FIRST}\nNobody buys a ruler.\n{SECOND}\n{THIRD}\nThe answer is \\boxed{{15}}."
HALVES = ["Ten pens cost", f"{FIRST}\nNobody buys a ruler.\nWith", f"{FIRST}\nNobody buys a ruler.\n{SECOND}\nShe pays"]


def problem(index, statements, solution=SOLUTION):
    graph = raw_graph({str(number): text for number, text in enumerate(statements, 1)})
    return {"id": f"p{index}", "problem": "?", "answer": "15", "solution": solution, "dag": graph}


def made_of(folder, rows, seed=0):
    file = folder / "problems.jsonl"
    write_jsonl(file, rows)
    return make_cases(file, seed)


def test_a_beginning_of_the_solution_establishes_what_stands_in_it(tmp_path):
    """Statement 3 comes before 1 in the graph: the order is that of the solution."""
    made = made_of(tmp_path, [problem(index, [SECOND, THIRD, FIRST]) for index in range(40)])
    assert (made.usable, made.problems, len(made.cases)) == (40, 40, 80)
    order = ["3", "1", "2"]
    ends = [SOLUTION.index(text) + len(text) for text in (FIRST, SECOND, THIRD)]
    by_kind = {"prefix": set(), "cut": set()}
    for case in made.cases:
        by_kind[case.kind].add((case.attempt, case.established))
    assert by_kind["prefix"] == {(SOLUTION[:end], frozenset(order[: at + 1])) for at, end in enumerate(ends)}
    assert by_kind["cut"] == {(text, frozenset(order[:at])) for at, text in enumerate(HALVES)}


@pytest.mark.parametrize(
    "row",
    [
        problem(1, [FIRST, "She is rich."]),  # stands nowhere
        problem(1, [FIRST, "25", SECOND]),  # one within another
        problem(1, [FIRST, "20"]),  # twice
        problem(1, ["x=1", SECOND], f"x=12\n{SECOND}"),  # another number
        problem(1, ["x=1", SECOND], f"x=1.5\n{SECOND}"),
        {key: value for key, value in problem(1, [FIRST]).items() if key != "solution"},
        {key: value for key, value in problem(1, [FIRST]).items() if key != "dag"},
    ],
)
def test_what_a_program_cannot_tell_is_left_out_and_counted(tmp_path, row):
    made = made_of(tmp_path, [problem(0, [FIRST]), row])
    assert (made.usable, made.problems) == (1, 2) and {case.problem.id for case in made.cases} == {"p0"}
    assert " 1 of 2 problems" in next(made.lines()) and " 1 left out " in next(made.lines())
    with pytest.raises(UserError, match=r"problems\.jsonl: none of its 1 problems .*--cases FILE"):
        made_of(tmp_path, [row])


def test_a_seed_draws_places_and_a_limit(tmp_path):
    rows = [problem(index, [FIRST, SECOND, THIRD]) for index in range(20)]
    one, same, other = ([case.attempt for case in made_of(tmp_path, rows, seed).cases] for seed in (0, 0, 1))
    assert one == same != other
    cases = made_of(tmp_path, rows).cases
    some = draw(cases, 7, 0)
    assert some == draw(cases, 7, 0) != draw(cases, 7, 1)
    assert [cases.index(case) for case in some] == sorted(map(cases.index, some)) and len(some) == 7
    assert draw(cases, None, 0) == draw(cases, 99, 0) == cases


@pytest.mark.parametrize("name", ["builtin", "gsm8k"])
def test_the_shipped_problems_and_gsm8k_label_themselves(name):
    file = REPO / "nemo_aopsd/builtin/data/train.jsonl" if name == "builtin" else shared("gsm8k_train.jsonl")
    made = make_cases(file, 0)
    assert made.usable == made.problems and len(made.cases) > 1.99 * made.problems
    established = sum(len(case.established) for case in made.cases)
    assert established / sum(len(case.problem.graph) for case in made.cases) == pytest.approx(0.5, abs=0.01)
    for case in random.Random(0).sample(made.cases, 200):
        statements = {node: data["statement"] for node, data in case.problem.graph.nodes(data=True)}
        assert all((text in case.attempt) == (node in case.established) for node, text in statements.items())
