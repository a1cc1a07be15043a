"""Yes or no from a score: how well it tells the two apart, and the threshold that does so best.

A scored item is a pair: its score, and whether yes is the truth.
"""

import random
from collections.abc import Iterable, Sequence

import numpy as np

from nemo_aopsd.errors import UserError

Scored = tuple[float, bool]


def auc(scored: Sequence[Scored]) -> float | None:
    """The chance that a true item scores above a false one, ties half; None unless there are both.

    >>> auc([(2.0, True), (1.0, False), (1.0, True)])
    0.75
    """
    true, false = ([score for score, truth in scored if truth is side] for side in (True, False))
    if not (true and false):
        return None
    return sum((a > b) + (a == b) / 2 for a in true for b in false) / (len(true) * len(false))


def auc_interval(groups: Sequence[Sequence[Scored]]) -> tuple[float, float] | None:
    """Percentile bootstrap interval, 95 %, of the AUC over all groups, which are resampled: items of one depend.

    None where one group alone has true items, or false ones: nothing can then be said of others.
    """
    true, false = ([[score for score, truth in group if truth is side] for group in groups] for side in (True, False))
    num_true, num_false = (np.array([len(scores) for scores in side], dtype=int) for side in (true, false))
    if min(np.count_nonzero(num_true), np.count_nonzero(num_false)) < 2:
        return None
    below, group_of = np.concatenate(false), np.repeat(np.arange(len(groups)), num_false)
    won = ((np.array(above)[:, None] > below) + (np.array(above)[:, None] == below) / 2 for above in true)
    wins = np.array([np.bincount(group_of, each.sum(axis=0), len(groups)) for each in won])
    drawn = np.random.default_rng(0).multinomial(len(groups), np.full(len(groups), 1 / len(groups)), 2000)
    pairs = (drawn @ num_true) * (drawn @ num_false)
    both = pairs > 0  # a draw without either has no AUC
    found = ((drawn @ wins) * drawn).sum(axis=1)[both] / pairs[both]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def f1_of(hits: int, claimed: int, true: int) -> float:
    """F1 where `hits` of the `claimed` items are among the `true` ones; 0 without any item."""
    return 2 * hits / (claimed + true) if claimed + true else 0.0


def fit_threshold(scored: Sequence[Scored]) -> float:
    """The threshold above which yes has the largest F1: halfway between two neighbouring scores.

    It stands 0.5 below the lowest score if all should be yes. Raises UserError without a true item.

    >>> fit_threshold([(2.0, True), (1.0, True), (0.0, False), (-1.0, False)])
    0.5
    """
    ordered = sorted(scored, reverse=True)
    num_true = sum(truth for _, truth in ordered)
    if not num_true:
        raise UserError("--calibrate: no checkpoint is established in any case. Add attempts that reach one.")
    lower = [*(score for score, _ in ordered[1:]), ordered[-1][0] - 1]
    best, fitted, hits = 0.0, 0.0, 0
    for claims, ((score, truth), below) in enumerate(zip(ordered, lower, strict=True), start=1):
        hits += truth
        f1 = f1_of(hits, claims, num_true)
        if f1 > best and below < score:
            best, fitted = f1, (score + below) / 2
    return round(fitted, 4)


def first_half(ids: Iterable[str], seed: int) -> set[str]:
    """Half of the distinct ids, chosen at random. Raises UserError unless there are at least two."""
    distinct = sorted(set(ids))
    if len(distinct) < 2:
        raise UserError("--calibrate: found cases of one problem; expected two or more, to fit on half of them.")
    return set(random.Random(seed).sample(distinct, len(distinct) // 2))
