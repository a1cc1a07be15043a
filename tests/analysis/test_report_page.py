"""What a reader of the report sees: its caveat, its hints, other runs beside it, and the page in a browser."""

import json
import re
from dataclasses import replace

import pytest

from nemo_aopsd.analysis.report import figures, page, panels, write_report
from nemo_aopsd.analysis.report.comparison import Cell, cautions, differences, read_sources, side_by_side
from nemo_aopsd.analysis.report.digest import read_reported
from tests.browser import at_widths, needs_browser
from tests.fake_run import rewrite, write_run
from tests.run import read

SMALL = {"num_epochs": 1, "steps_per_epoch": 2, "batch": 2, "num_held_out": 4, "num_samples": 2}


def with_metrics(run, **values):
    """Every step of the run gets these numbers."""
    rewrite(run / "metrics.jsonl", lambda row: row | values)
    return run


def of_model(run, model):
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("model_name: tiny-qwen3", f"model_name: {model}"))
    return run


def solved(run, counts):
    """The newest evaluation has these correct samples of each problem, and the first one none."""
    for path, share in ((run / "eval/epoch_000.json", 0), (run / "eval/epoch_001.json", 1)):
        found = json.loads(path.read_text())
        rate = share * sum(counts.values()) / found["num_samples"] / len(counts)
        found |= {"correct_per_problem": {key: share * count for key, count in counts.items()}, "num_problems": 4}
        found |= {"pass_at_k": {"1": rate}, "pass_at_k_interval": {"1": {"low": 0, "high": 1}}}
        path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("model", "told"),
    [("/x/site-packages/nemo_aopsd/builtin/model", True), ("Qwen/Qwen3-4B", False), ("/x/builtin/model", False)],
)
def test_the_number_of_the_built_in_model_has_its_caveat(tmp_path, model, told):
    first, *rest = page.headline(read_reported(of_model(write_run(tmp_path / "run", **SMALL), model)))
    assert ("the direction of the effect is built in" in first.caveat) == told
    assert not any(tile.caveat for tile in rest)


@pytest.mark.parametrize(
    ("data", "weighting", "told"),
    [
        ("/x/nemo_aopsd/builtin/data/train.jsonl", "continuation", True),
        ("/x/nemo_aopsd/builtin/data/train.jsonl", "gap_only", False),
        ("/x/mine/train.jsonl", "continuation", False),
    ],
)
def test_what_was_measured_on_the_demo_is_said_of_the_demo_alone(tmp_path, data, weighting, told):
    run = of_model(write_run(tmp_path / "run", **SMALL, weighting=weighting), "/x/nemo_aopsd/builtin/model")
    path = run / "config.yaml"
    path.write_text(re.sub(r"data: \{train.*", f"data: {{train: {{data_path: {data}}}}}", path.read_text()))
    first, *_ = page.headline(read_reported(run))
    assert ("with uniform weights the demo" in first.caveat) == told and first.caveat.endswith(".")


@pytest.mark.parametrize("trained_on", [None, 0, 4])
def test_pass_at_1_on_problems_of_the_training_is_not_called_held_out(tmp_path, trained_on):
    run = write_run(tmp_path / "run", **SMALL)
    path = run / "eval/epoch_001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_trained_on": trained_on}))
    passed, *_ = page.headline(read_reported(run))
    told = "n = 4 problems, not held out: 4 are also trained on." if trained_on else "n = 4 held-out problems."
    assert told in passed.detail


def test_hints_are_the_rules_that_the_steps_broke(tmp_path):
    run = write_run(tmp_path / "run", **SMALL | {"steps_per_epoch": 9})
    assert page.hints(read_reported(with_metrics(run, **{"rollout/truncated": 0, "judge/failed": 0}))) == []
    with_metrics(run, **{"rollout/truncated": 1, "train/divergence": -0.5, "train/frac_negative": 0.1})
    cut, negative = page.hints(read_reported(run))
    assert cut.sentence.startswith("50%") and (cut.first, cut.last) == (8, 9)
    assert "aopsd.objective.token_clip" in negative.remedy and (negative.first, negative.last) == (1, 9)
    assert "(steps 8 to 9 of 9)" in write_report(run).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "finished", "told"),
    [
        (r"so \boxed{4}", True, "Its answer is right."),
        (r"so \boxed{5}", True, "Its answer is wrong."),
        ("so", False, "It was cut off. It gives no answer, so it counts as wrong."),
    ],
)
def test_the_response_that_is_shown_says_whether_it_is_right(tmp_path, text, finished, told):
    run = read_reported(write_run(tmp_path / "run", **SMALL))
    _, problem = page.graph_panel(run)
    assert problem.answer == "4"
    assert page.answer_of(replace(run.digest.graph_rollout, response_text=text, finished=finished), problem) == told


