"""Problems from JSONL: what is read, and one clear message with file and line for what cannot be."""

import json

import pytest

from nemo_aopsd.data.check import check_file, need_graphs
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import check_problems
from tests import raw_graph

GOOD = {"id": "p1", "problem": "1 + 1?", "answer": "2"}


@pytest.fixture
def write(tmp_path):
    def write(*lines):
        path = tmp_path / "problems.jsonl"
        encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        path.write_bytes(b"\n".join(encoded) + b"\n")
        return path

    return write


def test_everything_is_read(write):
    graph = {
        "nodes": [{"id": "2", "statement": "b"}, {"id": "1", "statement": "a"}],
        "edges": [["1", "2"]],
    }
    full = GOOD | {"solution": "two", "plan": ["add"], "subproblems": ["what?", "so?"], "dag": graph, "extra": 1}
    path = write(full, b"", b"  \r", GOOD | {"id": "p2", "answer": 3})
    first, second = load_problems(path)
    assert (first.id, first.problem, first.answer, first.where) == ("p1", "1 + 1?", "2", f"{path}:1")
    assert (first.solution, first.plan, first.subproblems) == ("two", ("add",), ("what?", "so?"))
    assert list(first.dag) == ["2", "1"] and list(first.dag.edges) == [("1", "2")]
    assert first.dag.nodes["2"] == {"statement": "b"}
    assert (second.answer, second.where) == ("3", f"{path}:4")
    assert (second.solution, second.plan, second.subproblems, second.dag) == (None, (), (), None)


def test_line_separators_inside_strings_are_no_line_ends(write):
    text = "a\u2028b\x85c\x0bd"
    (problem,) = load_problems(write(json.dumps(GOOD | {"problem": text}, ensure_ascii=False).encode()))
    assert problem.problem == text


def test_whole_surrogate_pairs_are_characters(write):
    (problem,) = load_problems(write(rb'{"id": "a", "problem": "\ud83d\ude00 \\\\ud800", "answer": "1"}'))
    assert problem.problem == "\U0001f600 \\\\ud800"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id" "p2"}', "broken JSON: Expecting ':' delimiter at column 7."),
        (b'{"id": "\xff"}', "byte 8 is not UTF-8"),
        (b"[1]", "expected a JSON object, got list"),
        (b"\xef\xbb\xbf{}", "broken JSON"),
        (b"[" * 100_000, "unreadable JSON: maximum recursion depth"),
        (b'{"answer": ' + b"1" * 5000 + b"}", "unreadable JSON: Exceeds the limit"),
        (rb'{"id": "a\ud800"}', r"`id` holds \\ud800, half of a character"),
        (rb'{"id": "a", "plan": ["x", "\uDFFFx"]}', r"`plan` holds \\udfff, half of a character"),
        ({}, "`id` must be a non-empty string, but it is missing"),
        (GOOD | {"id": ""}, "`id` must be a non-empty string, got ''"),
        (GOOD | {"id": 7}, "`id` must be a non-empty string, got 7"),
        (GOOD | {"id": "p2", "problem": " \n"}, "`problem` must be a non-empty string"),
        (GOOD | {"id": "p2", "problem": ["a"]}, "`problem` must be a non-empty string"),
        (GOOD | {"id": "p2", "answer": None}, "`answer` must be a non-empty string, got None"),
        (GOOD | {"id": "p2", "answer": True}, "`answer` must be a non-empty string, got True"),
        (GOOD | {"id": "p2", "answer": 0.5}, "`answer` must be a non-empty string, got 0.5"),
        (GOOD | {"id": "p2", "solution": ["s"]}, "`solution` must be a string, got list"),
        (GOOD | {"id": "p2", "plan": "step"}, "`plan` must be a list of non-empty strings, got 'step'"),
        (GOOD | {"id": "p2", "plan": ""}, "`plan` must be a list of non-empty strings, got ''"),
        (GOOD | {"id": "p2", "plan": ["a", " "]}, "`plan` must be a list of non-empty strings"),
        (GOOD | {"id": "p2", "subproblems": [1]}, "`subproblems` must be a list of non-empty strings"),
        (GOOD | {"id": "p2", "dag": []}, r"\(id 'p2'\): unusable reasoning DAG: malformed"),
        (GOOD, r"id 'p1' was used at .*problems\.jsonl:1\. Make ids unique"),
    ],
)
def test_a_bad_line_is_named(write, line, message):
    path = write(GOOD, line)
    with pytest.raises(UserError, match=message) as caught:
        load_problems(path)
    assert str(caught.value).startswith(f"{path}:2")


