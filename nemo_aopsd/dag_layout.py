"""Places for the boxes of a layered graph drawing (after Sugiyama): layers, few crossings, no overlap.

An edge that spans several layers gets a narrow crossing slot in each layer between, so that it runs past boxes and
not through them. One unit is one point (1/72 inch); y grows downward.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import networkx as nx

Key = Hashable  # a node id, or (u, v, depth) for the crossing of a long edge

GAP_X, GAP_Y, _CROSSING_WIDTH, _SWEEPS = 22.0, 38.0, 8.0, 12


@dataclass(slots=True)
class Slot:
    """A box by its centre `x` and its top `y`; `row_height` is the height of the tallest box of its layer."""

    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    row_height: float = 0.0


def lay_out(graph: nx.DiGraph, sizes: Mapping[str, tuple[float, float]]) -> tuple[dict[Key, Slot], list[list[Key]]]:
    """Slots of all nodes and crossings, and each edge as the chain of slots that it runs through."""
    rows, chains = _rows_and_chains(graph)
    neighbours: dict[Key, tuple[list[Key], list[Key]]] = {key: ([], []) for row in rows for key in row}
    for chain in chains:
        for upper, lower in itertools.pairwise(chain):
            neighbours[lower][0].append(upper)
            neighbours[upper][1].append(lower)
    slots = {key: Slot(*sizes.get(key, (_CROSSING_WIDTH, 0.0))) for row in rows for key in row}
    _stack(rows, slots)
    for row in rows:
        _spread(row, slots)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            for key in row:
                near = neighbours[key][0 if down else 1]
                if near:
                    slots[key].x = sum(slots[other].x for other in near) / len(near)
            row.sort(key=lambda key: slots[key].x)
            _spread(row, slots)
    return slots, chains


def _rows_and_chains(graph: nx.DiGraph) -> tuple[list[list[Key]], list[list[Key]]]:
    """Layers by the longest path from a root, roots just above what needs them first, and the edges' chains."""
    generations = list(nx.topological_generations(graph))
    level = {node: depth for depth, generation in enumerate(generations) for node in generation}
    for root in generations[0]:
        level[root] = min((level[child] for child in graph.succ[root]), default=1) - 1
    rows: list[list[Key]] = [[node for node in graph if level[node] == depth] for depth in range(len(generations))]
    chains: list[list[Key]] = []
    for u, v in graph.edges:
        crossings = [(u, v, depth) for depth in range(level[u] + 1, level[v])]
        for crossing in crossings:
            rows[crossing[2]].append(crossing)
        chains.append([u, *crossings, v])
    return rows, chains


def _stack(rows: list[list[Key]], slots: dict[Key, Slot]) -> None:
    y = 0.0
    for row in rows:
        height = max(slots[key].height for key in row)
        for key in row:
            slots[key].y, slots[key].row_height = y, height
        y += height + GAP_Y


def _spread(row: list[Key], slots: dict[Key, Slot]) -> None:
    """Push apart what overlaps, keep the order, and keep the row's mean place."""
    wanted = sum(slots[key].x for key in row)
    for left, right in itertools.pairwise(row):
        apart = (slots[left].width + slots[right].width) / 2 + GAP_X
        slots[right].x = max(slots[right].x, slots[left].x + apart)
    shift = (wanted - sum(slots[key].x for key in row)) / len(row)
    for key in row:
        slots[key].x += shift
