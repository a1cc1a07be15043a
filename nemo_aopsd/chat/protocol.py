"""What the OpenAI chat protocol says: a request, an answer, and how much a server may get wrong in it."""

import json
from dataclasses import dataclass, field
from typing import Any

from nemo_aopsd.thoughts import final_answer

_CUT = ("length", "max_tokens", "content_filter")
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
    """`finish_reason` is `length` for an answer that ran out of tokens; `usage` are the tokens of prompt and answer.

    `usage` is None if the server reports none that can be right.
    """

    text: str
    finish_reason: str
    usage: tuple[int, int] | None

    @property
    def answer(self) -> str | None:
        """What counts of the text; None if it was cut off, at the limit of tokens or by a filter."""
        return final_answer(self.text, finished=self.finish_reason not in _CUT)


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
    # An answer is worth more than the count that comes with it, so no count makes it unreadable.
    counts = answer.get("usage") if isinstance(answer.get("usage"), dict) else {}
    prompt, completion, usage = counts.get("prompt_tokens"), counts.get("completion_tokens"), None
    if type(prompt) is int and type(completion) is int:
        plausible = 0 < prompt <= _MOST_TOKENS and bool(text) <= completion <= _MOST_TOKENS
        usage = (prompt, completion) if plausible else None
    return Completion(text, str(choice.get("finish_reason")), usage)
