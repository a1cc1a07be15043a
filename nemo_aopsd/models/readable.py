"""Whether the tokenizer covers the questions: otherwise they become meaningless tokens."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Tokenizer

_LEAST_KEPT = 0.5  # share of the letters and digits of a text that must come back


def check_readable(problems: Sequence[Problem], tokenizer: Tokenizer, model: str) -> list[str]:
    """A warning if questions come back from the tokenizer of `model` without most of their letters and digits."""
    lost = [problem for problem in problems if not _comes_back(problem.problem, tokenizer)]
    if not lost:
        return []
    return [
        f"{len(lost)} of {len(problems)} questions are mostly unknown tokens to {model} (first: {lost[0].where}, "
        f"problem {lost[0].id!r}): it cannot read them. Choose another policy.model_name, or problems in its language."
    ]


def _comes_back(text: str, tokenizer: Tokenizer) -> bool:
    written, read = _letters(text), _letters(tokenizer.decode(tokenizer.encode(text)))
    return read >= _LEAST_KEPT * written


def _letters(text: str) -> int:
    return sum(character.isalnum() for character in text)
