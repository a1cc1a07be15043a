"""Diagnostics of a run folder: numbers by hand, files as promised, and a clear word where something is missing."""

import json
from statistics import correlation

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nemo_aopsd.analysis.diagnostics.gaps import diagnose_gaps
from nemo_aopsd.analysis.diagnostics.intervals import Estimate
from nemo_aopsd.analysis.diagnostics.output import Result, markdown, write
from nemo_aopsd.analysis.diagnostics.progress import Judged, agreement, diagnose_progress
from nemo_aopsd.analysis.diagnostics.steps import Steps
from nemo_aopsd.cli.diagnose import app as diagnose_app
from nemo_aopsd.errors import UserError
from tests.diagnosed import rollout, write_config, write_problems, write_rollouts
from tests.fake_run import write_run


def invoke(*arguments, code=0):
    result = CliRunner().invoke(diagnose_app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def near(value):
    return pytest.approx(value, abs=1e-12)


# Files


def test_a_result_is_a_page_a_figure_and_numbers(tmp_path):
    rows = [{"a|b": "x|y\n\\z", "share": Estimate(0.0308, 0.03, 0.0315), "gone": Estimate(None), "n": 7, "f": 1.0}]
    result = Result(
        name="demo",
        title="Demo",
        settings={"run": "r"},
        samples={"tokens": 12345},
        tables={"T": rows, "Empty": []},
        figure="<svg/>",
        notes=["A note."],
    )
    paths = write(tmp_path / "diagnostics", result)
    assert [path.name for path in paths] == ["demo.md", "demo.json", "demo.svg"]
    page = paths[0].read_text()
    assert page == markdown(result)
    assert "| a\\|b | share | gone | n | f |" in page
    assert "| x\\|y↵\\\\z | 3.08 % (3.00 to 3.15) | undefined | 7 | 1 |" in page
    assert "tokens: 12,345" in page and "- A note." in page and "(no row)" in page and "bootstrap over problems" in page
    document = json.loads(paths[1].read_text())
    assert document["samples"] == {"tokens": 12345} and "bootstrap" in document["intervals"]
    shown = document["tables"]["T"][0]
    assert shown["gone"]["value"] is None and shown["share"] == {
        "value": 0.0308,
        "low": 0.03,
        "high": 0.0315,
        "is_share": True,
    }


# Gaps


def test_shares_by_threshold_and_sign(tmp_path):
    """8 tokens, sum of |gap| 10: at 1 there are 4 tokens with 8.5, at 2 there are 3 with 7.5 (2.5 + 3 below 0)."""
    run = write_config(tmp_path / "run")
    records = [
        rollout("p", [0.5, 2.0, -1.0, 0.0]),
        rollout("q", [-2.5, 0.25, -3.0, 0.75], step=2),
        rollout("q", [9.0], dropped=True),
    ]
    write_rollouts(run, records)
    result = diagnose_gaps(run, [2.0, 1.0])
    assert result.samples == {"rollouts": 3, "of these dropped unscored": 1, "problems": 2, "tokens": 8}
    shares = {
        (row["|gap| at least"], row["sign"]): (row["tokens"], row["share of tokens"].value, row["share of |gap|"].value)
        for row in result.tables["By threshold and sign"]
    }
    assert shares == {
        (1.0, "any"): (4, near(4 / 8), near(8.5 / 10)),
        (1.0, "positive"): (1, near(1 / 8), near(2 / 10)),
        (1.0, "negative"): (3, near(3 / 8), near(6.5 / 10)),
        (2.0, "any"): (3, near(3 / 8), near(7.5 / 10)),
        (2.0, "positive"): (1, near(1 / 8), near(2 / 10)),
        (2.0, "negative"): (2, near(2 / 8), near(5.5 / 10)),
    }
    by_paper = [row["paper"] for row in result.tables["By threshold and sign"] if row["sign"] == "any"]
    assert by_paper == ["3.08 % / 51.78 %", "1.15 % / 34.07 %"]
    assert "50.0\u00a0% of tokens, 85.0\u00a0% of the sum" in result.figure
    only_second = diagnose_gaps(run, [1.0], Steps(first=2))
    assert only_second.tables["By threshold and sign"][0]["share of |gap|"].value == near(5.5 / 6.5)


def test_no_gap_at_all_has_no_share_of_the_sum(tmp_path):
    run = write_config(tmp_path / "run")
    write_rollouts(run, [rollout("p", [0.0, 0.0]), rollout("q", [0.0])])
    result = diagnose_gaps(run)
    row = result.tables["By threshold and sign"][0]
    assert row["share of |gap|"].value is None and row["share of tokens"].value == 0.0
    assert any("Every gap is 0" in note for note in result.notes)


def test_a_broken_rollout_is_named(tmp_path):
    """Which damages are found: tests/run/test_reader.py."""
    run = write_config(tmp_path / "run")
    write_rollouts(run, [rollout("p", [1.0, 2.0]) | {"teacher_logprobs": [-1.0]}])
    with pytest.raises(UserError, match=r"step_000001.jsonl:1: .*`teacher_logprobs`"):
        diagnose_gaps(run)
    write_rollouts(run, [rollout("p", [1.0], dropped=True)])
    with pytest.raises(UserError, match="none of 1 rollouts has a scored token"):
        diagnose_gaps(run)


def test_steps_and_thresholds_that_match_nothing_are_refused(tmp_path):
    run = write_config(tmp_path / "run")
    write_rollouts(run, [rollout("p", [1.0])])
    with pytest.raises(UserError, match="Let the run finish its first step"):
        diagnose_gaps(write_config(tmp_path / "empty"))
    with pytest.raises(UserError, match=r"no rollout of steps 2 to end \(there are step_000001 to step_000001\)"):
        diagnose_gaps(run, steps=Steps(first=2))
    with pytest.raises(UserError, match="above 0 nats"):
        diagnose_gaps(run, [0.0])


# Progress


def judged_run(tmp_path):
    """r against correctness: 0 wrong, 0.5 wrong, 0.5 right, 1 right, 1 right; one unreadable, one not judged."""
    run = write_config(tmp_path / "run")
    write_problems(tmp_path, {"p": "1", "q": "2"})
    right, wrong = {"p": r"\boxed{1}", "q": r"\boxed{2}"}, r"\boxed{3}"
    records = [
        rollout("p", text=wrong, progress=0.0, failed=False),
        rollout("p", text=wrong, progress=0.5, failed=False),
        rollout("p", text=right["p"], progress=0.5, failed=False, epoch=1, step=2),
        rollout("q", text=right["q"], progress=1.0, failed=False, epoch=1, step=2),
        rollout("q", text=right["q"], progress=1, failed=False, epoch=1, step=2),
        rollout("q", text="no box", failed=True, epoch=1, step=2),
        rollout("q", text=wrong, epoch=1, step=2),
    ]
    write_rollouts(run, records)
    return run


def test_progress_against_the_answer(tmp_path):
    """Of the 6 pairs of a right and a wrong response 5 are in order and 1 is tied: AUC 5.5 / 6."""
    result = diagnose_progress(judged_run(tmp_path))
    assert result.samples == {
        "rollouts": 7,
        "judged": 6,
        "readable verdicts": 5,
        "of these correct": 3,
        "problems": 2,
        "answers that could not be graded": 0,
    }
    agreed, bins = result.tables.values()
    values = {row["measure"]: row["value"].value for row in agreed}
    assert values["AUC"] == near(5.5 / 6)
    assert values["point-biserial correlation"] == near(correlation([0, 0.5, 0.5, 1, 1], [0, 0, 1, 1, 1]))
    counts = {row["bin"]: (row["responses"], row["correct"], row["mean r"]) for row in bins if row["responses"]}
    assert counts == {
        "r = 0": (1, 0, 0.0),
        "1/4 < r <= 1/2": (2, 1, 0.5),
        "r = 1": (2, 2, 1.0),
        "unreadable verdict": (1, 0, None),
    }
    assert next(row for row in bins if row["bin"] == "3/4 < r < 1")["share correct"].value is None


@given(st.lists(st.tuples(st.sampled_from("pqr"), st.sampled_from([0, 0.2, 0.5, 1]), st.booleans()), min_size=2))
def test_both_measures_against_their_definitions(rows):
    read = [Judged(problem, float(r), correct) for problem, r, correct in rows]
    biserial, auc = (row["value"] for row in agreement(read))
    right, wrong = [r for _, r, c in rows if c], [r for _, r, c in rows if not c]
    if not right or not wrong:
        assert biserial.value is None and auc.value is None
        return
    pairs = [(r > w) + (r == w) / 2 for r in right for w in wrong]
    assert auc.value == pytest.approx(sum(pairs) / len(pairs))
    if len({r for _, r, _ in rows}) == 1:
        assert biserial.value is None
    else:
        expected = correlation([r for _, r, _ in rows], [float(c) for _, _, c in rows])
        assert biserial.value == pytest.approx(expected, abs=1e-9)


def test_all_verdicts_unreadable_leave_the_measures_undefined(tmp_path):
    run = write_config(tmp_path / "run")
    write_problems(tmp_path, {"p": "1"})
    write_rollouts(run, [rollout("p", text=r"\boxed{1}", failed=True)])
    result = diagnose_progress(run)
    assert [row["value"].value for row in result.tables["Agreement"]] == [None, None]
    assert result.tables["Correct by bin of r"][-1]["responses"] == 1


def test_progress_that_cannot_be_judged_is_refused(tmp_path):
    run = write_config(tmp_path / "run", context="solution", curriculum="shuffle")
    write_problems(tmp_path, {"p": "1"})
    write_rollouts(run, [rollout("p", text="x")])
    with pytest.raises(UserError, match="none of 1 rollouts was judged"):
        diagnose_progress(run)
    write_rollouts(run, [rollout("gone", text="x", progress=0.5, failed=False)])
    with pytest.raises(UserError, match=r"problem 'gone' is not in .* --problems FILE"):
        diagnose_progress(run)
    with pytest.raises(UserError, match=r"other\.jsonl: no such file"):
        diagnose_progress(run, tmp_path / "other.jsonl")


# Commands


def test_commands_write_their_files(tmp_path):
    run = write_run(tmp_path / "run", num_epochs=2, steps_per_epoch=3)
    for name in ("gaps", "progress"):
        said = invoke(name, run)
        page = (run / f"diagnostics/{name}.md").read_text()
        assert page in said and f"{name}.md, {name}.json, {name}.svg" in said
        assert (run / f"diagnostics/{name}.svg").read_text().startswith("<?xml")
        assert json.loads((run / f"diagnostics/{name}.json").read_text())["samples"]
    assert "| 3 | any |" in invoke("gaps", run, "--threshold", "3", "--first-step", "2", "--last-step", "3")
