"""Responses from the data instead of the student: the solution, and the token that ends it."""

import random
from collections.abc import Sequence

from nemo_aopsd.config.schema import Config
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Tokenizer
from nemo_aopsd.files import derive_seed
from nemo_aopsd.types import Generation, Tokens


def takes_solutions(on_policy_rate: float, seed: int) -> bool:
    """The coin of a step: true with probability 1 - `on_policy_rate`."""
    return random.Random(derive_seed(seed, "demonstrations")).random() >= on_policy_rate


def demonstrations(
    problems: Sequence[Problem], prompts: Sequence[Tokens], tokenizer: Tokenizer, config: Config
) -> list[Generation]:
    """Each problem's solution, no longer than a rollout may be."""
    found = []
    for problem, prompt in zip(problems, prompts, strict=True):
        assert problem.solution is not None, f"{problem.where}: `check_problems` has looked"
        room = max(0, min(config.rollout.max_new_tokens, config.max_row_tokens - len(prompt)))
        found.append(demonstration(problem.solution, tokenizer, room))
    return found


def demonstration(solution: str, tokenizer: Tokenizer, room: int) -> Generation:
    """The solution and its end token, cut to `room` tokens; one that is cut is not finished and has no end token.

    So a model learns to stop only where the solution does.
    """
    tokens = [*tokenizer.encode(solution), tokenizer.end_id]
    return Generation(tokens[:room], finished=len(tokens) <= room)
