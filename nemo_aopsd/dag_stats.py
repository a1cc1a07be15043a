"""Sizes and shapes of the graphs of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import networkx as nx

from nemo_aopsd.answer_leaks import find_graph_faults
from nemo_aopsd.dag import build_graph, find_faults
from nemo_aopsd.data import answer_text, read_jsonl
from nemo_aopsd.errors import UserError

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


def measure_file(path: Path) -> list[dict[str, Any]]:
    """One record a graph: `id` and `MEASURES`, or `id` and `errors` for one that cannot be used for another reason
    than an answer leak. Raises UserError if the file holds no graph."""
    rows = []
    for where, record in read_jsonl(path):
        if record.get("dag") is None:
            continue
        answer = answer_text(record)
        errors = [fault.kind for fault in find_faults(record["dag"]) if fault.is_error]
        found = {"errors": errors} if errors else measure(record["dag"], answer if isinstance(answer, str) else None)
        rows.append({"id": str(record.get("id", where)), **found})
    if not rows:
        raise UserError(f"{path}: no row has a `dag`. Make graphs with: aopsd dag build {path} --out ...")
    return rows


def measure(raw: dict[str, Any], answer: str | None) -> dict[str, int]:
    """`MEASURES` of a graph without errors other than answer leaks. Layers go by the longest path from a root."""
    faults = find_graph_faults(raw, answer)
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
    yield f"{len(rows)} graphs, {len(rows) - len(usable)} of them with errors (see: aopsd dag check)"
    if not usable:
        return
    yield f"{'':<18}{'min':>6}{'median':>8}{'mean':>8}{'max':>6}{'sum':>8}"
    for name, meaning in MEASURES.items():
        values = [row[name] for row in usable]
        numbers = f"{min(values):>6}{median(values):>8g}{mean(values):>8.2f}{max(values):>6}{sum(values):>8}"
        yield f"{name:<18}{numbers}   {meaning}"
