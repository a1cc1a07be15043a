"""pass@k and intervals against exact enumeration."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import leak_weights, plan_step_cost, rounding, seed_differences
from nemo_aopsd.stats import (
    bootstrap_interval,
    crossed_bootstrap_interval,
    macro_bootstrap_interval,
    mcnemar_p_value,
    mean_pass_at_k,
    paired_bootstrap_interval,
    pass_at_k,
    sign_flip_p_value,
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


def test_mean_over_problems():
    assert mean_pass_at_k([0, 1, 2], 4, 1) == 0.25
    assert mean_pass_at_k([0, 1, 2], 4, 2) == pytest.approx((0 + 1 / 2 + 5 / 6) / 3)
    assert mean_pass_at_k([1] * 10, 10, 1) == 0.1  # exact sum
    with pytest.raises(ValueError, match="data point"):
        mean_pass_at_k([], 4, 1)


def test_bootstrap_matches_the_exact_distribution_of_all_resamples():
    values = [0.0, 0.25, 1.0, 0.5]
    means = sorted(sum(draw) / 4 for draw in itertools.product(values, repeat=4))  # 256 equally likely resamples
    exact = np.quantile(means, [0.05, 0.95])
    assert bootstrap_interval(values, level=0.9, num_resamples=200_000) == pytest.approx(exact, abs=0.02)


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


def test_macro_bootstrap_matches_the_exact_distribution_of_all_pairs_of_resamples():
    """Two benchmarks, each resampled by itself: 27 x 4 equally likely pairs of resamples."""
    one, other = [0.0, 0.5, 1.0], [0.25, 1.0]
    firsts = [sum(draw) / 3 for draw in itertools.product(one, repeat=3)]
    seconds = [sum(draw) / 2 for draw in itertools.product(other, repeat=2)]
    means = [(first + second) / 2 for first, second in itertools.product(firsts, seconds)]
    exact = np.quantile(means, [0.05, 0.95])
    found = macro_bootstrap_interval([one, other], level=0.9, num_resamples=200_000)
    assert found == pytest.approx(exact, abs=0.02)


def test_macro_mean_weighs_benchmarks_and_not_problems():
    assert macro_bootstrap_interval([[1.0] * 100, [0.0]]) == (0.5, 0.5)
    assert macro_bootstrap_interval([[0.0, 1.0, 1.0]], seed=3) == bootstrap_interval([0.0, 1.0, 1.0], seed=3)
    for groups in ([], [[1.0], []]):
        with pytest.raises(ValueError, match="no value"):
            macro_bootstrap_interval(groups)


def test_crossed_bootstrap_equals_enumeration_of_runs_and_problems(monkeypatch):
    monkeypatch.setattr("nemo_aopsd.stats._INDEXES_AT_ONCE", 1 << 14)
    values = np.array([[0.0, 1.0, 0.25], [0.5, 1.0, 1.0]])
    centre, (first, second) = values.mean(), values.mean(axis=1)
    wider = values + (math.sqrt(2) - 1) * np.array([[first - centre], [second - centre]])  # S = 2: sqrt(2 / 1)
    means = [
        wider[np.ix_(runs, problems)].mean()
        for runs in itertools.product(range(2), repeat=2)
        for problems in itertools.product(range(3), repeat=3)
    ]
    found = crossed_bootstrap_interval(values, level=0.8, num_resamples=200_000)
    assert found == pytest.approx(np.quantile(means, [0.1, 0.9]), abs=0.02)


def test_sign_flips_by_hand():
    assert sign_flip_p_value([[0.5, 0.25, 0.25]]) == 2 / 8  # only all plus and all minus are as extreme
    assert sign_flip_p_value([[0.5, -0.5]]) == 1.0
    assert sign_flip_p_value([[0.0, 0.0]]) == 1.0
    assert sign_flip_p_value([[0.1, 0.1, 0.1, 0.0]]) == 2 / 8  # a problem without a difference tells nothing
    with pytest.raises(ValueError, match="no difference"):
        sign_flip_p_value([[]])


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(-8, 8), min_size=1, max_size=3), min_size=1, max_size=3))
def test_sign_flips_equal_enumeration_in_exact_arithmetic(groups):
    shares = [Fraction(value, len(group)) for group in groups for value in group]
    sums = [abs(sum(s * x for s, x in zip(signs, shares, strict=True))) for signs in _signs(len(shares))]
    expected = Fraction(sum(value >= abs(sum(shares)) for value in sums), len(sums))
    assert sign_flip_p_value([[value / 8 for value in group] for group in groups]) == pytest.approx(float(expected))


def _signs(count):
    return itertools.product([-1, 1], repeat=count)


def test_drawn_sign_flips_come_near_the_exact_value(monkeypatch):
    monkeypatch.setattr("nemo_aopsd.stats._INDEXES_AT_ONCE", 256)
    differences = [[0.5, 0.25, -0.125, 0.25, 0.375, -0.25, 0.125, 0.25, 0.5, -0.5]]
    exact = sign_flip_p_value(differences)
    drawn = sign_flip_p_value(differences, exact_up_to=5, num_flips=40_001)
    assert drawn == pytest.approx(exact, abs=0.01)  # four standard errors
    assert drawn != exact
    assert sign_flip_p_value([[1.0] * 60]) == 1 / 10_001  # never 0


@pytest.mark.parametrize(("one", "other"), [(0, 0), (0, 5), (1, 5), (3, 3), (7, 2)])
def test_mcnemar_equals_enumeration_of_coin_flips(one, other):
    total = one + other
    flips = [sum(draw) for draw in itertools.product([0, 1], repeat=total)]
    extreme = sum(min(heads, total - heads) <= min(one, other) for heads in flips)
    assert mcnemar_p_value(one, other) == mcnemar_p_value(other, one) == extreme / len(flips)


def test_the_differences_of_seeds_name_their_columns_and_equal_a_hand_calculation(tmp_path, monkeypatch, capsys):
    """Differences of 1 and 3 points: mean 2, and 12.706 * sqrt(2) / sqrt(2) to each side."""
    rows = "| aopsd | 51.0 % | 53.0 % |\n| grpo | 50.0 % | 50.0 % |\n"
    (tmp_path / "page.md").write_text(f"### pass@1 of each seed\n{rows}", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["seed_differences", str(tmp_path / "page.md")])
    seed_differences.main()
    seeds, columns, row = capsys.readouterr().out.splitlines()
    assert (seeds, row.split()) == ("2 seeds", ["grpo", "+2.0", "(-10.7", "to", "+14.7)"])
    assert "aopsd less" in columns and "pass@1 in points" in columns and "95 %" in columns
    monkeypatch.setattr("sys.argv", ["seed_differences", str(tmp_path / "page.md"), "--member", "grpo"])
    seed_differences.main()
    assert capsys.readouterr().out.splitlines()[2].split() == ["aopsd", "-2.0", "(-14.7", "to", "+10.7)"]
    monkeypatch.setattr("sys.argv", ["seed_differences"])  # the page of results that the checkout has
    seed_differences.main()
    assert capsys.readouterr().out.startswith("5 seeds")


def test_seeds_that_agree_by_luck_get_the_chance_among_their_answers_and_the_difference_of_the_counts():
    """60 and 50 of 100 answers: a standard error of sqrt(0.24 + 0.25) / 10; the seeds say 9 points without a spread."""
    table = "| aopsd | 2 | 60 % | 60 of 100 |\n| teacher_ema, decay 0.9 | 2 | 50 % | 50 of 100 |\n"
    seeds = "### pass@1 of each seed\n| aopsd | 60.0 % | 60.0 % |\n| teacher_ema | 51.0 % | 51.0 % |\n"
    (agreeing,) = seed_differences.suites(f"{table}{seeds}\n## Without seeds\n")
    found = seed_differences.difference(agreeing, "aopsd", "teacher_ema")
    assert (found.mean, found.half, found.widened) == (pytest.approx(10), pytest.approx(1.96 * 7, rel=1e-4), True)
    (apart,) = seed_differences.suites(table + seeds.replace("60.0 % | 60.0 %", "55.0 % | 65.0 %"))
    found = seed_differences.difference(apart, "aopsd", "teacher_ema")
    assert (found.half, found.widened) == (pytest.approx(12.706 * 5), False)


@pytest.mark.parametrize("benchmark", [leak_weights, plan_step_cost, rounding])
def test_a_benchmark_that_is_not_told_what_to_read_says_so_and_prints_no_table(benchmark, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [benchmark.__name__])
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()
    said = capsys.readouterr()
    assert said.out == "" and "the following arguments are required" in said.err
