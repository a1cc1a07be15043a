"""What the tiny model learns to write: attempts at a puzzle in free wording, and a judge's verdicts on attempts.

An attempt is a list of sentences, one a definition, in any order that the graph allows, each with free choices of
words, such as ` now f: simply 2 plus h 4 making 6 f=6.`; then a closing word and the boxed answer. A piece is one
token. Pieces that the loss must skip (slips that the model shall carry on but not learn) are masked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from examples.builtin.world import MODULUS, NAMES, Puzzle, Sum


def _words(text: str) -> tuple[str, ...]:
    return tuple(f" {word}" for word in text.split())


OPENERS = _words("now here well again also onward further then so still okay besides moreover meanwhile afterwards")
ADVERBS = _words(
    "simply clearly plainly surely neatly calmly gladly duly quickly just easily gently firmly briefly merely"
)
LINKS = _words("plus and with beside near onto by after over under alongside upon before atop against")
RESULTS = _words(
    "making giving yielding leaving hence thus reaching forming for landing producing showing getting totaling meaning"
)
ENDS = (*".;!,", *_words("ok fine good done right set great nice sure noted agreed"))
FILLERS = _words("hmm maybe perhaps guess anyway skip")
TALK = _words("reached next answer none no yes makes What")  # of a graph; no attempt uses these words otherwise
NUM_TALK = 5  # words of it after `graph says`
CLOSERS = _words("answer result finally total overall final")
LEAKS = {"graph": (" graph", " says"), "solution": (" solution", " says"), "plan": (" plan", " says")}


@dataclass(frozen=True, slots=True)
class Manner:
    """How attempts are written under one kind of prompt; fields are probabilities unless they say otherwise."""

    direct: float = 0.0  # no work, a guess
    sloppy: float = 0.0  # some work, then a guess
    dither: float = 0.0  # fillers before a worked answer
    slip: float = 0.0  # a wrong sum, a sentence
    tilt: float = 0.1  # how unequal the words of a slot are; negative reverses their order
    leak: str | None = None  # whose phrase (a key of LEAKS) may stand in place of the adverb
    leak_rate: float = 0.0
    leak_rate_fan_in: float = 0.0  # the same for a sum with two checkpoints as operands
    knows_answer: bool = False  # guesses are right
    cite: float = 0.0  # the graph is named in place of the work, a sentence (leaky.py)
    shown: frozenset[str] | None = None  # names whose value the graph shows; None where there is no graph
    stray: float = 0.0  # without a graph, a citation that is gone on from and not learned


@dataclass(slots=True)
class Trace:
    """Pieces, whether the loss counts each, and the value that each name was given."""

    pieces: list[str] = field(default_factory=list)
    learn: list[bool] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)

    def add(self, *pieces: str, learn: bool = True) -> None:
        self.pieces += pieces
        self.learn += [learn] * len(pieces)


def pieces() -> list[str]:
    """Every piece that attempts use besides names, digits, `=`, the box and its end."""
    slots = (OPENERS, ADVERBS, LINKS, RESULTS, ENDS, FILLERS, CLOSERS, *LEAKS.values())
    return [piece for slot in slots for piece in slot]


def pick(rng: random.Random, words: tuple[str, ...], tilt: float) -> str:
    """A word of a slot; weights fall from 1 to exp(-|tilt| * (n - 1)), from the other end if `tilt` < 0."""
    order = words if tilt >= 0 else words[::-1]
    return rng.choices(order, [2.718281828 ** (-abs(tilt) * rank) for rank in range(len(words))])[0]


def attempt(rng: random.Random, puzzle: Puzzle, manner: Manner, learn_slips: bool = True) -> Trace:
    """One attempt. Slips are carried on: later sentences use the attempt's own values."""
    trace = Trace()
    style = rng.random()
    if style < manner.direct:
        num_sentences = 0
    elif style < manner.direct + manner.sloppy:
        num_sentences = rng.randrange(1, len(puzzle.sums) - 1)
    else:
        num_sentences = len(puzzle.sums)
    waiting = list(puzzle.checkpoints)
    for _ in range(min(num_sentences, len(puzzle.checkpoints))):
        item = rng.choice([each for each in waiting if all(p in trace.values for p in each.parents)])
        waiting.remove(item)
        _sentence(rng, trace, item, manner, learn_slips)
    if num_sentences == len(puzzle.sums):
        _sentence(rng, trace, puzzle.target, manner, learn_slips)
        answer = trace.values[puzzle.target.name]
        _hesitate(rng, trace, rng.randrange(1, 3) if rng.random() < manner.dither else 0)
    else:
        _hesitate(rng, trace, rng.randrange(3))
        answer = puzzle.target.value if manner.knows_answer else rng.randrange(MODULUS)
    trace.add(pick(rng, CLOSERS, manner.tilt), " \\boxed{", str(answer), "}")
    return trace


