import json
from pathlib import Path

import pytest

from nemo_aopsd.dag_stats import measure, measure_file, table
from nemo_aopsd.errors import UserError

SHARED = Path(__file__).parents[2] / "shared/data"


def graph(statements, *edges):
    nodes = [{"id": str(index), "statement": text} for index, text in enumerate(statements, start=1)]
    return {"nodes": nodes, "edges": [list(edge) for edge in edges]}


def test_measures_counted_by_hand():
    """1 -> 2 -> 4, 1 -> 3 -> 4, 1 -> 4 (implied), and 5 apart; 4 ends in the answer's value."""
    raw = graph(["a", "b", "c", "p = 0.5", "e"], "12", "13", "24", "34", "14")
    assert measure(raw, r"\frac{1}{2}") == {
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


def test_leak_found_by_text_and_by_value_counts_once():
    assert measure(graph(["The answer is 60"]), "60")["answer_leaks"] == 1


def test_faulty_graphs_are_named_and_left_out_of_the_table(tmp_path):
    path = tmp_path / "d.jsonl"
    rows = [
        {"id": "a", "answer": "9", "dag": graph(["x"])},
        {"id": "b", "answer": "9", "dag": graph(["x", "y"], "12", "21")},
        {"id": "c", "answer": "9"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    measured = measure_file(path)
    assert measured[1] == {"id": "b", "errors": ["cycle"]} and len(measured) == 2
    lines = list(table(measured))
    assert lines[0].startswith("2 graphs, 1 of them with errors")
    assert lines[2].split()[:6] == ["nodes", "1", "1", "1.00", "1", "1"]


def test_file_without_graphs_says_how_to_make_some(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"id": "a", "answer": "9"}\n')
    with pytest.raises(UserError, match="aopsd dag build"):
        measure_file(path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data not present")
def test_reference_graphs_have_no_leak_and_no_transitive_edge():
    rows = measure_file(SHARED / "reasoning_dags.jsonl")
    assert len(rows) == 36
    assert sum(row["answer_leaks"] for row in rows) == sum(row["transitive_edges"] for row in rows) == 0
