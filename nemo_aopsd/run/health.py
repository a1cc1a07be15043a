"""Which numbers of a run are out of their healthy range, and what to do about it.

One table for the warnings of a run and for the hints of its report. A limit is meant to be far from what runs that
learn show, and near enough to tell before the run is over; docs/reading_runs.md has the numbers behind each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nemo_aopsd.config.schema import AOPSDConfig
from nemo_aopsd.run.record_types import StepMetrics

WINDOW = 8  # steps; the mean over them is judged, since one step of 32 responses is off by 5 points by chance

Over = Literal["step", "newest", "first", "rise"]


@dataclass(frozen=True)
class Rule:
    """A number of the step, or its share `per` another one, and the limit that it must not pass.

    `over`: a step by itself; the mean of the newest or of the first `WINDOW` steps; or how much the former is above the
    latter. Where `beyond` is given, a step counts only if it is above 0 there.
    """

    name: str
    metric: str
    limit: float
    sentence: str  # `{value}` is the number, `{points}` a hundred times as much
    remedy: str
    per: str | None = None
    over: Over = "newest"
    below: bool = False  # the limit is the least, not the most
    beyond: str | None = None

    def fault(self, rows: Sequence[StepMetrics], end: int) -> float | None:
        """The number after the first `end` steps, if it is out of range; None if not, or if there is none yet."""
        value = self._value(rows, end)
        if value is None:
            return None
        return value if (value < self.limit if self.below else value > self.limit) else None

    def _value(self, rows: Sequence[StepMetrics], end: int) -> float | None:
        if self.over == "step":
            return self._mean(rows[end - 1 : end])
        if end < WINDOW or (self.over == "first" and end > WINDOW):
            return None
        newest = self._mean(rows[end - WINDOW : end])
        if self.over != "rise" or newest is None:
            return newest
        first = self._mean(rows[:WINDOW])
        return None if first is None else newest - first

    def _mean(self, rows: Sequence[StepMetrics]) -> float | None:
        """None unless half of the steps have the number: few values tell little."""
        known = [
            row
            for row in rows
            if row.get(self.metric) is not None and (self.beyond is None or (row.get(self.beyond) or 0) > 0)
        ]
        if not known or 2 * len(known) < len(rows):
            return None
        parts = sum(row.number(self.metric) for row in known)
        return parts / (sum(row.number(self.per) for row in known) if self.per else len(known))


@dataclass(frozen=True)
class Finding:
    """A rule that is broken: at which steps, and the number at the last one of them."""

    rule: Rule
    value: float
    first: int
    last: int

    @property
    def sentence(self) -> str:
        return self.rule.sentence.format(value=self.value, points=100 * self.value)


def rules(aopsd: AOPSDConfig) -> tuple[Rule, ...]:
    """The table. A rule about what a method does not compute finds no number, so never speaks."""
    verdicts = "Measure the judge: `aopsd judge eval`; "
    if aopsd.judge.kind == "log_odds":
        verdicts += f"its --calibrate fits aopsd.judge.threshold (here {aopsd.judge.threshold:g})."
    else:
        verdicts += "or try another aopsd.judge.kind or aopsd.judge.model (docs/judge.md)."
    surrogate = "top_k_form" if aopsd.objective.name == "topk_fkl" else "token_clip"
    return (
        Rule(
            "truncated",
            "rollout/truncated",
            0.2,
            "{value:.0%} of the responses are cut off before they end.",
            "Raise policy.generation.max_new_tokens, or leave them out: aopsd.mask_truncated=true. If the share grew "
            "while training, the model no longer stops: lower the learning rate.",
            per="rollout/count",
        ),
        Rule(
            "unread_verdicts",
            "judge/failed",
            0.1,
            "{value:.0%} of the judge's verdicts cannot be read; the teacher then knows of no checkpoint reached.",
            "See `judge_text` in rollouts/, raise aopsd.judge.max_new_tokens, or try aopsd.judge.kind=log_odds, which "
            "needs no list (docs/judge.md).",
            per="rollout/count",
        ),
        Rule(
            "no_progress",
            "dag/progress",
            0.02,
            f"In the first {WINDOW} steps the judge found {{value:.1%}} of the checkpoints reached, so the teacher's "
            "context never changes.",
            verdicts,
            over="first",
            below=True,
        ),
        Rule(
            "all_progress",
            "dag/progress",
            0.98,
            f"In the first {WINDOW} steps the judge found {{value:.1%}} of the checkpoints reached: it claims all, or "
            "the problems are too easy.",
            verdicts,
            over="first",
        ),
        Rule(
            "few_triggers",
            "probe/trigger_rate",
            0.002,
            f"In the first {WINDOW} steps {{value:.2%}} of the tokens had a probe, so nearly all have weight 1.",
            f"Lower aopsd.probes.threshold (here {aopsd.probes.threshold:g} nats); `aopsd diagnose gaps RUN` shows how "
            "many tokens pass each.",
            over="first",
            below=True,
        ),
        Rule(
            "small_weights",
            "probe/weight_mean",
            0.1,
            "The mean weight of probed tokens is {value:.2f}: where the gap is large, the teacher is hardly followed.",
            "L lies far from both betas. Let them follow it: aopsd.probes.betas=auto.",
            below=True,
        ),
        Rule(
            "negative_divergence",
            "train/divergence",
            0.0,
            "train/divergence is {value:.3g}. No divergence is negative: the loss is a surrogate, which can collapse.",
            f"The cause is aopsd.objective.{surrogate} (docs/methods.md).",
            over="step",
            below=True,
            beyond="train/frac_negative",
        ),
        Rule(
            "leaks",
            "rollout/leak_rate",
            0.1,
            "The share of responses that name the private context, which the student never saw, is {points:.0f} points "
            f"above that of the first {WINDOW} steps.",
            "Read some in rollouts/. The student takes on the teacher's words; stop earlier, or reword the teacher's "
            "prompt (aopsd.prompts).",
            over="rise",
        ),
    )


def entered(table: Sequence[Rule], rows: Sequence[StepMetrics]) -> list[Finding]:
    """Rules that the newest step breaks and none of the `WINDOW` steps before it did, so each is told once."""
    now = len(rows)
    before = range(max(1, now - WINDOW), now)
    return [
        Finding(rule, value, rows[-1].step, rows[-1].step)
        for rule in table
        if (value := rule.fault(rows, now)) is not None and all(rule.fault(rows, end) is None for end in before)
    ]


def findings(table: Sequence[Rule], rows: Sequence[StepMetrics]) -> list[Finding]:
    """Rules that a run broke at any step."""
    found = []
    for rule in table:
        values = [(row.step, rule.fault(rows, end)) for end, row in enumerate(rows, start=1)]
        faults = [(step, value) for step, value in values if value is not None]
        if faults:
            found.append(Finding(rule, faults[-1][1], faults[0][0], faults[-1][0]))
    return found
