"""The figures: numbers in, inline SVG out. `panels.py` decides which run has which figure, and its caption."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.gap_mass import GapMass
from nemo_aopsd.console import counted
from nemo_aopsd.method.weighting import band_pass
from nemo_aopsd.run.record_types import Evaluation

PALETTE = (svg.BLUE, svg.ORANGE, svg.TEAL, svg.PURPLE, svg.GOLD, svg.GREY)
MARKERS = ("o", "s", "^", "D", "v", "P")
WIDE, SMALL = 4.9, 4.4  # inches; on the page one half and one third of the column
STAGES = ("rollout", "judge", "teacher", "student", "probes", "update")


@dataclass(frozen=True)
class Series:
    """One line over steps; NaN where the step has no value. `dots` draws points only."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    dots: bool = False


def pass_at_k(evaluations: Sequence[Evaluation], ks: Sequence[int], others: Mapping[str, Sequence[Evaluation]]) -> str:
    """pass@k by step with 95 % error bars; of `others`, runs by name, pass@1."""
    with _drawing(WIDE, 3.1) as figure:
        axes, last = figure.subplots(), evaluations[-1].step
        for index, k in enumerate(ks):
            offset = (index - (len(ks) - 1) / 2) * 0.015 * last
            at, rates = [one.step + offset for one in evaluations], [one.pass_at_k[k] for one in evaluations]
            ends = [(one.pass_at_k_interval[k].low, one.pass_at_k_interval[k].high) for one in evaluations]
            svg.with_errors(axes, at, rates, ends, label=f"pass@{k}", **_look(index))
        for index, (name, found) in enumerate(others.items(), start=len(ks)):
            at, rates = [one.step for one in found], [one.pass_at_k[1] for one in found]
            svg.with_errors(axes, at, rates, None, label=f"pass@1, {name}", linestyle="--", **_look(index))
        axes.set(xlabel="step", ylim=(0, 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_formatter(svg.PERCENT)
        _legend(figure, WIDE)
        return _finish(figure, "pass-at-k", "pass@k by step")


def competence(histories: Sequence[tuple[int, Sequence[float]]]) -> str:
    """One histogram an epoch, on shared axes. `histories`: (epoch, competences)."""
    with _drawing(WIDE, 0.7 + 0.95 * len(histories)) as figure:
        all_axes = figure.subplots(len(histories), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        edges = np.linspace(0, 1, 11)
        for axes, (epoch, values) in zip(all_axes, histories, strict=True):
            axes.bar(edges[:-1], np.histogram(values, edges)[0], width=0.096, align="edge", color=svg.BLUE)
            mean = float(np.mean(values))
            axes.axvline(mean, color=svg.ORANGE, linewidth=1.6)
            axes.set_title(f"after {counted(epoch, 'epoch')}: mean {mean:.2f}")
            axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        all_axes[-1].set(xlabel="competence", xlim=(0, 1))
        figure.supylabel("problems", fontsize=10.5)
        return _finish(figure, "competence", "Histogram of competence by epoch")


def gap_mass(gaps: GapMass, marks: Sequence[float]) -> str:
    """Share of tokens and of gap mass with |gap| at or above a threshold, over thresholds."""
    with _drawing(WIDE, 3.1) as figure:
        gaps.draw(figure, figure.subplots(), marks)
        return _finish(figure, "gap-mass", "Share of tokens and of gap mass over the gap threshold")


def nll_histograms(positive: np.ndarray, negative: np.ndarray, betas: tuple[float, float] | None) -> str:
    """L_t by sign of the gap; with betas also the weight that each value gets."""
    with _drawing(WIDE, 3.9) as figure:
        top = max([*positive, *negative, *(2 * beta for beta in betas or ())])
        edges = np.linspace(0, min(top, 10.0) or 1.0, 31)
        both = figure.subplots(2, 1, sharex=True)
        sides = zip(both, (positive, negative), betas or (None, None), "><", (svg.BLUE, svg.TEAL), strict=True)
        for axes, values, beta, sign, color in sides:
            counts, _, _ = axes.hist(np.minimum(values, edges[-1]), bins=edges, color=color, alpha=0.75)
            axes.set_ylim(0, 1.05 * max(1, counts.max()))
            axes.set_title(f"gap {sign} 0: n = {len(values)}" + (f", β = {beta:g}" if beta else ""))
            axes.set_ylabel("probes")
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            if beta:
                _weight_curve(axes.twinx(), beta, edges[-1])
        both[-1].set(xlabel="L, nats a token", xlim=(0, edges[-1]))
        return _finish(figure, "nll", "Continuation surprisal by sign of the gap")


def _weight_curve(axes: Axes, beta: float, last: float) -> None:
    grid = np.linspace(0, last, 200)
    axes.plot(grid, [band_pass(float(nll), beta) for nll in grid], color=svg.ORANGE)
    axes.plot([beta], [1.0], marker="v", color=svg.ORANGE)
    axes.set_ylim(0, 1.12)
    axes.set_yticks([0, 0.5, 1])
    axes.set_ylabel("weight w(L)", color=svg.ORANGE)
    axes.grid(False)


def by_step(
    name: str, label: str, lines: Sequence[Series], *, unit: str = "", share: bool = False, wide: bool = False
) -> str:
    """One or a few lines over steps. `share` shows values in percent, from 0."""
    with _drawing(*((WIDE, 3.1) if wide else (SMALL, 2.45))) as figure:
        axes = figure.subplots()
        for index, line in enumerate(lines):
            if line.dots:
                axes.plot(line.steps, line.values, "D", color=_look(index)["color"], label=line.label, zorder=4)
            else:
                _plot_line(axes, line, **_look(index))
        axes.set(xlabel="step", ylabel=unit)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.margins(y=0.12)
        first, last = min(line.steps[0] for line in lines), max(line.steps[-1] for line in lines)
        pad = max(0.5, 0.03 * (last - first))
        axes.set_xlim(first - pad, last + pad)
        if share:
            top = max((value for line in lines for value in line.values if not math.isnan(value)), default=0.0)
            axes.set_ylim(0, min(1.12 * top, 1.03) if top > 0 else 0.05)
            axes.yaxis.set_major_locator(MaxNLocator(4))
            axes.yaxis.set_major_formatter(svg.PERCENT)
        elif not any(value for line in lines for value in line.values):  # a count that is 0 at every step
            axes.set_ylim(0, 1)
        if len(lines) > 1:
            _legend(figure, WIDE if wide else SMALL)
        return _finish(figure, name, label)


def group_size(num_steps: int) -> int:
    """About how many steps one point of a line stands for, so that it has at most 60 points."""
    return 1 if num_steps <= 120 else math.ceil(num_steps / 60)


_drawing = partial(svg.drawing, background="none")


def _legend(figure: Figure, width: float) -> None:
    """Above the axes, in as many columns as surely fit; of a label that is too long the ends are kept."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    most = int((width - 0.5) / 0.085)  # inches: handle and gap, a character
    labels = [label if len(label) <= most else f"{label[: most // 2]}…{label[-most // 2 + 1 :]}" for label in labels]
    columns = max(1, int(width / (0.5 + 0.085 * max(map(len, labels)))))
    figure.legend(
        handles, labels, loc="outside upper left", ncols=min(columns, len(labels)), columnspacing=1.2, handletextpad=0.5
    )


def _look(index: int) -> dict[str, str]:
    return {"color": PALETTE[index % len(PALETTE)], "marker": MARKERS[index % len(MARKERS)]}


def _finish(figure: Figure, name: str, label: str) -> str:
    return svg.to_inline_svg(svg.to_svg(figure), name, label)


def _plot_line(axes: Axes, line: Series, color: str, marker: str) -> None:
    """The values; behind the means of groups of steps where there are many."""
    size = group_size(len(line.steps))
    if size == 1:
        shown = marker if len(line.steps) <= 30 else None
        axes.plot(line.steps, line.values, marker=shown, markersize=3.5, color=color, label=line.label)
        return
    axes.plot(line.steps, line.values, color=color, linewidth=0.6, alpha=0.35)
    rows = np.column_stack([line.steps, line.values])
    groups = np.array_split(rows, math.ceil(len(rows) / size))  # of even size, so that no last point stands on few
    known = [group[~np.isnan(group[:, 1])] for group in groups]
    means = np.array([group.mean(axis=0) for group in known if len(group)])
    axes.plot(means[:, 0], means[:, 1], color=color, label=line.label)
