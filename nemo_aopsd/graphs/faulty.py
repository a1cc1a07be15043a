"""A graph with faults as one that can be drawn: what is faulty must be looked at.

Everything that the file says is kept: an id that only edges name becomes a node marked `is_unknown`, a repeated id
`id (2)` or the next number that no other node has, a loop or a cycle stays one. Only what has no checkpoints at all
cannot be drawn.
"""

from __future__ import annotations

from typing import Any

import networkx as nx

from nemo_aopsd.data.dag import find_faults
from nemo_aopsd.errors import UserError


def drawable(raw: Any, where: str) -> nx.DiGraph:
    """The graph of a raw record, faults and all. Raises UserError if there is nothing to draw."""
    hopeless = [fault for fault in find_faults(raw) if fault.kind in ("malformed", "empty_graph")]
    if hopeless:
        named = "; ".join(f"{fault.kind} ({fault.detail})" for fault in hopeless)
        raise UserError(f"{where}: its `dag` cannot be drawn: {named}. Mend the graph.")
    graph = nx.DiGraph()
    named = {node["id"] for node in raw["nodes"]} | {end for edge in raw["edges"] for end in edge[:2]}
    for node in raw["nodes"]:
        name = node["id"] if node["id"] not in graph else _free_name(node["id"], named | set(graph))
        graph.add_node(name, statement=node["statement"])
    for edge in raw["edges"]:
        for end in edge[:2]:
            if end not in graph:
                graph.add_node(end, statement="no such checkpoint", is_unknown=True)
        graph.add_edge(*edge[:2])
    return graph


def back_edges(graph: nx.DiGraph) -> list[tuple[str, str]]:
    """Edges that close a cycle on a walk in the file's order; the graph has none once they are turned around.

    >>> back_edges(nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]))
    [('c', 'a')]
    """
    path, found = set(), []
    for u, v, step in nx.dfs_labeled_edges(graph):
        if step == "forward":
            path.add(v)
        elif step == "reverse":
            path.discard(v)
        elif v in path:
            found.append((u, v))
    return found


def without_cycles(graph: nx.DiGraph) -> nx.DiGraph:
    """The same nodes, with back edges turned around and loops left out, so that it has layers."""
    acyclic = nx.DiGraph()
    acyclic.add_nodes_from(graph)
    back = set(back_edges(graph))
    acyclic.add_edges_from((v, u) if (u, v) in back else (u, v) for u, v in graph.edges if u != v)
    return acyclic


def _free_name(node_id: str, taken: set[str]) -> str:
    number = 2
    while f"{node_id} ({number})" in taken:
        number += 1
    return f"{node_id} ({number})"
