"""Word problems as records of a problems file, in splits that share no computation."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

from examples.wordproblems.holdings import holdings
from examples.wordproblems.parts import parts
from examples.wordproblems.stock import stock
from examples.wordproblems.story import Story, is_sound, number_of
from examples.wordproblems.wording import attempt
from nemo_aopsd.files import derive_seed

KINDS = (holdings, stock, parts)
STEPS = (2, 3, 4, 5, 6)  # computations, the one that is asked for included
SCALE = 20  # of the numbers in the text; with LARGEST, how hard the sums are
LARGEST = 200  # value of any quantity
# Of 20 buckets into which the computations fall by their hash, those of each split.
BUCKETS = {"train": range(10), "warmstart": range(10, 16), "dev": range(16, 17), "heldout": range(17, 20)}


def sample_story(rng: random.Random, num_steps: int) -> Story:
    """A sound story with `num_steps` computations; the kinds are equally likely."""
    kind = rng.choice(KINDS)
    while True:
        story = kind(rng, num_steps, SCALE)
        if len(story.quantities) == num_steps and is_sound(story, LARGEST):
            return story


def sample_split(split: str, seed: int) -> Iterator[Story]:
    """Endless stories of a split, numbers of steps in turn, no text twice.

    A computation, whatever its words, belongs to one split; so no seed and no number of problems can make two overlap.
    """
    rng = random.Random(derive_seed(seed, "word problems", split))
    seen: set[str] = set()
    while True:
        for num_steps in STEPS:
            story = sample_story(rng, num_steps)
            while bucket(story) not in BUCKETS[split] or story.text in seen:
                story = sample_story(rng, num_steps)
            seen.add(story.text)
            yield story


def bucket(story: Story) -> int:
    """Where the computation, in numbers alone, falls: 0 to 19."""
    sums = sorted(f"{number_of(item.left)}{item.symbol}{number_of(item.right)}" for item in story.quantities)
    return int.from_bytes(hashlib.sha256(";".join(sums).encode()).digest()[:8], "big") % 20


def problem_record(story: Story, problem_id: str, seed: int) -> dict[str, Any]:
    """One line of a problems file, with everything that any teacher context needs."""
    rng = random.Random(derive_seed(seed, "solution", story.text))
    return {
        "id": problem_id,
        "problem": story.text,
        "answer": str(story.target.value),
        "solution": attempt(rng, story).text,
        "plan": [f"Find {item.label}." for item in story.quantities],
        "subproblems": [f"What is {item.label}?" for item in story.quantities],
        "dag": graph_record(story),
    }


def graph_record(story: Story) -> dict[str, Any]:
    """The reasoning DAG over the checkpoints, numbered in the order of the story; transitive edges are left out."""
    numbers = {item: str(number) for number, item in enumerate(story.checkpoints, start=1)}
    above: dict[Any, set[Any]] = {}
    edges = []
    for item in story.checkpoints:
        farther = {ancestor for parent in item.parents for ancestor in above[parent]}
        above[item] = farther | set(item.parents)
        edges += [[numbers[parent], numbers[item]] for parent in item.parents if parent not in farther]
    nodes = [
        {"id": number, "statement": f"{item.label[0].upper()}{item.label[1:]} is {item.value}."}
        for item, number in numbers.items()
    ]
    return {"nodes": nodes, "edges": edges}
