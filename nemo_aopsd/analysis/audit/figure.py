"""The share of each label by NLL bin, a panel a labeller."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.audit.labels import LABELS

_COLORS = dict(zip(LABELS, (svg.TEAL, svg.GREY, svg.ORANGE), strict=True))
_MARKERS = dict(zip(LABELS, "os^", strict=True))


def enrichment_figure(record: dict[str, Any]) -> str:
    """An SVG document of the shares in `report.json`: bars are 95 % Wilson intervals, dashed lines base rates."""
    labellers = record["labellers"]
    with svg.style():
        figure = Figure(figsize=(7.2, 0.8 + 2.7 * len(labellers)), layout="constrained")
        figure.patch.set_facecolor("white")  # it is opened by itself, on a page of any colour
        all_axes = figure.subplots(len(labellers), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (name, found) in zip(all_axes, labellers.items(), strict=True):
            for index, label in enumerate(LABELS):
                _draw(axes, found, label, 0.08 * (index - 1))
            sizes = ", ".join(str(row["labelled"]) for row in found["bins"])
            axes.set_title(f"{name}: {found['labelled']} labels, by bin {sizes}")
            axes.set(ylim=(-0.02, 1.02), ylabel="share of the bin")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
        all_axes[-1].set_xticks(range(len(record["bins"])), record["bins"])
        all_axes[-1].set_xlabel("L, nats a token")
        handles, texts = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside upper left", ncols=len(LABELS))
        return svg.to_svg(figure)


def _draw(axes: Any, found: dict[str, Any], label: str, offset: float) -> None:
    cells = [row["labels"][label] for row in found["bins"]]
    places = np.array([place for place, cell in enumerate(cells) if cell["share"] is not None])
    known = [cell for cell in cells if cell["share"] is not None]
    shares = np.array([cell["share"] for cell in known])
    bounds = np.array([[cell["low"] for cell in known], [cell["high"] for cell in known]])
    axes.errorbar(
        places + offset,
        shares,
        yerr=np.abs(bounds - shares),
        color=_COLORS[label],
        marker=_MARKERS[label],
        capsize=3,
        elinewidth=1.1,
        label=label,
    )
    if found["base_rate"][label] is not None:
        axes.axhline(found["base_rate"][label], color=_COLORS[label], linestyle=(0, (4, 3)), linewidth=1)