def test_a_difference_is_paired_by_problem(tmp_path):
    here, there = (write_run(tmp_path / name, **SMALL) for name in ("here", "there"))
    solved(here, {"a": 2, "b": 2, "c": 1, "d": 1})  # 6 of 8
    solved(there, {"a": 0, "b": 2, "c": 0, "d": 0})  # 2 of 8: differences 1, 0, 1/2, 1/2
    header, row = differences(read_sources([here, there]))
    assert [cell.text for cell in header] == ["This run against", "difference", "here", "there", "problems"]
    assert [cell.text for cell in row] == ["there", "+50.0 points", "75.0", "25.0", "problems"]
    # Of 3 differences that are not 0, 2 of 8 sign patterns are as extreme.
    assert "[+12.5, +87.5], p = 0.25" in row[1].detail
    assert differences(read_sources([here])) == []
    solved(there, {"a": 0, "b": 2, "c": 0, "x": 0})
    assert differences(read_sources([here, there]))[1][1] == Cell("-", "asked otherwise: not paired")


def test_a_run_named_as_its_method_is_told_once(tmp_path):
    here, there = (write_run(tmp_path / name, **SMALL) for name in ("here", "aopsd"))
    assert differences(read_sources([here, there]))[1][0] == Cell("aopsd")
    assert differences(read_sources([there, here]))[1][0] == Cell("here", "aopsd")


def test_a_run_that_did_not_end_is_named_before_the_difference(tmp_path):
    here, there = (write_run(tmp_path / name, **SMALL | {"batch": 4}) for name in ("here", "there"))
    assert cautions(read_sources([here, there])) == []
    (there / "eval/epoch_001.json").unlink()
    (there / "competence.jsonl").write_text((there / "competence.jsonl").read_text().splitlines(keepends=True)[0])
    path = there / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    said = "there is unfinished (1 of 2 steps); its only evaluation is from before training"
    assert cautions(read_sources([here, there])) == [said] == cautions(read_sources([there, here]))
    assert side_by_side(read_sources([here, there]))[2][0].detail == "tiny-qwen3; unfinished: 1 of 2 steps"
    html = write_report(here, [there]).read_text(encoding="utf-8")
    assert html.index("Against the other runs") < html.index(said) < html.index("This run against")


def test_a_fall_of_pass_at_1_is_the_first_thing_to_look_at(tmp_path):
    run = write_run(tmp_path / "run", **SMALL)
    with_metrics(run, **{"rollout/truncated": 0, "judge/failed": 0})
    assert page.hints(read_reported(run)) == [] and "Before step 8" in page.nothing_to_see(read_reported(run))
    solved(run, dict.fromkeys("abcd", 0))
    first = json.loads((run / "eval/epoch_000.json").read_text())
    first |= {"correct_per_problem": dict.fromkeys("abcd", 2), "pass_at_k": {"1": 1.0}}
    (run / "eval/epoch_000.json").write_text(json.dumps(first))
    (hint,) = page.hints(read_reported(run))
    assert "from 1.000 at step 0 to 0.000 at step 2" in hint.sentence and (hint.first, hint.last) == (0, 2)


def test_a_table_without_a_number_is_not_shown_nor_is_a_column(tmp_path):
    bare = [write_run(tmp_path / name, **SMALL | {"evaluations": False}) for name in ("one", "two")]
    assert [cell.text for cell in side_by_side(read_sources(bare))[0]] == ["Run", "Method", "min an epoch"]
    for run in bare:
        (run / "competence.jsonl").unlink()  # no epoch is finished
    assert side_by_side(read_sources(bare)) == [] == differences(read_sources(bare))


