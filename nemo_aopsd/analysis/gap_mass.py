"""How concentrated gaps are: shares of tokens and of the sum of |gap|, by threshold (the paper's Figure 1b)."""

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nemo_aopsd import figures as svg


class GapMass:
    """Token counts and sums of |gap| by bin of |gap|: one pass, constant memory. `marks` become edges, in nats."""

    def __init__(self, marks: Iterable[float] = ()) -> None:
        self.edges = np.unique(np.concatenate([np.linspace(0.0, 10.0, 201), [*marks]]))
        self.tokens = np.zeros(len(self.edges), dtype=np.int64)  # last bin: at or above the last edge
        self.mass = np.zeros(len(self.edges))

    def add(self, gaps: np.ndarray) -> None:
        """Count finite `gaps` [T], in nats, signed."""
        size = np.abs(gaps)
        bins = np.searchsorted(self.edges, size, side="right") - 1
        self.tokens += np.bincount(bins, minlength=len(self.edges))
        self.mass += np.bincount(bins, weights=size, minlength=len(self.edges))

    def shares(self) -> tuple[np.ndarray, np.ndarray]:
        """Share of tokens with |gap| >= each edge, and their share of the sum of |gap| (0 if there is no gap)."""
        mass = above(self.mass)
        return above(self.tokens) / max(self.tokens.sum(), 1), mass / mass[0] if mass[0] else mass

    def at(self, mark: float) -> tuple[float, float]:
        """Both shares at one threshold, which must be an edge.

        >>> gaps = GapMass([1.0])
        >>> gaps.add(np.array([0.5, -1.0, 2.5, 0.0]))
        >>> gaps.at(1.0)
        (0.5, 0.875)
        """
        index = int(np.flatnonzero(self.edges == mark)[0])
        tokens, mass = self.shares()
        return float(tokens[index]), float(mass[index])

    def draw(self, figure: Figure, axes: Axes, marks: Sequence[float]) -> None:
        """Both shares over thresholds. The shares at the `marks`, which must be edges, are told in words as well."""
        (tokens, mass), said = self.shares(), []
        of_mass = ("share of the sum of |gap|", mass, svg.ORANGE, "-")
        for label, shares, color, line in (of_mass, ("share of tokens", tokens, svg.BLUE, (0, (5, 1.5)))):
            axes.plot(self.edges, shares, color=color, linestyle=line, label=label)
            axes.plot(marks, shares[np.searchsorted(self.edges, marks)], "o", color=color)
        for mark in marks:
            axes.axvline(mark, color=svg.GREY, linewidth=0.9, linestyle=":")
            token_share, mass_share = self.at(mark)
            said.append(f"≥ {mark:g}: {percent(token_share)} of tokens, {percent(mass_share)} of the sum")
        axes.text(0.99, 0.97, "\n".join(said), transform=axes.transAxes, ha="right", va="top", linespacing=1.5)
        gone = np.searchsorted(-mass, -0.005, side="left").clip(max=len(mass) - 1)  # nearly all of it lies below
        axes.set(xlabel="threshold on |gap|, nats", ylim=(0, 1.02), xlim=(0, max(3.0, float(self.edges[gone]))))
        axes.yaxis.set_major_formatter(svg.PERCENT)
        figure.legend(loc="outside upper left", ncols=2, columnspacing=1.4)


def percent(share: float) -> str:
    """Digits that matter: 51.8 %, 3.08 %, 0.0041 %, and 0 % only for nothing. The space does not break."""
    value = 100 * share
    form = ".0f" if value in (0, 100) else ".1f" if value >= 10 else ".2f" if value >= 0.1 else ".2g"
    return f"{value:{form}}\u00a0%"


def above(bins: np.ndarray) -> np.ndarray:
    """What lies in each bin and those after it."""
    return np.cumsum(bins[::-1])[::-1]
