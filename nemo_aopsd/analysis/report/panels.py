"""Which figures a run has, with captions. A run without a figure's numbers has no such panel."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nemo_aopsd.analysis.gap_mass import percent
from nemo_aopsd.analysis.report import figures
from nemo_aopsd.analysis.report.comparison import name_of
from nemo_aopsd.analysis.report.digest import ReportedRun
from nemo_aopsd.analysis.report.figures import Series
from nemo_aopsd.clock import duration
from nemo_aopsd.config.extension import is_own
from nemo_aopsd.console import counted
from nemo_aopsd.run.metrics import GAP_THRESHOLDS
from nemo_aopsd.run.reader import Run

MAX_EPOCHS_SHOWN = 6
_LEAST_SHARE = 0.001  # of the time: what a method does not do still takes some microseconds
REWARD = "Reward"
_KS = (1, 2, 4, 8, 16, 32, 64)


class Panel(NamedTuple):
    """A figure with its caption."""

    title: str
    caption: str
    figure: str


Drawn = tuple[str, str] | None  # caption and figure; None where the run has no number to draw
Draw = Callable[[ReportedRun, str], Drawn]  # gets the title, too


def draw(run: ReportedRun, wanted: Mapping[str, Draw]) -> tuple[list[Panel], list[str]]:
    """The panels that the run has numbers for, and the titles of the others, but for what few methods have."""
    found = {title: make(run, title) for title, make in wanted.items()}
    shown = [Panel(title, *drawn) for title, drawn in found.items() if drawn]
    return shown, [title for title, drawn in found.items() if not drawn and title != REWARD]


def evaluation_table(run: ReportedRun) -> list[tuple[str, ...]]:
    """A header and a row an evaluation; nothing without one."""
    if not run.evaluations:
        return []
    ks = _shown_ks(run)
    rows = [("step", "correct samples", *(f"pass@{k}" for k in ks), "truncated", "mean tokens")]
    for found in run.evaluations:
        correct = f"{found.num_correct} of {found.num_problems * found.num_samples}"
        shown = [(found.pass_at_k[k], found.pass_at_k_interval[k]) for k in ks]
        rates = [f"{rate:.3f} [{ends.low:.3f}, {ends.high:.3f}]" for rate, ends in shown]
        rows.append((str(found.step), correct, *rates, percent(found.truncation_rate), f"{found.mean_tokens:.0f}"))
    return rows


def _shown_ks(run: ReportedRun) -> list[int]:
    return [k for k in _KS if k <= run.evaluations[-1].num_samples]


def _pass_at_k(run: ReportedRun, title: str) -> Drawn:
    if not run.evaluations:
        return None
    last = run.evaluations[-1]
    caption = (
        f"Bare question only. n = {counted(last.num_problems, 'problem')} × {counted(last.num_samples, 'sample')}; "
        "bars are 95 % intervals over problems (docs/evaluation.md). Step 0 is before training."
    )
    others = {name_of(other.path): other.evaluations for other in run.others if other.evaluations}
    return caption, figures.pass_at_k(run.evaluations, _shown_ks(run), others)


def _leak_meter(run: ReportedRun, title: str) -> Drawn:
    lines, parts = [], []
    if _present(run, "rollout/leak_rate"):
        lines.append(_series(run, "rollout/leak_rate", "training rollouts"))
        parts.append(f"{run.digest.num_rollouts} training rollouts")
    if run.evaluations:
        steps = [evaluation.step for evaluation in run.evaluations]
        rates = [evaluation.leak_rate for evaluation in run.evaluations]
        lines.append(Series("evaluations", steps, rates, dots=True))
        last = run.evaluations[-1]
        parts.append(f"{last.num_problems * last.num_samples} responses an evaluation")
    lines += _of_others(run, "rollout/leak_rate")
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
    return caption, figures.gap_mass(gaps, sorted({*GAP_THRESHOLDS, threshold}))


def _nll(run: ReportedRun, title: str) -> Drawn:
    digest, probes = run.digest, run.method.probes
    positive, negative = (np.array(side).reshape(-1, 2) for side in (digest.positive, digest.negative))
    nlls, weights = np.concatenate([positive, negative]).T
    if not len(nlls):
        return None
    low, high = np.quantile(nlls, [0.1, 0.9])
    caption = (
        "Mean student NLL of the teacher's continuation. "
        f"Scored probes: n = {len(nlls)}; with an empty continuation: {digest.num_empty}. "
        f"Middle 80 % of L: {low:.2f} to {high:.2f}; mean weight {weights.mean():.2f}. "
    )
    betas = None
    if not is_own(run.method.weighting):
        betas = (_beta(run, "positive", probes.beta_positive), _beta(run, "negative", probes.beta_negative))
        control = "" if run.method.weighting == "continuation" else f", before {run.method.weighting} changes it"
        caption += f"Line: w(L) = (L/β) exp(1 − L/β), peak at β (triangle){control}. "
    caption += "Values above the axis stand in the last bar."
    return caption, figures.nll_histograms(positive[:, 0], negative[:, 0], betas)


def _beta(run: ReportedRun, sign: str, fixed: float) -> float:
    """That of the newest step, where steps have their own (`probes.betas=auto`)."""
    logged = (row.get(f"probe/beta_{sign}") for row in reversed(run.metrics))
    return next((beta for beta in logged if beta is not None), fixed)


def _competence(run: ReportedRun, title: str) -> Drawn:
    values = [(one.epoch, [value for value in one.competence.values() if value is not None]) for one in run.competence]
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
    whole = sum(totals.values())
    totals = {stage: seconds for stage, seconds in totals.items() if seconds >= _LEAST_SHARE * whole > 0}
    if not totals:
        return None
    said = ", ".join(f"{stage} {percent(seconds / whole)}" for stage, seconds in totals.items())
    caption = (
        f"Seconds by stage. In all {duration(whole)} over {len(run.metrics)} steps: {said}. "
        "“teacher” and “student” score the sampled responses."
    )
    lines = [_series(run, f"time/{stage}", stage) for stage in totals]
    return caption, figures.by_step("stage-times", title, lines, unit="seconds", wide=True)


def _by_step(labels: Mapping[str, str], *, share: bool = False, unit: str | None = None) -> Draw:
    """Metrics over steps; `labels` by key, for those that the run has."""

    def make(run: ReportedRun, title: str) -> Drawn:
        known = {key: values for key in labels if (values := _present(run, key))}
        if not known:
            return None
        said = [f"{labels[key]}: first {values[0]:.3g}, last {values[-1]:.3g}" for key, values in known.items()]
        caption = f"{'; '.join(said).capitalize()}. n = {run.digest.num_rollouts} rollouts, {_num_steps(run)}."
        first, lines = next(iter(known)), [_series(run, key, labels[key]) for key in known]
        if run.others and len(known) == 1:
            lines = [replace(lines[0], label=name_of(run.path))]
        drawn = list(known) if len(known) <= 2 else [first]  # of others; three lines a run could not be told apart
        lines += [line for key in drawn for line in _of_others(run, key, f"{labels[key]}, " if len(known) > 1 else "")]
        shown = unit or ("" if share else labels[first])
        return caption, figures.by_step(first.replace("/", "-"), title, lines, unit=shown, share=share)

    return make


def _series(run: Run, key: str, label: str) -> Series:
    """A metric over steps; a step that has no value leaves a hole."""
    values = [row.get(key) for row in run.metrics]
    return Series(label, [row.step for row in run.metrics], [math.nan if v is None else v for v in values])


def _of_others(run: ReportedRun, key: str, prefix: str = "") -> list[Series]:
    """The same metric of the other runs that have it."""
    return [_series(other, key, f"{prefix}{name_of(other.path)}") for other in run.others if _present(other, key)]


def _present(run: Run, key: str) -> list[float]:
    """The numbers that a metric has."""
    values = (row.get(key) for row in run.metrics)
    return [value for value in values if value is not None and not math.isnan(value)]


def _num_steps(run: ReportedRun) -> str:
    """`18 steps`, and how many of them one point of a line stands for."""
    size = figures.group_size(len(run.metrics))
    grouped = f" (thick: means of about {size})" if size > 1 else ""
    return f"{counted(len(run.metrics), 'step')}{grouped}"


# How the student does on bare questions.
OUTCOME: dict[str, Draw] = {"pass@k of the bare question": _pass_at_k, "Leak meter": _leak_meter}
# What the method saw and did.
METHOD: dict[str, Draw] = {
    "Gap mass": _gap_mass,
    "Continuation surprisal L and its weight": _nll,
    "Competence by epoch": _competence,
    "Where the time goes": _stage_times,
}
# One number or two by step.
STEPS: dict[str, Draw] = {
    "Progress and disclosed share": _by_step(
        {"dag/disclosed_share": "disclosed to the teacher", "dag/progress": "reached by the student"}, share=True
    ),
    REWARD: _by_step({"reward/mean": "mean of the step's answers"}, share=True),
    "Trigger rate": _by_step({"probe/trigger_rate": "share of tokens with a probe"}, share=True),
    "Weight of probed tokens": _by_step({"probe/weight_mean": "mean weight"}),
    "Weight of all tokens": _by_step(
        {"weight/mean": "mean", "weight/p5": "5 %", "weight/p50": "median", "weight/p95": "95 %"}, unit="weight"
    ),
    "Unreadable verdicts": _by_step({"judge/failed": "verdicts a step"}),
    "Mean |gap|": _by_step({"gap/mean_abs": "nats"}),
    "Loss": _by_step({"train/loss": "loss"}),
    "Gradient norm": _by_step({"train/grad_norm": "norm before clipping"}),
    "Response length": _by_step({"rollout/mean_tokens": "tokens"}),
    "Truncated responses": _by_step({"rollout/truncated": "responses a step"}),
}
