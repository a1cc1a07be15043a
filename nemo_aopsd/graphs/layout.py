"""Places for the boxes of a layered graph drawing (after Sugiyama): layers, few crossings, no overlap.

An edge that spans several layers gets a narrow slot in each layer between, so that it runs past boxes and not through
them. One unit is one point (1/72 inch); y grows downward.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import networkx as nx

Key = str | tuple[str, str, int]  # a node's id, or (u, v, layer) for an edge that passes a layer

GAP_X, GAP_Y, _PASSING_WIDTH, _SWEEPS = 22.0, 38.0, 8.0, 12


@dataclass(slots=True)
class Slot:
    """A box by its centre `x` and its top `y`; `row_height` is the height of the tallest box of its layer."""

    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    row_height: float = 0.0


def lay_out(graph: nx.DiGraph, sizes: Mapping[str, tuple[float, float]]) -> tuple[dict[Key, Slot], list[list[Key]]]:
    """Slots of all nodes and passing edges, and each edge as the chain of slots that it runs through."""
    layer = longest_path_layers(graph)
    rows: list[list[Key]] = [[] for _ in range(max(layer.values()) + 1)]
    for node in graph:
        rows[layer[node]].append(node)
    chains: list[list[Key]] = []
    for u, v in graph.edges:
        passing = [(u, v, depth) for depth in range(layer[u] + 1, layer[v])]
        for slot in passing:
            rows[slot[2]].append(slot)
        chains.append([u, *passing, v])
    near: tuple[dict[Key, list[Key]], dict[Key, list[Key]]] = ({}, {})  # above, below
    for upper, lower in (pair for chain in chains for pair in itertools.pairwise(chain)):
        near[0].setdefault(lower, []).append(upper)
        near[1].setdefault(upper, []).append(lower)
    slots = {
        key: Slot(*(sizes[key] if isinstance(key, str) else (_PASSING_WIDTH, 0.0))) for key in itertools.chain(*rows)
    }
    y = 0.0
    for row in rows:
        height = max(slots[key].height for key in row)
        for key in row:
            slots[key].y, slots[key].row_height = y, height
        y += height + GAP_Y
        _spread(row, slots)
    for sweep in range(_SWEEPS):
        side, step = (0, 1) if sweep % 2 == 0 else (1, -1)
        for row in rows[::step]:
            for key in row:
                if others := near[side].get(key):
                    slots[key].x = sum(slots[other].x for other in others) / len(others)
            row.sort(key=lambda key: slots[key].x)
            _spread(row, slots)
    return slots, chains


def num_slots(graph: nx.DiGraph) -> int:
    """Boxes and passing edges that a drawing needs.

    >>> num_slots(nx.DiGraph([("a", "b"), ("b", "c"), ("a", "c")]))
    4
    """
    layer = longest_path_layers(graph)
    return len(graph) + sum(layer[v] - layer[u] - 1 for u, v in graph.edges)


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


def longest_path_layers(graph: nx.DiGraph) -> dict[str, int]:
    """By the longest path from a root, roots just above what needs them first."""
    generations = list(nx.topological_generations(graph))
    layer = {node: depth for depth, generation in enumerate(generations) for node in generation}
    for root in generations[0]:
        layer[root] = min((layer[child] for child in graph.succ[root]), default=1) - 1
    return layer


def _spread(row: list[Key], slots: dict[Key, Slot]) -> None:
    """Push apart what overlaps; keep the order and the row's mean."""
    mean = sum(slots[key].x for key in row) / len(row)
    for left, right in itertools.pairwise(row):
        apart = (slots[left].width + slots[right].width) / 2 + GAP_X
        slots[right].x = max(slots[right].x, slots[left].x + apart)
    shift = mean - sum(slots[key].x for key in row) / len(row)
    for key in row:
        slots[key].x += shift
