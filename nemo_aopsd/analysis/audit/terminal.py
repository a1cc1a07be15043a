"""Labelling in the terminal: an event, a key and Enter. A label is on disk before the next event is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from nemo_aopsd.analysis.audit.events import Event
from nemo_aopsd.analysis.audit.labels import LABELS, LabelBook

KEYS = {str(number): label for number, label in enumerate(LABELS, start=1)}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # an event must not steer the terminal


def label_events(events: Sequence[Event], book: LabelBook, console: Console, ask: Callable[[], str]) -> None:
    """Show the events that have no label, in their order, until none is left or the answer is `q`."""
    for key, name in KEYS.items():
        console.print(f"{key}  {name}: {LABELS[name]}", markup=False, highlight=False)
    while True:
        event = next((event for event in events if event.id not in book.labels), None)
        if event is None:
            return
        _show(event, f"{len(events) - sum(one.id not in book.labels for one in events) + 1} of {len(events)}", console)
        answer = ask().strip().lower()
        if answer == "q":
            return
        try:
            if answer == "u":
                book.undo()
            elif answer in KEYS:
                book.add(event.id, KEYS[answer])
        except OSError as error:  # a full disk; the same event is asked again
            console.print(f"not saved: {book.path}: {error.strerror or error}", style="red", markup=False)


def _show(event: Event, place: str, console: Console) -> None:
    omitted = f" ({event.before_omitted} earlier characters are left out)" if event.before_omitted else ""
    console.print(Rule(f"event {place}"))
    for head, *parts in (
        ("Problem", (event.problem, "")),
        ("What the teacher read", (event.teacher_read, "")),
        (f"The student's text{omitted}, and its next token", (event.before, ""), (event.token, "reverse")),
        ("The teacher goes on from there", (event.anchor + event.suffix, "bold")),
    ):
        console.print(Text(head, style="cyan"))
        console.print(Text.assemble(*((_CONTROL.sub("\ufffd", text), style) for text, style in parts)), "")
