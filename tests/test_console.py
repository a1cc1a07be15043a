"""What a long stage says: a bar on a terminal, lines in a log, and nothing if it is soon over."""

import io
import time
from threading import Event
from types import SimpleNamespace

from rich.console import Console

from nemo_aopsd.console import EVERY, _Lines, _repeated, progress, slow, track
from nemo_aopsd.graphs.pipeline.results import Tally, watching


def in_a_log():
    return Console(file=io.StringIO(), width=200)


def test_a_log_gets_a_line_at_the_start_and_then_one_now_and_then():
    console, now = in_a_log(), 0.0
    with progress("answers", 10, 2, console, keep=True, clock=lambda: now) as advance:
        for seconds, count in ((1, 1), (EVERY, 2), (1, 1), (EVERY, 3), (EVERY, 1)):  # all are there with the last
            now += seconds
            advance(count)
    told = ["8 to go", "5 of 10, about 52 s left", "9 of 10, about 8.9 s left"]  # 3 in 31 s, 7 in 62 s
    assert console.file.getvalue() == "".join(f"answers: {words}\n" for words in told)


def test_a_log_has_a_sign_of_life_while_one_item_takes_long():
    console, now = in_a_log(), 0.0
    lines = _Lines("attempts", 2, 0, console, lambda: now, told=False)
    for seconds in (EVERY - 1, 1, 1, 2 * EVERY):
        now += seconds
        lines.still_at_work()
    lines.advance(2)
    now += EVERY
    lines.still_at_work()  # all are there
    said = "attempts: 2 to go\nattempts: 0 of 2, 30 s so far\nattempts: 0 of 2, 1 min 31 s so far\n"
    assert console.file.getvalue() == said
    steps = _Lines("steps", 3, 0, in_a_log(), lambda: now, told=True)
    now += EVERY
    steps.advance(1)  # has said so itself
    steps.still_at_work()
    assert steps.console.file.getvalue() == "steps: 3 to go\n"
    calls = Event()
    with _repeated(calls.set, every=0.001):
        assert calls.wait(60)


def test_nothing_to_do_is_no_line_and_items_that_tell_of_themselves_get_one_at_the_start():
    console = in_a_log()
    with progress("steps", 5, 3, console, keep=False, told=True) as advance:
        advance(1)
    assert list(track([1, 2], "batches", console, total=5, done=3)) == [1, 2]
    assert list(track([], "none", console, total=3, done=3)) == []
    assert console.file.getvalue() == "steps: 2 to go\nbatches: 2 to go\n"


def test_a_build_of_graphs_says_in_a_log_how_far_it_is(capsys):
    now = 0.0
    tally, ledger = Tally("m", "m", problems=9), SimpleNamespace(this_run=SimpleNamespace(tokens=0))
    with watching(clock=lambda: now) as watch:
        for seconds in (0, 1, EVERY):
            now += seconds
            watch(tally, ledger)
            tally.accepted += 2
    assert [line[:27] for line in capsys.readouterr().err.splitlines()] == [
        "0 of 9 problems · 0 accepte",
        "4 of 9 problems · 4 accepte",
    ]


def test_only_a_stage_that_goes_on_is_told(capsys):
    with slow("a short one", after=60.0):
        pass
    told = ""
    with slow("loading [the model]", after=0.0, every=0.01):
        while told.count("\n") < 2:
            time.sleep(0.01)
            told += capsys.readouterr().err
    first, second, *_ = told.splitlines()
    assert (first, second[:20], second[-7:]) == ("loading [the model] ...", "loading [the model]:", " so far")
    time.sleep(0.05)
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""
