"""Which figures a run has, with captions. A run without a figure's numbers has no such panel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from nemo_aopsd.analysis.gap_mass import percent
from nemo_aopsd.analysis.report import figures
from nemo_aopsd.analysis.report.digest import PAPER_MARKS, ReportedRun
from nemo_aopsd.analysis.report.figures import Series, duration
from nemo_aopsd.run.record_types import Evaluation

MAX_EPOCHS_SHOWN = 6
_KS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Panel:
    """A figure with its caption."""

    title: str
    caption: str
    figure: str


Drawn = tuple[str, str] | None  # caption and figure; None where the run has no number to draw
Draw = Callable[[ReportedRun, str], Drawn]  # gets the title, too


def draw(run: ReportedRun, wanted: Mapping[str, Draw]) -> tuple[list[Panel], list[str]]:
    """The panels that the run has numbers for, and the titles of the others."""
    found = {title: make(run, title) for title, make in wanted.items()}
    shown = [Panel(title, *drawn) for title, drawn in found.items() if drawn]
    return shown, [title for title, drawn in found.items() if not drawn]


def evaluation_table(run: ReportedRun) -> list[tuple[str, ...]]:
    """A header and a row an evaluation; nothing without one."""
    if not run.evaluations:
        return []
    ks = _shown_ks(run)
    header = ("epochs", "correct samples", *(f"pass@{k}" for k in ks), "truncated", "mean tokens")
    return [header, *(_evaluation_row(evaluation, ks) for evaluation in run.evaluations)]


def _evaluation_row(evaluation: Evaluation, ks: list[int]) -> tuple[str, ...]:
    def cell(k: int) -> str:
        if k not in evaluation.pass_at_k:
            return "too few samples"
        bound = evaluation.pass_at_k_interval[k]
        return f"{evaluation.pass_at_k[k]:.3f} [{bound.low:.3f}, {bound.high:.3f}]"

    correct = f"{evaluation.num_correct} of {evaluation.num_problems * evaluation.num_samples}"
    ends = (percent(evaluation.truncation_rate), f"{evaluation.mean_tokens:.0f}")
    return (str(evaluation.epoch), correct, *map(cell, ks), *ends)


def _shown_ks(run: ReportedRun) -> list[int]:
    most = max(evaluation.num_samples for evaluation in run.evaluations)
    return [k for k in _KS if k <= most]


def _pass_at_k(run: ReportedRun, title: str) -> Drawn:
    if not run.evaluations:
        return None
    last = run.evaluations[-1]
    caption = (
        f"Bare question only. n = {last.num_problems} problems × {last.num_samples} samples; bars are 95 % "
        "bootstrap intervals over problems. Epoch 0 is before training."
    )
    return caption, figures.pass_at_k(run.evaluations, _shown_ks(run))


def _leak_meter(run: ReportedRun, title: str) -> Drawn:
    lines, parts = [], []
    if _present(run, "rollout/leak_rate"):
        lines.append(_series(run, "rollout/leak_rate", "training rollouts"))
        parts.append(f"{run.digest.num_rollouts} training rollouts")
    if run.evaluations:
        steps = [sum(row.epoch < evaluation.epoch for row in run.metrics) for evaluation in run.evaluations]
        rates = [evaluation.leak_rate for evaluation in run.evaluations]
        lines.append(Series("held-out evaluations", steps, rates, dots=True))
        last = run.evaluations[-1]
        parts.append(f"{last.num_problems * last.num_samples} held-out responses an evaluation")
    if not lines:
        return None
    caption = (
        "Share of question-only responses with a phrase that refers to the private context, which the student never "
        f"saw. {' and '.join(parts)}. Copied content without such a phrase is not seen. "
        "A rising rate is a cost: the student takes on the teacher's habit of naming what only the teacher sees."
    )
    return caption, figures.by_step("leaks", title, lines, share=True, wide=True)


def _gap_mass(run: ReportedRun, title: str) -> Drawn:
    gaps, threshold, unscored = run.digest.gaps, run.method.probes.threshold, run.digest.num_unscored
    if not gaps.mass.sum():
        return None
    caption = (
        "Tokens and gap mass with |gap| at or above a threshold: how concentrated the disagreement is. "
        f"n = {int(gaps.tokens.sum()):,} tokens of {run.digest.num_rollouts - unscored} rollouts"
        f"{f', {unscored} more were dropped' if unscored else ''}. "
        "For reference, the paper reports 3.08 % and 51.78 % at 1, 1.15 % and 34.07 % at 2."
    )
    return caption, figures.gap_mass(gaps, sorted({*PAPER_MARKS, threshold}))


def _nll(run: ReportedRun, title: str) -> Drawn:
    digest, probes = run.digest, run.method.probes
    positive, negative = (np.array(side).reshape(-1, 2) for side in (digest.positive, digest.negative))
    nlls, weights = np.concatenate([positive, negative]).T
    if not len(nlls):
        return None
    low, high = np.quantile(nlls, [0.1, 0.9])
    caption = (
        "Mean student NLL of the teacher's continuation. "
        f"Scored probes: n = {len(nlls)}; with an empty continuation, so weight 1: {digest.num_empty}. "
        f"Middle 80 % of L: {low:.2f} to {high:.2f}; mean weight {weights.mean():.2f}. "
        "Line: w(L) = (L/β) exp(1 − L/β), peak at β (triangle). Values above the axis stand in the last bar."
    )
    betas = (probes.beta_positive, probes.beta_negative)
    return caption, figures.nll_histograms(positive[:, 0], negative[:, 0], betas)


def _competence(run: ReportedRun, title: str) -> Drawn:
    values = [
        (entry.epoch, [value for value in entry.competence.values() if value is not None]) for entry in run.competence
    ]
    known = [(epoch, found) for epoch, found in values if found]
    if not known:
        return None
    picked = np.unique(np.linspace(0, len(known) - 1, min(len(known), MAX_EPOCHS_SHOWN)).round().astype(int))
    unknown = sum(value is None for value in run.competence[-1].competence.values())
    left_out = f" Shown: {len(picked)} of {len(known)} epochs." if len(picked) < len(known) else ""
    caption = (
        "Share of its graph that each problem's attempts establish, as the curriculum orders by it; orange: mean. "
        f"Problems: n = {len(known[-1][1])}; without a readable verdict: {unknown}.{left_out}"
    )
    return caption, figures.competence([known[index] for index in picked])


def _stage_times(run: ReportedRun, title: str) -> Drawn:
    totals = {stage: sum(_present(run, f"time/{stage}")) for stage in figures.STAGES}
    totals = {stage: seconds for stage, seconds in totals.items() if seconds}
    whole = sum(totals.values())
    if not whole:
        return None
    said = ", ".join(f"{stage} {percent(seconds / whole)}" for stage, seconds in totals.items())
    caption = (
        f"Seconds by stage. In all {duration(whole)} over {len(run.metrics)} steps: {said}. "
        "“teacher” and “student” score the sampled responses."
    )
    lines = [_series(run, f"time/{stage}", stage) for stage in totals]
    return caption, figures.by_step("stage-times", title, lines, unit="seconds", wide=True)


def _disclosure(run: ReportedRun, title: str) -> Drawn:
    labels = {"dag/disclosed_share": "disclosed to the teacher", "dag/progress": "reached by the student"}
    lines = [_series(run, key, label) for key, label in labels.items() if _present(run, key)]
    if not lines:
        return None
    caption = f"Mean share of a graph's checkpoints. n = {run.digest.num_rollouts} rollouts, {_num_steps(run)}."
    return caption, figures.by_step("disclosure", title, lines, share=True)


def _trigger_rate(run: ReportedRun, title: str) -> Drawn:
    if not _present(run, "probe/trigger_rate"):
        return None
    probes, threshold = sum(_present(run, "probe/count")), run.method.probes.threshold
    caption = f"Share of tokens with |gap| ≥ {threshold:g} nats. Probes: n = {probes:.0f}, {_num_steps(run)}."
    line = _series(run, "probe/trigger_rate", "triggered")
    return caption, figures.by_step("triggers", title, [line], share=True)


def _counted(key: str) -> Draw:
    """A count a step as a share of the step's rollouts."""

    def make(run: ReportedRun, title: str) -> Drawn:
        rows = [row for row in run.metrics if row.get(key) is not None]
        if not rows:
            return None
        counts, sizes = [row.number(key) for row in rows], [row.number("rollout/count") for row in rows]
        shares = [count / size for count, size in zip(counts, sizes, strict=True)]
        cut = sum(_present(run, "judge/cut"))
        more = f"; {cut:.0f} attempts were shortened" if key == "judge/failed" else ""
        caption = f"Share of rollouts: {sum(counts):.0f} of n = {sum(sizes):.0f}, {_num_steps(run)}{more}."
        line = Series(title, [row.step for row in rows], shares)
        return caption, figures.by_step(key.replace("/", "-"), title, [line], share=True)

    return make


