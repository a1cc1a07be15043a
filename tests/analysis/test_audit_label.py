"""Labelling by hand: keys, undo, going on, and a kill of the command."""

import io
import json
import signal
import subprocess
import sys
from dataclasses import asdict

from rich.console import Console

from nemo_aopsd.analysis.audit.events import Event
from nemo_aopsd.analysis.audit.labels import LabelBook, label_events, labels_path, read_labels
from nemo_aopsd.files import write_jsonl

EVIL = "[red]x[/] \x1b[2J\x07 & \\frac{1}{2}"


def event(number, **fields):
    found = {"problem": f"Find x_{number} < 3.", "teacher_read": "[1] x = 2", "before": "So x is", "before_omitted": 0}
    found |= {"token": " three", "anchor": " two", "suffix": ", as the DAG says"}
    return Event(id=f"e{number}", problem_id=f"p{number}", **(found | fields))


def label(folder, events, answers):
    """Give these answers in turn; what the terminal has shown."""
    shown, given = io.StringIO(), iter(answers)
    with LabelBook(labels_path(folder, "ada"), {"kind": "hand"}) as book:
        label_events(events, book, Console(file=shown, width=100), lambda: next(given))
    assert next(given, None) is None
    return shown.getvalue()


def found(folder):
    return read_labels(labels_path(folder, "ada"))[1]


def test_label_undo_and_go_on(tmp_path):
    events = [event(1), event(2), event(3)]
    label(tmp_path, events, ["1", "u", "3", "q"])
    assert found(tmp_path) == {"e1": "leakage"}
    shown = label(tmp_path, events, ["4", "", "2 ", "u", "1", "2"])  # what is no key asks again
    assert found(tmp_path) == {"e1": "leakage", "e2": "useful", "e3": "redundant"}
    assert "Find x_1" not in shown and "event 2 of 3" in shown and "event 3 of 3" in shown
    assert "Find x" not in label(tmp_path, events, [])  # nothing left


def test_a_label_is_on_disk_before_the_next_event_is_shown(tmp_path):
    seen = []

    def ask():
        seen.append(dict(found(tmp_path)))
        return "1"

    with LabelBook(labels_path(tmp_path, "ada"), {"kind": "hand"}) as book:
        label_events([event(1), event(2)], book, Console(file=io.StringIO()), ask)
    assert seen == [{}, {"e1": "useful"}]


def test_all_parts_are_shown_as_they_are_and_none_steers_the_terminal(tmp_path):
    shown = label(tmp_path, [event(1, before=EVIL, suffix=EVIL, before_omitted=812)], ["q"])
    assert "[red]x[/] \ufffd[2J\ufffd & \\frac{1}{2} three" in shown and "\x1b" not in shown
    for part in ("Find x_1 < 3.", "[1] x = 2", " two[red]", "812 earlier characters"):
        assert part in shown


def test_a_kill_loses_no_label(tmp_path):
    """The command itself, killed without warning after two labels; started again it goes on with the third event."""
    run = tmp_path / "run"
    (run / "audit").mkdir(parents=True)
    sample = {"seed": 0, "count": 3, "by_bin": False, "edges": [1.0], "population_per_bin": [3, 0]}
    sample |= {"drawn_per_bin": [3, 0], "num_empty": 0, "last_file": "step_000001.jsonl"}
    (run / "audit/sample.json").write_text(json.dumps(sample))
    events = [event(number) for number in (1, 2, 3)]
    write_jsonl(run / "audit/events.jsonl", map(asdict, events))
    command = [sys.executable, "-c", "from nemo_aopsd.cli import main; main()", "audit", "label", str(run)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, "--name", "ada"], **pipes)
    process.stdin.write("3\n3\n")
    process.stdin.flush()
    while "event 3 of 3" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    with labels_path(run, "ada").open("ab") as file:
        file.write(b'{"event": "e3", "lab')  # a line that the kill cut short
    assert "event 1" not in label(run, events, ["1"])
    assert found(run) == {"e1": "leakage", "e2": "leakage", "e3": "useful"}
