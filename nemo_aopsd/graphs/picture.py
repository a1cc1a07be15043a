"""A reasoning DAG as an SVG document: checkpoints from premises down, coloured by what an attempt reached.

The three states differ in colour, in outline and in a word, so no colour vision is needed to tell them apart.
Statements are shown whole. Graphs with faults are drawn too: dashed red is an edge that closes a cycle, and the box of
an id that no checkpoint has. `aopsd dag show`, the report and the page of `aopsd dag browse` all show this drawing.
"""

import itertools
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
from jinja2 import Environment, StrictUndefined, Template

from nemo_aopsd.data.dag import find_faults, frontier
from nemo_aopsd.errors import UserError
from nemo_aopsd.figures import BLUE, GREY, INK, ORANGE
from nemo_aopsd.files import atomic_write
from nemo_aopsd.graphs.layout import GAP_Y, Slot, lay_out, num_slots, without_cycles

_RED = "#c0392b"
_LOOKS = {  # face, edge, line width, dashes
    "reached": ("#cfe2f6", BLUE, 1.8, "none"),
    "next": ("#ffe2c4", ORANGE, 1.8, "9 4"),
    "later": ("#f1f3f5", GREY, 1.0, "1.5 2"),
    "unknown": ("#fdecea", _RED, 1.8, "9 4"),
}
_BOX_INK = "#11151a"  # apart from INK, which follows the page's theme: boxes are light in either
_PAD, _STEP, _MARGIN, _LEGEND_WIDTH, _FONT_SIZE = 8.0, 12.5, 14.0, 330.0, 9.5  # points
CANNOT_BE_DRAWN = ("malformed", "empty_graph")
_LONGEST_ID, _MOST_BOXES, _MOST_SLOTS = 40, 300, 5000
_ATOM = re.compile(r"\\[a-zA-Z]+|\\.|\d{1,12}|.")


def draw(graph: nx.DiGraph, path: Path, *, title: str = "") -> None:
    """Write the drawing. Raises UserError if the file is not named `.svg`, or the graph is too large to be read."""
    if path.suffix.lower() != ".svg":
        raise UserError(f"{path}: a drawing is an SVG file. Name it {path.stem}.svg.")
    if not is_readable(graph):
        size = f"{len(graph):,} checkpoints and {graph.number_of_edges():,} edges"
        raise UserError(f"{path}: {size} cannot be read in a picture. See: aopsd dag browse FILE --out graphs.html")
    atomic_write(path, draw_svg(graph, title=title))


def drawable(raw: Any, where: str) -> nx.DiGraph:
    """The graph of a raw record with everything that the file says, so that its faults can be seen.

    An id that only edges name becomes a node marked `is_unknown`, a repeated id `id (2)` or the next number that no
    other node has, a loop or a cycle stays one. Raises UserError if there are no checkpoints to draw.
    """
    hopeless = [f"{fault.kind} ({fault.detail})" for fault in find_faults(raw) if fault.kind in CANNOT_BE_DRAWN]
    if hopeless:
        raise UserError(f"{where}: its `dag` cannot be drawn: {'; '.join(hopeless)}. Correct the graph.")
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


def is_readable(graph: nx.DiGraph) -> bool:
    """Is the graph small enough for a drawing that a person can read?"""
    return len(graph) <= _MOST_BOXES and num_slots(without_cycles(graph)) <= _MOST_SLOTS


