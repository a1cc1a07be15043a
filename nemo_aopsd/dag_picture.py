"""A reasoning DAG as a picture: checkpoints from premises down, coloured by what an attempt reached.

The three states differ in colour, in outline and in a word, so no colour vision is needed to tell them apart.
Statements are shown whole.
"""

from __future__ import annotations

import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path
from matplotlib.text import Text

from nemo_aopsd import svg
from nemo_aopsd.dag import frontier
from nemo_aopsd.dag_layout import GAP_Y, Slot, lay_out
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_write

SUFFIXES = (".svg", ".png", ".pdf")
_BOX_INK = "#11151a"  # apart from svg.INK: boxes are light in either theme
_LOOKS = {  # face, edge, line width, line style
    "reached": ("#cfe2f6", svg.BLUE, 1.8, "-"),
    "next": ("#ffe2c4", svg.ORANGE, 1.8, (0, (5, 2))),
    "later": ("#f1f3f5", svg.GREY, 1.0, (0, (1.5, 2))),
}
_MEANINGS = {"reached": "reached", "next": "next (the frontier)", "later": "later"}
_PAD, _HEADER, _MARGIN, _LEGEND_WIDTH, _FONT_SIZE = 8.0, 16.0, 14.0, 330.0, 9.5  # points


def draw(graph: nx.DiGraph, path: FilePath, *, reached: frozenset[str] = frozenset(), title: str = "") -> None:
    """Write the picture as SVG, PNG or PDF, by suffix. Raises UserError on any other suffix."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: cannot draw a {path.suffix or 'suffixless'} file. Name it {', '.join(SUFFIXES)}.")
    picture = io.BytesIO()
    with svg.style(), _any_glyph():
        _figure(graph, reached, title).savefig(picture, format=path.suffix[1:].lower(), dpi=150, facecolor="white")
    atomic_write(path, picture.getvalue())


def draw_svg(graph: nx.DiGraph, *, reached: frozenset[str] = frozenset(), title: str = "") -> str:
    """The picture as an SVG document with a clear background."""
    with svg.style(), _any_glyph():
        return svg.to_svg(_figure(graph, reached, title))


def states(graph: nx.DiGraph, reached: frozenset[str]) -> dict[str, str]:
    """`reached`, `next` (the frontier) or `later` for every node."""
    ahead = frontier(graph, reached)
    return {node: "reached" if node in reached else "next" if node in ahead else "later" for node in graph}


@contextmanager
def _any_glyph() -> Iterator[None]:
    """No warning for a character that the font lacks: viewers of SVG bring their own, others draw a box."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
        yield


def _visible(text: str) -> str:
    """One line without characters that XML forbids; each shows as the replacement character."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", " ".join(text.split()))


def _figure(graph: nx.DiGraph, reached: frozenset[str], title: str) -> Figure:
    figure = Figure(figsize=(1, 1), dpi=72)
    FigureCanvasAgg(figure)
    state = states(graph, reached)
    heads = {node: f"[{_visible(node)}]  {state[node]}" for node in graph}
    bodies = {node: _wrap(statement) for node, statement in graph.nodes(data="statement")}
    slots, chains = lay_out(graph, {node: _box_size(figure, heads[node], bodies[node]) for node in graph})

    left = min(slot.x - slot.width / 2 for slot in slots.values())
    right = max(slot.x + slot.width / 2 for slot in slots.values())
    width = max(right - left, _LEGEND_WIDTH) + 2 * _MARGIN
    heading = textwrap.wrap(_visible(title), int(width / 6.5))
    top = _MARGIN + 16.0 * len(heading) + (8.0 if heading else 0.0)
    height = top + max(slot.y + slot.height for slot in slots.values()) + 30.0 + _MARGIN
    figure.set_size_inches(width / 72, height / 72)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    axes.text(_MARGIN, _MARGIN, "\n".join(heading), va="top", fontsize=11, linespacing=1.25)

    for slot in slots.values():
        slot.x += (width - left - right) / 2
        slot.y += top
    for chain in chains:
        _draw_edge(axes, [slots[key] for key in chain])
    for node in graph:
        _draw_box(axes, slots[node], state[node], heads[node], bodies[node])
    _draw_legend(axes, height - _MARGIN - 12.0)
    return figure


def _wrap(statement: str) -> str:
    """Short statements in narrow boxes, long ones in wider boxes."""
    return textwrap.fill(_visible(statement), 30 if len(statement) < 120 else 42)


def _box_size(figure: Figure, head: str, body: str) -> tuple[float, float]:
    """Width and height in points that hold both texts."""
    renderer = figure.canvas.get_renderer()
    extents = [
        Text(0, 0, text, figure=figure, fontsize=_FONT_SIZE, fontweight=weight).get_window_extent(renderer)
        for text, weight in ((head, "bold"), (body, "normal"))
    ]
    return max(extent.width for extent in extents) * 1.04 + 2 * _PAD, extents[1].height + _HEADER + 2 * _PAD


def _draw_box(axes: Axes, slot: Slot, state: str, head: str, body: str) -> None:
    face, edge, line_width, line_style = _LOOKS[state]
    corner = (slot.x - slot.width / 2, slot.y)
    look = {"facecolor": face, "edgecolor": edge, "linewidth": line_width, "linestyle": line_style}
    axes.add_patch(FancyBboxPatch(corner, slot.width, slot.height, boxstyle="round,pad=0,rounding_size=5", **look))
    place = {"va": "top", "fontsize": _FONT_SIZE, "color": _BOX_INK}
    axes.text(corner[0] + _PAD, slot.y + _PAD, head, fontweight="bold", **place)
    axes.text(corner[0] + _PAD, slot.y + _PAD + _HEADER, body, **place)


def _draw_edge(axes: Axes, chain: list[Slot]) -> None:
    """A curve that is vertical wherever it meets or passes a layer."""
    points = [(chain[0].x, chain[0].y + chain[0].height), (chain[0].x, chain[0].y + chain[0].row_height)]
    codes = [Path.MOVETO, Path.LINETO]
    for upper, lower in itertools.pairwise(chain):
        start = upper.y + upper.row_height
        points += [(upper.x, start + GAP_Y / 2), (lower.x, lower.y - GAP_Y / 2), (lower.x, lower.y)]
        codes += [Path.CURVE4] * 3
        if lower is not chain[-1]:
            points.append((lower.x, lower.y + lower.row_height))
            codes.append(Path.LINETO)
    look = {"arrowstyle": "-|>", "mutation_scale": 9, "color": svg.GREY, "linewidth": 1.1}
    axes.add_patch(FancyArrowPatch(path=Path(points, codes), **look))


def _draw_legend(axes: Axes, y: float) -> None:
    x = _MARGIN
    for state, (face, edge, line_width, line_style) in _LOOKS.items():
        look = {"facecolor": face, "edgecolor": edge, "linewidth": line_width, "linestyle": line_style}
        axes.add_patch(FancyBboxPatch((x, y), 18, 11, boxstyle="round,pad=0,rounding_size=3", **look))
        axes.text(x + 24, y + 5.5, _MEANINGS[state], va="center", fontsize=_FONT_SIZE)
        x += 56 + 5.0 * len(_MEANINGS[state])
