"""A reasoning DAG as a picture: checkpoints from premises down, coloured by what an attempt reached.

The three states differ in colour, in outline and in a word, so no colour vision is needed to tell them apart.
Statements are shown whole. Graphs with faults are drawn too: dashed red is an edge that closes a cycle, and the box of
an id that no checkpoint has.
"""

from __future__ import annotations

import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path as FilePath

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path
from matplotlib.text import Text

from nemo_aopsd import figures as svg
from nemo_aopsd.data.dag import Fault, frontier
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_write
from nemo_aopsd.graphs.faulty import without_cycles
from nemo_aopsd.graphs.layout import GAP_Y, Slot, lay_out, num_slots

SUFFIXES = (".svg", ".png", ".pdf")
_BOX_INK = "#11151a"  # apart from svg.INK: boxes are light in either theme
_RED = "#c0392b"
_DASHED = (0, (5, 2))
_LOOKS = {  # face, edge, line width, line style
    "reached": ("#cfe2f6", svg.BLUE, 1.8, "-"),
    "next": ("#ffe2c4", svg.ORANGE, 1.8, _DASHED),
    "later": ("#f1f3f5", svg.GREY, 1.0, (0, (1.5, 2))),
    "unknown": ("#fdecea", _RED, 1.8, _DASHED),
}
_MEANINGS = {"reached": "reached", "next": "next (the frontier)", "later": "later"}
_PAD, _HEADER, _MARGIN, _LEGEND_WIDTH, _FONT_SIZE = 8.0, 16.0, 14.0, 330.0, 9.5  # points
_NOTE_HEIGHT, _MOST_NOTES = 13.0, 12
_MOST_BOXES, _MOST_SLOTS, _LARGEST, _LONGEST_ID = 300, 5000, 200.0, 40  # `_LARGEST` in inches, as for PDF
_ATOM = re.compile(r"\\[a-zA-Z]+|\\.|\d{1,12}|.")


def draw(
    graph: nx.DiGraph,
    path: FilePath,
    *,
    reached: frozenset[str] = frozenset(),
    title: str = "",
    faults: Sequence[Fault] = (),
) -> None:
    """Write the picture as SVG, PNG or PDF, by suffix, with its faults beneath.

    Raises UserError on another suffix, and if the graph is too large to be looked at as a picture.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: cannot draw a {path.suffix or 'suffixless'} file. Name it {', '.join(SUFFIXES)}.")
    is_large = len(graph) > _MOST_BOXES or num_slots(without_cycles(graph)) > _MOST_SLOTS
    picture = io.BytesIO()
    with svg.style(), _any_glyph():
        figure = None if is_large else _figure(graph, reached, title, faults)
        if figure is None or max(figure.get_size_inches()) > _LARGEST:
            raise UserError(
                f"{path}: {len(graph):,} checkpoints and {graph.number_of_edges():,} edges are too many for a picture "
                "that one can read. Look at the graph in a page: aopsd dag browse FILE --out graphs.html"
            )
        figure.savefig(picture, format=path.suffix[1:].lower(), dpi=150, facecolor="white")
    atomic_write(path, picture.getvalue())


def draw_svg(graph: nx.DiGraph, *, reached: frozenset[str] = frozenset(), title: str = "") -> str:
    """The picture as an SVG document with a clear background."""
    with svg.style(), _any_glyph():
        return svg.to_svg(_figure(graph, reached, title))


def states(graph: nx.DiGraph, reached: frozenset[str]) -> dict[str, str]:
    """`reached`, `next` (the frontier) or `later` for every node; `unknown` for one that only edges name."""
    ahead = frontier(graph, reached)
    state = {node: "reached" if node in reached else "next" if node in ahead else "later" for node in graph}
    return state | {node: "unknown" for node, is_unknown in graph.nodes(data="is_unknown") if is_unknown}


@contextmanager
def _any_glyph() -> Iterator[None]:
    """No warning for a character that the font lacks: viewers of SVG bring their own, others draw a box."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
        yield


