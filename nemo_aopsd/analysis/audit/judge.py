"""Labels by a language model at an OpenAI-compatible server. Like a person, it does not see the NLL."""

import asyncio
import hashlib
from pathlib import Path

from rich.console import Console

from nemo_aopsd.analysis.audit.events import Event
from nemo_aopsd.analysis.audit.labels import LABELS, LabelBook, labels_path
from nemo_aopsd.analysis.audit.sampling import load_events
from nemo_aopsd.chat.client import ChatClient, ServerUnavailable, first_readable
from nemo_aopsd.chat.endpoint import Endpoint
from nemo_aopsd.chat.protocol import Request
from nemo_aopsd.console import progress
from nemo_aopsd.data.dag import Fault
from nemo_aopsd.errors import UserError
from nemo_aopsd.graphs.pipeline.parse import read_object
from nemo_aopsd.prompts import fill, read

_PROMPTS = str(Path(__file__).parent / "prompts")
_SCHEMA = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "label": {"type": "string", "enum": list(LABELS)}},
    "required": ["reason", "label"],
    "additionalProperties": False,
}
_TEMPERATURES = (0.0, 1.0)  # greedy, then once more by sampling if the answer names no label


def judge(
    run: Path, endpoint: Endpoint, model: str, *, name: str, concurrency: int = 32, max_tokens: int = 2048
) -> tuple[int, int, int]:
    """Label every event that has no label by `name` yet; each label is on disk as soon as the answer is there.

    Returns how many were labelled now, how many before, and how many answers name no label.
    Raises UserError if the server gives no answer; the same call resumes.
    """
    asked = read(_PROMPTS, "label") + repr(LABELS) + repr(_TEMPERATURES)  # everything but the event
    wording = hashlib.sha256(asked.encode()).hexdigest()[:16]
    origin = {"kind": "model", "model": model, "wording": wording}
    path, events = labels_path(run, name), load_events(run)
    with LabelBook(path, origin) as book:
        before = len(book.labels)
        todo = [event for event in events if event.id not in book.labels]
        unread = asyncio.run(_judge_all(todo, book, endpoint, model, concurrency, max_tokens))
        return len(book.labels) - before, before, unread


def messages(event: Event) -> list[dict[str, str]]:
    text = fill(
        _PROMPTS,
        "label",
        problem=event.problem,
        teacher_read=event.teacher_read,
        before=event.before,
        token=event.token,
        omitted=str(event.before_omitted),
        continuation=event.anchor + event.suffix,
        labels="\n".join(f"- {name}: {meaning}" for name, meaning in LABELS.items()),
    )
    return [{"role": "user", "content": text}]


def read_label(answer: str | None) -> str | None:
    """The label that an answer names, whatever its case; None if there is none, or no answer."""
    found = read_object(answer or "", "label")
    label = None if isinstance(found, Fault) else str(found["label"]).strip().lower()
    return label if label in LABELS else None


async def _judge_all(
    events: list[Event], book: LabelBook, endpoint: Endpoint, model: str, concurrency: int, max_tokens: int
) -> int:
    waiting, done, unread = iter(events), 0, 0

    async def work(client: ChatClient) -> None:  # so that only as many questions as are under way are in memory
        nonlocal done, unread
        for event in waiting:
            asked = [Request(model, messages(event), max_tokens, heat, _SCHEMA) for heat in _TEMPERATURES]
            label, text = await first_readable(client, asked, read_label)
            if label is None:
                unread += 1
                book.add_unread(event.id, text=endpoint.redact_answer(text))
            else:
                book.add(event.id, label, text=endpoint.redact_answer(text))
            done += 1
            advance(1)

    async with ChatClient(endpoint, concurrency=concurrency, timeout=600.0, max_retries=6) as client:
        try:
            with progress("labels, events", len(events), 0, Console(stderr=True), keep=False) as advance:
                await asyncio.gather(*(work(client) for _ in range(concurrency)))
        except ServerUnavailable as error:
            raise UserError(
                f"{endpoint.url} gave no answer, retries included: {error}. {done} of {len(events)} events were "
                "answered and kept; the same command goes on from there."
            ) from None
    return unread
