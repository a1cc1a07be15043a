"""How often intervals of `aopsd compare` hold the true difference: the table of docs/comparing.md.

    python benchmarks/crossed_bootstrap.py

Two methods answer 400 problems, 8 samples each. A problem's difficulty is normal on the logit scale; the second method
is 0.3 logits better, which is 4 points; each run moves all problems of its method alike, and each problem a little.
"""

import argparse

import numpy as np

from nemo_aopsd.stats import bootstrap_interval, crossed_bootstrap_interval

PROBLEMS, SAMPLES = 400, 8
DIFFICULTY, RUN_BY_PROBLEM, BETTER = 1.5, 0.3, 0.3  # logits: mean and deviation; deviation; difference


def rates(generator: np.random.Generator, difficulty: np.ndarray, runs: int, shift: float, deviation: float):
    """Chance of a right sample, [runs, problems]."""
    of_run = generator.normal(shift, deviation, (runs, 1))
    return 1 / (1 + np.exp(-(difficulty + of_run + generator.normal(0, RUN_BY_PROBLEM, (runs, len(difficulty))))))


def covered(generator: np.random.Generator, truth: float, runs: int, deviation: float, seed: int) -> tuple[bool, bool]:
    """Does the interval over problems and seeds hold the truth? And that over problems alone?"""
    difficulty = generator.normal(DIFFICULTY, DIFFICULTY, PROBLEMS)
    first, second = (
        generator.binomial(SAMPLES, rates(generator, difficulty, runs, shift, deviation)) / SAMPLES
        for shift in (0.0, BETTER)
    )
    crossed = crossed_bootstrap_interval(second - first, num_resamples=1000, seed=seed)
    alone = bootstrap_interval((second - first).mean(axis=0), num_resamples=1000, seed=seed)
    return crossed[0] <= truth <= crossed[1], alone[0] <= truth <= alone[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=500)
    repetitions = parser.parse_args().repetitions
    generator = np.random.default_rng(1)
    print("deviation of runs: logits | points | runs | problems and seeds | problems alone")
    for deviation in (0.0, 0.1, 0.3):
        difficulty = generator.normal(DIFFICULTY, DIFFICULTY, 5_000)
        first, second = (rates(generator, difficulty, 3000, shift, deviation).mean(axis=1) for shift in (0.0, BETTER))
        truth = (second - first).mean()
        for runs in (3, 5):
            found = [covered(generator, truth, runs, deviation, seed) for seed in range(repetitions)]
            crossed, alone = np.mean(found, axis=0)
            print(f"{deviation} | {100 * first.std():.1f} | {runs} | {crossed:.1%} | {alone:.1%}", flush=True)


if __name__ == "__main__":
    main()
