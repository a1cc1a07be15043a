"""Attempts in words: worked solutions in many forms, with or without slips, and a judge's verdict on one."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from examples.wordproblems.story import OPERATIONS, Quantity, Story

FIRST = ("", "", "First, ", "To begin, ", "Let us start: ")
OPENERS = ("", "", "", "Next, ", "Then ", "So ", "Now ", "Here ", "Also, ")
STEPS = (
    "{label} is {sum} = {value}.",
    "{label} comes to {sum} = {value}.",
    "since {sum} = {value}, {label} is {value}.",
    "we get {sum} = {value} for {label}.",
    "to find {label}, compute {sum} = {value}.",
    "{sum} = {value}, which is {label}.",
)
ENDS = (
    "The answer is \\boxed{{{value}}}.",
    "So the answer is \\boxed{{{value}}}.",
    "That gives \\boxed{{{value}}}.",
    "Therefore, \\boxed{{{value}}}.",
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Its text, and the value that it gives each quantity it speaks of."""

    text: str
    values: dict[Quantity, int]


def attempt(rng: random.Random, story: Story, slip: float = 0.0, num_steps: int | None = None) -> Attempt:
    """The first `num_steps` steps (all, and the answer, if None); each is wrong with probability `slip`.

    A slip is carried on: later steps go on from the attempt's own values.
    """
    values: dict[Quantity, int] = {}
    sentences = []
    for item in story.quantities[:num_steps]:
        left, right = (_held(operand, values) for operand in item.operands)
        value = OPERATIONS[item.symbol](left, right)
        if rng.random() < slip:
            value += rng.choice((-10, -2, -1, 1, 2, 10))
        values[item] = value
        opener = rng.choice(OPENERS if sentences else FIRST)
        sentences.append(_sentence(rng, opener, item.label, f"{left} {item.symbol} {right}", value))
    if num_steps is None:
        sentences.append(rng.choice(ENDS).format(value=values[story.target]))
    return Attempt(" ".join(sentences), values)


def _held(operand: Quantity | int, values: dict[Quantity, int]) -> int:
    return values.get(operand, operand.value) if isinstance(operand, Quantity) else operand


def _sentence(rng: random.Random, opener: str, label: str, total: str, value: int) -> str:
    sentence = opener + rng.choice(STEPS).format(label=label, sum=total, value=value)
    return sentence[0].upper() + sentence[1:]


def established(story: Story, values: dict[Quantity, int]) -> list[str]:
    """Ids of the checkpoints that have their true value among `values`."""
    numbered = enumerate(story.checkpoints, start=1)
    return [str(number) for number, item in numbered if values.get(item) == item.value]


def verdict(story: Story, values: dict[Quantity, int]) -> str:
    """A judge's answer: a line of evidence a checkpoint, then the list of those that the attempt established."""
    held, lines = established(story, values), []
    for number, item in enumerate(story.checkpoints, start=1):
        seen = f"found {values[item]}" if item in values else "missing"
        lines.append(f"{number}: {item.value}, {seen}, {'yes' if str(number) in held else 'no'}")
    return "\n".join([*lines, json.dumps(held)])
