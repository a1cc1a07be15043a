"""What the runs of a suite measured: per member, over the seeds that are complete.

Every run is compared with its own evaluation before training (`base`) and with the reference's run of the same seed,
problem by problem.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from nemo_aopsd.analysis.suite.folder import Run
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.summary import check_same_problems
from nemo_aopsd.run import layout
from nemo_aopsd.run.reader import parse, read_metrics
from nemo_aopsd.run.record_types import Counts, StepMetrics
from nemo_aopsd.stats import crossed_bootstrap_interval, mean_pass_at_k, paired_bootstrap_interval


@dataclass(frozen=True, slots=True)
class Measured:
    """One complete run: evaluations before and after training, and its steps' metrics."""

    seed: int
    before: Counts
    after: Counts
    steps: list[StepMetrics]


@dataclass(frozen=True, slots=True)
class Difference:
    """Of pass@1, a fraction: `second` less `first`, each a mean over the seeds of both.

    `interval` is over problems and seeds; `by_problem` takes the trained models as given.
    """

    mean: float
    first: float
    second: float
    interval: tuple[float, float]
    by_problem: tuple[float, float]
    num_seeds: int


@dataclass(frozen=True, slots=True)
class Row:
    """One member; tables call it `label`.

    `pass_at_k` by k; `correct` of `responses` and `solved` of `problems` are over all seeds.
    `seconds_per_step`, `bytes_per_token` are None where no step tells them; `bytes_per_token` is what the update reads
    of the supervision of one response token.
    """

    member: str
    label: str
    seeds: list[int]
    pass_at_k: dict[int, float]
    interval: tuple[float, float]  # of pass@1
    by_seed: list[float]  # pass@1, in the order of `seeds`
    correct: int
    responses: int
    solved: int
    problems: int
    leaks: int | None  # of the responses, as the next one; None where an evaluation did not count them
    truncated: int | None
    against_base: Difference | None
    against_reference: Difference | None
    steps: float  # a seed, as the next one
    response_tokens: float
    seconds_per_step: float | None
    bytes_per_token: float | None


def measure(run: Run) -> Measured:
    """Read a finished run. Raises UserError if its files are not those of one."""
    files = list(layout.evaluation_files(run.folder).values())
    if not files:
        raise UserError(f"{run.folder}: finished, but has no evaluation. Delete {run.finished_file} to run it again.")
    before, after = (parse(Counts, file.read_bytes(), str(file)) for file in (files[0], files[-1]))
    return Measured(run.seed, before, after, read_metrics(run.folder))


def rows_of(measured: Mapping[str, Sequence[Measured]], reference: str | None, labels: Mapping[str, str]) -> list[Row]:
    """A row a member that has a complete run; `labels` has what tables call a member, if not by its name.

    Raises UserError where evaluations are of different problems.
    """
    against = {run.seed: run.after for run in measured.get(reference or "", ())}
    return [
        _row(name, labels.get(name, name), runs, against if name != reference else {})
        for name, runs in measured.items()
        if runs
    ]


def _row(name: str, label: str, runs: Sequence[Measured], reference: Mapping[int, Counts]) -> Row:
    after = _rates([run.after for run in runs], runs[0].after)
    low, high = crossed_bootstrap_interval(after)  # widened for few seeds, so an end may be no rate
    n = runs[0].after.num_samples
    counts = [count for run in runs for count in run.after.correct_per_problem.values()]
    trained = [run for run in runs if run.steps]
    return Row(
        member=name,
        label=label,
        seeds=[run.seed for run in runs],
        pass_at_k={k: mean_pass_at_k(counts, n, k) for k in range(1, n + 1)},
        interval=(max(0.0, low), min(1.0, high)),
        by_seed=after.mean(axis=1).tolist(),
        correct=sum(counts),
        responses=n * len(counts),
        solved=sum(count > 0 for count in counts),
        problems=len(counts),
        leaks=_sum([run.after.leak_count for run in runs]),
        truncated=_sum([run.after.truncation_count for run in runs]),
        against_base=_difference([(run.before, run.after) for run in trained]),
        against_reference=_difference([(reference[run.seed], run.after) for run in runs if run.seed in reference]),
        steps=fmean([len(run.steps) for run in runs]),
        response_tokens=fmean([math.fsum(map(_tokens, run.steps)) for run in runs]),
        seconds_per_step=_mean_of("time/step", runs),
        bytes_per_token=_mean_of("train/supervision_bytes_per_token", runs),
    )


def _tokens(step: StepMetrics) -> float:
    return step.number("rollout/count") * step.number("rollout/mean_tokens")


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _difference(pairs: Sequence[tuple[Counts, Counts]]) -> Difference | None:
    """Second less first of each pair, a pair a seed."""
    if not pairs:
        return None
    first, second = (_rates([pair[side] for pair in pairs], pairs[0][0]) for side in (0, 1))
    return Difference(
        mean=float((second - first).mean()),
        first=float(first.mean()),
        second=float(second.mean()),
        interval=crossed_bootstrap_interval(second - first),
        by_problem=paired_bootstrap_interval(first.mean(axis=0), second.mean(axis=0)),
        num_seeds=len(pairs),
    )


def _rates(evaluations: Sequence[Counts], like: Counts) -> np.ndarray:
    """Share of correct samples, [evaluations, problems], problems in the order of `like`."""
    problems = list(like.correct_per_problem)
    for found in evaluations:
        check_same_problems("evaluations of two runs", found.correct_per_problem, problems, "Delete the odd runs.")
    counts = [[found.correct_per_problem[problem] for problem in problems] for found in evaluations]
    return np.array(counts) / np.array([[found.num_samples] for found in evaluations])


def _mean_of(key: str, runs: Sequence[Measured]) -> float | None:
    """Over all steps of all runs; None unless each step tells it."""
    values = [step.get(key) for run in runs for step in run.steps]
    told = [value for value in values if value is not None]
    return fmean(told) if told and len(told) == len(values) else None
