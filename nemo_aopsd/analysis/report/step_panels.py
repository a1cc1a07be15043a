"""The small figures: one number or two by step."""

from __future__ import annotations

import math

from nemo_aopsd.analysis.report import figures
from nemo_aopsd.analysis.report.digest import ReportedRun
from nemo_aopsd.analysis.report.figures import Series
from nemo_aopsd.analysis.report.panels import Panel, no_probes, num_steps, present, series


def step_panels(run: ReportedRun) -> list[Panel]:
    """The small figures, one number or two by step."""
    if not run.metrics:
        return [Panel("By step", missing="No step has been finished yet (metrics.jsonl is missing or empty).")]
    return [
        _disclosure(run),
        _trigger_rate(run),
        _line(run, "Weight of probed tokens", "mean weight", "probe/weight_mean", no_probes(run)),
        _judge(run),
        _line(run, "Mean |gap|", "nats", "gap/mean_abs", "no scored rollout"),
        _line(run, "Loss", "loss", "train/loss", "no update"),
        _line(run, "Gradient norm", "norm before clipping", "train/grad_norm", "no update"),
        _line(run, "Response length", "tokens", "rollout/mean_tokens", "no rollout"),
        _counted(run, "Truncated responses", "rollout/truncated"),
    ]


def _disclosure(run: ReportedRun) -> Panel:
    title = "Progress and disclosed share"
    lines = [
        series(run, "dag/disclosed_share", "disclosed to the teacher"),
        series(run, "dag/progress", "reached by the student"),
    ]
    lines = [line for line in lines if line.steps]
    if not lines:
        return Panel(title, missing=f"context.kind={run.method.context.kind} discloses no graph and needs no judge.")
    caption = f"Mean share of a graph's checkpoints. n = {run.digest.num_rollouts} rollouts, {num_steps(run)}."
    return Panel(title, caption, figures.by_step("disclosure", title, lines, share=True))


def _trigger_rate(run: ReportedRun) -> Panel:
    title = "Trigger rate"
    line = series(run, "probe/trigger_rate", "triggered")
    if not line.steps:
        return Panel(title, missing=no_probes(run))
    probes = sum(present(run, "probe/count"))
    threshold = run.method.probes.threshold
    caption = f"Share of tokens with |gap| ≥ {threshold:g} nats. Probes: n = {probes:.0f}, {num_steps(run)}."
    return Panel(title, caption, figures.by_step("triggers", title, [line], share=True))


def _judge(run: ReportedRun) -> Panel:
    title = "Unreadable verdicts"
    if not present(run, "judge/failed"):
        return Panel(title, missing="This run asks no judge: neither its context nor its curriculum uses progress.")
    return _counted(run, title, "judge/failed", f"; {sum(present(run, 'judge/cut')):.0f} attempts were shortened")


def _counted(run: ReportedRun, title: str, key: str, more: str = "") -> Panel:
    """A count a step as a share of the step's rollouts."""
    rows = [row for row in run.metrics if row.get(key) is not None]
    if not rows:
        return Panel(title, missing=f"No step has recorded `{key}`.")
    counts, sizes = [row.number(key) for row in rows], [row.number("rollout/count") for row in rows]
    shares = [count / size for count, size in zip(counts, sizes, strict=True)]
    line, whole = Series(title, [row.step for row in rows], shares), sum(sizes)
    caption = f"Share of rollouts: {sum(counts):.0f} of n = {whole:.0f}, {num_steps(run)}{more}."
    return Panel(title, caption, figures.by_step(key.replace("/", "-"), title, [line], share=True))


def _line(run: ReportedRun, title: str, unit: str, key: str, reason: str) -> Panel:
    line = series(run, key, title)
    if not line.steps:
        return Panel(title, missing=reason[0].upper() + reason[1:] + ("" if reason.endswith(".") else "."))
    known = [value for value in line.values if not math.isnan(value)]
    if not known:
        return Panel(title, missing="Every recorded value is NaN.")
    caption = f"First {known[0]:.3g}, last {known[-1]:.3g}. n = {run.digest.num_rollouts} rollouts, {num_steps(run)}."
    return Panel(title, caption, figures.by_step(key.replace("/", "-"), title, [line], unit=unit))