def draw_svg(graph: nx.DiGraph, *, reached: frozenset[str] = frozenset(), title: str = "") -> str:
    """The drawing as an SVG document. The box of the n-th checkpoint is the n-th group of class `node`."""
    heads = {node: f"[{_shortened(_visible(node))}]" for node in graph}
    bodies = {node: _wrap(graph.nodes[node]["statement"]) for node in graph}
    slots, chains = lay_out(without_cycles(graph), {node: _box_size(heads[node], bodies[node]) for node in graph})
    left = min(slot.x - slot.width / 2 for slot in slots.values())
    right = max(slot.x + slot.width / 2 for slot in slots.values())
    width = max(right - left, _LEGEND_WIDTH) + 2 * _MARGIN
    heading = textwrap.wrap(_visible(title), int(width / 6.5))
    top = _MARGIN + 1.3 * _STEP * len(heading)
    bottom = top + max(slot.y + slot.height for slot in slots.values())
    edges = [  # path, does it point down, does it point up: the layout turned those around that close a cycle
        (
            _curve([slots[key] for key in chain]),
            graph.has_edge(chain[0], chain[-1]),
            graph.has_edge(chain[-1], chain[0]),
        )
        for chain in chains
    ]
    edges += [(_loop(slots[node]), False, True) for node in graph if graph.has_edge(node, node)]
    state = states(graph, reached)
    boxes = [(slots[node], state[node], heads[node], bodies[node]) for node in graph]
    return _template().render(
        width=width,
        height=bottom + 25.0 + _MARGIN,
        shift=(width - left - right) / 2,
        top=top,
        bottom=bottom,
        heading=heading,
        edges=edges,
        boxes=boxes,
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["p"] = lambda points: f"{points:.1f}"
    environment.globals |= {"looks": _LOOKS, "red": _RED, "grey": GREY, "ink": INK, "box_ink": _BOX_INK}
    environment.globals |= {"margin": _MARGIN, "pad": _PAD, "step": _STEP, "font_size": _FONT_SIZE}
    return environment.from_string((Path(__file__).parent / "drawing.svg").read_text(encoding="utf-8"))


def states(graph: nx.DiGraph, reached: frozenset[str]) -> dict[str, str]:
    """`reached`, `next` (the frontier) or `later` for every node; `unknown` for one that only edges name."""
    ahead = frontier(graph, reached)
    state = {node: "reached" if node in reached else "next" if node in ahead else "later" for node in graph}
    return state | {node: "unknown" for node, is_unknown in graph.nodes(data="is_unknown") if is_unknown}


def text_width(text: str) -> float:
    """Points that a line takes at most, by the widths of DejaVu Sans, which is wider than most fonts."""
    return sum(map(_character_width, text)) * _FONT_SIZE


def _character_width(character: str) -> float:
    """In units of the font's size."""
    if character in "ijltI[]|\\/.,:;'! ":
        return 0.42
    if character in "mwMW@%" or unicodedata.east_asian_width(character) in "WF":
        return 1.05
    return 0.66 if character.isdigit() or (character.isascii() and character.islower()) else 0.88


def _box_size(head: str, body: Sequence[str]) -> tuple[float, float]:
    """Width and height in points that hold all texts; the state stands beside the bold id."""
    width = max(1.15 * text_width(head) + text_width("  unknown"), *map(text_width, body))
    return width + 2 * _PAD, _STEP * (1 + len(body)) + 2 * _PAD


def _visible(text: str) -> str:
    """One line without characters that XML forbids; each shows as the replacement character."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", " ".join(text.split()))


def _shortened(node_id: str) -> str:
    """Both ends of a long id; the middle of ids differs least."""
    half = _LONGEST_ID // 2
    return node_id if len(node_id) <= _LONGEST_ID else f"{node_id[:half]}…{node_id[-half:]}"


def _wrap(statement: str) -> list[str]:
    """Short statements in narrow boxes, long ones in wider boxes; no break inside of a LaTeX command."""
    width, lines = 30 if len(statement) < 120 else 42, [""]
    for word in _visible(statement).split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        for atom in _ATOM.findall(word):
            if lines[-1] and len(lines[-1]) + len(atom) > width:
                lines.append("")
            lines[-1] += atom
    return lines


def _curve(chain: Sequence[Slot]) -> str:
    """An edge's path: vertical wherever it meets or passes a layer."""
    path, bend = f"M{chain[0].x:.1f} {chain[0].y + chain[0].height:.1f}", GAP_Y / 2
    for upper, lower in itertools.pairwise(chain):
        start = upper.y + upper.row_height
        path += f"L{upper.x:.1f} {start:.1f}"
        path += f"C{upper.x:.1f} {start + bend:.1f} {lower.x:.1f} {lower.y - bend:.1f} {lower.x:.1f} {lower.y:.1f}"
    return path


def _loop(slot: Slot) -> str:
    """The path of a checkpoint that requires itself, within the gap to the next box."""
    side, half = slot.x + slot.width / 2, slot.height / 2
    return f"M{side:.1f} {slot.y + half / 2:.1f}c18 0 18 {half:.1f} 0 {half:.1f}"
