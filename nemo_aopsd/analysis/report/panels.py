"""Which figures a run has, what each says, and, where one is missing, why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nemo_aopsd.analysis.report import figures
from nemo_aopsd.analysis.report.digest import PAPER_MARKS, ReportedRun
from nemo_aopsd.analysis.report.figures import Series
from nemo_aopsd.analysis.report.measures import duration, percent
from nemo_aopsd.config.schema import CONTINUED
from nemo_aopsd.run.record_types import Evaluation

MAX_EPOCHS_SHOWN = 6


@dataclass(frozen=True)
class Panel:
    """A figure with its caption, or the reason why there is none. `table`: header row, then rows of text."""

    title: str
    caption: str = ""
    figure: str = ""
    missing: str = ""
    table: tuple[tuple[str, ...], ...] = ()


def outcome_panels(run: ReportedRun) -> list[Panel]:
    """How the student does on bare questions."""
    return [_pass_at_k(run), _leak_meter(run)]


def method_panels(run: ReportedRun) -> list[Panel]:
    """What the method saw and did."""
    return [_gap_mass(run), _nll(run), _competence(run), _stage_times(run)]


def _pass_at_k(run: ReportedRun) -> Panel:
    title = "pass@k on held-out problems"
    if not run.evaluations:
        return Panel(title, missing=no_evaluation(run))
    most = max(evaluation.num_samples for evaluation in run.evaluations)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= most]
    last = run.evaluations[-1]
    caption = (
        f"Bare question only. n = {last.num_problems} problems × {last.num_samples} samples; bars are 95 % "
        "bootstrap intervals over problems. Epoch 0 is before training."
    )
    header = ("epochs", "correct samples", *(f"pass@{k}" for k in ks), "truncated", "mean tokens")
    rows = [_evaluation_row(evaluation, ks) for evaluation in run.evaluations]
    return Panel(title, caption, figures.pass_at_k(run.evaluations, ks), table=(header, *rows))


def _evaluation_row(evaluation: Evaluation, ks: Sequence[int]) -> tuple[str, ...]:
    def cell(k: int) -> str:
        if k not in evaluation.pass_at_k:
            return "too few samples"
        bound = evaluation.pass_at_k_interval[k]
        return f"{evaluation.pass_at_k[k]:.3f} [{bound.low:.3f}, {bound.high:.3f}]"

    correct = f"{evaluation.num_correct} of {evaluation.num_problems * evaluation.num_samples}"
    ends = (percent(evaluation.truncation_rate), f"{evaluation.mean_tokens:.0f}")
    return (str(evaluation.epoch), correct, *map(cell, ks), *ends)


def _leak_meter(run: ReportedRun) -> Panel:
    title = "Leak meter"
    lines, parts = [], []
    if present(run, "rollout/leak_rate"):
        lines.append(series(run, "rollout/leak_rate", "training rollouts"))
        parts.append(f"{run.digest.num_rollouts} training rollouts")
    if run.evaluations:
        steps = [sum(row.epoch < evaluation.epoch for row in run.metrics) for evaluation in run.evaluations]
        rates = [evaluation.leak_rate for evaluation in run.evaluations]
        lines.append(Series("held-out evaluations", steps, rates, dots=True))
        last = run.evaluations[-1]
        parts.append(f"{last.num_problems * last.num_samples} held-out responses an evaluation")
    if not lines:
        return Panel(title, missing="Neither a step nor an evaluation has been finished yet.")
    caption = (
        "Share of question-only responses with a phrase that refers to the private context, which the student never "
        f"saw. {' and '.join(parts)}. Copied content without such a phrase is not seen. "
        "A rising rate is a cost: the student takes on the teacher's habit of naming what only the teacher sees."
    )
    return Panel(title, caption, figures.by_step("leaks", title, lines, share=True, wide=True))


def _gap_mass(run: ReportedRun) -> Panel:
    title = "Gap mass"
    gaps, num_tokens = run.digest.gaps, int(run.digest.gaps.tokens.sum())
    if not num_tokens:
        return Panel(title, missing=_no_rollouts(run))
    if not gaps.mass.sum():
        return Panel(title, missing=f"All {num_tokens:,} gaps are exactly 0: teacher and student agree everywhere.")
    threshold = run.method.probes.threshold
    unscored = run.digest.num_unscored
    caption = (
        "Tokens and gap mass with |gap| at or above a threshold: how concentrated the disagreement is. "
        f"n = {num_tokens:,} tokens of {run.digest.num_rollouts - unscored} rollouts"
        f"{f', {unscored} more were dropped' if unscored else ''}. "
        "For reference, the paper reports 3.08 % and 51.78 % at 1, 1.15 % and 34.07 % at 2."
    )
    return Panel(title, caption, figures.gap_mass(gaps, sorted({*PAPER_MARKS, threshold})))


def _nll(run: ReportedRun) -> Panel:
    title = "Continuation surprisal L and its weight"
    digest, probes = run.digest, run.method.probes
    positive, negative = (np.array(side).reshape(-1, 2) for side in (digest.positive, digest.negative))
    scored = len(positive) + len(negative)
    if not scored:
        return Panel(title, missing=no_probes(run))
    nlls = np.concatenate([positive[:, 0], negative[:, 0]])
    weights = np.concatenate([positive[:, 1], negative[:, 1]])
    low, high = np.quantile(nlls, [0.1, 0.9])
    caption = (
        "Mean student NLL of the teacher's continuation. "
        f"Scored probes: n = {scored}; with an empty continuation, so weight 1: {digest.num_empty}. "
        f"Middle 80 % of L: {low:.2f} to {high:.2f}; mean weight {weights.mean():.2f}. "
        "Line: w(L) = (L/β) exp(1 − L/β), peak at β (triangle). Values above the axis stand in the last bar."
    )
    betas = (probes.beta_positive, probes.beta_negative)
    return Panel(title, caption, figures.nll_histograms(positive[:, 0], negative[:, 0], betas))


def _competence(run: ReportedRun) -> Panel:
    title = "Competence by epoch"
    if run.method.curriculum.name == "shuffle":
        return Panel(title, missing="curriculum.name=shuffle: problems come at random, no competence is kept.")
    known = [
        (entry.epoch, [value for value in entry.competence.values() if value is not None]) for entry in run.competence
    ]
    known = [(epoch, values) for epoch, values in known if values]
    if not known:
        return Panel(title, missing="No competence yet: the initial attempts have not been finished and judged.")
    picked = np.unique(np.linspace(0, len(known) - 1, min(len(known), MAX_EPOCHS_SHOWN)).round().astype(int))
    unknown = sum(value is None for value in run.competence[-1].competence.values())
    left_out = f" Shown: {len(picked)} of {len(known)} epochs." if len(picked) < len(known) else ""
    caption = (
        "Share of its graph that each problem's attempts establish, as the curriculum orders by it; orange: mean. "
        f"Problems: n = {len(known[-1][1])}; without a readable verdict: {unknown}.{left_out}"
    )
    return Panel(title, caption, figures.competence([known[index] for index in picked]))


def _stage_times(run: ReportedRun) -> Panel:
    title = "Where the time goes"
    if not run.metrics:
        return Panel(title, missing="No step has been finished yet.")
    totals = {stage: sum(present(run, f"time/{stage}")) for stage in figures.STAGES}
    whole = sum(totals.values())
    said = ", ".join(f"{stage} {percent(seconds / whole)}" for stage, seconds in totals.items()) if whole else "none"
    caption = (
        f"Seconds by stage. In all {duration(whole)} over {len(run.metrics)} steps: {said}. "
        "“teacher” and “student” score the sampled responses."
    )
    return Panel(title, caption, figures.stage_times(run.metrics))


def series(run: ReportedRun, key: str, label: str) -> Series:
    """A metric over steps; absent values leave a hole, and a metric that is absent throughout has no point."""
    if not present(run, key):
        return Series(label, [], [])
    values = [row.get(key) for row in run.metrics]
    return Series(label, [row.step for row in run.metrics], [math.nan if v is None else v for v in values])


def present(run: ReportedRun, key: str) -> list[float]:
    """The values that a metric has."""
    return [value for row in run.metrics if (value := row.get(key)) is not None]


def num_steps(run: ReportedRun) -> str:
    """`18 steps`, and how many of them one point of a line stands for."""
    size = figures.group_size(len(run.metrics))
    grouped = f" (thick: means of about {size})" if size > 1 else ""
    return "1 step" if len(run.metrics) == 1 else f"{len(run.metrics)} steps{grouped}"


def no_evaluation(run: ReportedRun) -> str:
    """Why there is no pass@k to show."""
    if run.method.evaluation.data_path is None:
        return "aopsd.evaluation.data_path is not set, so this run evaluates nothing."
    return "The first evaluation has not been finished (no eval/epoch_*.json)."


def _no_rollouts(run: ReportedRun) -> str:
    if not run.digest.num_rollouts:
        return "No rollout has been recorded yet (rollouts/ is missing or empty)."
    return "No rollout has been scored: every teacher prompt was too long and its rollout was dropped."


def no_probes(run: ReportedRun) -> str:
    """Why there is no probe to show."""
    if not run.digest.num_rollouts:
        return _no_rollouts(run)
    if run.method.weighting not in CONTINUED:
        return f"weighting={run.method.weighting}: this run sends no probes."
    return f"No token reached |gap| ≥ {run.method.probes.threshold:g} with a continuation to score."
