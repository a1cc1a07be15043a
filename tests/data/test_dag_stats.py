import json

import pytest

from nemo_aopsd.cli.dag import stats as dag_stats
from nemo_aopsd.data.leaks import find_graph_faults
from nemo_aopsd.data.stats import measure, measure_file, table
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_jsonl, write_jsonl
from tests import raw_graph


def test_measures_counted_by_hand():
    """1 -> 2 -> 4, 1 -> 3 -> 4, 1 -> 4 (implied), and 5 apart; 4 ends in the answer's value."""
    raw = raw_graph({"1": "a", "2": "b", "3": "c", "4": "p = 0.5", "5": "e"}, ["12", "13", "24", "34", "14"])
    assert measure(raw, find_graph_faults(raw, r"\frac{1}{2}")) == {
        "nodes": 5,
        "edges": 5,
        "roots": 2,
        "sinks": 2,
        "depth": 3,
        "width": 2,
        "max_fan_in": 3,
        "max_fan_out": 3,
        "transitive_edges": 1,
        "answer_leaks": 1,
    }


def test_faulty_graphs_are_named_and_left_out_of_the_table(tmp_path):
    path = tmp_path / "d.jsonl"
    sound, circle = {"dag": raw_graph("x")}, {"dag": raw_graph("xy", ["xy", "yx"])}
    rows = [{"id": "a", **sound}, {"id": "b", **circle}, {"id": "c"}, {"id": "a", **sound}, sound]
    write_jsonl(path, ({"problem": "?", "answer": "9", **row} for row in rows))
    measured, broken = measure_file(path)
    assert not broken and measured[1:] == [
        {"id": "b", "errors": ["cycle"]},
        {"id": "a", "errors": ["repeated_id"]},
        {"id": f"{path}:5", "errors": ["missing_id"]},
    ]
    lines = list(table(measured))
    assert lines[0].startswith("4 graphs, 3 of them with errors")
    assert lines[2].split()[:6] == ["nodes", "1", "1", "1.00", "1", "1"]


def test_rows_that_cannot_be_read_stop_nothing(tmp_path, capsys):
    path, out = tmp_path / "d.jsonl", tmp_path / "stats.jsonl"
    path.write_text("{\n" + json.dumps({"id": "a", "problem": "?", "answer": "9", "dag": raw_graph("x")}) + "\n[1]\n")
    dag_stats(path, out)
    printed = capsys.readouterr()
    assert printed.err.startswith(f"warning 2 rows cannot be read: {path}:1: broken JSON")
    assert printed.out.startswith("1 graph, 0 of them with errors")
    assert [row["id"] for _, row in read_jsonl(out)] == ["a"]
    path.write_text("{\n")
    with pytest.raises(UserError, match=r"d\.jsonl: none of its 1 lines is a JSON object\. .*d\.jsonl:1: broken JSON"):
        measure_file(path)
