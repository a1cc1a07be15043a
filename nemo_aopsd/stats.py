"""pass@k and intervals. Problems are the independent units: samples of one problem are never resampled alone.

Percentile bootstrap intervals are approximate and collapse where all problems agree (all solved, say); for a plain
rate of independent events use `wilson_interval`, which does not.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from statistics import NormalDist, fmean

import numpy as np

# Student's t of a two-sided 95 % interval, by number of values.
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
_INDEXES_AT_ONCE = 1 << 20  # bounds the memory of a bootstrap


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased chance that at least one of k samples is correct, 1 - C(n-c, k) / C(n, k).

    Raises ValueError unless 0 <= c <= n and 1 <= k <= n; k above n has no unbiased estimate.

    >>> pass_at_k(8, 1, 1), pass_at_k(8, 1, 8)
    (0.125, 1.0)
    """
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} correct of {num_samples} samples")
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs at least {max(k, 1)} samples a problem, got {num_samples}")
    ways = math.comb(num_samples, k)
    return (ways - math.comb(num_samples - num_correct, k)) / ways


def mean_pass_at_k(num_correct: Collection[int], num_samples: int, k: int) -> float:
    """pass@k averaged over problems, each with `num_samples` samples. Raises ValueError without a problem."""
    return fmean([pass_at_k(num_samples, count, k) for count in num_correct])


def bootstrap_interval(
    values: Sequence[float], *, level: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values`, one a problem. Raises ValueError if there is none."""
    return macro_bootstrap_interval([values], level=level, num_resamples=num_resamples, seed=seed)


def macro_bootstrap_interval(
    groups: Sequence[Sequence[float]], *, level: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the unweighted mean of the groups' means, each group resampled by itself.

    A group is a benchmark, its values are one a problem. Raises ValueError on no group or an empty one.
    """
    if not groups or not all(len(group) for group in groups):
        raise ValueError("no value to resample")
    generator, total = np.random.default_rng(seed), np.zeros(num_resamples)
    for group in groups:
        samples = np.asarray(group, dtype=np.float64)
        indexes = (generator.integers(len(samples), size=size) for size in chunks(num_resamples, len(samples)))
        total += np.concatenate([samples[chosen].mean(axis=1) for chosen in indexes])
    return _middle(total / len(groups), level)


def _middle(draws: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def chunks(num_rows: int, width: int) -> Iterator[tuple[int, int]]:
    """Shapes (rows, width) that add up to `num_rows`, each of bounded size: the draws of a resampling."""
    most = max(1, _INDEXES_AT_ONCE // width)
    return ((min(most, num_rows - start), width) for start in range(0, num_rows, most))


def paired_bootstrap_interval(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Bootstrap interval of mean(after - before); both list the same problems in the same order."""
    return bootstrap_interval([later - earlier for earlier, later in zip(before, after, strict=True)])


def crossed_bootstrap_interval(
    values: np.ndarray, *, level: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values` [runs, problems], both resampled, each by itself.

    All runs answer the same problems, so a value is a run's part plus a problem's: the pigeonhole bootstrap (Owen 2007,
    "The pigeonhole bootstrap"). With few runs the spread of their means is widened by sqrt(S / (S - 1)), which makes
    its variance unbiased (Rao and Wu 1988, "Resampling inference with complex survey data"). One run is taken as it
    is. Raises ValueError without a value.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"expected values [runs, problems], got the shape {values.shape}")
    runs, problems = values.shape
    run_means = values.mean(axis=1, keepdims=True)
    if runs > 1:
        values = values + (math.sqrt(runs / (runs - 1)) - 1) * (run_means - run_means.mean())
    generator = np.random.default_rng(seed)
    means = []
    for size, _ in chunks(num_resamples, problems):
        run_shares = generator.multinomial(runs, np.full(runs, 1 / runs), size) / runs
        problem_shares = generator.multinomial(problems, np.full(problems, 1 / problems), size) / problems
        means.append(((run_shares @ values) * problem_shares).sum(axis=1))
    return _middle(np.concatenate(means), level)


def wilson_interval(num_events: int, num_trials: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a rate. Raises ValueError unless 0 <= events <= trials and trials > 0."""
    if not 0 <= num_events <= num_trials or num_trials == 0:
        raise ValueError(f"{num_events} events of {num_trials} trials")
    z = NormalDist().inv_cdf((1 + level) / 2)
    rate, shrink = num_events / num_trials, 1 + z * z / num_trials
    centre = (rate + z * z / (2 * num_trials)) / shrink
    half = z / shrink * math.sqrt(rate * (1 - rate) / num_trials + z * z / (4 * num_trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def sign_flip_p_value(
    groups: Sequence[Sequence[float]], *, num_flips: int = 10_000, seed: int = 0, exact_up_to: int = 12
) -> float:
    """Two-sided p-value of a paired permutation test: is the mean of the groups' mean differences zero?

    Under the null hypothesis a problem's difference is as likely as its negative. All sign patterns are enumerated for
    up to `exact_up_to` nonzero differences, else `num_flips` are drawn and the observed one counts as one of them.
    Raises ValueError on no group or an empty one.
    """
    if not groups or not all(len(group) for group in groups):
        raise ValueError("no difference to test")
    shares = np.concatenate([np.asarray(group, dtype=np.float64) / len(group) for group in groups])
    shares = shares[shares != 0]
    observed = abs(shares.sum()) - 1e-12 * np.abs(shares).sum()  # sums of equal terms differ in their last bits
    if len(shares) <= exact_up_to:
        patterns = np.array(list(itertools.product([-1.0, 1.0], repeat=len(shares))))
        return float(np.mean(np.abs(patterns @ shares) >= observed))
    generator = np.random.default_rng(seed)
    signs = (generator.choice([-1.0, 1.0], size=size) for size in chunks(num_flips, len(shares)))
    extreme = sum(int(np.sum(np.abs(drawn @ shares) >= observed)) for drawn in signs)
    return (extreme + 1) / (num_flips + 1)


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Two-sided exact McNemar test: of the problems that just one of two solved, is either side's share one half?

    >>> mcnemar_p_value(0, 5), mcnemar_p_value(3, 3)
    (0.0625, 1.0)
    """
    total = only_first + only_second
    tail = sum(math.comb(total, count) for count in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**total)


def binomial_tail(num_events: int, num_trials: int, rate: float, *, below: bool = False) -> float:
    """Chance of at least (or with `below` at most) so many events in independent trials of this rate, 0 < rate < 1.

    >>> binomial_tail(2, 2, 0.1), binomial_tail(0, 2, 0.1, below=True)
    (0.01, 0.81)
    """

    def log_chance(count: int) -> float:
        ways = math.lgamma(num_trials + 1) - math.lgamma(count + 1) - math.lgamma(num_trials - count + 1)
        return ways + count * math.log(rate) + (num_trials - count) * math.log1p(-rate)

    counts = range(num_events + 1) if below else range(num_events, num_trials + 1)
    return round(min(1.0, math.fsum(math.exp(log_chance(count)) for count in counts)), 12)
