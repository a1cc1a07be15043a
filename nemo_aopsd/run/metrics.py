"""One line of numbers per step. A value that does not apply is absent, never 0."""

from collections.abc import Iterable
from statistics import mean

from nemo_aopsd.config.schema import UNIFORM, AOPSDConfig, ProbeConfig
from nemo_aopsd.method.context import disclosed_share
from nemo_aopsd.method.rollout import Draft, Scored, StepResult
from nemo_aopsd.method.weighting import over_threshold

WEIGHT_PERCENTS = (5, 50, 95)
GAP_THRESHOLDS = (1.0, 2.0)  # nats; those of the paper's Figure 1b


def step_metrics(result: StepResult, aopsd: AOPSDConfig, leaks: list[bool]) -> dict[str, float]:
    """Everything that metrics.jsonl says of a step. `leaks`: does each response refer to a private context?"""
    drafts, scored = result.drafts, result.scored
    in_loss = [row for row in scored if row.draft.in_loss(aopsd)]
    metrics = {
        "rollout/count": len(drafts),
        "rollout/mean_tokens": mean(len(draft.output.tokens) for draft in drafts),
        "rollout/truncated": sum(not draft.output.finished for draft in drafts),
        **_source_metrics(drafts, aopsd, leaks),
        **_reward_metrics(drafts),
        "context/dropped": len(drafts) - len(scored),
        **_progress_metrics(drafts, aopsd.shown_context),
        **_gap_metrics(scored),
        **({} if aopsd.weighting in UNIFORM else _weight_metrics(in_loss)),
        **(_probe_metrics(scored, in_loss, aopsd.probes) if aopsd.continues else {}),
        **result.train_metrics,
        **{f"time/{stage}": seconds for stage, seconds in result.seconds.items()},
        "time/step": sum(result.seconds.values()),
    }
    return {key: float(value) for key, value in metrics.items()}


def _source_metrics(drafts: list[Draft], aopsd: AOPSDConfig, leaks: list[bool]) -> dict[str, float]:
    """The data's solutions are counted; only the student's own answers tell how often it talks of a private context."""
    own = [leak for draft, leak in zip(drafts, leaks, strict=True) if not draft.is_demonstration]
    metrics = _mean("rollout/leak_rate", own)
    if aopsd.objective.reads_solutions:
        solutions = [draft for draft in drafts if draft.is_demonstration]
        metrics["rollout/demonstrations"] = len(solutions)
        metrics["rollout/cut_demonstrations"] = sum(not draft.output.finished for draft in solutions)
    return metrics


def _reward_metrics(drafts: list[Draft]) -> dict[str, float]:
    found = _mean("reward/mean", (draft.reward for draft in drafts))
    return found | {"reward/undecided": sum(draft.undecided for draft in drafts)} if found else {}


def _progress_metrics(drafts: list[Draft], context: str) -> dict[str, float]:
    verdicts = [draft.verdict for draft in drafts if draft.verdict is not None]
    metrics: dict[str, float] = {}
    if verdicts:
        metrics["judge/failed"] = sum(verdict.failed for verdict in verdicts)
        metrics["judge/cut"] = sum(verdict.cut for verdict in verdicts)
        metrics |= _mean("dag/progress", (draft.progress for draft in drafts))
    shares = (disclosed_share(draft.problem, context, draft.reached or frozenset()) for draft in drafts)
    return metrics | _mean("dag/disclosed_share", shares)


def _gap_metrics(scored: list[Scored]) -> dict[str, float]:
    import torch

    gaps = torch.cat([torch.empty(0), *(gap.abs() for row in scored if (gap := row.gap) is not None)])
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


def _weight_metrics(scored: list[Scored]) -> dict[str, float]:
    """Mean and spread of w over the tokens that have a gap to weigh; `scored` are rows that the loss counts."""
    import numpy as np

    weights = np.concatenate([np.empty(0), *(row.weights.numpy() for row in scored if row.gap is not None)])
    if not len(weights):
        return {}
    spread = zip(WEIGHT_PERCENTS, np.percentile(weights, WEIGHT_PERCENTS), strict=True)
    return {"weight/mean": weights.mean(), **{f"weight/p{percent}": value for percent, value in spread}}


def _probe_metrics(scored: list[Scored], in_loss: list[Scored], config: ProbeConfig) -> dict[str, float]:
    """All probes that were made; but only the weights of `in_loss` rows have an effect."""
    probes = [probe for row in scored for probe in row.probes]
    num_tokens = sum(len(row.weights) for row in scored)
    num_over = sum(int(over_threshold(gap, config).sum()) for row in scored if (gap := row.gap) is not None)
    metrics: dict[str, float] = {
        "probe/count": len(probes),
        "probe/unprobed": num_over - len(probes),
        "probe/positive": sum(probe.gap > 0 for probe in probes),
        "probe/empty": sum(probe.nll is None for probe in probes),
    }
    if num_tokens:
        metrics["probe/trigger_rate"] = num_over / num_tokens
    metrics |= _mean("probe/nll_mean", (probe.nll for probe in probes))
    return metrics | _mean("probe/weight_mean", (probe.weight for row in in_loss for probe in row.probes))


def _mean(key: str, values: Iterable[float | None]) -> dict[str, float]:
    known = [value for value in values if value is not None]
    return {key: mean(known)} if known else {}