def _line(key: str, unit: str) -> Draw:
    def make(run: ReportedRun, title: str) -> Drawn:
        known = [value for value in _present(run, key) if not math.isnan(value)]
        if not known:
            return None
        caption = (
            f"First {known[0]:.3g}, last {known[-1]:.3g}. n = {run.digest.num_rollouts} rollouts, {_num_steps(run)}."
        )
        line = _series(run, key, title)
        return caption, figures.by_step(key.replace("/", "-"), title, [line], unit=unit)

    return make


def _series(run: ReportedRun, key: str, label: str) -> Series:
    """A metric over steps; a step that has no value leaves a hole."""
    values = [row.get(key) for row in run.metrics]
    return Series(label, [row.step for row in run.metrics], [math.nan if v is None else v for v in values])


def _present(run: ReportedRun, key: str) -> list[float]:
    """The values that a metric has."""
    return [value for row in run.metrics if (value := row.get(key)) is not None]


def _num_steps(run: ReportedRun) -> str:
    """`18 steps`, and how many of them one point of a line stands for."""
    size = figures.group_size(len(run.metrics))
    grouped = f" (thick: means of about {size})" if size > 1 else ""
    return "1 step" if len(run.metrics) == 1 else f"{len(run.metrics)} steps{grouped}"


# How the student does on bare questions.
OUTCOME: dict[str, Draw] = {"pass@k on held-out problems": _pass_at_k, "Leak meter": _leak_meter}
# What the method saw and did.
METHOD: dict[str, Draw] = {
    "Gap mass": _gap_mass,
    "Continuation surprisal L and its weight": _nll,
    "Competence by epoch": _competence,
    "Where the time goes": _stage_times,
}
# One number or two by step.
STEPS: dict[str, Draw] = {
    "Progress and disclosed share": _disclosure,
    "Trigger rate": _trigger_rate,
    "Weight of probed tokens": _line("probe/weight_mean", "mean weight"),
    "Unreadable verdicts": _counted("judge/failed"),
    "Mean |gap|": _line("gap/mean_abs", "nats"),
    "Loss": _line("train/loss", "loss"),
    "Gradient norm": _line("train/grad_norm", "norm before clipping"),
    "Response length": _line("rollout/mean_tokens", "tokens"),
    "Truncated responses": _counted("rollout/truncated"),
}