def test_the_first_ten_bad_lines_are_named_and_the_rest_counted(write):
    path = write(GOOD, GOOD, b"{", {"id": "p2", "question": "?"}, *[{"id": f"q{number}"} for number in range(9)])
    with pytest.raises(UserError) as caught:
        load_problems(path)
    *rows, rest, remedy = str(caught.value).split("\n")
    assert [row.split(": ")[0] for row in rows] == [f"{path}:{line}" for line in range(2, 12)]
    assert "`problem` must be" in rows[2] and "`answer` must be" in rows[2]
    assert rest == "... and 2 more bad rows, 12 in all."
    assert remedy.endswith(f"aopsd data prepare {path} --out PROBLEMS.jsonl")


def test_a_misspelt_field_is_no_other_data_set(write):
    row = {"id": "p2", "problem": "?", "awnser": "1"}
    with pytest.raises(UserError, match="did you mean `answer`") as caught:
        load_problems(write(GOOD, row))
    assert "data prepare" not in str(caught.value)
    with pytest.raises(UserError, match="data prepare"):
        load_problems(write({"id": "p2", "question": "?", "answer": "1"}))


def test_a_command_lists_all_faults_of_a_file_with_graphs(write):
    path = write(GOOD | {"dag": raw_graph({"a": "one"})}, {"id": "p2", "dag": {}}, GOOD | {"id": "p3"})
    with pytest.raises(UserError, match=rf"(?m)^List all: aopsd dag check {path}$") as caught:
        load_problems(path)
    assert "data prepare" not in str(caught.value)  # it would drop the graphs
    path = write(GOOD | {"dag": raw_graph({"a": "one"})}, GOOD | {"id": "p3"})
    with pytest.raises(UserError, match=rf"1 of 2 problems lack it.* List all: aopsd dag check {path}\."):
        check_problems(load_problems(path), "dag_full", "shuffle")
    with pytest.raises(UserError) as caught:
        check_problems(load_problems(write(GOOD)), "dag_full", "shuffle")
    assert "dag check" not in str(caught.value)  # which refuses a file without a graph


def test_a_byte_order_mark_before_the_first_line_is_passed_over(write):
    path = write(GOOD)
    expected = load_problems(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_problems(path) == expected


def test_no_file_and_no_problem(tmp_path, write):
    with pytest.raises(UserError, match=r"nowhere\.jsonl: no such file \(looked from .*\)"):
        load_problems(tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match=f"{tmp_path}: is a folder. Expected a file"):
        load_problems(tmp_path)
    with pytest.raises(UserError, match="no problem in it"):
        load_problems(write(b""))


@pytest.mark.parametrize(
    ("row", "kind", "told"),
    [
        ({"id": "p1", "problm": "1 + 1?", "answer": "2"}, "none", ("`problm`", "`problem`")),
        ({"id": "p1", "problem": "1 + 1?", "Answers": "2"}, "none", ("`Answers`", "`answer`")),
        (GOOD | {"soluton": "two"}, "solution", ("`soluton`", "`solution`")),
        (GOOD | {"plans": ["add"]}, "plan", ("`plans`", "`plan`")),
        (GOOD | {"dags": {}}, "dag_full", ("`dags`", "`dag`")),
        (GOOD | {"graph": {}}, "dag_full", ("`graph`", "`dag`")),
        (GOOD | {"reasoningDag": {}}, "dag_full", ("`reasoningDag`", "`dag`")),
        ({"id": "p1", "question_id": 7, "question": "1 + 1?", "answer": "2"}, "none", ("`question`", "`problem`")),
        ({"id": "p1", "problem": "1 + 1?", "final_answer": "2"}, "none", ("`final_answer`", "`answer`")),
    ],
)
def test_a_field_that_is_nearly_ours_is_told(write, row, kind, told):
    path = write(row)
    with pytest.raises(UserError) as caught:
        check_problems(load_problems(path), kind, "shuffle")
    assert str(caught.value).startswith(f"{path}:1: ")
    assert "Its field {} is not read: did you mean {}?".format(*told) in str(caught.value)


def test_another_field_is_not_taken_for_one_of_ours(write):
    path = write(GOOD | {"question": "1 + 1?", "source": "x"})
    with pytest.raises(UserError) as caught:
        check_problems(load_problems(path), "solution", "shuffle")
    assert "did you mean" not in str(caught.value)


def test_a_graph_under_another_name_is_told_by_the_check_of_files(write):
    graph = {"nodes": [{"id": "1", "statement": "a"}], "edges": []}
    rows = list(check_file(write(GOOD | {"dag": graph}, GOOD | {"id": "p2", "dags": graph})))
    assert "`dags`" in rows[1].faults[-1].detail and rows[1].faults[-1].kind == "missing_dag"
    with pytest.raises(UserError, match="did you mean `dag`"):
        need_graphs(write(GOOD | {"dags": graph}))
