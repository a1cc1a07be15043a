"""Labelled attempts for `aopsd judge eval` where nobody has labelled any: beginnings of the data's own solutions.

A checkpoint whose statement stands in the solution word for word, and once, is established by every beginning that
holds all of it. So GSM8K's graphs and the built-in ones label themselves. Two attempts a problem, at places drawn by a
seed: one ends behind a checkpoint (`prefix`), one on the way to a checkpoint, before any `=` and result there (`cut`).
"""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from nemo_aopsd.data.problems import Problem, load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.judge_eval import Case
from nemo_aopsd.files import derive_seed

_NUMBER = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class Made:
    """The cases, and of how many problems they could be made."""

    cases: list[Case]
    usable: int
    problems: int

    def lines(self) -> Iterator[str]:
        """How they were made, and what they cannot show."""
        kinds, left_out = Counter(case.kind for case in self.cases), self.problems - self.usable
        yield (
            f"attempts made of the solutions of {self.usable:,} of {self.problems:,} problems: {kinds['prefix']:,} end "
            f"behind a checkpoint (kind prefix), {kinds['cut']:,} on the way to one (cut); {left_out:,} left out "
            "(no solution or graph, or a checkpoint that does not stand in the solution word for word, and once)"
        )
        yield (
            "they are the data's own words: no wrong step, no other way, no other wording. How the judge takes "
            "a model's own attempts, which may be easier or harder for it, only attempts that people "
            "have labelled show (--cases)"
        )


def make_cases(file: Path, seed: int) -> Made:
    """Up to two cases a problem of `file`. Raises UserError if none can be made."""
    problems = load_problems(file)
    ends = {problem.id: _ends(problem) for problem in problems}
    cases = [case for problem in problems for case in _cases(problem, ends[problem.id], seed)]
    if not cases:
        raise UserError(
            f"{file}: none of its {len(problems)} problems has a graph whose statements stand in its solution word for "
            "word, so no attempt can be labelled by program. Label some by hand: --cases FILE (docs/judge.md)."
        )
    return Made(cases, sum(bool(found) for found in ends.values()), len(problems))


def draw(cases: Sequence[Case], limit: int | None, seed: int) -> list[Case]:
    """`limit` of the cases, or all, in their order."""
    if limit is None or limit >= len(cases):
        return list(cases)
    chosen = random.Random(derive_seed(seed, "judge cases")).sample(range(len(cases)), limit)
    return [cases[index] for index in sorted(chosen)]


def _ends(problem: Problem) -> list[tuple[int, str]]:
    """Where in the solution each checkpoint is complete, in this order; empty where one cannot be told."""
    if problem.dag is None or problem.solution is None:
        return []
    spans = []
    for node, data in problem.graph.nodes(data=True):
        found = [*re.finditer(rf"(?<![\w.]){re.escape(data['statement'].strip())}(?!\w|[.,]\d)", problem.solution)]
        if len(found) != 1:
            return []
        spans.append((*found[0].span(), node))
    spans.sort()
    if any(after[0] < before[1] for before, after in pairwise(spans)):
        return []  # one statement stands within another
    return [(end, node) for _, end, node in spans]


def _cases(problem: Problem, ends: list[tuple[int, str]], seed: int) -> Iterator[Case]:
    if not ends or problem.solution is None:
        return
    chance = random.Random(derive_seed(seed, "judge case", problem.id))
    behind, within = (chance.randrange(len(ends)) for _ in range(2))
    reached = [node for _, node in ends]
    yield Case(problem, problem.solution[: ends[behind][0]], frozenset(reached[: behind + 1]), "prefix")
    start = ends[within - 1][0] if within else 0
    if begun := _begun(problem.solution[start : ends[within][0]]):
        yield Case(problem, problem.solution[:start] + begun, frozenset(reached[:within]), "cut")


def _begun(step: str) -> str:
    """Whole words of the first half of a step, before any `=` and the last number; empty if there are none."""
    numbers = [found.start() for found in _NUMBER.finditer(step)]
    most = min(len(step) // 2, len(step.partition("=")[0]), *numbers[-1:])
    words = step[:most] if step[most : most + 1].isspace() else step[: max(step.rfind(" ", 0, most), 0)]
    return words.rstrip()
