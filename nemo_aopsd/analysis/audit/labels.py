"""Labels, their files, and labelling in the terminal.

One append-only file per labeller; a label is on disk before the next event is shown.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from nemo_aopsd.analysis.audit.events import Event
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import OwnFile, append_jsonl, read_journal
from nemo_aopsd.run import layout

LABELS = {
    "useful": "It helps: a correction, a check or a next step that somebody who has only the problem and the text "
    "so far could find and give reasons for.",
    "redundant": "It adds nothing: it goes on as the text would have anyway, repeats what is there, or is mere filler, "
    "form or style.",
    "leakage": "It draws on what only the teacher read: it names that material, or states something that the problem "
    "and the text so far give no ground for.",
}

KEYS = {str(number): label for number, label in enumerate(LABELS, start=1)}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # an event must not steer the terminal

Record = dict[str, Any]


def labels_path(run: Path, name: str) -> Path:
    """The file of a labeller. Raises UserError on a name that is no plain file name."""
    if not re.fullmatch(r"[\w@][\w.@-]{0,63}", name):
        raise UserError(f"--name {name!r}: expected 1 to 64 letters, digits, or `.`, `-`, `_`, `@`. Choose another.")
    return run / layout.LABELS / f"{name}.jsonl"


def read_labels(path: Path) -> tuple[Record, dict[str, str], int]:
    """`(origin, labels by event, unread answers)` of a file that may be written right now."""
    origin: Record = {}
    labels: dict[str, str] = {}
    unread = set()
    for number, line in enumerate(read_journal(path, "event", "label", "origin"), start=1):
        event, label = line["event"], line["label"]
        if label is not None and label not in LABELS:
            raise UserError(f"{path}:{number}: label {label!r} is none of {', '.join(LABELS)}. Correct the line.")
        origin = line["origin"]
        labels.pop(event, None)  # so that the order is that of the last labels
        unread.discard(event)
        if label is not None:
            labels[event] = label
        elif line.get("unread"):
            unread.add(event)
    return origin, labels, len(unread)


class LabelBook(OwnFile):
    """One labeller's labels, open for more; one process at a time.

    `origin` says who or what labels; a file of another origin is refused. A last line that a kill cut short is cut off:
    it was never acknowledged.
    """

    def __init__(self, path: Path, origin: Record):
        self.origin = origin
        super().__init__(path, "is labelling under this name. End it, or choose another --name.")

    def _read(self) -> None:
        os.ftruncate(self._file, self.path.read_bytes().rfind(b"\n") + 1)
        found, self.labels, _ = read_labels(self.path)
        if found and found != self.origin:
            by, own = json.dumps(found), json.dumps(self.origin)
            raise UserError(f"{self.path}: labels by {by}, not {own}. Choose another --name.")

    def add(self, event: str, label: str, **details: Any) -> None:
        """Journal a label; on disk when this returns."""
        self._append(event, label, details)
        self.labels.pop(event, None)  # so that it is the newest
        self.labels[event] = label

    def add_unread(self, event: str, **details: Any) -> None:
        """Journal an answer that names no label; the event stays open."""
        self._append(event, None, {"unread": True, **details})

    def undo(self) -> str | None:
        """Take the newest label back; its event, or None if there is no label."""
        if not self.labels:
            return None
        event = next(reversed(self.labels))
        self._append(event, None, {})
        del self.labels[event]
        return event

    def _append(self, event: str, label: str | None, details: Record) -> None:
        append_jsonl(self.path, {"event": event, "label": label, "origin": self.origin, **details})


def label_events(events: Sequence[Event], book: LabelBook, console: Console, ask: Callable[[], str]) -> None:
    """Show the events that have no label, in their order, until none is left or the answer is `q`."""
    for key, name in KEYS.items():
        console.print(f"{key}  {name}: {LABELS[name]}", markup=False, highlight=False)
    while todo := [event for event in events if event.id not in book.labels]:
        _show(todo[0], f"{len(events) - len(todo) + 1} of {len(events)}", console)
        answer = ask().strip().lower()
        if answer == "q":
            return
        if answer == "u":
            book.undo()
        elif answer in KEYS:
            book.add(todo[0].id, KEYS[answer])


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
