"""Stories in which people's holdings are told by comparison: `Tom has 3 times as many shells as Mia.`"""

from __future__ import annotations

import random

from examples.wordproblems.story import Quantity, Story, compute, number_of

PEOPLE = (
    *("Mia", "Tom", "Ben", "Ada", "Leo", "Nora", "Omar", "Ivy", "Hugo", "Lena", "Raj", "Zoe", "Finn", "Sara", "Max"),
    *("Ella", "Noah", "Ruth", "Carl", "Tara", "Ken", "Vera", "Paul", "Amir"),
)
# has / does ... have, and what; the box that things come in
SETTINGS = (
    ("has", "have", "marbles", "bags"),
    ("has", "have", "stickers", "sheets"),
    ("collected", "collect", "shells", "jars"),
    ("picked", "pick", "apples", "baskets"),
    ("baked", "bake", "cookies", "trays"),
    ("sold", "sell", "tickets", "books"),
    ("planted", "plant", "bulbs", "rows"),
    ("caught", "catch", "crabs", "buckets"),
    ("read", "read", "pages", "chapters"),
    ("folded", "fold", "cranes", "stacks"),
)
FIRST = ("{p} {verb} {n} {things}.", "{p}, who likes it, {verb} {n} {things}.", "At first {p} {verb} {n} {things}.")
BOXED = ("{p} {verb} {m} {boxes} with {n} {things} each.", "{p} {verb} {m} {boxes}, and each of them has {n} {things}.")
TIMES = (
    "{p} {verb} {n} times as many {things} as {q}.",
    "{n} times as many {things} as {q}: that is what {p} {verb}.",
    "Compared with {q}, {p} {verb} {n} times as many.",
)
MORE = (
    "{p} {verb} {n} more {things} than {q}.",
    "{p} is ahead of {q} by {n} {things}.",
    "With {n} {things} more than {q}, {p} did better.",
)
FEWER = (
    "{p} {verb} {n} fewer {things} than {q}.",
    "{p} is {n} {things} short of what {q} {verb}.",
    "Compared with {q}, {p} {verb} {n} {things} less.",
)
BOTH = (
    "{p} {verb} as many {things} as {q} and {r} together.",
    "If {q} and {r} put their {things} together, they would match what {p} {verb}.",
)
ASK_ONE = ("How many {things} did {p} {base}?", "What is the number of {things} that {p} {verb}?")
ASK_HAS = ("How many {things} does {p} have?", "What is the number of {things} that {p} has?")
ASK_BOTH = (
    "How many {things} is that for {p} and {q} together?",
    "What do {p} and {q} come to if their {things} are counted together?",
)


def holdings(rng: random.Random, num_steps: int, scale: int) -> Story:
    """A draft with `num_steps` quantities; the last one may be the sum of two people's."""
    verb, base, things, boxes = rng.choice(SETTINGS)
    people = rng.sample(PEOPLE, num_steps + 2)
    words = {"verb": verb, "base": base, "things": things, "boxes": boxes}
    owned: dict[str, Quantity | int] = {people[0]: rng.randint(4, scale)}
    sentences = [rng.choice(FIRST).format(p=people[0], n=owned[people[0]], **words)]
    unused: list[str] = [people[0]]
    quantities: list[Quantity] = []
    ends_together = num_steps > 1 and rng.random() < 0.4
    for person in people[1 : num_steps + 1 - ends_together]:
        label = f"the number of {things} of {person}"
        other = unused[-1] if rng.random() < 0.5 else rng.choice(list(owned))
        sentence, quantity, parents = _relation(rng, label, person, other, owned, unused, scale)
        sentences.append(sentence.format(p=person, **words))
        owned[person] = quantity
        quantities.append(quantity)
        unused = [name for name in unused if name not in parents] + [person]
    person = next(name for name, held in owned.items() if held is quantities[-1])
    if not ends_together:
        ask = rng.choice(ASK_HAS if base == "have" else ASK_ONE).format(p=person, **words)
        return Story(tuple(sentences), ask, tuple(quantities))
    others = [name for name in unused if name != person] or [name for name in owned if name != person]
    other = rng.choice(others)
    label = f"the number of {things} of {other} and {person} together"
    quantities.append(compute(label, owned[other], "+", owned[person]))
    ask = rng.choice(ASK_BOTH).format(p=other, q=person, **words)
    return Story(tuple(sentences), ask, tuple(quantities))


def _relation(
    rng: random.Random,
    label: str,
    person: str,
    other: str,
    owned: dict[str, Quantity | int],
    unused: list[str],
    scale: int,
) -> tuple[str, Quantity, tuple[str, ...]]:
    """How a new holding follows: a sentence with gaps left, the quantity, and whose holdings it uses."""
    held = owned[other]
    kinds = ["times", "more", "fewer", "boxed"] + ["both"] * 3 * (len(owned) > 1)
    match rng.choice(kinds):
        case "times":
            n = rng.randint(2, 5)
            return _fill(rng, TIMES, q=other, n=n), compute(label, n, "*", held), (other,)
        case "more":
            n = rng.randint(3, scale)
            return _fill(rng, MORE, q=other, n=n), compute(label, held, "+", n), (other,)
        case "fewer":
            n = rng.randint(2, max(2, number_of(held) - 2))
            return _fill(rng, FEWER, q=other, n=n), compute(label, held, "-", n), (other,)
        case "boxed":
            m, n = rng.randint(3, 9), rng.randint(3, 12)
            return _fill(rng, BOXED, m=m, n=n), compute(label, m, "*", n), ()
    second = rng.choice([name for name in unused if name != other] or [name for name in owned if name != other])
    return _fill(rng, BOTH, q=other, r=second), compute(label, held, "+", owned[second]), (other, second)


def _fill(rng: random.Random, forms: tuple[str, ...], **values: object) -> str:
    """A sentence with some gaps filled; the others are left for later."""
    sentence = rng.choice(forms)
    for name, value in values.items():
        sentence = sentence.replace(f"{{{name}}}", str(value))
    return sentence
