"""What the OpenAI chat protocol says: a request, an answer, and how much a server may get wrong in it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_MOST_TOKENS = 10**8  # of one request; more is no count


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. `schema` is the JSON schema of the answer, sent where the server knows structured output; None
    for an answer without one. `options` are further fields of the body."""

    model: str
    messages: list[dict[str, str]]
    max_tokens: int
    temperature: float | None
    schema: dict[str, Any] | None
    options: dict[str, Any] = field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        """What decides the answer. The schema goes with the wording of the prompt."""
        decisive = {name: getattr(self, name) for name in ("model", "messages", "max_tokens", "temperature")}
        return decisive | ({"options": self.options} if self.options else {})


@dataclass(frozen=True, slots=True)
class Completion:
    """`finish_reason` is `length` for an answer that ran out of tokens; token counts are None if not reported."""

    text: str
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None


def read_completion(content: bytes) -> Completion | None:
    """None if it is not what the protocol promises: a body that was cut off, or a proxy's error page."""
    try:
        answer = json.loads(content)
        choice = answer["choices"][0]
        text = choice["message"].get("content")
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError):
        return None
    if not isinstance(text, str | None):
        return None
    text = (text or "").encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be stored
    return Completion(text, str(choice.get("finish_reason")), *_read_usage(answer.get("usage"), text))


def _read_usage(usage: object, text: str) -> tuple[int, int] | tuple[None, None]:
    """Prompt and answer tokens, however they are spelled; both None if one of them cannot be right.

    An answer is worth more than the count that comes with it, so nothing in here makes it unreadable.
    """
    found = usage if isinstance(usage, dict) else {}
    prompt, completion = (_read_count(found.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    if not prompt or completion is None or (text and not completion):
        return None, None
    return prompt, completion


def _read_count(value: object) -> int | None:
    """A whole number of tokens.

    >>> _read_count(" 9 "), _read_count(9.0), _read_count(-9), _read_count("many"), _read_count(True)
    (9, 9, None, None, None)
    """
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,12}(?:\.0*)?\s*", value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _MOST_TOKENS and value == int(value) else None
