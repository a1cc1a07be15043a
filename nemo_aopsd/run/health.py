"""Which numbers of a run are out of their healthy range, and what to do about it.

One table for the warnings of a run and for the hints of its report. A limit is meant to be far from what runs that
learn show, and near enough to tell before the run is over; docs/reading_runs.md has the numbers behind each.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from nemo_aopsd.config.extension import is_own
from nemo_aopsd.config.schema import AOPSDConfig
from nemo_aopsd.evaluation.epochs import paired_interval, told_interval
from nemo_aopsd.run.record_types import Evaluation, StepMetrics
from nemo_aopsd.stats import binomial_tail

WINDOW = 8  # steps; the mean over them is judged, since one step of 32 responses is off by 5 points by chance
_CHANCE = 0.01  # that a rate at its limit gives what the first steps of a run are told of

Over = Literal["step", "newest", "first", "rise"]


@dataclass(frozen=True)
class Finding:
    """A rule that is broken: between which steps, and the number at the last one of them."""

    name: str
    sentence: str
    remedy: str
    value: float
    first: int
    last: int


@dataclass(frozen=True)
class Rule:
    """A number of the step, or its share of so many `events`, and the limit that it must not pass.

    `over`: a step by itself; the mean of the newest or of the first `WINDOW` steps; or how much the former is above the
    latter. A rate of events is also judged over fewer steps, by whether chance gives as much; how far a mean may stray
    cannot be told from a few values. Where `beyond` is given, a step counts only if it is above 0 there.
    """

    name: str
    metric: str
    limit: float
    sentence: str  # `{value}` is the number, `{points}` a hundred times as much
    remedy: str
    events: tuple[str, ...] = ()  # numbers of the step whose product is how many there were
    is_share: bool = False  # the number is a share of the events, not their count
    over: Over = "newest"
    below: bool = False  # the limit is the least, not the most
    beyond: str | None = None

    def fault(self, rows: Sequence[StepMetrics], end: int) -> float | None:
        """The number after the first `end` steps, if it is out of range; None if not, or if there is none yet."""
        value = self._value(rows, end)
        if value is None:
            return None
        return value if (value < self.limit if self.below else value > self.limit) else None

    def found(self, value: float, first: int, last: int) -> Finding:
        sentence = self.sentence.format(value=value, points=100 * value)
        return Finding(self.name, sentence, self.remedy, value, first, last)

    def _value(self, rows: Sequence[StepMetrics], end: int) -> float | None:
        if self.over == "step":
            return self._mean(rows[end - 1 : end])
        if self.over == "first" and end > WINDOW:
            return None
        if end < WINDOW:
            return self._mean(rows[:end]) if self.events and not self._is_chance(rows[:end]) else None
        first, newest = self.ends(rows[:end])
        if self.over != "rise" or newest is None:
            return newest
        return None if first is None else newest - first

    def ends(self, rows: Sequence[StepMetrics]) -> tuple[float | None, float | None]:
        """The number in the first and in the newest `WINDOW` steps."""
        return self._mean(rows[:WINDOW]), self._mean(rows[-WINDOW:])

    def _mean(self, rows: Sequence[StepMetrics]) -> float | None:
        """None unless half of the steps have the number: few values tell little."""
        known = [
            row
            for row in rows
            if row.get(self.metric) is not None and (self.beyond is None or (row.get(self.beyond) or 0) > 0)
        ]
        if not known or 2 * len(known) < len(rows):
            return None
        if not self.events:
            return sum(row.number(self.metric) for row in known) / len(known)
        count, total = self._counted(known)
        return count / total if total else None

    def _counted(self, rows: Sequence[StepMetrics]) -> tuple[float, float]:
        """Of how many events in all, and in all how many."""
        totals = [math.prod(row.number(key) for key in self.events) for row in rows]
        parts = [
            row.number(self.metric) * (total if self.is_share else 1) for row, total in zip(rows, totals, strict=True)
        ]
        return sum(parts), sum(totals)

    def _is_chance(self, rows: Sequence[StepMetrics]) -> bool:
        """Whether a rate at the limit would often give as extreme a count."""
        count, total = self._counted([row for row in rows if row.get(self.metric) is not None])
        return binomial_tail(round(count), round(total), self.limit, below=self.below) > _CHANCE


LEAKS = Rule(
    "leaks",
    "rollout/leak_rate",
    0.1,
    "The share of responses that name the private context, which the student never saw, is {points:.0f} points "
    f"above that of the first {WINDOW} steps.",
    "Read some in rollouts/. The student takes on the teacher's words; stop earlier, or reword the teacher's "
    "prompt (aopsd.prompts).",
    over="rise",
)


def rules(aopsd: AOPSDConfig) -> tuple[Rule, ...]:
    """The table. A rule about what a method does not compute finds no number, so never speaks."""
    verdicts = "Measure the judge: `aopsd judge eval`; "
    if aopsd.judge.kind == "log_odds":
        verdicts += f"its --calibrate fits aopsd.judge.threshold (here {aopsd.judge.threshold:g})."
    else:
        verdicts += "or try another aopsd.judge.kind or aopsd.judge.model (docs/judge.md)."
    small = "L lies far from both betas. Let them follow it: aopsd.probes.betas=auto."
    if is_own(aopsd.weighting):
        small = f"That is what aopsd.weighting={aopsd.weighting} makes of them."
    surrogate = "top_k_form" if aopsd.objective.name == "topk_fkl" else "token_clip"
    return (
        Rule(
            "truncated",
            "rollout/truncated",
            0.2,
            "{value:.0%} of the responses are cut off before they end.",
            "Raise policy.generation.max_new_tokens, or leave them out: aopsd.mask_truncated=true. If the share grew "
            "while training, the model no longer stops: lower the learning rate.",
            events=("rollout/count",),
        ),
        Rule(
            "unread_verdicts",
            "judge/failed",
            0.1,
            "{value:.0%} of the judge's verdicts cannot be read; the teacher then knows of no checkpoint reached.",
            "See `judge_text` in rollouts/, raise aopsd.judge.max_new_tokens, or try aopsd.judge.kind=log_odds, which "
            "needs no list (docs/judge.md).",
            events=("rollout/count",),
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
            f"In the first {WINDOW} steps or fewer {{value:.2%}} of the tokens had a probe: nearly all have weight 1.",
            f"Lower aopsd.probes.threshold (here {aopsd.probes.threshold:g} nats); `aopsd diagnose gaps RUN` shows how "
            "many tokens pass each.",
            events=("rollout/count", "rollout/mean_tokens"),
            is_share=True,
            over="first",
            below=True,
        ),
        Rule(
            "small_weights",
            "probe/weight_mean",
            0.1,
            "The mean weight of probed tokens is {value:.2f}: where the gap is large, the teacher is hardly followed.",
            small,
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
        LEAKS,
    )


def fall(evaluations: Sequence[Evaluation]) -> Finding | None:
    """Whether pass@1 of the newest is below the best before it, by more than chance."""
    if len(evaluations) < 2:
        return None
    *earlier, now = evaluations
    best = max(reversed(earlier), key=lambda one: one.pass_at_k[1])
    change = now.pass_at_k[1] - best.pass_at_k[1]
    if change >= 0:
        return None
    low, high = paired_interval(asdict(best), asdict(now))
    if high >= 0:
        return None
    sentence = (
        f"pass@1 on {now.asked} fell from {best.pass_at_k[1]:.3f} at step {best.step} to {now.pass_at_k[1]:.3f} at "
        f"step {now.step} ({told_interval(low, high)})."
    )
    otherwise = "see whether the teacher's advice helps this model: `aopsd diagnose direction CONFIG`"
    if best.step:
        choose = "`aopsd evaluate RUN --choose-on FILE --data FILE` takes the best of the checkpoints kept"
        otherwise = f"end at aopsd.max_num_steps={best.step}. {choose}"
    remedy = f"Lower policy.optimizer.kwargs.lr, or {otherwise}."
    return Finding("fallen", sentence, remedy, change, best.step, now.step)


def entered(table: Sequence[Rule], rows: Sequence[StepMetrics]) -> list[Finding]:
    """Rules that the newest step breaks and none of the `WINDOW` steps before it did, so each is told once."""
    now = len(rows)
    before = range(max(1, now - WINDOW), now)
    return [
        rule.found(value, rows[-1].step, rows[-1].step)
        for rule in table
        if (value := rule.fault(rows, now)) is not None and all(rule.fault(rows, end) is None for end in before)
    ]


def entered_fall(evaluations: Sequence[Evaluation]) -> Finding | None:
    """The fall at the newest evaluation, unless the one before it was a fall, too."""
    return None if fall(evaluations[:-1]) else fall(evaluations)


def findings(
    table: Sequence[Rule], rows: Sequence[StepMetrics], evaluations: Sequence[Evaluation] = ()
) -> list[Finding]:
    """What a run broke at any step: the newest fall of pass@1 first, then rules of the table."""
    falls = (fall(evaluations[:end]) for end in range(len(evaluations), 1, -1))
    found = [newest] if (newest := next(filter(None, falls), None)) else []
    for rule in table:
        values = [(row.step, rule.fault(rows, end)) for end, row in enumerate(rows, start=1)]
        faults = [(step, value) for step, value in values if value is not None]
        if faults:
            found.append(rule.found(faults[-1][1], faults[0][0], faults[-1][0]))
    return found
