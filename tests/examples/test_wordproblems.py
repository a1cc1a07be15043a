"""Word problems: every number follows from the text, graphs are exact and give nothing away, splits share nothing."""

import itertools
import json
import operator
import random
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.wordproblems import holdings, parts, problems, stock
from examples.wordproblems.files import write_files
from examples.wordproblems.problems import BUCKETS, LARGEST, SCALE, STEPS, problem_record, sample_split, sample_story
from examples.wordproblems.story import Story, compute, is_sound
from examples.wordproblems.warmstart import SHARES, demonstrations
from examples.wordproblems.wording import attempt, verdict
from nemo_aopsd.data.check import check_file
from nemo_aopsd.data.problems import load_problems, parse_problem
from nemo_aopsd.evaluation.judge_eval import load_cases
from nemo_aopsd.grading import grade
from nemo_aopsd.method.context import student_messages
from nemo_aopsd.method.judge import judge_messages, parse_verdict
from tests import REPO

EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
APPLY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
WRITTEN = re.compile(r"-?\d+ [-+*/] -?\d+ = (-?\d+)")  # of an attempt, which may have slipped below zero
SEEDS = st.integers(0, 2**32)


def story_of(seed, num_steps):
    return sample_story(random.Random(seed), num_steps)


def rederive(record):
    """Values in order and edges, from nothing but the numbers of the text and the operations of the solution."""
    stated = {int(number) for number in re.findall(r"\d+", record["problem"])}
    values, parents, used = [], {}, set()
    for left, symbol, right, written in EQUATION.findall(record["solution"]):
        operands = [int(left), int(right)]
        for operand in operands:
            assert (operand in stated) != (operand in values), f"{operand} has no single source"
        used |= set(operands)
        value = APPLY[symbol](*operands)
        assert value == int(written)
        parents[int(written)] = {operand for operand in operands if operand in values}
        values.append(int(written))
    assert stated <= used, "a number of the text is not needed"
    return values, parents


def established_by(story, text):
    """Ids of the checkpoints in whose place the attempt's equations have the true value."""
    written = zip(story.checkpoints, map(int, WRITTEN.findall(text)), strict=False)
    return {str(number) for number, (item, value) in enumerate(written, start=1) if value == item.value}


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.sampled_from(STEPS))
def test_every_answer_statement_and_edge_follows_from_the_numbers_of_the_text(seed, num_steps):
    """Reachability of the graph is that of the computation; no edge follows from a longer path; nothing gives away."""
    story = story_of(seed, num_steps)
    record = problem_record(story, "p", seed)
    values, parents = rederive(record)
    assert len(values) == num_steps and record["answer"] == str(values[-1])
    statements = [node["statement"] for node in record["dag"]["nodes"]]
    assert [int(re.fullmatch(r"\D+ is (\d+)\.", text)[1]) for text in statements] == values[:-1]
    assert grade(record["solution"], record["answer"]).correct
    assert all(len(record[field]) == num_steps for field in ("plan", "subproblems"))
    number = {value: str(index) for index, value in enumerate(values[:-1], start=1)}

    def above(direct):
        reach = {}
        for node in number.values():
            reach[node] = set(direct[node]).union(*(reach[parent] for parent in direct[node]))
        return reach

    graph = {node: {u for u, v in record["dag"]["edges"] if v == node} for node in number.values()}
    computed = {number[value]: {number[parent] for parent in parents[value]} for value in values[:-1]}
    assert above(graph) == above(computed)
    for direct in graph.values():
        assert not any(one in above(graph)[other] for one, other in itertools.permutations(direct, 2))
    for text in statements + record["plan"] + record["subproblems"]:
        assert record["answer"] not in re.findall(r"\d+", text)
    assert not {str(item.value) for item in story.quantities} & set(re.findall(r"\d+", record["problem"]))
    assert not re.search(r"[{}]", record["problem"]), "a gap was left"


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.sampled_from(STEPS), st.floats(0, 1))
def test_the_verdict_is_what_the_attempt_says(seed, num_steps, slip):
    """Against the attempt's own equations: a checkpoint counts if the step in its place has its value."""
    story, rng = story_of(seed, num_steps), random.Random(seed)
    shown = rng.choice([None, *range(num_steps)])
    tried = attempt(rng, story, slip=slip, num_steps=shown)
    assert len(WRITTEN.findall(tried.text)) == (num_steps if shown is None else shown)
    problem = parse_problem(problem_record(story, "p", seed), "here")
    assert parse_verdict(verdict(story, tried.values), problem.dag) == established_by(story, tried.text)


def test_a_slip_is_carried_on():
    first = compute("the cost of the pens", 3, "*", 4)
    story = Story(("3 pens cost $4 each.", "A coupon takes $5 off."), "?", (first, compute("the price", first, "-", 5)))
    tried = attempt(random.Random(0), story, slip=1.0)
    assert tried.values[first] != 12
    assert f"{tried.values[first]} - 5 = {tried.values[story.target]}" in tried.text


