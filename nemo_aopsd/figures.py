"""Matplotlib figures as inline SVG that follows the page's light or dark theme.

Figures are drawn with the two marker colours INK and FAINT; `to_inline_svg` turns them into CSS variables. Text
stays text. Nothing here touches matplotlib's global state.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

INK = "#1f2329"  # text and axes
FAINT = "#d5d9de"  # grid and guides
BLUE, ORANGE, TEAL, PURPLE, GREY, GOLD = "#3b7dc4", "#d9701e", "#159b84", "#9467bd", "#8b939c", "#c79a14"

_PIXELS_PER_POINT = 1.2  # on the page

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "aopsd",
    "text.parse_math": False,  # a dollar sign is a dollar sign
    "font.family": "DejaVu Sans",
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 10.5),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 10),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "axes.titlelocation": "left",
    "axes.linewidth": 0.8,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


PERCENT = FuncFormatter(lambda share, _: f"{100 * share:g} %")  # of an axis of shares


@contextmanager
def drawing(width: float, height: float, background: str = "white") -> Iterator[Figure]:
    """A figure of our look, in inches; draw and save it inside. A figure within a page has no background: "none"."""
    with matplotlib.rc_context({**_STYLE, "savefig.facecolor": background}):
        yield Figure(figsize=(width, height), layout="constrained")


def with_errors(
    axes: Axes, at: Sequence[float], values: Sequence[Any], ends: Sequence[tuple[Any, Any]] | None, **look: Any
) -> None:
    """Values over places `at`, each with a bar from end to end of its interval; without bars if `ends` is None."""
    bars = None
    if ends is not None:
        bars = [[abs(pair[side] - value) for value, pair in zip(values, ends, strict=True)] for side in (0, 1)]
    axes.errorbar(at, values, yerr=bars, capsize=3, elinewidth=1.1, **look)


def to_svg(figure: Figure) -> str:
    """The figure as an SVG document, text as text, without a date, so that equal figures give equal files."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return buffer.getvalue()


def to_inline_svg(document: str, name: str, label: str) -> str:
    """An SVG document as an element for an HTML page: scalable, themed, its ids led by `name`, described by `label`."""
    body = document[document.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    (view_box,) = re.findall(r'viewBox="([^"]+)"', body)[:1]
    root, _, body = body.partition(">")
    kept = "".join(re.findall(r' (?:font-size|fill)="[^"]*"', root)).replace(INK, "var(--ink)")
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'xlink:href="#', f'href="#{name}-', body)
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    body = body.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    width = float(view_box.split()[2]) * _PIXELS_PER_POINT
    head = f'<svg role="img" aria-label="{escape(label, quote=True)}" viewBox="{view_box}"'
    return f'{head}{kept} style="--natural: {width:.0f}px">{body}'
