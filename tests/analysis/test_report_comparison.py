"""Runs side by side: pass@1 by hand, and what is no run."""

import json
import re

import pytest
from typer.testing import CliRunner

from nemo_aopsd.analysis.report import figures
from nemo_aopsd.analysis.report.comparison import read_source, read_sources, side_by_side
from nemo_aopsd.cli.app import app
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.summary import summarize
from tests.fake_run import rewrite, write_run


@pytest.fixture
def bare(tmp_path):
    """A run without evaluations: 3 epochs of 2 steps."""
    return write_run(tmp_path / "main", steps_per_epoch=2, batch=2, evaluations=False)


def evaluated(solved, *, num_problems=4, num_samples=8):
    """A benchmark's summary in which the first sample of `solved` problems is right and nothing else."""
    line = {"num_tokens": 5, "finished": True, "reason": "", "leak": False, "response_text": "\\boxed{1}"}
    return summarize(
        [
            {**line, "problem_id": f"q{q}", "sample": s, "correct": s == 0 and q < solved}
            for q in range(num_problems)
            for s in range(num_samples)
        ],
        num_samples,
    )


def add_results(folder, model, summaries):
    """What `aopsd evaluate` writes, as far as the table reads it."""
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"model": model, "settings": {}, "benchmarks": summaries}))
    return folder


def table(paths):
    return side_by_side(read_sources(paths))


def texts(cells):
    return [cell.text for cell in cells]


def with_times(run, seconds):
    """Give the steps of a run these `time/step`."""
    values = iter(seconds)
    rewrite(run / "metrics.jsonl", lambda row: row | {"time/step": next(values)})


def test_runs_stand_side_by_side_by_pass_at_1(bare, tmp_path):
    """Of 4 problems, 2 samples each: a right first sample of q problems is a pass@1 of q / 8, a pass@2 of q / 4."""
    few = {"num_samples": 2}
    add_results(bare / "eval/base", "step_000000", {"heldout": evaluated(1, **few)})
    add_results(bare / "eval/end", "step_000006", {"heldout": evaluated(4, **few), "aime24": evaluated(2, **few)})
    model = add_results(tmp_path / "model", "other", {"aime24": evaluated(3, **few)})
    with_times(bare, [60, 120, 60, 120, 240, 480])  # 3, 3 and 12 minutes
    header, run, other = table([bare, model, bare])
    assert tuple(texts(header[2:])) == (
        "aime24, first",
        "aime24, newest",
        "heldout, first",
        "heldout, newest",
        "min an epoch",
    )
    assert texts(run) == ["main", "aopsd", "25.0", "25.0", "12.5", "50.0", "6"]
    assert run[5].detail == "step 6, 4 problems × 2 samples, pass@2 100.0"
    assert texts(other) == ["model", "", "37.5", "37.5", "-", "-", "-"]


def test_an_unfinished_epoch_has_no_minutes(bare, tmp_path):
    with_times(bare, [60, 120, 60, 120, 1, 1])
    history = (bare / "competence.jsonl").read_text().splitlines(keepends=True)
    for kept, minutes in ((3, ["3", "2 epochs"]), (1, ["-", ""])):  # before training, after epochs 1 and 2
        (bare / "competence.jsonl").write_text("".join(history[:kept]))
        found = read_source(bare).minutes
        assert [found.text, found.detail] == minutes


def test_training_s_own_evaluations_count_at_the_step_that_ended_their_epoch(tmp_path):
    run = write_run(tmp_path / "opsd/seed_0", steps_per_epoch=2, batch=2, num_held_out=10)
    source = read_source(run)
    assert source.name == "opsd/seed_0" and [one.step for one in source.evaluations] == [0, 2, 4, 6]
    last = json.loads((run / "eval/epoch_003.json").read_text())
    assert source.evaluations[-1].summary.correct_per_problem == last["correct_per_problem"]
    assert table([run]) == []  # nothing to compare it with


OTHERWISE = [
    {"num_samples": 1},
    *({key: 0} for key in ("temperature", "top_p", "top_k", "max_new_tokens")),
    {"prompts_and_answers": "of other problems"},
]


@pytest.mark.parametrize("other", OTHERWISE, ids=str)
def test_an_evaluation_that_asks_otherwise_is_listed_but_replaces_none(tmp_path, other):
    run = write_run(tmp_path / "run", steps_per_epoch=2, batch=2, num_held_out=10, num_samples=2)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"(evaluation: \{data_path): [^,]+", r"\1: held.out.jsonl", config))
    asked = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_new_tokens": 96, "prompts_and_answers": "digest"}
    asked["num_samples"] = 2
    for epoch in range(4):
        (run / f"eval/epoch_{epoch:03d}.settings.json").write_text(json.dumps({**asked, "seed": 1}))
    summary, benchmark = json.loads((run / "eval/epoch_003.json").read_text()), "held_out"
    summary["correct_per_problem"] = dict.fromkeys(summary["correct_per_problem"], 1)

    def add(folder, step, settings, rate):
        counts = {"num_samples": settings["num_samples"], "pass_at_k": {"1": rate}}
        path = add_results(run / f"eval/{folder}", f"step_{step:06d}", {benchmark: summary | counts})
        (path / f"{benchmark}.settings.json").write_text(json.dumps({**settings, "seed": 2}))

    before = table([run, add_results(tmp_path / "model", "m", {})])[1]
    add("other", 8, asked | other, 0.125)
    add("again", 6, asked, 0.25)  # of the step that training evaluated
    header, row, _ = table([run, tmp_path / "model"])
    assert texts(header[2:4]) == [f"{benchmark}, first", f"{benchmark}, newest"] and len(header) == 5
    assert texts(row) == texts(before) and row[2].detail == before[2].detail
    assert row[3].detail.startswith(before[3].detail) and "12.5 at step 8, 10 problems" in row[3].detail
    add("later", 9, asked, 0.375)
    assert table([run, tmp_path / "model"])[1][3].text == "37.5"


def test_the_page_has_the_table(bare, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "_finish", lambda *_: "<svg></svg>")
    base = add_results(tmp_path / "b a <s> e", "<b>Qwen3</b>", {"aime24": evaluated(2)})
    result = CliRunner().invoke(app, ["report", str(bare), "--with", str(base)])
    assert result.exit_code == 0, result.output
    html = (bare / "report.html").read_text()
    assert html.count("Runs side by side") == 1 and "<b>Qwen3" not in html
    assert "6.2<small>step 0, 4 problems × 8 samples, pass@8 50.0</small>" in html
    assert f"--with &#39;{str(base).replace('<', '&lt;').replace('>', '&gt;')}&#39;" in html


def test_what_is_no_source_or_a_broken_one_is_named(bare, tmp_path):
    with pytest.raises(UserError, match="neither a run"):
        read_source(tmp_path / "nothing")
    add_results(bare / "eval/x", "a model", {"aime24": evaluated(2)})
    with pytest.raises(UserError, match=r"results\.json: `model`"):
        read_source(bare)
    broken = add_results(tmp_path / "broken", "m", {"aime24": {}})
    with pytest.raises(UserError, match=r"results\.json: `benchmarks\.aime24\."):
        read_source(broken)
