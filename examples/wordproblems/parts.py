"""Stories in which parts, so many times so much each, add up, and something is taken off or left over."""

from __future__ import annotations

import random
from dataclasses import dataclass

from examples.wordproblems.story import Quantity, Story, compute


@dataclass(frozen=True, slots=True)
class Setting:
    """Words of one kind of story. `part` has the gaps m, n and thing; `off` and `left` have n."""

    things: tuple[str, ...]
    part: tuple[str, ...]
    part_label: str
    sum_label: str
    ask_sum: str
    off: tuple[str, ...]  # makes the sum smaller
    off_label: str
    ask_off: str
    left: tuple[str, ...]  # what the sum is taken from
    left_label: str
    ask_left: str


SETTINGS = (
    Setting(
        ("pens", "notebooks", "rulers", "brushes", "folders", "erasers", "maps"),
        ("Buying {m} {thing} at ${n} each is the plan.", "The list has {m} {thing}, and one costs ${n}."),
        "the cost of the {thing}",
        "the cost of the {things}",
        "What is the cost of everything in dollars?",
        ("A coupon takes ${n} off.", "The shop gives a discount of ${n} on the whole."),
        "the price after the discount",
        "How many dollars are to be paid?",
        ("The customer pays with ${n}.", "There are ${n} in the purse."),
        "the money that is left",
        "How many dollars are left after paying?",
    ),
    Setting(
        ("train", "bus", "bicycle", "ferry", "car", "horse", "tram"),
        (
            "For {m} hours the trip goes by {thing} at {n} km an hour.",
            "A stretch by {thing} takes {m} hours at {n} km an hour.",
        ),
        "the distance by {thing}",
        "the distance by {things}",
        "How many km is that altogether?",
        ("A shortcut saves {n} km of that.", "Of these, {n} km were a detour that does not count."),
        "the distance that counts",
        "How many km count in the end?",
        ("The whole journey is {n} km long.", "The destination lies {n} km from the start."),
        "the distance that remains",
        "How many km remain after that?",
    ),
    Setting(
        ("oaks", "pears", "roses", "beans", "carrots", "leeks", "lilies"),
        ("{m} rows of {n} {thing} each are set.", "The gardener plants {thing} in {m} rows, {n} to a row."),
        "the number of {thing}",
        "the number of {things}",
        "How many plants is that altogether?",
        ("Frost kills {n} plants.", "Deer eat {n} of the plants."),
        "the number of plants that survive",
        "How many plants survive?",
        ("The field has room for {n} plants.", "In all there are {n} places for plants."),
        "the number of free places",
        "How many places stay free?",
    ),
    Setting(
        ("novels", "comics", "letters", "poems", "essays", "reports", "plays"),
        ("On {m} days {n} pages of {thing} are read each day.", "Reading {thing} fills {m} days, {n} pages a day."),
        "the number of pages of {thing}",
        "the number of pages of {things}",
        "How many pages are read altogether?",
        ("Of these pages, {n} were read twice and count once.", "But {n} pages turn out to be blank."),
        "the number of pages that count",
        "How many pages count?",
        ("The goal of the year is {n} pages.", "The shelf holds {n} pages in all."),
        "the number of pages still to read",
        "How many pages are still to be read?",
    ),
    Setting(
        ("robots", "lamps", "clocks", "chairs", "radios", "drums", "tables"),
        ("A crew needs {n} minutes for one of the {m} {thing}.", "There are {m} {thing} to mend, {n} minutes each."),
        "the time for the {thing}",
        "the time for the {things}",
        "How many minutes does all the work take?",
        ("A helper saves {n} minutes.", "A new tool makes the work {n} minutes shorter."),
        "the time with that help",
        "How many minutes does the work take then?",
        ("The shift lasts {n} minutes.", "The workshop closes in {n} minutes."),
        "the time to spare",
        "How many minutes are to spare?",
    ),
)


def parts(rng: random.Random, num_steps: int, scale: int) -> Story:
    """A draft with `num_steps` quantities: p parts and p - 1 sums, then a deduction, a remainder or both."""
    setting = rng.choice(SETTINGS)
    shapes = [
        (p, off, left) for p in (1, 2, 3) for off in (0, 1) for left in (0, 1) if 2 * p - 1 + off + left == num_steps
    ]
    num_parts, has_off, has_left = rng.choice(shapes)
    things = rng.sample(setting.things, num_parts)
    sentences: list[str] = []
    quantities: list[Quantity] = []
    made: list[Quantity] = []
    for thing in things:
        m, n = rng.randint(2, 9), rng.randint(3, max(4, scale // 2))
        sentences.append(rng.choice(setting.part).format(m=m, n=n, thing=thing))
        made.append(compute(setting.part_label.format(thing=thing), m, "*", n))
    quantities += made
    total, ask = made[0], setting.ask_sum
    for number in range(1, num_parts):
        label = setting.sum_label.format(things=f"{', '.join(things[:number])} and {things[number]}")
        total = compute(label, total, "+", made[number])
        quantities.append(total)
    if has_off:
        n = rng.randint(2, max(2, total.value // 2))
        sentences.append(rng.choice(setting.off).format(n=n))
        total, ask = compute(setting.off_label, total, "-", n), setting.ask_off
        quantities.append(total)
    if has_left:
        n = total.value + rng.randint(3, 2 * scale)
        sentences.append(rng.choice(setting.left).format(n=n))
        total, ask = compute(setting.left_label, n, "-", total), setting.ask_left
        quantities.append(total)
    return Story(tuple(sentences), ask, tuple(quantities))