def _visible(text: str) -> str:
    """One line without characters that XML forbids; each shows as the replacement character."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", " ".join(text.split()))


def _figure(graph: nx.DiGraph, reached: frozenset[str], title: str, faults: Sequence[Fault] = ()) -> Figure:
    figure = Figure(figsize=(1, 1), dpi=72)
    renderer = FigureCanvasAgg(figure).get_renderer()
    state = states(graph, reached)
    heads = {node: f"[{_shortened(_visible(node))}]  {state[node]}" for node in graph}
    bodies = {node: _wrap(graph.nodes[node]["statement"]) for node in graph}
    sizes = {node: _box_size(figure, renderer, heads[node], bodies[node]) for node in graph}
    slots, chains = lay_out(without_cycles(graph), sizes)

    left = min(slot.x - slot.width / 2 for slot in slots.values())
    right = max(slot.x + slot.width / 2 for slot in slots.values())
    width = max(right - left, _LEGEND_WIDTH) + 2 * _MARGIN
    heading = textwrap.wrap(_visible(title), int(width / 6.5))
    top = _MARGIN + 16.0 * len(heading) + (8.0 if heading else 0.0)
    bottom = top + max(slot.y + slot.height for slot in slots.values())
    notes = _notes(faults, int(width / 6.0))
    height = bottom + (10.0 + _NOTE_HEIGHT * len(notes) if notes else 0.0) + 30.0 + _MARGIN
    figure.set_size_inches(width / 72, height / 72)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    axes.text(_MARGIN, _MARGIN, "\n".join(heading), va="top", fontsize=11, linespacing=1.25)

    for slot in slots.values():
        slot.x += (width - left - right) / 2
        slot.y += top
    for chain in chains:
        there, back = graph.has_edge(chain[0], chain[-1]), graph.has_edge(chain[-1], chain[0])
        _draw_edge(axes, [slots[key] for key in chain], there, back)
    for node in graph:
        _draw_box(axes, slots[node], state[node], heads[node], bodies[node])
        if graph.has_edge(node, node):
            _draw_loop(axes, slots[node])
    for number, line in enumerate(notes):
        axes.text(_MARGIN, bottom + 10.0 + _NOTE_HEIGHT * number, line, va="top", fontsize=_FONT_SIZE, color=_RED)
    _draw_legend(axes, height - _MARGIN - 12.0)
    return figure


def _notes(faults: Sequence[Fault], width: int) -> list[str]:
    """The first faults as lines of text; a long list would dwarf the picture."""
    lines = [f"{fault.kind}: {_visible(fault.detail)}" for fault in faults[:_MOST_NOTES]]
    if len(faults) > _MOST_NOTES:
        lines.append(f"and {len(faults) - _MOST_NOTES} more")
    return [piece for line in lines for piece in textwrap.wrap(line, width, subsequent_indent="    ")]


def _shortened(node_id: str) -> str:
    """Both ends of a long id; the middle of ids differs least."""
    if len(node_id) <= _LONGEST_ID:
        return node_id
    half = _LONGEST_ID // 2
    return f"{node_id[:half]}…{node_id[-half:]}"


def _wrap(statement: str) -> str:
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
    return "\n".join(lines)


def _box_size(figure: Figure, renderer: RendererAgg, head: str, body: str) -> tuple[float, float]:
    """Width and height in points that hold both texts."""
    extents = [
        Text(0, 0, text, figure=figure, fontsize=_FONT_SIZE, fontweight=weight).get_window_extent(renderer)
        for text, weight in ((head, "bold"), (body, "normal"))
    ]
    return max(extent.width for extent in extents) * 1.04 + 2 * _PAD, extents[1].height + _HEADER + 2 * _PAD


def _draw_box(axes: Axes, slot: Slot, state: str, head: str, body: str) -> None:
    left = slot.x - slot.width / 2
    _draw_outline(axes, state, left, slot.y, slot.width, slot.height)
    place = {"va": "top", "fontsize": _FONT_SIZE, "color": _BOX_INK}
    axes.text(left + _PAD, slot.y + _PAD, head, fontweight="bold", **place)
    axes.text(left + _PAD, slot.y + _PAD + _HEADER, body, **place)


def _draw_outline(axes: Axes, state: str, left: float, top: float, width: float, height: float) -> None:
    face, edge, line_width, line_style = _LOOKS[state]
    look = {"facecolor": face, "edgecolor": edge, "linewidth": line_width, "linestyle": line_style}
    axes.add_patch(FancyBboxPatch((left, top), width, height, boxstyle="round,pad=0,rounding_size=4", **look))


def _draw_edge(axes: Axes, chain: list[Slot], there: bool, back: bool) -> None:
    """A curve that is vertical wherever it meets or passes a layer. `there` and `back` say which ends are pointed."""
    points, codes = [(chain[0].x, chain[0].y + chain[0].height)], [Path.MOVETO]
    if chain[0].height < chain[0].row_height:  # an arrow head needs a first piece with a direction
        points.append((chain[0].x, chain[0].y + chain[0].row_height))
        codes.append(Path.LINETO)
    for upper, lower in itertools.pairwise(chain):
        start = upper.y + upper.row_height
        points += [(upper.x, start + GAP_Y / 2), (lower.x, lower.y - GAP_Y / 2), (lower.x, lower.y)]
        codes += [Path.CURVE4] * 3
        if lower is not chain[-1]:
            points.append((lower.x, lower.y + lower.row_height))
            codes.append(Path.LINETO)
    style = f"{'<|' if back else ''}-{'|>' if there else ''}"
    _draw_arrow(axes, Path(points, codes), style, is_faulty=back)


def _draw_loop(axes: Axes, slot: Slot) -> None:
    """A checkpoint that requires itself."""
    side, reach = slot.x + slot.width / 2, slot.x + slot.width / 2 + 18.0  # within the gap to the next box
    low, high = slot.y + 0.75 * slot.height, slot.y + 0.25 * slot.height
    curve = Path([(side, low), (reach, low), (reach, high), (side, high)], [Path.MOVETO, *[Path.CURVE4] * 3])
    _draw_arrow(axes, curve, "-|>", is_faulty=True)


def _draw_arrow(axes: Axes, path: Path, style: str, *, is_faulty: bool) -> None:
    color, width, line = (_RED, 1.4, _DASHED) if is_faulty else (svg.GREY, 1.1, "-")
    look = {"color": color, "linewidth": width, "linestyle": line}
    axes.add_patch(FancyArrowPatch(path=path, arrowstyle=style, mutation_scale=9, **look))


def _draw_legend(axes: Axes, y: float) -> None:
    x = _MARGIN
    for state, meaning in _MEANINGS.items():
        _draw_outline(axes, state, x, y, 18, 11)
        axes.text(x + 24, y + 5.5, meaning, va="center", fontsize=_FONT_SIZE)
        x += 56 + 5.0 * len(meaning)
