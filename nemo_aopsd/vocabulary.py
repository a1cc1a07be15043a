"""Whether a model has as many words as the teacher's top k asks for, before anything is sampled."""

from __future__ import annotations

import json
from pathlib import Path

from nemo_aopsd.config import Config
from nemo_aopsd.errors import UserError


def check_top_k(config: Config, model: Path) -> None:
    """Raise UserError if `model`, a Hugging Face directory, has fewer words than the objective reads.

    A GGUF file, and a name that is no directory here, say how many only once they are loaded.
    """
    settings = model / "config.json"
    if not settings.is_file():
        return
    words = json.loads(settings.read_bytes()).get("vocab_size")
    if isinstance(words, int):
        check_words(config, words, str(model))


def check_words(config: Config, words: int, model: str) -> None:
    """Raise UserError if the objective reads more than `words` words, those of `model`."""
    objective = config.aopsd.objective
    k = getattr(objective, objective.top_k_key) if objective.top_k_key else None
    if k and k > words:
        raise UserError(
            f"config: aopsd.objective.{objective.top_k_key} is {k}, but the vocabulary of {model} has {words} tokens. "
            f"Set it to at most {words}; 16 and 32 are usual."
        )