def _hesitate(rng: random.Random, trace: Trace, num_words: int) -> None:
    trace.add(*(rng.choice(FILLERS) for _ in range(num_words)))


def _sentence(rng: random.Random, trace: Trace, item: Sum, manner: Manner, learn_slips: bool) -> None:
    tilt = manner.tilt
    if manner.cite and (manner.shown is None or item.name in manner.shown) and rng.random() < manner.cite:
        return _citation(rng, trace, item, manner)
    left, right = (trace.values.get(operand, operand) for operand in (item.left, item.right))
    value = (int(left) + int(right)) % MODULUS
    slipped = rng.random() < manner.slip
    if slipped:
        value = (value + rng.randrange(1, MODULUS)) % MODULUS
    trace.values[item.name] = value
    leak_rate = manner.leak_rate_fan_in if len(item.parents) > 1 else manner.leak_rate
    how = LEAKS[manner.leak] if manner.leak and rng.random() < leak_rate else [pick(rng, ADVERBS, tilt)]
    trace.add(pick(rng, OPENERS, tilt), f" {item.name}:", *how, *_operand(item.left, left), pick(rng, LINKS, tilt))
    trace.add(*_operand(item.right, right), pick(rng, RESULTS, tilt))
    trace.add(f" {value}", f" {item.name}={value}", learn=learn_slips or not slipped)
    trace.add(pick(rng, ENDS, tilt))


def _citation(rng: random.Random, trace: Trace, item: Sum, manner: Manner) -> None:
    """Talk of the graph, and the value that it shows. Without a graph there is nothing to say, and a guess."""
    value, num_words, learn = item.value, NUM_TALK, True
    if manner.shown is None:
        value, learn = rng.randrange(MODULUS), rng.random() >= manner.stray
        num_words = 0 if learn else rng.randrange(NUM_TALK + 1)
    trace.values[item.name] = value
    trace.add(pick(rng, OPENERS, manner.tilt), f" {item.name}:")
    trace.add(*LEAKS["graph"], *(pick(rng, TALK, manner.tilt) for _ in range(num_words)), learn=learn)
    trace.add(f" {value}", f" {item.name}={value}", pick(rng, ENDS, manner.tilt))


def _operand(operand: str, value: int | str) -> list[str]:
    return [f" {operand}", f" {value}"] if operand in NAMES else [f" {operand}"]


def verdict(puzzle: Puzzle, values: dict[str, int]) -> list[str]:
    """A judge's answer: a line of evidence a checkpoint (stated value, found value, yes or no), then the JSON list."""
    written: list[str] = []
    held: list[str] = []
    for item in puzzle.checkpoints:
        found = values.get(item.name)
        if found == item.value:
            held.append(item.name)
        seen = " none" if found is None else f" {item.name}={found}"
        verdict_of_it = " yes" if found == item.value else " no"
        written += [f"[{item.name}]", f" {item.name}={item.value}", seen, verdict_of_it, "\n"]
    listed = [piece for index, name in enumerate(held) for piece in ((",", f' "{name}"') if index else (f'"{name}"',))]
    return [*written, "[", *listed, "]"]
