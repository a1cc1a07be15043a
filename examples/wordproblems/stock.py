"""Stories in which one stock changes: crates arrive, some is sold, customers take so many each, the rest is packed."""

from __future__ import annotations

import random

from examples.wordproblems.story import Quantity, Story, compute, number_of

# who, what, the thing it arrives in, who takes some, what it is packed into
SETTINGS = (
    ("A bakery", "rolls", "trays", "customers", "bags"),
    ("A farm stand", "melons", "crates", "families", "boxes"),
    ("The school library", "books", "boxes", "classes", "shelves"),
    ("A toy shop", "kites", "cartons", "children", "displays"),
    ("A garden center", "tulips", "pots", "visitors", "bunches"),
    ("The post office", "stamps", "sheets", "clerks", "envelopes"),
    ("A hotel", "towels", "piles", "guests", "cupboards"),
    ("The museum shop", "postcards", "packs", "tourists", "racks"),
    ("A hardware store", "screws", "tins", "carpenters", "drawers"),
    ("A cinema", "cups", "sleeves", "groups", "towers"),
)
ARRIVE = (
    "{who} gets {m} {boxes} with {n} {things} each.",
    "{who} starts the day with {m} {boxes} of {n} {things} each.",
    "{m} {boxes} are delivered, each holding {n} {things}. They are for {low}.",
)
LESS = ("Then {n} {things} are sold.", "During the day {n} {things} go.", "{n} of the {things} turn out to be damaged.")
MORE = ("Later {n} more {things} come in.", "A supplier adds {n} {things}.", "{n} {things} are found in the back room.")
EACH = ("After that {m} {takers} take {n} {things} each.", "{m} {takers} come by, and each takes {n} {things}.")
TIMES = ("Overnight the stock grows to {n} times what it was.", "A big order makes the stock {n} times as large.")
PACK = (
    "In the end all that is left is spread evenly over {n} {packs}. How many {things} go into each of them?",
    "What remains is shared equally among {n} {packs}. How many {things} does each one hold?",
)
ASK = ("How many {things} are there now?", "How many {things} does that leave?", "What is the stock of {things} then?")
WHEN = (
    "after the first change",
    "after the second change",
    "after the third change",
    "after the fourth change",
    "after the fifth change",
)


def stock(rng: random.Random, num_steps: int, scale: int) -> Story:
    """A draft with `num_steps` quantities, `each` taking two of them."""
    who, things, boxes, takers, packs = rng.choice(SETTINGS)
    words = {"who": who, "low": who[0].lower() + who[1:], "things": things, "boxes": boxes, "takers": takers}
    m, n = rng.randint(3, 9), rng.randint(4, max(5, scale // 2))
    level = compute(f"the number of {things} delivered", m, "*", n)
    sentences, quantities = [rng.choice(ARRIVE).format(m=m, n=n, **words)], [level]
    packs_at_end = num_steps > 2 and rng.random() < 0.35
    changes = 0
    while len(quantities) < num_steps - packs_at_end:
        room = num_steps - packs_at_end - len(quantities)
        sentence, added = _change(rng, level, things, takers, WHEN[changes], room, scale)
        sentences.append(sentence.format(**words))
        quantities += added
        level = added[-1]
        changes += 1
    if not packs_at_end:
        return Story(tuple(sentences), rng.choice(ASK).format(**words), tuple(quantities))
    divisors = [n for n in range(2, 10) if level.value % n == 0] or [2]  # an odd level is found unsound, and dropped
    n = rng.choice(divisors)
    quantities.append(compute(f"the number of {things} in each of the {packs}", level, "/", n))
    return Story(tuple(sentences), rng.choice(PACK).format(n=n, packs=packs, **words), tuple(quantities))


def _change(
    rng: random.Random, level: Quantity, things: str, takers: str, when: str, room: int, scale: int
) -> tuple[str, list[Quantity]]:
    """A sentence with gaps left, and the quantities that it adds, the new level last."""
    label = f"the number of {things} {when}"
    kind = rng.choice(["less", "less", "more", "times"] + ["each"] * 3 * (room > 1))
    if kind == "each":
        m, n = rng.randint(2, 9), rng.randint(2, 9)
        taken = compute(f"the number of {things} that the {takers} take {when.replace('after', 'in')}", m, "*", n)
        sentence = rng.choice(EACH).replace("{m}", str(m)).replace("{n}", str(n))
        return sentence, [taken, compute(label, level, "-", taken)]
    if kind == "times":
        n = rng.randint(2, 3)
        return rng.choice(TIMES).replace("{n}", str(n)), [compute(label, n, "*", level)]
    n = rng.randint(3, scale if kind == "more" else max(3, min(2 * scale, number_of(level) - 2)))
    symbol, forms = ("+", MORE) if kind == "more" else ("-", LESS)
    return rng.choice(forms).replace("{n}", str(n)), [compute(label, level, symbol, n)]
