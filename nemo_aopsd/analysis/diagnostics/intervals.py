"""Estimates with 95 % intervals in which the problem is the independent unit.

Tokens of a rollout, and rollouts of a problem, depend on each other, so whole problems are resampled. Every statistic
here is a function of sums over problems, which makes a resample one row of a matrix product.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nemo_aopsd.stats import chunks, wilson_interval

NUM_RESAMPLES = 4000
METHOD = (
    f"Intervals: 95 %, percentile bootstrap over problems ({NUM_RESAMPLES} resamples). A share of exactly 0 or 1, "
    "where a bootstrap collapses, has the Wilson interval with problems as trials, which is wide on purpose. "
    "With a single problem there is no interval."
)

Statistic = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval; None where it is not defined, which is never the same as 0."""

    value: float | None
    low: float | None = None
    high: float | None = None
    is_share: bool = True


def estimate(
    sums: Mapping[str, Sequence[float] | np.ndarray], statistic: Statistic, *, is_share: bool = True
) -> list[Estimate]:
    """Estimates of every entry of `statistic`, which maps totals [R, M] to values [R, N], NaN where undefined.

    `sums` holds M sums a problem. Resamples in which an entry is undefined are left out of its interval. `is_share`:
    the entries are shares, so the interval at exactly 0 or 1 is Wilson's.
    """
    table = np.array(list(sums.values()), dtype=np.float64)
    values = statistic(table.sum(axis=0, keepdims=True))[0]
    generator, even = np.random.default_rng(0), np.full(len(table), 1 / len(table))
    counts = (generator.multinomial(len(table), even, size=size) for size, _ in chunks(NUM_RESAMPLES, len(table)))
    draws = statistic(np.concatenate([drawn @ table for drawn in counts])) if len(table) > 1 else None
    return [
        _with_interval(float(value), None if draws is None else draws[:, column], len(table), is_share)
        for column, value in enumerate(values)
    ]


def share(events: Mapping[str, float], trials: Mapping[str, float]) -> Estimate:
    """Events of all problems over trials of all problems; both by problem, a problem without an event may be absent."""
    sums = {problem: (events.get(problem, 0), count) for problem, count in trials.items()}
    return estimate(sums, lambda totals: ratio(totals[:, :1], totals[:, 1:]))[0]


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """Element by element, NaN where the denominator is 0."""
    numerators, denominators = np.broadcast_arrays(numerators, denominators)
    undefined = np.full(numerators.shape, np.nan)
    return np.divide(numerators, denominators, out=undefined, where=denominators != 0)


def _with_interval(value: float, draws: np.ndarray | None, num_problems: int, is_share: bool) -> Estimate:
    if np.isnan(value) or draws is None:
        return Estimate(None if np.isnan(value) else value, is_share=is_share)
    if is_share and value in (0.0, 1.0):
        return Estimate(value, *wilson_interval(round(value) * num_problems, num_problems), is_share=True)
    low, high = np.quantile(draws[~np.isnan(draws)], [0.025, 0.975])
    return Estimate(value, float(low), float(high), is_share)
