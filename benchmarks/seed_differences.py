"""One member less each other one, with 95 % intervals, from the tables of suites and of seeds of a page of results.

    python -m benchmarks.seed_differences [--member aopsd] [PAGE.md]   # by default docs/results_tables.md

A difference is that of the counts over all seeds, where the page has them, else the mean over the rounded seeds. Its
interval is Student's t over the seeds, paired. A few seeds may agree by luck: where that interval is narrower than
chance among the answers alone allows, both are combined in quadrature, and the row has a star.
"""

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean, stdev

from nemo_aopsd.stats import T_95


@dataclass(frozen=True)
class Suite:
    """Of each member: pass@1 of each seed in percent; (right, asked) answers over all seeds, if the page has them."""

    seeds: dict[str, list[float]]
    counts: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Difference:
    """Points of pass@1, and half the width of the interval."""

    mean: float
    half: float
    widened: bool


def suites(page: str) -> list[Suite]:
    """One for each section of the page that has a table `pass@1 of each seed`."""
    sections = [part.partition("pass@1 of each seed\n") for part in page.split("\n## ")]
    return [Suite(_seeds(after.split("\n### ")[0]), _counts(before)) for before, found, after in sections if found]


def _rows(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]


def _seeds(text: str) -> dict[str, list[float]]:
    rows = [row for row in _rows(text) if len(row) > 1 and row[1].endswith(" %")]
    return {name: [float(cell.rstrip(" %")) for cell in cells] for name, *cells in rows}


def _counts(text: str) -> dict[str, tuple[int, int]]:
    found = {row[0].partition(",")[0]: re.fullmatch(r"([\d,]+) of ([\d,]+)", row[3]) for row in _rows(text) if row[3:]}
    both = {name: match.groups() for name, match in found.items() if match}
    return {name: (int(right.replace(",", "")), int(of.replace(",", ""))) for name, (right, of) in both.items()}


def difference(suite: Suite, one: str, other: str) -> Difference:
    """`one` less `other`. Raises KeyError for a member that the page does not have."""
    points = [a - b for a, b in zip(suite.seeds[one], suite.seeds[other], strict=True)]
    half = student_t(points)
    if not {one, other} <= suite.counts.keys():
        return Difference(fmean(points), half, widened=False)
    rates = [suite.counts[name][0] / suite.counts[name][1] for name in (one, other)]
    answers = [suite.counts[name][1] for name in (one, other)]
    # At most: answers to one problem differ less than answers to any, and pairing is not used.
    error = 100 * math.sqrt(sum(rate * (1 - rate) / count for rate, count in zip(rates, answers, strict=True)))
    sampling = NormalDist().inv_cdf(0.975) * error
    widened = half < sampling
    return Difference(100 * (rates[0] - rates[1]), math.hypot(half, sampling) if widened else half, widened)


def student_t(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean, of two to eight values."""
    return T_95[len(values)] * stdev(values) / math.sqrt(len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?", type=Path, default=Path(__file__).parents[1] / "docs/results_tables.md")
    parser.add_argument("--member", default="aopsd")
    arguments = parser.parse_args()
    one = arguments.member
    for suite in suites(arguments.page.read_text(encoding="utf-8")):
        if one not in suite.seeds:
            continue
        print(f"{len(suite.seeds[one])} seeds")
        print(f"  {f'{one} less':<20} pass@1 in points (95 % interval; * with chance among answers)")
        for name in [name for name in suite.seeds if name != one]:
            found = difference(suite, one, name)
            low, high = found.mean - found.half, found.mean + found.half
            print(f"  {name:<20} {found.mean:+5.1f} ({low:+.1f} to {high:+.1f}){' *' * found.widened}")


if __name__ == "__main__":
    main()
