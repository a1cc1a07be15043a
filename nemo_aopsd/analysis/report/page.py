"""The texts of the page around the figures: headline, facts, commands, the graph, example probes."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.gap_mass import percent
from nemo_aopsd.analysis.report.comparison import verdict
from nemo_aopsd.analysis.report.digest import ReportedRun
from nemo_aopsd.analysis.report.panels import Panel
from nemo_aopsd.analysis.report.terms import own_parts
from nemo_aopsd.clock import duration
from nemo_aopsd.config.keys import flatten
from nemo_aopsd.config.label import family_label
from nemo_aopsd.config.schema import ProbeConfig
from nemo_aopsd.config.unread import idle_keys
from nemo_aopsd.console import counted
from nemo_aopsd.data.problems import Problem, load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.epochs import paired_interval, told_interval
from nemo_aopsd.grading import grade
from nemo_aopsd.graphs.picture import draw_svg
from nemo_aopsd.run import health, layout
from nemo_aopsd.run.record_types import Rollout

_LABELS = {
    "positive": "Reinforced: the teacher likes the student's token, and its continuation gets the most weight",
    "negative": "Redirected: the teacher prefers another token, and its continuation gets the most weight",
    "damped": "Damped most: the continuation is either no news to the student or foreign to it",
}
_CONTEXT_CHARACTERS = 160
_BUILT_IN = ("nemo_aopsd", "builtin", "model")  # where the package has its model
_DEMO_DATA = ("nemo_aopsd", "builtin", "data", "train.jsonl")
_CAVEAT = (
    "This is the built-in model. Its warm start decides what each context does, so the direction of the effect is "
    "built in. The run shows that every part works, not that one method beats another"
)
_OF_THE_DEMO = ": with uniform weights the demo ends at the same pass@1"
_FACTS = (
    *("policy.model_name", "aopsd.context.kind", "aopsd.weighting", "aopsd.probes.threshold", "aopsd.probes.length"),
    *("aopsd.probes.betas", "aopsd.probes.beta_positive", "aopsd.probes.beta_negative"),
    *("aopsd.curriculum.name", "aopsd.curriculum.ema"),
    *("aopsd.teacher.weights", "aopsd.objective.name", "policy.optimizer.kwargs.lr", "aopsd.num_prompts_per_step"),
    *("aopsd.objective.reward", "aopsd.objective.reward_weight", "aopsd.objective.evidence_clip"),
    *("aopsd.num_generations_per_prompt", "aopsd.seed"),
)


class Tile(NamedTuple):
    """One number of the headline. `caveat` is what it does not show."""

    label: str
    value: str
    detail: str
    caveat: str = ""


def headline(run: ReportedRun) -> list[Tile]:
    """What a reader wants first: pass@1, then numbers of the method as far as there are any."""
    tiles = _pass_tiles(run)
    if run.evaluations and Path(run.config.policy["model_name"]).parts[-3:] == _BUILT_IN:
        is_demo = Path(run.config.data["train"]["data_path"]).parts[-4:] == _DEMO_DATA
        measured = _OF_THE_DEMO if is_demo and run.method.weighting == "continuation" else ""
        tiles[0] = tiles[0]._replace(caveat=f"{_CAVEAT}{measured}.")
    tiles += _leak_tile(run)
    if run.digest.gaps.mass.sum():
        threshold = run.method.probes.threshold
        tokens, mass = run.digest.gaps.at(threshold)
        detail = f"of tokens carry {percent(mass)} of the gap (|gap| ≥ {threshold:g} nats)"
        tiles.append(Tile("Concentration", percent(tokens), detail))
    weights = [weight for side in (run.digest.positive, run.digest.negative) for _, weight in side]
    over = f"over {len(weights)} scored probes"
    if not weights:
        weights = [row.number("weight/mean") for row in run.metrics if "weight/mean" in row.values]
        over = "over the tokens, by the run's own weighting"
    if weights:
        tiles.append(Tile("Mean weight", f"{sum(weights) / len(weights):.2f}", over))
    if run.metrics:
        seconds, steps = sum(row.number("time/step") for row in run.metrics), len(run.metrics)
        detail = f"{counted(steps, 'step')}, {duration(seconds / steps)} each; initial attempts and evaluations apart"
        tiles.append(Tile("Time in steps", duration(seconds), detail))
    return tiles


def hints(run: ReportedRun) -> list[health.Finding]:
    """What to look at, by the rules that the run warned by."""
    return health.findings(health.rules(run.method), run.metrics, run.evaluations)


def nothing_to_see(run: ReportedRun) -> str:
    """What it says of a run that there is no hint; nothing before the first step."""
    if not run.metrics or len(run.metrics) >= health.WINDOW:
        return "No number of the steps left its healthy range." if run.metrics else ""
    few = f"Before step {health.WINDOW} only rates of events are judged"
    return f"{few}: none is out of its healthy range by more than chance."


def answer_of(rollout: Rollout, problem: Problem) -> str:
    """Whether a response is right, for who reads it."""
    cut = "" if rollout.finished else "It was cut off. "
    return f"{cut}{grade(rollout.response_text, problem.answer)}"


def facts(run: ReportedRun) -> list[tuple[str, str]]:
    """The settings that tell this run from another, by key, and how far it came."""
    aopsd = run.method
    own, idle = own_parts(aopsd), {f"aopsd.{key}" for key in idle_keys(aopsd)}
    leaves = flatten({"aopsd": asdict(aopsd), "policy": dict(run.config.policy)})
    leaves |= {f"aopsd.{key}": told for key, told in own.items()}
    if "weighting" in own and not aopsd.continues:  # what the class reads, nobody knows; what was set for it, it may
        defaults = flatten({"aopsd": {"probes": asdict(ProbeConfig())}})
        idle |= {key for key, value in defaults.items() if leaves[key] == value}
    if leaves["aopsd.objective.reward"] == "none":
        idle.add("aopsd.objective.reward")
    keys = dict.fromkeys((*_FACTS, *(f"aopsd.{key}" for key in own)))
    found = [(key, leaves[key]) for key in keys if leaves.get(key) is not None and key not in idle]
    found.insert(1, ("method", family_label(aopsd)))
    if run.metrics:
        epochs = 1 + max(row.epoch for row in run.metrics)
        found.append(("done", f"{run.steps_done}, in epoch {epochs} of {run.method.max_num_epochs}"))
    return [(key.removeprefix("aopsd.").removeprefix("policy."), str(value)) for key, value in found]


def commands(run: ReportedRun, others: Sequence[Path] = ()) -> list[tuple[str, str]]:
    """What made the run, and what makes this page."""
    config, folder = (shlex.quote(str(path)) for path in (run.path / layout.CONFIG, run.path))
    again = f"aopsd train {config} logger.log_dir=NEW checkpointing.checkpoint_dir=NEW/checkpoints"
    made = list(zip(("Made by", *["Resumed by"] * len(run.commands)), run.commands, strict=False))
    return [
        *made,
        ("From its resolved settings, into a new folder NEW", again),
        ("This page", " ".join([f"aopsd report {folder}", *(f"--with {shlex.quote(str(path))}" for path in others)])),
    ]


def graph_panel(run: ReportedRun) -> tuple[Panel, Problem] | None:
    """One problem's graph as one rollout left it; None without a readable verdict, or the problem's graph."""
    rollout = run.digest.graph_rollout
    if rollout is None:
        return None
    try:
        problems = load_problems(run.config.data["train"]["data_path"])
    except UserError:  # moved since, or damaged; the rest of the page needs no problem
        return None
    problem = next((problem for problem in problems if problem.id == rollout.problem_id), None)
    if problem is None or problem.dag is None:
        return None
    reached, share = frozenset(rollout.reached or ()), rollout.disclosed_share
    caption = (
        f"Problem {problem.id}, step {rollout.step}: {len(reached)} of {len(problem.dag)} checkpoints reached"
        + (f"; the teacher was shown {percent(share)} of the graph." if share is not None else ".")
        + " n = 1 rollout."
    )
    figure = svg.to_inline_svg(draw_svg(problem.dag, reached=reached), "dag", f"Reasoning DAG of problem {problem.id}")
    return Panel("One reasoning DAG, as one rollout left it", caption, figure), problem


def examples(run: ReportedRun) -> list[dict[str, Any]]:
    """Up to three telling probes as text, none twice."""
    found = run.digest.examples
    kept = {id(found[kind][1]): kind for kind in reversed(_LABELS) if kind in found}
    shown = []
    for kind, label in _LABELS.items():
        if kind not in kept.values():
            continue
        rollout, probe = found[kind]
        assert rollout.pieces is not None, "the digest keeps no other"
        before = "".join(rollout.pieces[: probe.position])
        cut = "…" if len(before) > _CONTEXT_CHARACTERS else ""
        where = f"Problem {rollout.problem_id}, step {rollout.step}, token {probe.position}"
        text = {"before": cut + before[-_CONTEXT_CHARACTERS:], "token": rollout.pieces[probe.position]}
        shown.append({"label": label, "where": where, "probe": probe, **text})
    return shown


def _pass_tiles(run: ReportedRun) -> list[Tile]:
    if not run.evaluations:
        is_set = run.method.evaluation.data_path is not None
        why = "no evaluation has been finished" if is_set else "aopsd.evaluation.data_path is not set"
        return [Tile("pass@1 on held-out problems", "not measured", why)]
    before, after = run.evaluations[0], run.evaluations[-1]
    rates = [evaluation.pass_at_k[1] for evaluation in (before, after)]
    counts = [f"{one.num_correct} of {one.num_problems * one.num_samples}" for one in (before, after)]
    if before is after:
        only = f"pass@1 at step {before.step}, the only one so far"
        return [Tile(only, f"{rates[0]:.3f}", f"{counts[0]} samples correct")]
    low, high = paired_interval(asdict(before), asdict(after))
    detail = (
        f"{counts[0]} → {counts[1]} samples correct, n = {after.asked}. "
        f"Paired change {rates[1] - rates[0]:+.3f}, {told_interval(low, high)}: {verdict(low, high)}."
    )
    return [Tile(f"pass@1, step {before.step} → {after.step}", f"{rates[0]:.3f} → {rates[1]:.3f}", detail)]


def _leak_tile(run: ReportedRun) -> list[Tile]:
    """The number that the hints judge; before `WINDOW` steps it is one."""
    first, newest = health.LEAKS.ends(run.metrics)
    if first is None or newest is None:
        return []
    what = "of the responses of training refer to the private context"
    if len(run.metrics) <= health.WINDOW:
        return [Tile("Leak meter", percent(newest), what)]
    detail = f"{what}, first and newest {health.WINDOW} steps"
    return [Tile("Leak meter", f"{percent(first)} → {percent(newest)}", detail)]
