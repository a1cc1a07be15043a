"""Places for the boxes of a layered graph drawing (after Sugiyama): layers, few crossings, no overlap.

An edge that spans several rows gets a narrow crossing slot in each row between, so that it runs past boxes and not
through them. A layer too wide for one row takes several, through which edges of one node run together. One unit is one
point (1/72 inch); y grows downward.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import networkx as nx

Key = Hashable  # a node id, or (u, v, row) for a crossing; None for the end in which edges that share it differ

GAP_X, GAP_Y, _CROSSING_WIDTH, _SWEEPS, _WIDEST = 22.0, 38.0, 8.0, 12, 2400.0


@dataclass(slots=True)
class Slot:
    """A box by its centre `x` and its top `y`; `row_height` is the height of the tallest box of its row."""

    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    row_height: float = 0.0


def lay_out(graph: nx.DiGraph, sizes: Mapping[str, tuple[float, float]]) -> tuple[dict[Key, Slot], list[list[Key]]]:
    """Slots of all nodes and crossings, and each edge as the chain of slots that it runs through."""
    layers, chains = _layers_and_chains(graph, sizes)
    rows = [row for layer in layers for row in layer]
    neighbours: dict[Key, tuple[list[Key], list[Key]]] = {key: ([], []) for row in rows for key in row}
    for upper, lower in dict.fromkeys(pair for chain in chains for pair in itertools.pairwise(chain)):
        neighbours[lower][0].append(upper)
        neighbours[upper][1].append(lower)
    slots = {key: Slot(*sizes.get(key, (_CROSSING_WIDTH, 0.0))) for row in rows for key in row}
    _stack(rows, slots)
    for row in rows:
        _spread(row, slots)
    for sweep in range(_SWEEPS):
        side, step = (0, 1) if sweep % 2 == 0 else (1, -1)
        for layer in layers[::step]:
            centre = None  # of the first row, for all: each alone would drift to where the crossing above happens to be
            for row in layer[::step]:
                for key in row:
                    if near := neighbours[key][side]:
                        slots[key].x = sum(slots[other].x for other in near) / len(near)
                row.sort(key=lambda key: slots[key].x)
                centre = _spread(row, slots, centre)
    return slots, chains


def num_slots(graph: nx.DiGraph) -> int:
    """Boxes and crossings that a drawing needs, if no layer takes several rows.

    >>> num_slots(nx.DiGraph([("a", "b"), ("b", "c"), ("a", "c")]))
    4
    """
    layer = longest_path_layers(graph)
    return len(graph) + sum(layer[v] - layer[u] - 1 for u, v in graph.edges)


def longest_path_layers(graph: nx.DiGraph) -> dict[str, int]:
    """By the longest path from a root, roots just above what needs them first."""
    generations = list(nx.topological_generations(graph))
    layer = {node: depth for depth, generation in enumerate(generations) for node in generation}
    for root in generations[0]:
        layer[root] = min((layer[child] for child in graph.succ[root]), default=1) - 1
    return layer


def _layers_and_chains(
    graph: nx.DiGraph, sizes: Mapping[str, tuple[float, float]]
) -> tuple[list[list[list[Key]]], list[list[Key]]]:
    """The rows of each layer from top to bottom, and each edge as a chain."""
    layer = longest_path_layers(graph)
    rows: list[list[Key]] = []
    for depth in range(max(layer.values()) + 1):
        rows += _wrapped([node for node in graph if layer[node] == depth], sizes)
    place = {node: number for number, row in enumerate(rows) for node in row}
    layer_of_row = [layer[row[0]] for row in rows]
    chains: list[list[Key]] = []
    for u, v in graph.edges:
        crossings: list[Key] = []
        for number in range(place[u] + 1, place[v]):
            if layer_of_row[number] == layer[v]:
                crossings.append((u, None, number))
            elif layer_of_row[number] == layer[u]:
                crossings.append((None, v, number))
            else:
                crossings.append((u, v, number))
        chains.append([u, *crossings, v])
    for crossing in dict.fromkeys(key for chain in chains for key in chain[1:-1]):
        row = rows[crossing[2]]
        row.insert(len(row) // 2 if None in crossing else len(row), crossing)
    return [[rows[number] for number in numbers] for numbers in _together(layer_of_row)], chains


def _together(layer_of_row: list[int]) -> list[list[int]]:
    """Numbers of the rows of each layer."""
    numbers = range(len(layer_of_row))
    return [list(group) for _, group in itertools.groupby(numbers, key=layer_of_row.__getitem__)]


def _wrapped(layer: list[str], sizes: Mapping[str, tuple[float, float]]) -> list[list[Key]]:
    """The layer in as few rows of like width as fit."""
    width = sum(sizes[node][0] + GAP_X for node in layer)
    length = math.ceil(len(layer) / math.ceil(width / _WIDEST))
    return [list(layer[start : start + length]) for start in range(0, len(layer), length)]


def _stack(rows: list[list[Key]], slots: dict[Key, Slot]) -> None:
    y = 0.0
    for row in rows:
        height = max(slots[key].height for key in row)
        for key in row:
            slots[key].y, slots[key].row_height = y, height
        y += height + GAP_Y


def _spread(row: list[Key], slots: dict[Key, Slot], centre: float | None = None) -> float:
    """Push apart what overlaps, keep the order, and put the row's mean where it was, or at `centre`; return it."""
    mean = sum(slots[key].x for key in row) / len(row) if centre is None else centre
    for left, right in itertools.pairwise(row):
        apart = (slots[left].width + slots[right].width) / 2 + GAP_X
        slots[right].x = max(slots[right].x, slots[left].x + apart)
    shift = mean - sum(slots[key].x for key in row) / len(row)
    for key in row:
        slots[key].x += shift
    return mean
