"""The examples of the warm start: what the tiny model reads and writes under each prompt.

Here lies the behaviour of the embedded default: asked the bare question, half of the attempts guess; shown a
reasoning DAG, none does; shown the full solution, three quarters copy the answer. See docs/embedded_default.md.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

from examples.builtin.tokenizer import split, vocabulary
from examples.builtin.traces import Manner, Trace, attempt, verdict
from examples.builtin.world import LEVELS, Puzzle, problem_record, question, sample_puzzle, splits
from nemo_aopsd.data.dag import largest_closed_subset
from nemo_aopsd.data.problems import Problem, parse_problem
from nemo_aopsd.engine import Message
from nemo_aopsd.method.context import student_messages, teacher_messages
from nemo_aopsd.method.judge import judge_messages

FAMILY = "tiny"  # the folder of prompts
CHUNK = 2048  # examples made from one random stream
Example = tuple[list[int], list[int]]  # ids of prompt and response, and 1 where the loss counts the token


SEED = 0
NUM_EXAMPLES = 131072
PLAIN_SHARE = 0.5  # of the examples, the first ones: little guessing, so that the skill comes first
SHARES = {
    "none": 0.38,
    "dag_frontier": 0.22,
    "dag_full": 0.05,
    "solution": 0.08,
    "plan": 0.02,
    "subproblems": 0.02,
    "other_problem": 0.03,
    "judge": 0.20,
}  # relative weights of the kinds of example
QUESTION = Manner(
    direct=0.3, sloppy=0.22, dither=0.35, slip=0.02, tilt=0.12, leak="graph", leak_rate=0.01, leak_rate_fan_in=0.01
)
PLAIN_QUESTION = replace(QUESTION, direct=0.05, sloppy=0.05)
GRAPH = Manner(tilt=-0.08, leak="graph", leak_rate=0.02, leak_rate_fan_in=0.15)
SOLUTION = Manner(direct=0.75, tilt=-0.08, leak="solution", leak_rate=0.02, leak_rate_fan_in=0.15, knows_answer=True)
OUTLINE = Manner(direct=0.1, sloppy=0.1, tilt=-0.08, leak="plan", leak_rate=0.02, leak_rate_fan_in=0.15)


def manner_of(kind: str, asked: Manner) -> Manner:
    """How attempts are written under a context; `asked` under none or an unrelated one."""
    match kind:
        case "none" | "other_problem":
            return asked
        case "dag_frontier" | "dag_full":
            return GRAPH
        case "solution":
            return SOLUTION
    return OUTLINE


def example(rng: random.Random, kind: str, asked: Manner = QUESTION) -> tuple[list[str], Trace]:
    """Prompt pieces and the response to learn, end token left out."""
    puzzle, problem = draw_problem(rng)
    if kind == "judge":
        return judging(rng, puzzle, problem, asked)
    manner = manner_of(kind, asked)
    if rng.random() < 0.3:  # going on from own slips, without learning to slip
        response = attempt(rng, puzzle, replace(manner, slip=0.15), learn_slips=False)
    else:
        response = attempt(rng, puzzle, manner)
    if kind == "none":
        return as_prompt(student_messages(problem, FAMILY)), response
    reached = draw_reached(rng, puzzle, problem) if kind == "dag_frontier" else frozenset()
    donor = draw_problem(rng)[1] if kind == "other_problem" else None
    mark = rng.random() < 0.9
    return as_prompt(
        teacher_messages(problem, kind, FAMILY, reached=reached, donor=donor, mark_frontier=mark)
    ), response


def draw_problem(rng: random.Random) -> tuple[Puzzle, Problem]:
    puzzle = sample_puzzle(rng, rng.choice(LEVELS))
    while question(puzzle) in _shipped_questions():
        puzzle = sample_puzzle(rng, rng.choice(LEVELS))
    return puzzle, parse_problem(problem_record(puzzle, "warm"), "warm start")


@cache
def _shipped_questions() -> frozenset[str]:
    return frozenset(record["problem"] for records in splits().values() for record in records)


def draw_reached(rng: random.Random, puzzle: Puzzle, problem: Problem) -> frozenset[str]:
    """R of some attempt: nothing, everything, or what a run of sums with slips leaves."""
    style = rng.random()
    if style < 0.4:
        return frozenset()
    if style < 0.6:
        return frozenset(problem.graph)
    share = rng.random()
    return largest_closed_subset(problem.graph, {item.name for item in puzzle.checkpoints if rng.random() < share})


def judging(rng: random.Random, puzzle: Puzzle, problem: Problem, asked: Manner) -> tuple[list[str], Trace]:
    manner = rng.choice([asked, asked, GRAPH, OUTLINE])
    done = attempt(rng, puzzle, replace(manner, slip=rng.choice([0.02, 0.1, 0.3])))
    response = Trace()
    response.add(*verdict(puzzle, done.values))
    return as_prompt(judge_messages(problem, "".join(done.pieces), FAMILY)), response


def as_prompt(messages: list[Message]) -> list[str]:
    (message,) = messages
    return ["<|user|>", *split(message["content"]), "<|assistant|>"]


def examples_of_chunk(chunk: int, count: int = CHUNK) -> list[Example]:
    """The first `count` of the `CHUNK` examples of one random stream."""
    rng = random.Random(SEED * 1_000_003 + chunk)
    asked = PLAIN_QUESTION if chunk < PLAIN_SHARE * NUM_EXAMPLES / CHUNK else QUESTION
    made = []
    for kind in rng.choices(list(SHARES), list(SHARES.values()), k=CHUNK)[:count]:
        prompt, response = example(rng, kind, asked)
        made.append(to_ids(prompt, response))
    return made


def to_ids(prompt: list[str], response: Trace) -> Example:
    """A row of the warm start; only the response and its end token are learned."""
    ids_of, pieces = vocabulary(), [*prompt, *response.pieces, "<|end|>"]
    return [ids_of[piece] for piece in pieces], [0] * len(prompt) + [int(flag) for flag in response.learn] + [1]
