"""pass@1 of every member, and its difference to the reference, with 95 % intervals and one dot per seed."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.suite.results import Row

_ROW, _MARGIN, _WIDTH = 0.3, 1.1, 4.2  # inches: height of a member, of title and axis, width of a panel


def suite_figure(rows: Sequence[Row], reference: str | None) -> str:
    """An SVG document on white, members from top to bottom as in the table."""
    panels = 2 if any(row.against_reference for row in rows) else 1
    with svg.drawing(_WIDTH * panels + 1.0, _ROW * len(rows) + _MARGIN) as figure:
        rates, *differences = figure.subplots(1, panels, sharey=True, squeeze=False).ravel()
        several = any(len(row.seeds) > 1 for row in rows)
        rates.set(title="pass@1 (grey: each seed)" if several else "pass@1", xlabel="95 % over problems and seeds")
        rates.xaxis.set_major_formatter(svg.PERCENT)
        rates.set_yticks(range(len(rows)), [row.member for row in rows])
        rates.set_ylim(len(rows) - 0.4, -0.6)
        for axes in differences:
            axes.axvline(0, color=svg.INK, linewidth=0.8)
            axes.set(title=f"pass@1 less that of {reference}", xlabel="percentage points")
        for place, row in enumerate(rows):
            rates.plot(row.by_seed, [place] * len(row.seeds), linestyle="", marker="|", color=svg.GREY, markersize=9)
            _interval(rates, place, row.pass_at_k[1], row.interval, svg.BLUE)
            found = row.against_reference
            if found and row.steps:  # the untrained model is far away and in the other panel
                low, high = (100 * end for end in found.interval)
                _interval(differences[0], place, 100 * found.mean, (low, high), svg.ORANGE)
        for axes in (rates, *differences):
            axes.grid(axis="y", visible=False)
        return svg.to_svg(figure)


def _interval(axes: Axes, place: int, mean: float, ends: tuple[float, float], color: str) -> None:
    axes.plot(ends, [place, place], color=color)
    axes.plot([mean], [place], marker="o", color=color)
