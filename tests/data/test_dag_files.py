"""`dag check`: every fault of a file is listed, and real graphs get the verdict that others gave them."""

import json

import networkx as nx
import pytest

from nemo_aopsd.chat.protocol import Completion
from nemo_aopsd.data.check import check_file, fault_lines, find_row
from nemo_aopsd.data.leaks import find_answer_leaks
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.data.stats import measure_file
from nemo_aopsd.errors import UserError
from nemo_aopsd.graphs.pipeline.stages import read_compressed
from tests import REPO, shared
from tests import raw_graph as graph

SPLITS = ("train", "heldout")


@pytest.fixture
def write(tmp_path):
    def write(*rows):
        """Lines as they are, rows with a problem and an answer if they have none."""
        path = tmp_path / "graphs.jsonl"
        default = {"problem": "?", "answer": "77"}
        path.write_bytes(
            b"\n".join(row if isinstance(row, bytes) else json.dumps(default | row).encode() for row in rows)
        )
        return path

    return write


def kinds(path):
    return [[fault.kind for fault in row.faults] for row in check_file(path)]


def test_each_row_gets_all_of_its_faults_and_none_stops_the_next(write):
    path = write(
        {"id": "good", "answer": "7", "dag": graph("ab", ["ab"])},
        b"{not json",
        b'{"id": "\xff"}',
        b"[1]",
        {"id": "no graph", "answer": "7"},
        {"id": "null graph", "answer": "7", "dag": None},
        {"dag": graph("a")},
        {"id": "good", "dag": graph("a")},
        {"id": "bad", "answer": "7", "dag": graph("aab", ["ab", "bb", "bc"])},
        {"id": "circle", "dag": graph("ab", ["ab", "ba"])},
        {"id": "warned", "dag": graph("abc", ["ab", "bc", "ac", "ab"])},
        {"id": "odd", "dag": {"nodes": "a"}},
        {"id": "leak", "answer": 7, "dag": graph({"a": "The answer is 7."})},
    )
    assert kinds(path) == [
        [],
        ["broken_line"],
        ["broken_line"],
        ["broken_line"],
        ["missing_dag"],
        ["missing_dag"],
        ["missing_id"],
        ["repeated_id"],
        ["duplicate_id", "self_loop", "dangling_edge"],
        ["cycle"],
        ["duplicate_edge", "transitive_edge"],
        ["malformed"],
        ["states_answer"],
    ]


@pytest.mark.parametrize(
    ("change", "kinds_found"),
    [
        ({}, []),
        ({"answer": 7, "solution": "", "plan": [], "subproblems": ["so?"], "extra": [1]}, []),
        ({"answer": 0}, []),
        ({"answer": 0.5}, ["bad_answer"]),
        ({"answer": True}, ["bad_answer"]),
        ({"answer": ["7"]}, ["bad_answer"]),
        ({"answer": None}, ["bad_answer"]),
        ({"answer": " "}, ["bad_answer"]),
        ({"problem": None}, ["bad_problem"]),
        ({"problem": ""}, ["bad_problem"]),
        ({"id": 7}, ["missing_id"]),
        ({"solution": 1, "plan": "walk", "subproblems": [""]}, ["bad_solution", "bad_plan", "bad_subproblems"]),
        ({"plan": [1], "dag": graph("ab", ["ab", "ba"])}, ["bad_plan", "cycle"]),
        ({"dag": graph({"a": "x = 1/2"}), "answer": "0.5"}, ["states_answer"]),
    ],
)
def test_usable_means_that_training_takes_the_row(write, change, kinds_found):
    path = write({"id": "p", "dag": graph("a")} | change)
    (row,) = check_file(path)
    assert [fault.kind for fault in row.faults] == kinds_found
    if not kinds_found:
        assert len(load_problems(path)) == 1
    elif kinds_found == ["states_answer"]:  # by value: the start of training asks, not the loader
        assert len(list(find_answer_leaks(load_problems(path)[0].dag, "0.5"))) == 1
    else:
        with pytest.raises(UserError):
            load_problems(path)
    shown = measure_file(path)[0][0]
    assert shown.get("errors", []) == [kind for kind in kinds_found if kind != "states_answer"]


def test_graphs_alone_need_no_answer_and_keep_their_own_faults(write):
    proof = {"id": "proof", "problem": "", "answer": None, "solution": 1}
    path = write(
        proof | {"dag": graph("ab", ["ab"])},
        {"id": "circle", "answer": None, "dag": graph("ab", ["ab", "ba"])},
        {"id": "leak", "answer": 7, "dag": graph({"a": "The answer is 7."})},
        {"id": "none"},
        {"dag": graph("a")},
    )
    found = [[fault.kind for fault in row.faults] for row in check_file(path, graphs_only=True)]
    assert found == [[], ["cycle"], ["states_answer"], ["missing_dag"], ["missing_id"]]
    assert kinds(path)[0] == ["bad_problem", "bad_answer", "bad_solution"]


LEAKS = [
    (["a", "x equals 0.5"], "1/2", {"2"}),
    (["a", "x equals 0.5"], r"\frac{1}{2}", {"2"}),
    (["x = 0.5", "b"], "1/2", {"1"}),  # a value too peculiar for a coincidence
    (["there are 2^3*13 ways", "b"], "104", {"1"}),
    (["So \\boxed{60}", "Hence it is 60"], "60", {"1", "2"}),
    (["The answer is 60, for the areas of both of the halves add up to that", "b"], "60", {"1"}),  # by its text alone
    ([r"the root gives \sqrt{12}", "b"], r"2\sqrt{3}", {"1"}),  # by algebra
    (["x = 2", "b"], "2", set()),
    (["a", "x = 0.25"], "1/2", set()),
    (["a", "b"], None, set()),
]


