"""Does the student, who reads the bare question, talk of the private context? Share of outputs, by checkpoint.

Two sources: the rollouts of training, by epoch, and the samples of evaluations, each of one checkpoint. All texts are
searched anew, so that one set of patterns counts everywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.diagnostics.intervals import Estimate, share
from nemo_aopsd.analysis.diagnostics.output import Result, Table, drawing, error_bars
from nemo_aopsd.analysis.diagnostics.patterns import Compiled
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_json, read_lines
from nemo_aopsd.method.leaks import leak_patterns
from nemo_aopsd.run import layout
from nemo_aopsd.run.reader import Run, parse, read_run

NUM_GROUPS = 24  # of steps, in the figure
NUM_PHRASES = 10  # in the table
_EPOCH = re.compile(r"epoch_(\d+)")


@dataclass
class Group:
    """Outputs of one kind: how many, and how many mention the context, by problem."""

    name: str
    first: int | None  # update before or during these outputs; None: not known
    last: int | None
    outputs: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)

    def add(self, problem: str, phrases: Sequence[str]) -> None:
        """Take one output and the phrases that were found in it."""
        self.outputs[problem] += 1
        self.hits[problem] += bool(phrases)

    @property
    def step(self) -> float | None:
        """Where it stands in a figure by step."""
        return None if self.first is None or self.last is None else (self.first + self.last) / 2

    @property
    def rate(self) -> Estimate:
        """Share of outputs with a hit."""
        return share(self.hits, self.outputs)


def diagnose_leaks(run: Path) -> Result:
    """Leak rates of training rollouts and evaluation samples. Raises UserError if the run holds neither."""
    source = read_run(run)
    config = source.config
    patterns = leak_patterns(config.aopsd.prompts)
    phrases: Counter[str] = Counter()
    by_step = list(_of_rollouts(source, patterns, phrases))
    left_out: list[str] = []
    evaluations = list(_of_evaluations(run, patterns, phrases, by_step, left_out))
    if not by_step and not evaluations:
        raise UserError(
            f"{run}: no output to search: no rollouts/step_*.jsonl and no finished evaluation in eval/. "
            "Let the run finish its first step or evaluation."
        )
    epochs = _merge_epochs(by_step)
    notes = [
        "A rate of phrases that name the context, not of copied results: a student that copies silently goes unseen.",
        "Outputs before any training show how often the patterns hit by themselves; compare with that row.",
    ]
    notes += [f"{path}: left out, for the evaluation is not finished." for path in left_out]
    return Result(
        name="leaks",
        title="Outputs to the bare question that mention the private context",
        settings={
            "run": str(run),
            "context": config.aopsd.context.kind,
            "patterns": f"leaks.txt of {config.aopsd.prompts}",
        },
        samples={
            "training rollouts": sum(group.outputs.total() for group in epochs),
            "evaluation samples": sum(group.outputs.total() for group in evaluations),
        },
        tables=[
            Table("By checkpoint", [_row(group) for group in [*epochs, *evaluations]]),
            Table("What was said", _phrase_rows(phrases)),
        ],
        figure=_figure(_merge_steps(by_step), evaluations),
        notes=notes,
    )


def _of_rollouts(run: Run, patterns: Compiled, phrases: Counter[str]) -> Iterator[tuple[int, Group]]:
    """`(epoch, group)` of each step; nothing for a run that has only evaluations."""
    for (epoch, step), rollouts in groupby(run.rollouts(), key=lambda rollout: (rollout.epoch, rollout.step)):
        group = Group(f"step {step}", step, step)
        for rollout in rollouts:
            group.add(rollout.problem_id, _found(rollout.response_text, patterns, phrases))
        yield epoch, group


@dataclass(frozen=True)
class _Sample:
    """What is read of a sample of an evaluation."""

    problem_id: str
    response_text: str


def _of_evaluations(
    run: Path, patterns: Compiled, phrases: Counter[str], by_step: list[tuple[int, Group]], left_out: list[str]
) -> Iterator[Group]:
    for file in sorted((run / layout.EVALUATIONS).rglob("*.jsonl")):
        if not (_EPOCH.fullmatch(file.stem) or file.with_suffix(".settings.json").exists()):
            continue  # no samples: the log of calls, say
        name = str(file.relative_to(run).with_suffix(""))
        if not (file.with_suffix(".json").exists() or file.with_name(layout.RESULTS).exists()):
            left_out.append(name)  # the summary comes last
            continue
        step = _step_of(file, by_step)
        group = Group(name, step, step)
        for where, line in read_lines(file):
            sample = parse(_Sample, line, where)
            group.add(sample.problem_id, _found(sample.response_text, patterns, phrases))
        if group.outputs:
            yield group


def _step_of(file: Path, by_step: list[tuple[int, Group]]) -> int | None:
    """How many updates the evaluated weights had: what the settings say, or else what the epoch says."""
    settings = file.with_suffix(".settings.json")
    if settings.exists():
        stored = read_json(settings, remedy="Evaluate again or delete the file.")
        if match := re.match(r"step_(\d+)\b", str(stored.get("weights", ""))):
            return int(match[1])
    match = _EPOCH.fullmatch(file.stem)
    if match is None:
        return None
    epoch = int(match[1])
    before = [group.last for of_epoch, group in by_step if group.last is not None and of_epoch < epoch]
    return 0 if epoch == 0 else max(before, default=None)


def _found(text: str, patterns: Compiled, phrases: Counter[str]) -> list[str]:
    found = sorted({match[0].lower() for pattern in patterns for match in pattern.finditer(text)})
    phrases.update(found)
    return found


def _merge_epochs(by_step: Sequence[tuple[int, Group]]) -> list[Group]:
    epochs = sorted({epoch for epoch, _ in by_step})
    return [
        _merge(f"rollouts of epoch {epoch + 1}", [group for of_epoch, group in by_step if of_epoch == epoch])
        for epoch in epochs
    ]


def _merge_steps(by_step: Sequence[tuple[int, Group]]) -> list[Group]:
    groups = [group for _, group in by_step]
    size = -(-len(groups) // NUM_GROUPS) or 1
    return [_merge("", groups[start : start + size]) for start in range(0, len(groups), size)]


def _merge(name: str, groups: Sequence[Group]) -> Group:
    merged = Group(name, groups[0].first, groups[-1].last)
    for group in groups:
        merged.outputs += group.outputs
        merged.hits += group.hits
    return merged


def _row(group: Group) -> dict:
    first, last = group.first, group.last
    return {
        "outputs": group.name,
        "steps": "unknown" if first is None else str(first) if first == last else f"{first} to {last}",
        "number": group.outputs.total(),
        "problems": len(group.outputs),
        "mention the context": group.hits.total(),
        "share": group.rate,
    }


def _phrase_rows(phrases: Counter[str]) -> list[dict]:
    ranked = sorted(phrases.items(), key=lambda item: (-item[1], item[0]))
    rows = [{"phrase": phrase, "outputs": count} for phrase, count in ranked[:NUM_PHRASES]]
    rest = ranked[NUM_PHRASES:]
    return rows + ([{"phrase": f"({len(rest)} other phrases)", "outputs": sum(c for _, c in rest)}] if rest else [])


def _figure(training: Sequence[Group], evaluations: Sequence[Group]) -> str:
    with drawing(6.4, 3.6) as (figure, axes):
        placed = [group for group in evaluations if group.step is not None]
        for groups, color, marker, label in (
            (training, svg.BLUE, "o", "training rollouts"),
            (placed, svg.ORANGE, "D", "evaluation samples"),
        ):
            rates = [group.rate for group in groups]
            if rates:
                axes.errorbar(
                    [group.step for group in groups],
                    [rate.value for rate in rates],
                    yerr=error_bars(rates),
                    color=color,
                    marker=marker,
                    linestyle="-" if groups is training else "none",
                    capsize=2,
                    elinewidth=0.9,
                    label=f"{label}, n = {sum(group.outputs.total() for group in groups)}",
                )
        axes.set(xlabel="step", ylabel="share that mentions the context")
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside upper left", ncols=2)
        return svg.to_svg(figure)
