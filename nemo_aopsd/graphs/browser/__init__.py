"""A page to search and read the graphs of a file: one HTML file, no network, nothing executed but its own script.

All text of the data is placed by the page's script as text and never as markup, so a statement cannot do anything.
Graphs with faults are shown too, as lists, with their faults; lines that cannot be read are counted. Solutions are
left out, for they can be long.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
from jinja2 import Environment
from markupsafe import Markup

from nemo_aopsd.data.check import CheckedRow, Line, rows_with_graphs
from nemo_aopsd.files import atomic_write
from nemo_aopsd.graphs.layout import longest_path_layers

_NO_LAYERS = {"empty_graph", "empty_id", "duplicate_id", "empty_statement", "dangling_edge", "self_loop", "cycle"}
_TEMPLATE = Path(__file__).parent / "page.html"


def write_browser(problems: Path, page: Path) -> tuple[int, list[Line]]:
    """Write the page; return its number of graphs, and the lines that cannot be read. Raises UserError if the file
    holds no graph."""
    rows, broken = rows_with_graphs(problems)
    graphs = [_entry(record, row) for record, row in rows]
    template = Environment(autoescape=True).from_string(_TEMPLATE.read_text(encoding="utf-8"))
    atomic_write(page, template.render(title=problems.name, count=len(graphs), unread=len(broken), data=_embed(graphs)))
    return len(graphs), broken


def _entry(record: dict[str, Any], row: CheckedRow) -> dict[str, Any]:
    """What the page needs of a row; `layers` (lists of node ids) is absent if the graph cannot be layered."""
    entry = {
        "id": row.problem_id or row.where,
        "usable": not row.has_errors,
        "problem": str(record.get("problem", "")),
        "answer": str(record.get("answer", "")),
        "plan": _steps(record.get("plan")),
        "subproblems": _steps(record.get("subproblems")),
        "faults": [f"{fault.kind}: {fault.detail}" for fault in row.faults],
    }
    kinds = {fault.kind for fault in row.faults if fault.is_error}
    if "malformed" in kinds:
        return entry | {"nodes": [], "edges": []}
    nodes = [{"id": node["id"], "statement": node["statement"]} for node in record["dag"]["nodes"]]
    edges = list(dict.fromkeys((edge[0], edge[1]) for edge in record["dag"]["edges"]))
    entry |= {"nodes": nodes, "edges": edges}
    if not kinds & _NO_LAYERS:
        entry["layers"] = _layers(nodes, edges)
    return entry


def _steps(value: Any) -> list[str]:
    """A list's entries as texts; anything else, which training would refuse, as one entry."""
    return [str(step) for step in (value if isinstance(value, list) else [value] if value else [])]


def _layers(nodes: list[dict[str, str]], edges: list[tuple[str, str]]) -> list[list[str]]:
    """The layers that a drawing has, in the file's order."""
    graph = nx.DiGraph()
    graph.add_nodes_from(node["id"] for node in nodes)
    graph.add_edges_from(edges)
    layer = longest_path_layers(graph)
    return [[node for node in graph if layer[node] == depth] for depth in range(max(layer.values()) + 1)]


def _embed(value: Any) -> Markup:
    """JSON that may stand inside a script element: `<` and the two line separators of JavaScript are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    text = text.encode("utf-8", "replace").decode("utf-8")
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)
