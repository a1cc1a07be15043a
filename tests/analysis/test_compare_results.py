"""The numbers of a suite's table, computed by hand, and how they are shown."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from nemo_aopsd.analysis.suite.folder import Run
from nemo_aopsd.analysis.suite.processes import Failure, last_words
from nemo_aopsd.analysis.suite.results import Measured, measure, rows_of
from nemo_aopsd.analysis.suite.table import csv_text, markdown, suite_figure, summary
from nemo_aopsd.errors import UserError
from nemo_aopsd.run.record_types import Counts, StepMetrics
from nemo_aopsd.stats import crossed_bootstrap_interval, paired_bootstrap_interval


def evaluation(leaks=None, **counts):
    return Counts(num_samples=2, correct_per_problem=counts, leak_count=leaks, truncation_count=leaks and leaks - 1)


def step(tokens, seconds, **more):
    values = {"rollout/count": 4.0, "rollout/mean_tokens": tokens, "time/step": seconds}
    return StepMetrics(epoch=0, step=1, values=values | more)


BYTES = {"train/supervision_bytes_per_token": 13.0}
BEFORE = evaluation(a=0, b=1)
BASE = [Measured(seed, BEFORE, BEFORE, []) for seed in (0, 1)]
OPSD = [
    Measured(0, BEFORE, evaluation(3, b=2, a=1), [step(10.0, 1.0, **BYTES), step(20.0, 2.0, **BYTES)]),
    Measured(1, BEFORE, evaluation(2, a=0, b=2), [step(10.0, 3.0, **BYTES)]),
]
MINE = [Measured(1, BEFORE, evaluation(a=1, b=2), [step(5.0, 1.0, **BYTES), step(5.0, 1.0)])]


def test_a_row_by_hand():
    base, opsd, mine = rows_of({"base": BASE, "opsd": OPSD, "mine": MINE, "lost": []}, "opsd", {})
    assert (opsd.correct, opsd.responses, opsd.solved, opsd.problems) == (5, 8, 3, 4)
    assert (opsd.leaks, opsd.truncated, mine.leaks) == (5, 3, None)  # mine's evaluation does not tell
    assert opsd.pass_at_k == {1: 5 / 8, 2: 3 / 4} and opsd.by_seed == [3 / 4, 1 / 2] and opsd.seeds == [0, 1]
    assert opsd.against_base.mean == pytest.approx(5 / 8 - 1 / 4) and opsd.against_base.num_seeds == 2
    assert opsd.against_base.by_problem == paired_bootstrap_interval([0.0, 0.5], [0.25, 1.0])
    assert opsd.against_reference is None
    assert (opsd.steps, opsd.response_tokens) == (1.5, (4 * 30 + 4 * 10) / 2)
    assert (opsd.seconds_per_step, opsd.bytes_per_token) == (2.0, 13.0)
    assert mine.against_reference.mean == pytest.approx(3 / 4 - 1 / 2) and mine.against_reference.num_seeds == 1
    assert mine.bytes_per_token is None  # one step does not tell it: no mean over the rest
    assert base.against_base is None and base.seconds_per_step is None and base.against_reference.mean == -3 / 8


def test_the_interval_shown_is_of_second_less_first_over_seeds_and_problems():
    """Of opsd, seeds x problems: [[1/2, 1], [0, 1]] after, [[0, 1/2], [0, 1/2]] before."""
    rows = rows_of({"base": BASE, "opsd": OPSD, "mine": MINE}, "opsd", {})
    base, opsd, mine = rows
    gain = crossed_bootstrap_interval(np.array([[0.5, 0.5], [0.0, 0.5]]))
    low, high = crossed_bootstrap_interval(np.array([[0.5, 1.0], [0.0, 1.0]]))
    assert low < 0 and high > 1 and opsd.interval == (0.0, 1.0)  # seeds widen it beyond what a rate can be
    assert opsd.against_base.interval == gain
    assert base.against_reference.interval == crossed_bootstrap_interval(-np.array([[0.5, 0.5], [0.0, 0.5]]))
    assert mine.against_reference.interval == crossed_bootstrap_interval(np.array([[0.5, 0.0]]))
    assert gain != opsd.against_base.by_problem and gain[0] != -gain[1]  # each can be told from the others
    assert f"+37.5 pp [{100 * gain[0]:+.1f}, {100 * gain[1]:+.1f}]" in markdown("suite", "command", rows, "opsd", [])
    _, record, _ = csv.DictReader(io.StringIO(csv_text(rows, "opsd")))
    found = [float(record[f"against base {end}"]) for end in ("low", "high", "by problem low", "by problem high")]
    assert found == [*gain, *opsd.against_base.by_problem]


def test_other_problems_are_refused():
    odd = Measured(0, BEFORE, evaluation(a=1, c=2), [step(1.0, 1.0)])
    with pytest.raises(UserError, match=r"2 problems .* 'b'"):
        rows_of({"mine": [odd]}, None, {})


def test_the_page_and_the_csv_have_counts_intervals_and_what_is_missing(tmp_path):
    rows = rows_of({"base": BASE, "opsd": OPSD, "mine": MINE}, "opsd", {})
    page = markdown("suite", "aopsd compare suite.yaml", rows, "opsd", [Failure(Run("lost", 0, tmp_path), "boom")])
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert lines[0][:4] == ["member", "seeds", "pass@1", "correct"] and lines[0][7] == "against opsd"
    opsd, mine = lines[3], lines[4]
    assert opsd[0] == "opsd" and opsd[2].startswith("62.5 % [") and opsd[3:6] == ["5 of 8", "75.0 %", "3 of 4"]
    assert opsd[6].startswith("+37.5 pp [") and opsd[7] == "-"
    assert opsd[8:] == ["62.5 %", "37.5 %", "2.00", "2", "80", "13.0"] and mine[8:10] == ["-", "-"]
    assert mine[7].startswith("+25.0 pp [") and mine[-1] == "-"
    assert opsd[6].endswith("], 25.0 % -> 62.5 %") and mine[7].endswith("], 50.0 % -> 75.0 %")  # of seed 1 alone
    assert "No `train/supervision_bytes_per_token` in the metrics of mine:" in page
    assert f"- lost/seed_0: boom (`{tmp_path}/lost/seed_0.log`)" in page
    assert lines[-1] == ["mine", "-", "75.0 %"]  # its seed 0 is missing
    base, _, last = csv.DictReader(io.StringIO(csv_text(rows, "opsd")))
    assert base["against base"] == "" and base["seconds per step"] == "" and last["against opsd"] == "0.25"
    assert (last["against opsd from"], last["against opsd to"], base["against base to"]) == ("0.5", "0.75", "")
    assert last["against opsd seeds"] == "1" and last["supervision bytes per token"] == ""


def test_the_figure_has_a_line_a_member_and_is_the_same_each_time():
    rows = rows_of({"base": BASE, "opsd": OPSD, "mine": MINE}, "opsd", {})
    drawn = suite_figure(rows, "opsd")
    assert all(f">{name}<" in drawn for name in ("base", "opsd", "mine")) and "pass@1 less that of opsd" in drawn
    assert drawn == suite_figure(rows, "opsd") != suite_figure(rows[:1], None)
    alone = rows_of({"base": BASE, "mine": MINE}, None, {})  # without a reference there is no column of it
    assert "against opsd" not in markdown("suite", "command", alone, None, []) + csv_text(alone, None)


def test_base_as_the_reference_is_shown_once():
    rows = rows_of({"base": BASE, "opsd": OPSD, "mine": MINE}, "base", {})
    page, header = markdown("suite", "command", rows, "base", []), csv_text(rows, "base").splitlines()[0].split(",")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert lines[0].count("against base") == 1 and len(lines[0]) == len(lines[2]) == len(lines[3]) == 13
    place = lines[0].index("against base")
    assert [line[place][:8] for line in lines[2:5]] == ["-", "+37.5 pp", "+50.0 pp"]
    assert len(header) == len(set(header)) and header.count("against base") == 1
    assert suite_figure(rows, "base").count(">pass@1 less that of base<") == 1


def test_a_symbol_has_a_plain_name_in_tables_and_the_figure_and_its_own_in_the_csv():
    names = {"opsd": "gap threshold 1 nat (delta_1)"}
    rows = rows_of({"base": BASE, "opsd": OPSD, "mine": MINE}, "opsd", names)
    page, table = markdown("t", "c", rows, "opsd", []), summary(rows, "opsd")
    for text in (page, table):
        assert text.count("| gap threshold 1 nat (delta_1) |") == text.count("| mine |")
        assert "| against gap threshold 1 nat (delta_1) |" in text and "| opsd |" not in text
    figure = suite_figure(rows, "opsd")
    assert ">gap threshold 1 nat (delta_1)<" in figure and "less that of gap threshold 1 nat" in figure
    header, *lines = csv.reader(csv_text(rows, "opsd").splitlines())
    assert [line[0] for line in lines] == ["base", "opsd", "mine"] and "against opsd" in header


def test_files_that_are_no_evaluation_are_refused(tmp_path):
    run = Run("mine", 0, tmp_path)
    with pytest.raises(UserError, match=r"has no evaluation. Delete .*seed_0\.finished\.json"):
        measure(run)
    (run.folder / "eval").mkdir(parents=True)
    for content in ("{", "[]", '{"num_samples": 2}'):
        (run.folder / "eval/epoch_000.json").write_text(content)
        with pytest.raises(UserError, match=r"epoch_000\.json: .*Restore"):
            measure(run)


@pytest.mark.parametrize(
    ("log", "code", "expected"),
    [
        ("$ aopsd train x\nstep 1\nerror: no room\n\n", 2, "error: no room"),
        ("$ aopsd train x\nerror: own.py:3: no\n  File own.py, line 3\nValueError: no\n", 2, "error: own.py:3: no"),
        ("$ aopsd train x\nerror: no room\n$ aopsd train x\nstep 1\nKeyError: 1\n", 1, "KeyError: 1"),
        ("$ aopsd train x\n", 1, "nothing in its log"),
        ("step 7\n", -9, "killed by signal 9; step 7"),
    ],
)
def test_last_words(tmp_path, log, code, expected):
    (tmp_path / "log").write_text(log)
    assert last_words(Path(tmp_path / "log"), code) == expected