def test_curves_of_other_runs_lie_over_those_of_the_run(tmp_path, monkeypatch):
    here, there = (write_run(tmp_path / name, **SMALL | {"seed": seed}) for seed, name in enumerate(("here", "there")))
    bare = write_run(tmp_path / "bare", **SMALL | {"weighting": "uniform", "evaluations": False})
    run = read_reported(here, [there, bare])
    drawn = {}
    monkeypatch.setattr(figures, "by_step", lambda name, label, lines, **_: drawn.setdefault(label, lines) or "<svg>")
    monkeypatch.setattr(figures, "pass_at_k", lambda found, ks, others: drawn.setdefault("pass@k", others) or "<svg>")
    panels.draw(run, panels.OUTCOME | panels.STEPS)
    assert [line.label for line in drawn["Loss"]] == ["here", "there", "bare"]
    assert [line.label for line in drawn["Trigger rate"]] == ["here", "there"]  # `bare` has none
    assert drawn["Loss"][1].values == [row["train/loss"] for row in read(there / "metrics.jsonl")]
    assert [line.label for line in drawn["Progress and disclosed share"]][2:4] == [
        "disclosed to the teacher, there",
        "disclosed to the teacher, bare",
    ]
    assert list(drawn["pass@k"]) == ["there"]
    assert "there" in [line.label for line in drawn["Leak meter"]]


LOOK = r"""
    const width = doc.documentElement.clientWidth, box = item => item.getBoundingClientRect();
    const scrolls = item => item.closest(".scroll, pre, svg");
    const texts = [...doc.querySelectorAll("svg text")].filter(text => text.textContent.trim());
    const outside = (inner, outer) => inner.left < outer.left - 1 || inner.right > outer.right + 1;
    const clipped = texts.filter(text => outside(box(text), box(text.closest("svg"))));
    return {
        wider: doc.documentElement.scrollWidth - width,
        sticking: [...doc.body.querySelectorAll("*")].filter(item => !scrolls(item) && box(item).right > width + 1)
            .map(item => item.outerHTML.slice(0, 80)),
        clipped: clipped.map(text => text.textContent),
        smallest: Math.min(...texts.map(text => parseFloat(view.getComputedStyle(text).fontSize)
            * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b))),
        crossed: [...doc.querySelectorAll(".facts div")].filter(item =>
            item.children[0].scrollWidth > item.children[0].clientWidth).map(item => item.textContent),
        boxes: [...doc.querySelectorAll("svg .node")].filter(node =>
            box(node.querySelector("text")).right > box(node.querySelector(".state")).left).length,
        nodes: doc.querySelectorAll("svg .node").length,
        columns: [...doc.querySelectorAll("section.grid")].map(grid =>
            new Set([...grid.children].map(item => Math.round(box(item).left))).size),
    };
"""


@needs_browser
def test_page_is_readable_on_a_screen_and_on_a_phone(tmp_path):
    """Nothing sticks out of the page or of its figure, no two texts lie over each other, no letters under 9 pixels."""
    run = of_model(write_run(tmp_path / "demo", num_epochs=2, steps_per_epoch=4), "/x/nemo_aopsd/builtin/model")
    with_metrics(run, **{"rollout/truncated": 4})
    other = write_run(tmp_path / "a_member_of_a_suite_with_a_long_name/seed_1", num_epochs=2, steps_per_epoch=4, seed=1)
    wide, narrow = at_widths(write_report(run, [other]), (1300, 400), LOOK)
    for found in (wide, narrow):
        assert found["wider"] <= 0 and found["sticking"] == [] and found["crossed"] == []
        assert found["clipped"] == []
        assert found["nodes"] == 6 and found["boxes"] == 0
        assert found["smallest"] >= 9, found["smallest"]
    assert wide["columns"] == [2, 2, 3, 2, 3] and narrow["columns"] == [1] * 5
    html = (run / "report.html").read_text(encoding="utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles[:3] == ["Against the other runs", "What to look at", "Runs side by side"]
