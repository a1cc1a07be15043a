"""Which way would an update point? Before any training, the update of each context and weighting against correctness.

The yardstick is the policy gradient of correctness from fresh answers: REINFORCE, a problem's mean reward the baseline.
Nothing is updated. At the weights that answered, the surrogate's gradient is a sum over tokens, w_t g_t grad log p_t.
So its part at untriggered tokens is formed once for all weightings of a context.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Protocol

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from nemo_aopsd.config.schema import CONTINUED, Config, ObjectiveConfig, Weighting
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Engine, Objective, Tokenizer
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.tables import markdown_table
from nemo_aopsd.files import atomic_write, derive_seed
from nemo_aopsd.method.context import donors_for, student_prompts
from nemo_aopsd.method.leaks import leak_patterns, mentions_context
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.objectives.base import BaseObjective, token_mean
from nemo_aopsd.method.probes import Probe, probe_weights, reweigh
from nemo_aopsd.method.rollout import Scored
from nemo_aopsd.method.step import collect, reward
from nemo_aopsd.method.weighting import gap_weights
from nemo_aopsd.types import TrainRow

WEIGHTINGS: tuple[Weighting, ...] = (
    "uniform", "continuation", "normalised", "gap_only", "shuffled", "constant", "zero_triggered"
)  # fmt: skip
Gradient = list[Tensor]  # one a parameter


class GradientEngine(Engine, Protocol):
    """An engine that can form gradients without a step; the local one does."""

    def gradient(self, rows: list[TrainRow], objective: Objective) -> Gradient: ...


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The policy gradient of correctness in two halves of the answers to each problem."""

    halves: tuple[Gradient, Gradient]
    num_answers: int
    num_right: int
    num_mixed: int  # problems with right and wrong answers: the others have no gradient
    num_problems: int

    @property
    def agreement(self) -> float:
        """The cosine of the halves; 0 if one of them is 0."""
        return cosine(*self.halves) or 0.0

    def cosine(self, gradient: Gradient) -> float | None:
        """Of a gradient with the sum of the halves; None if one of them is 0."""
        one, other = self.halves
        norms = math.sqrt(_dot(gradient, gradient) * (_dot(one, one) + _dot(other, other) + 2 * _dot(one, other)))
        return (_dot(gradient, one) + _dot(gradient, other)) / norms if norms else None

    @property
    def ceiling(self) -> float:
        """What a perfect update would show against so noisy a whole: sqrt(2 h / (1 + h)) at agreement h."""
        agreement = max(self.agreement, 0.0)
        return math.sqrt(2 * agreement / (1 + agreement))


@dataclass(frozen=True, slots=True)
class Arm:
    """One context with one weighting. Cosines are None where a gradient is 0."""

    context: str
    weighting: str
    cosine: float | None
    first_half: float | None
    second_half: float | None
    triggered_cosine: float | None
    triggered_norm: float
    untriggered_norm: float


@dataclass(frozen=True, slots=True)
class Signal:
    """What a context's teacher said, in nats. `leaks` is the share of probes whose continuation names the context."""

    context: str
    rollouts: int
    dropped: int
    progress: float | None
    mean_abs_gap: float
    mean_gap: float  # minus the KL of the student from the teacher, estimated on the student's own tokens
    triggered: float  # share of tokens
    surprise: float | None  # mean L
    weight: float | None
    leaks: float | None


@dataclass(frozen=True, slots=True)
class Direction:
    """All that `aopsd diagnose direction` found."""

    yardstick: Yardstick
    signals: list[Signal]
    arms: list[Arm]


def diagnose_direction(
    config: Config, problems: Sequence[Problem], engine: GradientEngine, kinds: Sequence[str], num_answers: int
) -> Direction:
    """One rollout of each problem under each of `kinds`, and `num_answers` fresh ones for the yardstick.

    Raises UserError if no problem has right and wrong answers: then there is nothing to compare with.
    """
    yardstick = measure_correctness(config, problems, engine, num_answers)
    signals, arms = [], []
    for kind in kinds:
        rows, signal = _collect(config, problems, engine, kind)
        signals.append(signal)
        arms += _arms(config, rows, engine, kind, yardstick)
    return Direction(yardstick, signals, arms)


