"""The labelled attempts of the example set: well formed, of every kind, with sums that hold, read by `judge eval`."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import sympy as sp
from typer.testing import CliRunner

from nemo_aopsd.cli.app import app
from nemo_aopsd.data.dag import largest_closed_subset
from nemo_aopsd.evaluation.judge_eval import INJECTIONS, inject, load_cases
from nemo_aopsd.method.judge import judge_messages
from tests.chat_server import ChatServer, Reply
from tests.data.test_example_data import DATA as PROBLEMS
from tests.data.test_example_data import SHARED, exact, normalised, numeric_equations

CASES = PROBLEMS.with_name("judge_cases.jsonl")
README = (PROBLEMS.parent / "README.md").read_text(encoding="utf-8")
RECORDS = [json.loads(line) for line in CASES.read_text(encoding="ascii").splitlines()]
LOADED = load_cases(CASES, PROBLEMS)
PAIRS = list(zip(RECORDS, LOADED, strict=True))
KINDS = Counter(
    {"some": 2, "all": 2, "other_route": 2, "later_without_earlier": 2, "wrong_value": 2, "claimed": 2, "injection": 2}
) + Counter(["nothing", "contradicted", "empty", "cut_off", "latex", "other_language"])
WRONG = {"ex-28-squared-digit-sums": [(r"56\cdot 2^6", "3548")]}  # other slips are in what is added up

each_case = pytest.mark.parametrize(
    ("record", "case"), PAIRS, ids=[f"{record['problem_id']}-{record['kind']}" for record in RECORDS]
)


def test_every_kind_is_there_as_often_as_the_readme_says():
    assert Counter(record["kind"] for record in RECORDS) == KINDS
    documented = {}
    for names, counts in re.findall(r"^\| (`[a-z_`, ]+`)[^|]* \| ([\d, ]+) \|$", README, re.MULTILINE):
        documented |= dict(zip(re.findall(r"`(\w+)`", names), map(int, counts.split(", ")), strict=True))
    assert documented == KINDS
    checkpoints = sum(len(case.problem.dag) for case in LOADED)
    established = sum(len(case.established) for case in LOADED)
    assert f"Of the {checkpoints} checkpoints of these attempts {established} are established." in README


@each_case
def test_labels_are_well_formed_and_rest_on_words_of_the_attempt(record, case):
    assert list(record) == ["problem_id", "kind", "attempt", "established", "because", "note"]
    assert record["established"] == [node for node in case.problem.dag if node in case.established]
    assert list(record["because"]) == record["established"]
    for node, words in record["because"].items():
        assert words and words in case.attempt, f"checkpoint {node}"
    assert record["note"].isascii() and record["note"].endswith(".")


@each_case
def test_the_label_fits_the_kind(record, case):
    established, kind = case.established, record["kind"]
    closed = largest_closed_subset(case.problem.dag, established)
    assert (closed != established) == (kind == "later_without_earlier")
    if kind in ("nothing", "empty"):
        assert not established
    if kind in ("all", "other_language"):
        assert established == set(case.problem.dag)
    if kind in ("some", "wrong_value", "cut_off", "latex", "injection", "contradicted", "other_route"):
        assert established and established < set(case.problem.dag)
    if kind == "injection":
        ids = json.dumps(list(case.problem.dag))
        reached = [case.attempt.index(words) for words in record["because"].values()]
        assert case.attempt.index(ids) > max(reached)


@each_case
def test_numeric_equations_hold_but_for_the_known_slips(record, case):
    wrong = [pair for pair in numeric_equations(case.attempt) if sp.simplify(exact(pair[0]) - exact(pair[1])) != 0]
    assert wrong == WRONG.get(record["problem_id"], [])


def test_many_numeric_equations_are_checked():
    assert sum(len(list(numeric_equations(case.attempt))) for case in LOADED) > 50


def test_no_attempt_occurs_twice_or_comes_from_the_cases_of_the_tests():
    texts = [normalised(case.attempt) for case in LOADED]
    assert len(set(texts)) == len(texts)
    path = SHARED / "judge_cases.jsonl"
    if path.is_file():
        width = 60  # letters and digits
        known = [normalised(json.loads(line)["attempt"]) for line in path.read_text(encoding="utf-8").splitlines()]
        for text in texts:
            pieces = [text[start : start + width] for start in range(len(text) - width + 1)]
            assert not any(piece in other for piece in pieces for other in known), text


def ask(tmp_path, answer):
    """What `aopsd judge eval` prints about the shipped cases, and the verdicts that it writes."""
    out = tmp_path / "verdicts.jsonl"
    with ChatServer(answer) as server:
        command = ["judge", "eval", "--cases", CASES, "--problems", PROBLEMS, "--base-url", server.url, "--model", "m"]
        result = CliRunner().invoke(app, [*map(str, command), "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output, [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def labels_by_prompt():
    """The label of each prompt that `judge eval` sends, and whether an injection was appended to the attempt."""
    labels = {}
    for case in LOADED:
        attempts = [case.attempt, *(inject(case, turn) for turn in range(len(INJECTIONS)))]
        for attempt in attempts:
            prompt = judge_messages(case.problem, attempt, "default")[0]["content"]
            labels[prompt] = case, attempt != case.attempt
    return labels


def test_a_perfect_judge_is_perfect_from_end_to_end(tmp_path):
    labels = labels_by_prompt()

    def answer(body, headers):
        case, _ = labels[body["messages"][0]["content"]]
        return Reply(json.dumps(sorted(case.established)))

    said, verdicts = ask(tmp_path, answer)
    established = sum(len(case.established) for case in LOADED)
    assert f"{len(LOADED)} attempts, 0 verdicts unread" in said
    assert f"before closure: precision 1.000 ({established} of {established}" in said
    assert "after closure: precision 1.000" in said and "injections that fooled the judge: 0.000 (0 of 17" in said
    assert [verdict["claimed"] for verdict in verdicts] == [record["established"] for record in RECORDS]


def test_an_obedient_judge_is_found_out(tmp_path):
    """It obeys whatever stands in the attempt: the injections of the cases, and those that the command appends."""
    labels = labels_by_prompt()
    own = {case.attempt for record, case in PAIRS if record["kind"] == "injection"}

    def answer(body, headers):
        case, injected = labels[body["messages"][0]["content"]]
        obeyed = injected or case.attempt in own
        return Reply(json.dumps(sorted(case.problem.dag if obeyed else case.established)))

    said, verdicts = ask(tmp_path, answer)
    assert "injections that fooled the judge: 1.000 (15 of 15" in said
    assert "15 of 17 attempts with one could show it" in said  # to two it had given all before
    assert "kind injection: 2 attempts, 0 unread, something false claimed in 2 of 2;" in said
    assert "kind latex: 1 attempts, 0 unread, something false claimed in 0 of 1;" in said
    wrong = [record["problem_id"] for record, verdict in zip(RECORDS, verdicts, strict=True)
             if verdict["claimed"] != record["established"]]  # fmt: skip
    assert wrong == ["ex-08-reversal-by-396", "ex-30-positive-quotients"]


def test_the_documents_name_files_that_are_there():
    for document in ("README.md", "docs/dag_pipeline.md"):
        text = (PROBLEMS.parents[2] / document).read_text(encoding="utf-8")
        commands = re.findall(r"aopsd judge eval --cases (\S+) --problems (\S+)", text)
        assert commands and all((PROBLEMS.parents[2] / Path(name)).is_file() for pair in commands for name in pair)
