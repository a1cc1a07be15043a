"""Reasoning DAGs (sec:dag, sec:disclosure): validation, closure, progress, frontier, serialisation.

Functions over a plain `networkx.DiGraph`; an edge runs from an immediate prerequisite to its dependent and each
node carries its `statement`. Not checked: whether a statement is true, or its prerequisites sufficient.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx

from nemo_aopsd.errors import UserError


@dataclass(frozen=True, slots=True)
class Fault:
    """One defect of a graph. Warnings leave the graph usable."""

    kind: str
    detail: str
    is_error: bool = True


def find_faults(raw: Any) -> list[Fault]:
    """Every defect of `{"nodes": [{"id", "statement"}], "edges": [[prerequisite, dependent]]}`, errors first.

    Errors: malformed, empty_graph, empty_id, duplicate_id, empty_statement, dangling_edge, self_loop, cycle.
    Warnings: duplicate_edge, transitive_edge. `leaks.find_graph_faults` adds checkpoints that give the answer away.
    """
    if malformed := _malformed(raw):
        return [Fault("malformed", malformed)]
    nodes, edges = raw["nodes"], [tuple(edge[:2]) for edge in raw["edges"]]
    faults = [*_node_faults(nodes), *_edge_faults({node["id"] for node in nodes}, edges)]
    graph = nx.DiGraph()
    graph.add_nodes_from((node["id"], {"statement": node["statement"]}) for node in nodes)
    graph.add_edges_from((u, v) for u, v in edges if u != v and u in graph and v in graph)
    try:
        faults += [
            Fault("transitive_edge", f"{u!r} -> {v!r} follows from a longer path", is_error=False)
            for u, v in transitive_edges(graph)
        ]
    except nx.NetworkXUnfeasible:
        cycle = [u for u, _ in nx.find_cycle(graph)]
        faults.append(Fault("cycle", " -> ".join([*cycle, cycle[0]])))
    return sorted(faults, key=lambda fault: not fault.is_error)


def build_graph(raw: Any, where: str = "graph") -> nx.DiGraph:
    """The graph of a raw record. Raises UserError with every error fault, led by `where` (file and line)."""
    if errors := [fault for fault in find_faults(raw) if fault.is_error]:
        listed = "; ".join(f"{fault.kind} ({fault.detail})" for fault in errors)
        raise UserError(f"{where}: unusable reasoning DAG: {listed}. Correct the graph or remove its `dag`.")
    graph = nx.DiGraph()
    graph.add_nodes_from((node["id"], {"statement": node["statement"]}) for node in raw["nodes"])
    graph.add_edges_from(tuple(edge[:2]) for edge in raw["edges"])
    return graph


def to_raw(graph: nx.DiGraph) -> dict[str, Any]:
    """The raw record of a graph, as `build_graph` reads it."""
    nodes = [{"id": node, "statement": statement} for node, statement in graph.nodes.data("statement")]
    return {"nodes": nodes, "edges": [list(edge) for edge in graph.edges]}


def transitive_edges(graph: nx.DiGraph) -> list[tuple[str, str]]:
    """The edges that a longer path replaces. Raises networkx.NetworkXUnfeasible if there is a cycle.

    Ancestor sets are bit masks, so that one pass over 10,000 checkpoints takes moments.

    >>> transitive_edges(nx.DiGraph([("a", "b"), ("b", "c"), ("a", "c")]))
    [('a', 'c')]
    """
    bit = {node: 1 << index for index, node in enumerate(graph)}
    ancestors: dict[str, int] = {}
    found = []
    for node in nx.topological_sort(graph):
        beyond = own = 0
        for parent in graph.pred[node]:
            beyond |= ancestors[parent]
            own |= bit[parent]
        ancestors[node] = beyond | own
        found += [(parent, node) for parent in graph.pred[node] if beyond & bit[parent]]
    return found


def largest_closed_subset(graph: nx.DiGraph, judged: Collection[str]) -> frozenset[str]:
    """R: the largest prerequisite-closed subset of `judged`, in one topological pass (text above eq:dag-progress).

    >>> sorted(largest_closed_subset(nx.DiGraph([("a", "b"), ("b", "c")]), {"a", "c"}))
    ['a']
    """
    if unknown := set(judged) - set(graph):
        raise ValueError(f"judged ids {sorted(unknown)} are not checkpoints; known: {sorted(graph)}")
    reached: set[str] = set()
    for node in nx.topological_sort(graph):
        if node in judged and reached.issuperset(graph.pred[node]):
            reached.add(node)
    return frozenset(reached)


def progress(graph: nx.DiGraph, reached: Collection[str]) -> float:
    """r = |R| / |V| (eq:dag-progress)."""
    return len(reached) / len(graph)


def frontier(graph: nx.DiGraph, reached: Collection[str]) -> frozenset[str]:
    """F(R): checkpoints outside R whose parents all lie in R (eq:local-disclosure). Roots if R is empty.

    >>> sorted(frontier(nx.DiGraph([("a", "c"), ("b", "c"), ("c", "d")]), {"a", "b"}))
    ['c']
    """
    inside = set(reached)
    return frozenset(node for node in graph if node not in inside and inside.issuperset(graph.pred[node]))


def serialize(graph: nx.DiGraph, marks: Mapping[str, str] | None = None, only: Collection[str] | None = None) -> str:
    """phi: one line a checkpoint in topological order, `[id] statement (requires: ids) mark`.

    `only` shows the subgraph that it induces, so that no other checkpoint is named. Ties go by the order of the file.
    """
    shown = graph if only is None else graph.subgraph(only)
    rank = {node: index for index, node in enumerate(graph)}  # a subgraph view iterates in no fixed order
    lines = []
    for node in nx.lexicographical_topological_sort(shown, key=rank.__getitem__):
        parents = sorted(shown.pred[node], key=rank.__getitem__)
        requires = f" (requires: {', '.join(parents)})" if parents else ""
        mark = f" {marks[node]}" if marks and node in marks else ""
        lines.append(f"[{node}] {graph.nodes[node]['statement']}{requires}{mark}")
    return "\n".join(lines)


def _malformed(raw: Any) -> str:
    if not isinstance(raw, dict) or not {"nodes", "edges"} <= set(raw):
        return 'expected {"nodes": [...], "edges": [...]}'
    if not isinstance(raw["nodes"], list) or not isinstance(raw["edges"], list):
        return "`nodes` and `edges` must be lists"
    for index, node in enumerate(raw["nodes"]):
        if not isinstance(node, dict) or not all(isinstance(node.get(key), str) for key in ("id", "statement")):
            return f"node {index}: expected string `id` and `statement`, got {str(node)[:80]}"
    for index, edge in enumerate(raw["edges"]):
        if not isinstance(edge, list) or len(edge) < 2 or not all(isinstance(end, str) for end in edge[:2]):
            return f"edge {index}: expected [prerequisite, dependent], got {str(edge)[:80]}"
    return ""


def _node_faults(nodes: list[dict[str, str]]) -> Iterable[Fault]:
    if not nodes:
        yield Fault("empty_graph", "no checkpoint")
    for index, node in enumerate(nodes):
        if not node["id"].strip():
            yield Fault("empty_id", f"node {index}")
        if not node["statement"].strip():
            yield Fault("empty_statement", f"node {node['id']!r}")
    for node_id, count in Counter(node["id"] for node in nodes).items():
        if count > 1:
            yield Fault("duplicate_id", f"{node_id!r} used {count} times")


def _edge_faults(ids: set[str], edges: list[tuple[str, str]]) -> Iterable[Fault]:
    for (u, v), count in Counter(edges).items():
        missing = [end for end in dict.fromkeys((u, v)) if end not in ids]
        if missing:
            yield Fault("dangling_edge", f"{u!r} -> {v!r}: no node {', '.join(map(repr, missing))}")
        elif u == v:
            yield Fault("self_loop", f"{u!r} -> {v!r}")
        if count > 1:
            yield Fault("duplicate_edge", f"{u!r} -> {v!r} listed {count} times", is_error=False)