@pytest.mark.parametrize(("statements", "answer", "leaking"), LEAKS)
def test_check_stats_and_build_agree_on_answer_leaks(write, statements, answer, leaking):
    nodes = [{"id": str(number), "statement": text} for number, text in enumerate(statements, start=1)]
    path = write({"id": "p", "problem": "?", "answer": answer, "dag": {"nodes": nodes, "edges": [["1", "2"]]}})
    (row,) = check_file(path)
    if answer is None:  # nothing is built or trained without one
        assert [fault.kind for fault in row.faults] == ["bad_answer"]
    else:
        assert {fault.detail.split("'")[1] for fault in row.faults} == leaking
        assert {fault.kind for fault in row.faults} <= {"states_answer"} and row.has_errors == bool(leaking)
        assert measure_file(path)[0][0]["answer_leaks"] == len(leaking)
        asked = [node | {"requires": ["1"] * (node["id"] == "2")} for node in nodes]
        reply = Completion(json.dumps({"checkpoints": asked, "answer_requires": ["2"]}), "stop", None)
        built = read_compressed(reply, answer, read_compressed(reply, "-", nx.empty_graph(2)).graph)
        assert built.faults == row.faults


def test_leaks_by_value_are_looked_for_in_sound_graphs_only(write):
    loop, repeated = graph({"a": "x = 0.5"}, ["aa"]), graph({"a": "x = 0.5", "b": "end"}, ["ab", "ab"])
    path = write(*({"id": name, "answer": "1/2", "dag": dag} for name, dag in (("loop", loop), ("again", repeated))))
    assert kinds(path) == [["self_loop"], ["states_answer", "duplicate_edge"]]


@pytest.mark.parametrize("name", ["examples/data/problems", *(f"nemo_aopsd/builtin/data/{x}" for x in SPLITS)])
def test_the_graphs_of_this_project_are_clean(name):
    assert [row for row in check_file(REPO / f"{name}.jsonl") if row.faults] == []


def test_one_row_is_found_among_bad_ones(write):
    path = write(
        b"{",
        {"id": "odd", "answer": 1.5, "dag": "none"},
        {"id": "p", "answer": "1/2", "dag": graph("ab", ["ab", "ba"])},
        b"[1]",
        {"id": "p"},
        {"id": 7, "dag": graph("a")},
    )
    row, raw, broken = find_row(path, "p")
    assert (row.where, raw) == (f"{path}:3", graph("ab", ["ab", "ba"]))
    assert [(fault.kind, fault.detail) for fault in row.faults] == [
        ("cycle", "a -> b -> a"),
        ("repeated_id", f"used again at {path}:5"),
    ]
    assert [line.where for line in broken] == [f"{path}:1", f"{path}:4"]
    row, raw, _ = find_row(path, "7")
    assert (row.where, raw, [fault.kind for fault in row.faults]) == (f"{path}:6", graph("a"), ["missing_id"])


def test_a_row_that_is_not_there_is_an_error_that_counts_the_unread(write):
    path = write({"id": "a", "dag": graph("a")}, b"{", b"[1]")
    with pytest.raises(UserError, match=r"id 'b' among its 1.* 2 rows .*graphs\.jsonl:2"):
        find_row(path, "b")


def test_lines_name_level_place_problem_and_ids(write):
    path = write({"id": "p", "dag": graph("ab", ["ab", "ba"])}, {"id": "q", "dag": graph("ab", ["ab", "ab"])}, b"{")
    rows = list(check_file(path))
    assert [line.split() for row in rows for line in fault_lines(row)] == [
        ["error", f"{path}:1", "p", "cycle", "a", "->", "b", "->", "a"],
        ["warning", f"{path}:2", "q", "duplicate_edge", "'a'", "->", "'b'", "listed", "2", "times"],
        ["error", f"{path}:3", "-", "broken_line", *rows[2].faults[0].detail.split()],
    ]
    assert [row.has_errors for row in rows] == [True, False, True]


def test_an_empty_file_is_a_user_error(write):
    with pytest.raises(UserError, match=r"graphs\.jsonl: no graph in it"):
        list(check_file(write()))


def test_real_reasoning_graphs_pass_entirely():
    rows = list(check_file(shared("reasoning_dags.jsonl")))
    assert len(rows) == 36 and not any(row.faults for row in rows)


def test_graphs_of_others_get_their_known_verdict():
    path = shared("dag_examples.jsonl")
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    stating = set()
    for record, row in zip(records, check_file(path), strict=True):
        found = {fault.kind for fault in row.faults}
        assert row.problem_id == record["id"]
        assert ("bad_answer" in found) == (record["answer"] is None)  # most have none, which is our rule, too
        found -= {"bad_answer"}
        assert found - {"states_answer", "transitive_edge"} == set(record["faults"]) - {"transitive_edge"}, row
        if "states_answer" in found:
            stating.add(record["id"])
    # Their lists are structural. These three also end in a node that gives the final answer away, which is our rule.
    assert stating == {"dagmath-demo-1", "dagmath-demo-2", "dagmath-demo-3"}
