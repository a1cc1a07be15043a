"""Intervals of diagnostics, against enumerations of all resamples."""

import random
from itertools import product

import numpy as np
import pytest

from nemo_aopsd.analysis.diagnostics.intervals import Estimate, estimate, ratio, share
from nemo_aopsd.stats import wilson_interval


def near(value):
    return pytest.approx(value, abs=1e-12)


def test_a_share_weighs_tokens_and_resamples_problems():
    """Two problems, 3 of 4 and 0 of 1: the four equally likely resamples are 3/4, 3/5, 3/5 and 0."""
    found = share({"a": 3}, {"a": 4, "b": 1})
    assert (found.value, found.low, found.high) == (near(0.6), 0.0, near(0.75))


def test_intervals_match_an_enumeration_of_all_resamples():
    rng = random.Random(1)
    sums = {f"p{i}": (rng.randint(0, 5), rng.randint(5, 9)) for i in range(5)}
    rows = list(sums.values())
    every = [sum(rows[i][0] for i in draw) / sum(rows[i][1] for i in draw) for draw in product(range(5), repeat=5)]
    (found,) = estimate(sums, lambda totals: ratio(totals[:, :1], totals[:, 1:]))
    low, high = np.quantile(every, [0.025, 0.975])
    assert abs(found.low - low) < 0.02 and abs(found.high - high) < 0.02


def test_no_event_is_no_proof_of_never():
    nothing, always = share({}, {"a": 100, "b": 100, "c": 1}), share({"a": 2, "b": 1}, {"a": 2, "b": 1})
    assert (nothing.value, nothing.low, nothing.high) == (0.0, *wilson_interval(0, 3))
    assert (always.value, always.low, always.high) == (1.0, *wilson_interval(2, 2))


def test_undefined_is_not_zero():
    assert share({}, {"a": 0, "b": 0}) == Estimate(None)
    assert share({"a": 1}, {"a": 2}) == Estimate(0.5)  # one problem has no interval


def test_undefined_resamples_are_left_out():
    """Half of all resamples hold problem b only or a only; a ratio over b's trials has none in the former."""
    (found,) = estimate({"a": (1, 0), "b": (1, 2)}, lambda t: ratio(t[:, :1], t[:, 1:]), is_share=False)
    assert (found.value, found.low, found.high) == (1.0, 0.5, 1.0)
