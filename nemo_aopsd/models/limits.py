"""Whether a model has the words and the positions that a config asks for, before anything is sampled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError

ROW = "policy.max_total_sequence_length"


def check_limits(config: Config, model: Path) -> None:
    """Raise UserError if `model`, a Hugging Face directory, has fewer words or positions than the config reads.

    A GGUF file, and a name that is no directory here, say how many only once they are loaded.
    """
    settings = model / "config.json"
    if not settings.is_file():
        return
    content = with_text_model(json.loads(settings.read_bytes()))
    check_words(config, content.get("vocab_size"), str(model))
    check_row(config, content, str(model))


def with_text_model(content: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json in which the settings of the text model, of a model that also sees, stand above the others."""
    text = content.get("text_config")
    return {**content, **(text if isinstance(text, dict) else {})}


def check_words(config: Config, words: int | None, model: str) -> None:
    """Raise UserError if the objective reads more than `words` words, those of `model`; None is not known."""
    objective = config.aopsd.objective
    k = getattr(objective, objective.top_k_key) if objective.top_k_key else None
    if k and words is not None and k > words:
        raise UserError(
            f"config: aopsd.objective.{objective.top_k_key} is {k}, but the vocabulary of {model} has {words} tokens. "
            f"Set it to at most {words}; 16 and 32 are usual."
        )


def check_row(config: Config, content: Mapping[str, Any], model: str) -> None:
    """Raise UserError if a row may be longer than what `model` was made for; `content` is its config.json."""
    longest, row = longest_row(content), config.policy["max_total_sequence_length"]
    if longest is not None and row > longest:
        raise UserError(
            f"config: {ROW} is {row}, but {model} has {longest} positions (max_position_embeddings): beyond them it "
            f"was never trained. Set it to at most {longest}."
        )


def longest_row(content: Mapping[str, Any]) -> int | None:
    """Tokens that a model was made for, by its config.json; None where that is not said, or positions are stretched.

    >>> longest_row({"max_position_embeddings": 512, "rope_parameters": {"rope_type": "default"}})
    512
    >>> longest_row({"max_position_embeddings": 512, "rope_scaling": {"type": "yarn", "factor": 4}}) is None
    True
    """
    positions = content.get("max_position_embeddings")
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    kinds = {part.get("rope_type", part.get("type")) for part in (rope, *rope.values()) if isinstance(part, Mapping)}
    is_plain = kinds <= {None, "default", "llama3"}  # llama3's factor is in its positions already
    return positions if is_plain and isinstance(positions, int) else None
