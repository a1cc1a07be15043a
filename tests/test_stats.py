"""pass@k and intervals against exact enumeration."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_aopsd.stats import (
    bootstrap_interval,
    mean_pass_at_k,
    paired_bootstrap_interval,
    pass_at_k,
    wilson_interval,
)


@pytest.mark.parametrize("n", range(1, 7))
def test_pass_at_k_equals_enumeration_of_all_draws(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == float(Fraction(sum(map(any, draws)), len(draws)))


def test_pass_at_k_by_hand():
    assert [pass_at_k(8, 1, k) for k in (1, 2, 8)] == [0.125, 0.25, 1.0]
    assert pass_at_k(8, 0, 8) == 0.0
    assert pass_at_k(4, 2, 2) == 1 - 1 / 6
    assert pass_at_k(100_000, 1, 1) == 1e-5  # no overflow, no rounding
    assert pass_at_k(2000, 1000, 1000) == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0), (0, 0, 1)])
def test_pass_at_k_refuses_what_has_no_estimate(n, c, k):
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(n, c, k)


def test_pass_at_k_is_unbiased():
    """Averaged over all outcomes of n coin flips, it is 1 - (1 - p)^k."""
    n, k, p = 5, 3, 0.3
    mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def test_mean_over_problems():
    assert mean_pass_at_k([0, 1, 2], 4, 1) == 0.25
    assert mean_pass_at_k([0, 1, 2], 4, 2) == pytest.approx((0 + 1 / 2 + 5 / 6) / 3)
    assert mean_pass_at_k([1] * 10, 10, 1) == 0.1  # exact sum
    with pytest.raises(ValueError, match="no problem"):
        mean_pass_at_k([], 4, 1)


def test_bootstrap_matches_the_exact_distribution_of_all_resamples():
    values = [0.0, 0.25, 1.0, 0.5]
    means = sorted(sum(draw) / 4 for draw in itertools.product(values, repeat=4))  # 256 equally likely resamples
    exact = np.quantile(means, [0.05, 0.95])
    assert bootstrap_interval(values, level=0.9, num_resamples=200_000) == pytest.approx(exact, abs=0.02)


def test_bootstrap_of_binary_values_matches_the_binomial_quantiles():
    n, successes = 200, 60
    cumulative = np.cumsum([math.comb(n, s) * 0.3**s * 0.7 ** (n - s) for s in range(n + 1)])
    exact = [int(np.searchsorted(cumulative, q)) / n for q in (0.025, 0.975)]
    assert bootstrap_interval([1.0] * successes + [0.0] * (n - successes)) == pytest.approx(exact, abs=0.0051)


def test_bootstrap_is_seeded_and_level_widens_it():
    values = list(np.linspace(0, 1, 30))
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=2)
    (low, high), (lower, higher) = bootstrap_interval(values, level=0.5), bootstrap_interval(values, level=0.95)
    assert lower < low < 0.5 < high < higher


def test_bootstrap_in_chunks_draws_as_many_as_asked(monkeypatch):
    """One value can only give that value; a chunk that was lost or doubled would show in the number of draws."""
    monkeypatch.setattr("nemo_aopsd.stats._INDEXES_AT_ONCE", 64)
    seen = []
    quantile = np.quantile
    monkeypatch.setattr(np, "quantile", lambda draws, q: seen.append(len(draws)) or quantile(draws, q))
    assert bootstrap_interval([0.5] * 10, num_resamples=1001) == (0.5, 0.5)
    assert seen == [1001]


def test_no_value_no_interval():
    with pytest.raises(ValueError, match="no value"):
        bootstrap_interval([])


def test_pairing_removes_the_spread_between_problems():
    before = list(np.linspace(0, 0.9, 50))
    after = [value + 0.1 for value in before]
    assert paired_bootstrap_interval(before, after) == pytest.approx((0.1, 0.1))
    low, high = paired_bootstrap_interval([0.0, 1.0], [1.0, 0.0])  # differences 1 and -1
    assert (low, high) == (-1.0, 1.0)
    with pytest.raises(ValueError, match="zip"):
        paired_bootstrap_interval([0.0], [0.0, 1.0])


def test_paired_interval_equals_that_of_the_differences():
    before, after = [0.0, 0.5, 1.0, 0.25], [0.5, 0.5, 0.75, 1.0]
    assert paired_bootstrap_interval(before, after) == bootstrap_interval([0.5, 0.0, -0.25, 0.75])


def test_wilson_by_hand():
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    for events, trials in [(1, 0), (-1, 3), (4, 3)]:
        with pytest.raises(ValueError, match="trials"):
            wilson_interval(events, trials)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_solves_its_equation(drawn):
    """The ends are the rates p at which the observed rate lies z standard errors away."""
    events, trials = drawn
    for end in wilson_interval(events, trials):
        distance = abs(events / trials - end)
        assert distance == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / trials), abs=1e-6)
