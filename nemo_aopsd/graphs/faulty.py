"""Makes a graph with faults drawable, so that the faults can be seen.

Everything that the file says is kept: an id that only edges name becomes a node marked `is_unknown`, a repeated id
`id (2)` or the next number that no other node has, a loop or a cycle stays one. Only what has no checkpoints at all
cannot be drawn.
"""

from __future__ import annotations

import itertools
from typing import Any

import networkx as nx

from nemo_aopsd.data.dag import find_faults
from nemo_aopsd.errors import UserError

CANNOT_BE_DRAWN = ("malformed", "empty_graph")


def drawable(raw: Any, where: str) -> nx.DiGraph:
    """The graph of a raw record, faults and all. Raises UserError if there is nothing to draw."""
    hopeless = [f"{fault.kind} ({fault.detail})" for fault in find_faults(raw) if fault.kind in CANNOT_BE_DRAWN]
    if hopeless:
        raise UserError(f"{where}: its `dag` cannot be drawn: {'; '.join(hopeless)}. Mend the graph.")
    graph, edges = nx.DiGraph(), [edge[:2] for edge in raw["edges"]]
    taken = {node["id"] for node in raw["nodes"]} | {end for edge in edges for end in edge}
    for node in raw["nodes"]:
        others = (f"{node['id']} ({number})" for number in itertools.count(2))
        name = node["id"] if node["id"] not in graph else next(name for name in others if name not in taken)
        taken.add(name)
        graph.add_node(name, statement=node["statement"])
    unknown = [end for edge in edges for end in edge if end not in graph]
    graph.add_nodes_from(unknown, statement="no such checkpoint", is_unknown=True)
    graph.add_edges_from(edges)
    return graph


def without_cycles(graph: nx.DiGraph) -> nx.DiGraph:
    """The same nodes and edges without loops, each edge that closes a cycle on a walk in the file's order turned
    around, so that the graph has layers.

    >>> list(without_cycles(nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])).edges)
    [('a', 'b'), ('a', 'c'), ('b', 'c'), ('c', 'd')]
    """
    acyclic, path = nx.DiGraph(), set()
    acyclic.add_nodes_from(graph)
    for u, v, step in nx.dfs_labeled_edges(graph):
        if step == "forward":
            path.add(v)
        elif step == "reverse":
            path.discard(v)
        if u != v and step != "reverse":
            acyclic.add_edge(*((v, u) if step == "nontree" and v in path else (u, v)))
    return acyclic