def measure_correctness(
    config: Config, problems: Sequence[Problem], engine: GradientEngine, num_answers: int
) -> Yardstick:
    """Sample `num_answers` answers a problem, and form the gradient of their correctness by halves."""
    tokenizer, aopsd = engine.tokenizer, config.aopsd
    asked = [problem for problem in problems for _ in range(num_answers)]
    prompts = student_prompts(asked, tokenizer, aopsd.prompts, aopsd.thinking.student)
    outputs = engine.student.generate(prompts, config.rollout, derive_seed(aopsd.seed, "direction"))
    right = [reward(output, problem, tokenizer) for output, problem in zip(outputs, asked, strict=True)]
    groups = [right[start : start + num_answers] for start in range(0, len(right), num_answers)]
    num_mixed = sum(0 < sum(group) < num_answers for group in groups)
    if not num_mixed:
        raise UserError(
            f"{len(right)} answers, {sum(right):.0f} right: no problem has right and wrong answers, so correctness has "
            "no direction. Take more --answers, more --problems or problems of another difficulty."
        )
    halves: tuple[list[TrainRow], list[TrainRow]] = ([], [])
    for index, (prompt, output, value) in enumerate(zip(prompts, outputs, right, strict=True)):
        advantage = value - mean(groups[index // num_answers])
        if advantage:
            halves[index % num_answers % 2].append(_answer_row(prompt, output.tokens, advantage))
    objective = _Correctness(ObjectiveConfig())
    first, second = (engine.gradient(rows, objective) for rows in halves)
    return Yardstick((first, second), len(right), int(sum(right)), num_mixed, len(groups))


def cosine(one: Gradient, other: Gradient) -> float | None:
    """Of two gradients over all parameters; None if one of them is 0."""
    norms = math.sqrt(_dot(one, one) * _dot(other, other))
    return _dot(one, other) / norms if norms else None


def verdicts(found: Direction) -> list[str]:
    """A sentence a context: where its update with uniform weights points, if both halves of the yardstick agree."""
    return [_verdict(arm) for arm in found.arms if arm.weighting == "uniform"]


def _verdict(arm: Arm) -> str:
    whole, first, second = arm.cosine, arm.first_half, arm.second_half
    if whole is None or first is None or second is None:
        return f"{arm.context}: undecided: its update or the yardstick is 0"
    numbers = f"(uniform {whole:.2g}; halves {first:.2g} and {second:.2g})"
    if first * second <= 0:
        return f"{arm.context}: undecided: the halves disagree in sign {numbers}"
    return f"{arm.context}: points {'towards' if whole > 0 else 'away from'} correctness {numbers}"


def show(found: Direction, config: Config, console: Console) -> None:
    """Print the page so that it fits 80 columns: shorter heads, and a table of weightings a context."""
    console.print(_yardstick(found.yardstick, config), highlight=False, markup=False)
    heads = ("context", "rollouts", "drop", "prog.", "|gap|", "gap", "trig.", "L", "w", "leaks")
    signals = [[_short(getattr(signal, name)) for name in signal.__slots__] for signal in found.signals]
    console.print(_terminal_table(" ", heads, signals), highlight=False)
    heads = ("weighting", "cosine", "half 1", "half 2", "trig.", "its norm", "rest")
    for signal in found.signals:
        own = [arm for arm in found.arms if arm.context == signal.context]
        arms = [[_text(getattr(arm, name)) for name in arm.__slots__ if name != "context"] for arm in own]
        console.print(_terminal_table(f"\n{signal.context}", heads, arms), highlight=False)
    console.print()
    for sentence in verdicts(found):
        console.print(sentence, highlight=False, markup=False)


def _terminal_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _yardstick(stick: Yardstick, config: Config) -> str:
    model, threshold = config.policy["model_name"], config.aopsd.probes.threshold
    return (
        f"{model}, threshold {threshold}. Yardstick: {stick.num_answers} answers, {stick.num_right} right; "
        f"{stick.num_mixed} of {stick.num_problems} problems have right and wrong ones. Its halves agree at cosine "
        f"{stick.agreement:.3f}, so a perfect update would show about {stick.ceiling:.3f}."
    )


def write_direction(folder: Path, found: Direction, config: Config) -> list[Path]:
    """Write direction.md and direction.json, and return their paths."""
    stick = found.yardstick
    parts = ["# Does an update point towards correctness?", _yardstick(stick, config)]
    columns = ("context", "rollouts", "dropped", "progress", "mean abs gap", "mean gap", "triggered", "L", "w", "leaks")
    parts.append(_table(columns, found.signals))
    columns = ("context", "weighting", "cosine", "half 1", "half 2", "triggered part", "its norm", "norm of the rest")
    parts.append(_table(columns, found.arms))
    parts.append("\n".join(f"- {sentence}" for sentence in verdicts(found)))
    names = ("num_answers", "num_right", "num_mixed", "num_problems", "agreement", "ceiling")
    numbers = {
        "yardstick": {name: getattr(stick, name) for name in names},
        "contexts": [asdict(signal) for signal in found.signals],
        "arms": [asdict(arm) for arm in found.arms],
    }
    folder.mkdir(parents=True, exist_ok=True)
    page, data = folder / "direction.md", folder / "direction.json"
    atomic_write(data, json.dumps(numbers, indent=1) + "\n")
    atomic_write(page, "\n\n".join(parts) + "\n")
    return [page, data]


def _table(columns: Sequence[str], rows: Sequence[Signal | Arm]) -> str:
    cells = [[getattr(row, name) for name in row.__slots__] for row in rows]
    return markdown_table(columns, [[_text(cell) for cell in row] for row in cells])


def _text(cell: str | float | None) -> str:
    return "-" if cell is None else f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def _short(cell: str | float | None) -> str:
    """As `_text`, at most 7 wide."""
    return f"{cell:.3f}" if isinstance(cell, float) else _text(cell)


class _Correctness(BaseObjective):
    """L = -mean_t A log p_t."""

    def __call__(
        self,
        logprobs: Tensor,  # [B, S], with gradient
        *,
        advantages: Tensor | None,  # [B, S]
        mask: Tensor,
        num_tokens: float,
        num_rows: float,
        **_unread: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        assert advantages is not None, "every row has them"
        return -token_mean(advantages * logprobs, mask, num_tokens), {}


def _answer_row(prompt: list[int], response: list[int], advantage: float) -> TrainRow:
    ones = torch.ones(len(response))
    return TrainRow(prompt, response, None, None, ones, ones.bool(), advantages=advantage * ones)


def _collect(
    config: Config, problems: Sequence[Problem], engine: GradientEngine, kind: str
) -> tuple[list[Scored], Signal]:
    """Rollouts scored under the context, with continuation weights; the same answers for every context."""
    aopsd = replace(
        config.aopsd,
        context=replace(config.aopsd.context, kind=kind, on_overlong="drop"),
        weighting="continuation",
        objective=_objective(config),
        num_generations_per_prompt=1,
        curriculum=replace(config.aopsd.curriculum, name="shuffle"),
    )
    donors = donors_for(list(problems), kind, aopsd.seed)
    found = collect(
        problems, engine, build_objective(aopsd.objective), replace(config, aopsd=aopsd), donors=donors, seed=aopsd.seed
    )
    gaps = torch.cat([gap for row in found.scored if (gap := row.gap) is not None])
    probes = [probe for row in found.scored for probe in row.probes]
    reached = [draft.progress for draft in found.drafts if draft.progress is not None]
    patterns = leak_patterns(aopsd.prompts)
    leaks = [mentions_context(_continuation(engine.tokenizer, probe), patterns) for probe in probes]
    return found.scored, Signal(
        kind,
        len(found.scored),
        len(found.drafts) - len(found.scored),
        _mean(reached),
        gaps.abs().mean().item(),
        gaps.mean().item(),
        len(probes) / len(gaps),
        _mean([probe.nll for probe in probes if probe.nll is not None]),
        _mean([probe.weight for probe in probes]),
        _mean([float(leak) for leak in leaks]),
    )


def _objective(config: Config) -> ObjectiveConfig:
    return replace(config.aopsd.objective, name="pg")


def _continuation(tokenizer: Tokenizer, probe: Probe) -> str:
    return tokenizer.decode([probe.anchor, *probe.suffix])


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _arms(config: Config, rows: list[Scored], engine: GradientEngine, kind: str, yardstick: Yardstick) -> Iterator[Arm]:
    aopsd, objective = config.aopsd, build_objective(_objective(config))
    train_rows = [row.train_row(aopsd, objective) for row in rows]
    marks = [probe_weights([], len(row.response), elsewhere=0.0) for row in train_rows]
    for row, mark in zip(rows, marks, strict=True):
        mark[[probe.position for probe in row.probes]] = 1.0

    def gradient(weights: Sequence[Tensor]) -> Gradient:
        weighted = [replace(row, weights=own) for row, own in zip(train_rows, weights, strict=True)]
        return engine.gradient(weighted, objective)

    rest = gradient([1 - mark for mark in marks])
    first, second = yardstick.halves
    for weighting in WEIGHTINGS:
        triggered = gradient([own * mark for own, mark in zip(_weights(rows, weighting, config), marks, strict=True)])
        of_triggered = yardstick.cosine(triggered), math.sqrt(_dot(triggered, triggered))
        elsewhere = aopsd.probes.untriggered_weight if weighting in (*CONTINUED, "gap_only") else 1.0
        for part, other in zip(triggered, rest, strict=True):
            part.add_(
                other, alpha=elsewhere
            )  # in place, and no sum of the halves: each gradient is as large as a model
        yield Arm(
            context=kind,
            weighting=weighting,
            cosine=yardstick.cosine(triggered),
            first_half=cosine(triggered, first),
            second_half=cosine(triggered, second),
            triggered_cosine=of_triggered[0],
            triggered_norm=of_triggered[1],
            untriggered_norm=elsewhere * math.sqrt(_dot(rest, rest)),
        )


def _weights(rows: list[Scored], weighting: Weighting, config: Config) -> list[Tensor]:
    """As a step would make them from these rollouts."""
    probes, seed = config.aopsd.probes, derive_seed(config.aopsd.seed, "weights")
    if weighting not in CONTINUED:
        return [gap_weights(gap, weighting, probes) for row in rows if (gap := row.gap) is not None]
    reweighed = reweigh([row.probes for row in rows], weighting, seed, max_weight=probes.max_weight)
    return [probe_weights(own, len(row.weights)) for own, row in zip(reweighed, rows, strict=True)]


def _dot(one: Gradient, other: Gradient) -> float:
    return sum(torch.dot(a.flatten().double(), b.flatten().double()).item() for a, b in zip(one, other, strict=True))
