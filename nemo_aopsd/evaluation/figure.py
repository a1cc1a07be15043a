"""pass@k by k: one panel per benchmark and one for their mean, with the 95 % interval as a band."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from nemo_aopsd import figures as svg

_PANEL, _HEIGHT, _COLUMNS = 2.5, 2.7, 3  # inches, inches, panels in a row


def pass_at_k_figure(results: Mapping[str, Any]) -> str:
    """The figure of the content of `results.json`, as an SVG document on white."""
    panels = list(results["benchmarks"].items())
    if len(panels) > 1:
        panels.append(("mean over benchmarks", results["macro"]))
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with svg.drawing(max(4.0, _PANEL * columns), _HEIGHT * rows) as figure:
        all_axes = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
        for axes, (name, part) in zip(all_axes, panels, strict=False):  # the last row may have room to spare
            _draw(axes, name, part, svg.ORANGE if name == "mean over benchmarks" else svg.BLUE)
        for axes in all_axes[len(panels) :]:
            axes.set_visible(False)
        for axes in all_axes[::columns]:
            axes.set_ylabel("pass@k")
        return svg.to_svg(figure)


def _draw(axes: Axes, name: str, part: Mapping[str, Any], color: str) -> None:
    ks = range(1, part["num_samples"] + 1)
    rates = [part["pass_at_k"][str(k)] for k in ks]
    ends = [tuple(part["pass_at_k_interval"][str(k)].values()) for k in ks]
    if len(rates) == 1:
        svg.with_errors(axes, ks, rates, ends, color=color, marker="o")
    else:
        lows, highs = zip(*ends, strict=True)
        axes.fill_between(ks, lows, highs, color=color, alpha=0.2, linewidth=0)
        axes.plot(ks, rates, color=color, marker="o" if len(rates) <= 16 else "")
    axes.set_title(f"{name} (n = {part['num_problems']})")
    axes.set(xlabel="k", ylim=(-0.02, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(svg.PERCENT)
