"""Demonstrations of the supervised warm start: a file that `aopsd train` learns by heart with the objective `sft`.

A row's `problem` is a whole prompt and its `solution` the response to it, so the config reads them with prompts that
add nothing (the folder `verbatim`). Next to solutions there are judge's verdicts and solutions under the
teacher's prompts: the student is its own judge and teacher, and a small model knows neither part by nature.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from examples.wordproblems.problems import problem_record
from examples.wordproblems.story import Story
from examples.wordproblems.wording import Attempt, attempt, established, verdict
from nemo_aopsd.data.dag import largest_closed_subset
from nemo_aopsd.data.problems import Problem, parse_problem
from nemo_aopsd.files import derive_seed
from nemo_aopsd.method.context import student_messages, teacher_messages
from nemo_aopsd.method.judge import judge_messages

FAMILY = "default"  # the prompts of the runs that follow
SHARES = {"question": 0.40, "judge": 0.36, "dag_frontier": 0.14, "dag_full": 0.04, "solution": 0.06}


def demonstrations(stories: Iterable[Story], seed: int) -> Iterator[dict[str, Any]]:
    """One row a story; its kind (a key of `SHARES`) is in its id."""
    rng = random.Random(derive_seed(seed, "demonstrations"))
    kinds, shares = list(SHARES), list(SHARES.values())
    for index, story in enumerate(stories):
        kind = rng.choices(kinds, shares)[0]
        record = problem_record(story, f"warm-{index:05d}-{kind}", seed)
        problem = parse_problem(record, "warm start")
        prompt, response = _judging(rng, story, problem) if kind == "judge" else _solving(rng, kind, story, problem)
        yield {"id": problem.id, "problem": prompt, "answer": problem.answer, "solution": response}


def bare_questions(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Problems under the student's prompt, to evaluate the warm start where prompts add nothing."""
    for record in records:
        problem = parse_problem(record, "evaluation of the warm start")
        yield {**record, "problem": student_messages(problem, FAMILY)[0]["content"]}


def judge_cases(stories: Iterable[Story], ids: Iterable[str], seed: int) -> Iterator[dict[str, Any]]:
    """Labelled attempts at the problems `ids`, one each, as `aopsd judge eval` reads them."""
    rng = random.Random(derive_seed(seed, "judge cases"))
    for story, problem_id in zip(stories, ids, strict=True):
        tried = _judged_attempt(rng, story)
        yield {"problem_id": problem_id, "attempt": tried.text, "established": established(story, tried.values)}


def _solving(rng: random.Random, kind: str, story: Story, problem: Problem) -> tuple[str, str]:
    response = attempt(rng, story).text
    if kind == "question":
        return student_messages(problem, FAMILY)[0]["content"], response
    reached = frozenset()
    if rng.random() < 0.6:
        share = rng.random()
        reached = largest_closed_subset(problem.graph, [node for node in problem.graph if rng.random() < share])
    return teacher_messages(problem, kind, FAMILY, reached=reached)[0]["content"], response


def _judging(rng: random.Random, story: Story, problem: Problem) -> tuple[str, str]:
    tried = _judged_attempt(rng, story)
    return judge_messages(problem, tried.text, FAMILY)[0]["content"], verdict(story, tried.values)


def _judged_attempt(rng: random.Random, story: Story) -> Attempt:
    """Half of the attempts are whole, the others stop early; most have slips."""
    num_steps = None if rng.random() < 0.5 else rng.randint(0, len(story.quantities) - 1)
    return attempt(rng, story, slip=rng.choice((0.05, 0.15, 0.35)), num_steps=num_steps)
