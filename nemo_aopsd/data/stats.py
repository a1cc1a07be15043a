"""Sizes and shapes of the graphs of a file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import networkx as nx

from nemo_aopsd.console import counted
from nemo_aopsd.data.check import CheckedRow, rows_with_graphs
from nemo_aopsd.data.dag import Fault, build_graph

MEASURES = {
    "nodes": "checkpoints",
    "edges": "edges",
    "roots": "without prerequisite",
    "sinks": "last ones",
    "depth": "checkpoints on the longest path",
    "width": "checkpoints in the largest layer",
    "max_fan_in": "most prerequisites",
    "max_fan_out": "most dependents",
    "transitive_edges": "edges that a longer path implies",
    "answer_leaks": "checkpoints that give the answer away",
}


def measure_file(path: Path) -> tuple[list[dict[str, Any]], list[CheckedRow]]:
    """One record a graph: `id` and `MEASURES`, or `id` and `errors` for a row that cannot be used for another reason
    than an answer leak; and the lines that cannot be read. Raises UserError if the file holds no graph."""
    measured = []
    rows, broken = rows_with_graphs(path)
    for record, row in rows:
        errors = [fault.kind for fault in row.faults if fault.is_error and fault.kind != "states_answer"]
        found = {"errors": errors} if errors else measure(record["dag"], row.faults)
        measured.append({"id": row.problem_id or row.where, **found})
    return measured, broken


def measure(raw: dict[str, Any], faults: Sequence[Fault]) -> dict[str, int]:
    """`MEASURES` of a graph without errors other than answer leaks. Layers go by the longest path from a root."""
    graph = build_graph(raw)
    layers = list(nx.topological_generations(graph))
    return {
        "nodes": len(graph),
        "edges": graph.number_of_edges(),
        "roots": sum(not graph.pred[node] for node in graph),
        "sinks": sum(not graph.succ[node] for node in graph),
        "depth": len(layers),
        "width": max(map(len, layers)),
        "max_fan_in": max(len(graph.pred[node]) for node in graph),
        "max_fan_out": max(len(graph.succ[node]) for node in graph),
        "transitive_edges": sum(fault.kind == "transitive_edge" for fault in faults),
        "answer_leaks": sum(fault.kind == "states_answer" for fault in faults),
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of text: least, median, mean, most and sum of each measure."""
    usable = [row for row in rows if "errors" not in row]
    yield f"{counted(len(rows), 'graph')}, {len(rows) - len(usable)} of them with errors (see: aopsd dag check)"
    if not usable:
        return
    yield f"{'':<18}{'min':>6}{'median':>8}{'mean':>8}{'max':>6}{'sum':>8}"
    for name, meaning in MEASURES.items():
        values = [row[name] for row in usable]
        numbers = f"{min(values):>6}{median(values):>8g}{mean(values):>8.2f}{max(values):>6}{sum(values):>8}"
        yield f"{name:<18}{numbers}   {meaning}"