@pytest.mark.parametrize(
    ("sentence", "steps"),
    [
        ("3 and 4 and 5", lambda a: [a, compute("y", a, "-", 7)]),  # 7 is not in the text
        ("3 and 4 and 5 and 6", lambda a: [a, compute("y", a, "+", 5)]),  # 6 is not needed
        ("3 and 4 and 12", lambda a: [a, compute("y", a, "+", 12)]),  # 12 is given and computed
        ("3 and 4 and 5", lambda a: [a, compute("y", a, "/", 5)]),  # not whole
        ("3 and 4 and 12 and 11", lambda a: [a, compute("y", a, "-", 11)]),  # 1 is too small
        ("3 and 4 and 90", lambda a: [a, compute("y", a, "*", 90)]),  # too large
        ("3 and 4 and 5 and 6", lambda a: [a, compute("y", 5, "+", 6)]),  # a checkpoint that nothing needs
    ],
)
def test_unsound_stories_are_refused(sentence, steps):
    story = Story((sentence,), "?", tuple(steps(compute("x", 3, "*", 4))))
    assert not is_sound(story, 400)
    assert is_sound(
        Story(("3 and 4 and 5",), "?", (story.quantities[0], compute("y", story.quantities[0], "+", 5))), 400
    )


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(tmp_path):
    sizes = {"train": 60, "heldout": 40, "warmstart": 50, "dev": 10}

    def read(name):
        return {path.name: path.read_bytes() for path in sorted((tmp_path / name).iterdir())}

    def write(name, seed):
        write_files(tmp_path / name, seed, sizes)
        return read(name)

    first = write("a", 0)
    assert list(first) == [f"{name}.jsonl" for name in ("dev", "heldout", "judge_cases", "train", "warmstart")]
    options = [text for split, size in sizes.items() for text in (f"--{split}", str(size))]
    options[options.index("--heldout")] = "--held-out"  # as `aopsd data gsm8k` has it
    command = [sys.executable, "-m", "examples.wordproblems", "--out", str(tmp_path / "b"), *options]
    subprocess.run(command, check=True, cwd=REPO)
    assert read("b") == first
    assert all(content != first[name] for name, content in write("c", 1).items())
    rows = [row for name in ("train", "heldout") for row in check_file(tmp_path / "a" / f"{name}.jsonl")]
    assert len(rows) == 100 and not any(row.faults for row in rows)
    assert all(load_problems(tmp_path / "a" / name) for name in first if name != "judge_cases.jsonl")
    cases = load_cases(tmp_path / "a" / "judge_cases.jsonl", tmp_path / "a" / "heldout.jsonl")
    assert len(cases) == 40 and {len(case.problem.dag) - len(case.established) for case in cases} >= {0, 1, 2}


def test_no_computation_is_in_two_splits_whatever_the_seed():
    """In numbers alone, as the test reads them from the texts: the words may differ."""
    found = {}
    for split, seed in itertools.product(BUCKETS, (0, 1)):
        for story in itertools.islice(sample_split(split, seed), 80):
            equations = EQUATION.findall(problem_record(story, "p", 0)["solution"])
            found.setdefault(tuple(sorted(equations)), set()).add(split)
    assert all(len(splits) == 1 for splits in found.values())
    assert sorted(number for part in BUCKETS.values() for number in part) == list(range(20))


def test_a_split_has_no_text_twice_and_all_lengths_kinds_and_many_forms():
    stories = list(itertools.islice(sample_split("train", 0), 1000))
    assert len({story.text for story in stories}) == 1000
    assert Counter(len(story.quantities) for story in stories) == dict.fromkeys(STEPS, 200)
    forms = Counter(re.sub(r"\d+", "#", story.text) for story in stories)
    assert len(forms) > 900  # hardly any text differs from another in numbers only
    assert max(item.value for story in stories for item in story.quantities) <= LARGEST
    assert SCALE < LARGEST


def test_a_text_that_comes_again_is_left_out(monkeypatch):
    stories = [story for story in itertools.islice(sample_split("train", 0), 3) for _ in range(4)]
    monkeypatch.setattr(problems, "sample_story", lambda rng, num_steps: stories.pop(0))
    assert len({story.text for story in itertools.islice(sample_split("train", 0), 3)}) == 3


@pytest.fixture(scope="module")
def many_texts():
    stories = itertools.islice(sample_split("train", 3), 3000)
    return " ".join(f"{story.text} {item.label}" for story in stories for item in story.quantities)


@pytest.mark.parametrize("module", [holdings, stock, parts])
def test_every_sentence_and_setting_occurs(module, many_texts):
    """A form that no sound story can use, because it says other numbers than are computed, would never be seen."""
    forms = [form for name, value in vars(module).items() if name.isupper() for form in sentences_of(value)]
    for form in forms:
        assert re.search(re.sub(r"\\\{\w+\\\}", r"[\\w ,]+", re.escape(form)), many_texts), form


def sentences_of(value):
    if isinstance(value, str):
        return [value]
    parts_of = value if isinstance(value, tuple) else [getattr(value, field) for field in value.__slots__]
    return [sentence for part in parts_of for sentence in sentences_of(part)]


def test_demonstrations_are_prompt_and_response_of_the_real_prompts():
    stories = list(itertools.islice(sample_split("warmstart", 0), 200))
    rows = list(demonstrations(stories, 0))
    kinds = Counter(row["id"].split("-", 2)[2] for row in rows)
    assert set(kinds) == set(SHARES)
    assert all(abs(kinds[kind] / 200 - share) < 0.08 for kind, share in SHARES.items())
    for story, row in zip(stories, rows, strict=True):
        problem = parse_problem(problem_record(story, "p", 0), "here")
        if row["id"].endswith("judge"):
            tried = re.search(r"<attempt>\n(.*)\n</attempt>\n\nA checkpoint", row["problem"], re.DOTALL)[1]
            assert row["problem"] == judge_messages(problem, tried, "default")[0]["content"]
            assert parse_verdict(row["solution"], problem.dag) == established_by(story, tried)
        else:
            assert story.text in row["problem"] and grade(row["solution"], row["answer"]).correct
        if row["id"].endswith("question"):
            assert row["problem"] == student_messages(problem, "default")[0]["content"]
    assert json.dumps(rows) == json.dumps(list(demonstrations(stories, 0)))
