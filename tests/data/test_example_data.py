"""The example set: right answers, true checkpoints, clean graphs, and no overlap with known contests."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import networkx as nx
import pytest
import sympy as sp
from latex2sympy2_extended import latex2sympy

from nemo_aopsd.data.leaks import find_graph_faults
from nemo_aopsd.data.problems import Problem, load_problems
from nemo_aopsd.grading import extract_answer, is_correct
from tests import (
    REPO,
    SHARED,
    example_algebra,
    example_counting,
    example_geometry,
    example_integers,
    example_probability,
)
from tests.example_formulas import literal

DATA = REPO / "examples/data/problems.jsonl"
CONTESTS = ("aime24", "aime25", "hmmt_feb25", "brumo25", "aime_1983_2023_train", "reasoning_dags")
PROBLEMS = load_problems(DATA)
RECORDS = {record["id"]: record for record in map(json.loads, DATA.read_text().splitlines())}

FACTS = {
    "ex-01-seventh-powers": example_algebra.seventh_powers,
    "ex-02-two-remainders": example_algebra.two_remainders,
    "ex-03-three-products": example_algebra.three_products,
    "ex-04-mutual-logarithms": example_algebra.mutual_logarithms,
    "ex-05-extreme-values": example_algebra.extreme_values,
    "ex-06-ninety-one": example_integers.ninety_one,
    "ex-07-lcm-square-gcd": example_integers.lcm_square_gcd,
    "ex-08-reversal-by-396": example_integers.reversal_by_396,
    "ex-09-shifted-factors": example_integers.shifted_factors,
    "ex-10-self-powers-mod-five": example_integers.self_powers_mod_five,
    "ex-11-no-twin-books": example_counting.no_twin_books,
    "ex-12-one-kiosk": example_counting.one_kiosk,
    "ex-13-no-gap-of-three": example_counting.no_gap_of_three,
    "ex-14-prism-corners": example_counting.prism_corners,
    "ex-15-gift-circle": example_counting.gift_circle,
    "ex-16-triangles-on-pegs": example_counting.triangles_on_pegs,
    "ex-17-product-twelve": example_probability.product_twelve,
    "ex-18-beetle-on-octahedron": example_probability.beetle_on_octahedron,
    "ex-19-two-heads-first": example_probability.two_heads_first,
    "ex-20-even-product": example_probability.even_product,
    "ex-21-rectangle-cevians": example_geometry.rectangle_cevians,
    "ex-22-parallel-chords": example_geometry.parallel_chords,
    "ex-23-twice-as-far": example_geometry.twice_as_far,
    "ex-24-ball-in-pyramid": example_geometry.ball_in_pyramid,
    "ex-25-two-centres": example_geometry.two_centres,
    "ex-26-circling-fractions": example_algebra.circling_fractions,
    "ex-27-two-progressions": example_algebra.two_progressions,
    "ex-28-squared-digit-sums": example_algebra.squared_digit_sums,
    "ex-29-struck-numbers": example_algebra.struck_numbers,
    "ex-30-positive-quotients": example_integers.positive_quotients,
}

each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id)


def stands_in(text: str, statement: str) -> bool:
    """`text` occurs, and not as a piece of a longer number."""
    before, after = (r"(?<!\d)" if text[0].isdigit() else ""), (r"(?!\d)" if text[-1].isdigit() else "")
    return re.search(before + re.escape(text) + after, statement) is not None


def exact(latex: str) -> object:
    """The value of a numeric LaTeX expression, or of a set of integers."""
    if latex.startswith(r"\{"):
        return {int(item) for item in latex.removeprefix(r"\{").removesuffix(r"\}").split(",")}
    return latex2sympy(latex)


def numeric_equations(text: str) -> Iterator[tuple[str, str]]:
    """Neighbouring sides of every chain of equations in which both sides consist of numbers only."""
    for formula in re.findall(r"\$([^$]*)\$", text):
        sides = [re.sub(r"\\boxed\{(.*)\}$", r"\1", side.strip()) for side in formula.split("=")]
        for left, right in pairwise(sides):
            bare = re.sub(r"\\(frac|binom|sqrt|cdot|left|right)(?![a-z])", "", left + right)
            if left and right and not re.search(r"[a-zA-Z\\,|]", bare):
                yield left, right


def objections(statement: str, facts: list[object]) -> list[object]:
    """What an independent computation and plain arithmetic hold against a checkpoint."""
    wrong = [fact for fact in facts if not (fact if isinstance(fact, bool) else stands_in(literal(fact), statement))]
    return wrong + [pair for pair in numeric_equations(statement) if sp.simplify(exact(pair[0]) - exact(pair[1])) != 0]


facts_of = cache(lambda problem_id: FACTS[problem_id]())


@each_problem
def test_answer_and_every_checkpoint_agree_with_an_independent_computation(problem: Problem):
    answer, claims = facts_of(problem.id)
    written = exact(problem.answer)
    assert written == answer if isinstance(answer, set) else sp.simplify(written - sp.sympify(answer)) == 0
    assert set(claims) == set(problem.dag), "every checkpoint has something to check"
    for node, facts in claims.items():
        assert facts and objections(problem.dag.nodes[node]["statement"], facts) == [], f"checkpoint {node}"


@each_problem
def test_no_number_of_a_checkpoint_can_be_raised_unnoticed(problem: Problem):
    for node, facts in facts_of(problem.id)[1].items():
        statement = problem.dag.nodes[node]["statement"]
        for number in re.finditer(r"\d+", statement):
            raised = statement[: number.start()] + str(int(number[0]) + 1) + statement[number.end() :]
            assert objections(raised, facts), f"checkpoint {node}: {raised}"


@each_problem
def test_numeric_equations_of_the_solution_hold(problem: Problem):
    for left, right in numeric_equations(problem.solution):
        assert sp.simplify(exact(left) - exact(right)) == 0, f"{left} = {right}"


def test_most_solutions_have_numeric_equations_to_check():
    counts = [len(list(numeric_equations(problem.solution))) for problem in PROBLEMS]
    assert sum(counts) > 100 and sum(count > 0 for count in counts) > 25


def test_numeric_equations_are_found_between_unknowns_and_boxes():
    found = list(numeric_equations(r"$x=\frac{1}{2}\cdot 4=2$, then $y=x+1=3=\boxed{\frac{6}{2}}$ and $1,2=3$"))
    assert found == [(r"\frac{1}{2}\cdot 4", "2"), ("3", r"\frac{6}{2}")]


@each_problem
def test_graph_has_no_fault_and_no_warning_and_does_not_give_the_answer_away(problem: Problem):
    raw = RECORDS[problem.id]["dag"]
    assert find_graph_faults(raw, problem.answer) == []
    assert 5 <= len(problem.dag) <= 9
    assert max(degree for _, degree in problem.dag.in_degree()) >= 2
    assert nx.is_weakly_connected(problem.dag)
    order = [node["id"] for node in raw["nodes"]]
    assert all(order.index(before) < order.index(after) for before, after in raw["edges"])
    for text in (*(node["statement"] for node in raw["nodes"]), *problem.plan, *problem.subproblems):
        assert not stands_in(problem.answer, text), text


@each_problem
def test_solution_boxes_the_answer_once_and_plan_and_subproblems_are_there(problem: Problem):
    assert 80 <= len(problem.solution.split()) <= 250
    assert problem.solution.count(r"\boxed{") == 1 and extract_answer(problem.solution) == problem.answer
    assert is_correct(problem.solution, problem.answer)
    assert len(problem.plan) >= 3 and len(problem.subproblems) >= 3
    assert all(question.endswith("?") for question in problem.subproblems)


def test_the_set_is_complete_ascii_and_its_dollars_and_braces_balance():
    assert list(FACTS) == [problem.id for problem in PROBLEMS]
    assert len(PROBLEMS) >= 24
    assert any(max(degree for _, degree in problem.dag.out_degree()) >= 3 for problem in PROBLEMS)
    for record in RECORDS.values():
        statements = [node["statement"] for node in record["dag"]["nodes"]]
        for text in (record["problem"], record["solution"], *record["plan"], *record["subproblems"], *statements):
            assert text.isascii() and text.isprintable() and text == text.strip(), text
            assert text.count("$") % 2 == 0 and text.count("{") == text.count("}"), text


def normalised(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def test_no_problem_occurs_twice():
    counts = Counter(normalised(problem.problem) for problem in PROBLEMS)
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("contest", CONTESTS)
def test_no_problem_shares_a_long_passage_with_a_contest(contest: str):
    path = SHARED / f"{contest}.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    width = 50  # letters and digits
    known = set()
    for line in path.read_text().splitlines():
        text = normalised(json.loads(line)["problem"])
        known |= {text[start : start + width] for start in range(max(1, len(text) - width + 1))}
    for problem in PROBLEMS:
        text = normalised(problem.problem)
        assert not known & {text[start : start + width] for start in range(max(1, len(text) - width + 1))}, problem.id
