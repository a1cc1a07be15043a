"""One line of numbers a step. A value that does not apply is absent, never 0."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from nemo_aopsd.config.schema import CONTINUED, AOPSDConfig
from nemo_aopsd.method.context import disclosed_share
from nemo_aopsd.method.step import Rollout, StepResult

GAP_THRESHOLDS = (1.0, 2.0)  # nats; those of the paper's Figure 1b


def step_metrics(result: StepResult, aopsd: AOPSDConfig, leaks: list[bool]) -> dict[str, float]:
    """Everything that metrics.jsonl says of a step. `leaks`: does each response refer to a private context?"""
    rollouts = result.rollouts
    scored = [rollout for rollout in rollouts if not rollout.dropped]
    metrics = {
        "rollout/count": len(rollouts),
        "rollout/mean_tokens": mean(len(rollout.output.tokens) for rollout in rollouts),
        "rollout/truncated": sum(not rollout.output.finished for rollout in rollouts),
        **_source_metrics(rollouts, aopsd, leaks),
        **_mean("reward/mean", (rollout.reward for rollout in rollouts)),
        "context/dropped": len(rollouts) - len(scored),
        **_progress_metrics(rollouts, aopsd.shown_context),
        **_gap_metrics(scored),
        **(_probe_metrics(scored, aopsd.probes.threshold) if aopsd.weighting in CONTINUED else {}),
        **result.train_metrics,
        **{f"time/{stage}": seconds for stage, seconds in result.seconds.items()},
        "time/step": sum(result.seconds.values()),
    }
    return {key: float(value) for key, value in metrics.items()}


def _source_metrics(rollouts: list[Rollout], aopsd: AOPSDConfig, leaks: list[bool]) -> dict[str, float]:
    """The data's solutions are counted; only the student's own answers tell how often it talks of a private context."""
    own = [leak for rollout, leak in zip(rollouts, leaks, strict=True) if not rollout.is_demonstration]
    metrics = _mean("rollout/leak_rate", own)
    if aopsd.objective.reads_solutions:
        solutions = [rollout for rollout in rollouts if rollout.is_demonstration]
        metrics["rollout/demonstrations"] = len(solutions)
        metrics["rollout/cut_demonstrations"] = sum(not rollout.output.finished for rollout in solutions)
    return metrics


def _progress_metrics(rollouts: list[Rollout], context: str) -> dict[str, float]:
    judged = [rollout for rollout in rollouts if rollout.verdict is not None]
    metrics: dict[str, float] = {}
    if judged:
        metrics["judge/failed"] = sum(rollout.verdict.failed for rollout in judged)
        metrics["judge/cut"] = sum(rollout.verdict.cut for rollout in judged)
        metrics |= _mean("dag/progress", (rollout.progress for rollout in judged))
    shares = (disclosed_share(rollout.problem, context, rollout.reached or frozenset()) for rollout in rollouts)
    return metrics | _mean("dag/disclosed_share", shares)


def _gap_metrics(scored: list[Rollout]) -> dict[str, float]:
    import torch

    gaps = torch.cat([torch.empty(0), *(rollout.gap.abs() for rollout in scored if rollout.gap is not None)])
    if not len(gaps):
        return {}
    total = gaps.sum().item()
    metrics = {"gap/mean_abs": total / len(gaps), "gap/max_abs": gaps.max().item()}
    for threshold in GAP_THRESHOLDS:
        large = gaps >= threshold
        metrics[f"gap/token_share_{threshold:g}"] = large.float().mean().item()
        if total > 0:
            metrics[f"gap/mass_share_{threshold:g}"] = gaps[large].sum().item() / total
    return metrics


def _probe_metrics(scored: list[Rollout], threshold: float) -> dict[str, float]:
    probes = [probe for rollout in scored for probe in rollout.probes]
    num_tokens = sum(len(rollout.output.tokens) for rollout in scored)
    num_triggered = sum((rollout.gap.abs() >= threshold).sum().item() for rollout in scored)
    metrics = {
        "probe/count": len(probes),
        "probe/unprobed": num_triggered - len(probes),
        "probe/positive": sum(probe.gap > 0 for probe in probes),
        "probe/empty": sum(probe.nll is None for probe in probes),
    }
    if num_tokens:
        metrics["probe/trigger_rate"] = num_triggered / num_tokens
    metrics |= _mean("probe/nll_mean", (probe.nll for probe in probes))
    return metrics | _mean("probe/weight_mean", (probe.weight for probe in probes))


def _mean(key: str, values: Iterable[float | None]) -> dict[str, float]:
    known = [value for value in values if value is not None]
    return {key: mean(known)} if known else {}
