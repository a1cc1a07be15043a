"""The paper's Tables 1 to 3 from runs: every number by hand, every missing cell with its reason."""

import json
import re

import pytest
from typer.testing import CliRunner

from nemo_aopsd.analysis.report.page import tables
from nemo_aopsd.analysis.report.paper_sources import read_source
from nemo_aopsd.analysis.report.paper_tables import paper_tables, side_by_side
from nemo_aopsd.cli.app import app
from nemo_aopsd.config.load import load_config, to_yaml
from nemo_aopsd.config.methods import find_method
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.summary import summarize
from tests.fake_run import write_run

PAPER_SETS = ("hmmt_feb25", "aime24", "aime25", "brumo25")


@pytest.fixture
def bare(tmp_path):
    """A run without evaluations: 3 epochs of 2 steps."""
    return write_run(tmp_path / "main", steps_per_epoch=2, batch=2, evaluations=False)


def configured(run, method, *overrides):
    """The same files, as if the run had been started with this method."""
    config = load_config(run / "config.yaml", overrides, find_method(method))
    (run / "config.yaml").write_text(to_yaml(config))
    return run


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
    """What `aopsd evaluate` writes, as far as the tables read it."""
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"model": model, "settings": {}, "benchmarks": summaries}))
    return folder


def table(number, *paths):
    return paper_tables([read_source(path) for path in paths])[number - 1]


def texts(cells):
    return [cell.text for cell in cells]


def row(found, name, detail=""):
    [cells] = [cells for cells in found.rows if cells[0].text == name and detail in cells[0].detail]
    return cells


# --- Side by side


def test_runs_with_few_samples_stand_side_by_side_by_pass_at_1(bare, tmp_path):
    """Of 4 problems, 2 samples each: a right first sample of q problems is a pass@1 of q / 8."""
    few = {"num_samples": 2}
    add_results(bare / "eval/base", "step_000000", {"heldout": evaluated(1, **few)})
    add_results(bare / "eval/end", "step_000006", {"heldout": evaluated(4, **few), "aime24": evaluated(2, **few)})
    model = add_results(tmp_path / "model", "other", {"aime24": evaluated(3, **few)})
    found = side_by_side([read_source(bare), read_source(model)])
    assert found.header[2:] == ("aime24, first", "aime24, newest", "heldout, first", "heldout, newest")
    assert texts(found.rows[0]) == ["main", "aopsd", "25.0", "25.0", "12.5", "50.0"]
    assert found.rows[0][5].detail == "step 6, 4 problems × 2 samples"
    assert texts(found.rows[1]) == ["model", "", "37.5", "37.5", "missing", "missing"]


def test_a_report_of_several_runs_begins_its_tables_with_them(bare, tmp_path):
    other = write_run(tmp_path / "other", steps_per_epoch=2, batch=2)
    assert next(found.title for found in tables(bare, [other])) == "Runs side by side"
    assert next(found.title for found in tables(bare, [bare])).startswith("Table 1")


# --- Table 1


def continuations(rows, title="gap > 0: the student's token kept, as in the paper"):
    return json.dumps({"tables": {title: rows}, "samples": {}, "settings": {}})


def intent(k, cues, references, first_cue="", first_reference=""):
    return {
        "k": k,
        "events": 50,
        "correction cues": cues,
        "references to the private context": references,
        "first at this k, correction": first_cue,
        "first at this k, reference": first_reference,
    }


def test_table_1_from_the_diagnostic(bare):
    (bare / "diagnostics").mkdir()
    rows = [intent(1, 0, 0), intent(2, 3, 8, "an error"), intent(3, 4, 9, "no,", "the DAG"), intent(4, 7, 70)]
    (bare / "diagnostics/continuations.json").write_text(continuations(rows))
    found = table(1, bare)
    assert [cells[0].text for cells in found.rows] == ["2", "4", "6", "8", "16"]
    assert texts(found.rows[0]) == ["2", "3", "an error", "8", ""]
    assert found.rows[0][4].detail == "none new"
    assert texts(found.rows[1]) == ["4", "7", "no,", "70", "the DAG"]  # whole at 3, so new in the row of 4
    assert found.rows[1][1].detail == "of 50"
    for cells in found.rows[2:]:
        assert all(cell.missing and cell.detail == "probes end at k = 4" for cell in cells[1:])
    assert "main: n = 50 non-overlapping events" in found.caption


def test_table_1_reads_what_the_diagnostic_writes(bare):
    """The two agree on names: the real command's file, with words for tokens."""
    from nemo_aopsd.analysis.diagnostics.continuations import diagnose_continuations
    from nemo_aopsd.analysis.diagnostics.output import write
    from tests.fake_run import WORDS

    for file in (bare / "rollouts").iterdir():  # anchors whose text is that of their token
        rollouts = [json.loads(line) for line in file.read_text().splitlines()]
        for probe in (probe for rollout in rollouts for probe in rollout["probes"]):
            probe["anchor_text"] = " " + WORDS[probe["anchor"]]
        file.write_text("".join(json.dumps(rollout) + "\n" for rollout in rollouts))
    result = diagnose_continuations(bare, decode=lambda tokens: "".join(" " + WORDS[token] for token in tokens))
    write(bare / "diagnostics", result)
    found = table(1, bare)
    assert not any(cell.missing for cells in found.rows[:4] for cell in cells)
    assert all(cell.detail == "probes end at k = 8" for cell in found.rows[4][1:])


def test_table_1_without_the_diagnostic_or_an_event_is_missing(bare):
    found = table(1, bare)
    assert all(cell.missing and cell.detail for cells in found.rows for cell in cells[1:])
    assert "aopsd diagnose continuations RUN" in found.caption
    (bare / "diagnostics").mkdir()
    (bare / "diagnostics/continuations.json").write_text(continuations([]))
    assert all(cell.detail == "no event counted" for cells in table(1, bare).rows for cell in cells[1:])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "`tables`"),
        (continuations([], "All"), "no table of events with gap > 0"),
        (continuations([intent(2, None, 1)]), "correction cues`"),
    ],
)
def test_broken_diagnostics_are_named(bare, content, message):
    (bare / "diagnostics").mkdir()
    (bare / "diagnostics/continuations.json").write_text(content)
    with pytest.raises(UserError, match=message):
        table(1, bare)


# --- Table 2


def test_table_2_by_benchmark_and_epoch(bare):
    """Two steps an epoch: step 2 ends epoch 1, step 4 epoch 2, step 6 epoch 3; step 5 is in the middle of one."""
    for step, solved in ((2, (1, 2, 3, 4)), (4, (1, 1, 1, 1)), (5, (4, 4, 4, 4)), (6, (0, 2, 3, 3))):
        summaries = {name: evaluated(count) for name, count in zip(PAPER_SETS, solved, strict=True)}
        add_results(bare / "eval" / f"all_step_{step}", f"step_{step:06d}", summaries)
    found = table(2, bare)
    assert found.header == ("Method", "HMMT25", "AIME24", "AIME25", "BRUMo25", "Avg. E1", "Avg. E2", "Avg. E3")
    cells = row(found, "AOPSD")
    assert texts(cells[1:]) == ["0.0", "50.0", "75.0", "75.0", "62.5", "25.0", "50.0"]
    assert [cell.detail for cell in cells[1:]] == ["0/4", "2/4", "3/4", "3/4", "10/16", "4/16", "8/16"]
    assert cells[0].detail == "main, step 6"
    assert texts(cells[0] for cells in found.rows) == ["Base", "SFT", "GRPO", "OPSD", "OP²SD", "DASH", "AOPSD"]
    for name in ("SFT", "GRPO", "OPSD", "OP²SD", "DASH"):
        assert all(cell.missing and cell.detail == "no run" for cell in row(found, name)[1:])
    assert all(cell.missing for cell in row(found, "Base")[1:])


def test_average_is_of_benchmarks_and_not_of_problems(bare):
    summaries = {name: evaluated(1, num_problems=2) for name in PAPER_SETS[:3]}
    add_results(bare / "eval/x", "step_000006", summaries | {"brumo25": evaluated(6, num_problems=6)})
    cell = row(table(2, bare), "AOPSD")[-1]
    assert (cell.text, cell.detail) == ("62.5", "9/12")  # (50 + 50 + 50 + 100) / 4, where 9 of 12 would be 75


def test_what_is_not_there_is_missing_with_its_reason(bare):
    summaries = {"aime24": evaluated(2), "aime25": evaluated(2, num_samples=4), "mine": evaluated(3)}
    add_results(bare / "eval/x", "step_000006", summaries)
    found = table(2, bare)
    hmmt, aime24, aime25, _, mine, first, _, third = row(found, "AOPSD")[1:]
    assert found.header[5] == "mine" and (mine.text, mine.detail) == ("75.0", "3/4")
    assert aime24.text == "50.0"
    assert (hmmt.missing, hmmt.detail) == (True, "not evaluated")
    assert (aime25.missing, aime25.detail) == (True, "4 samples, 8 needed")
    assert (first.missing, first.detail) == (True, "0 of 4 sets")
    assert (third.missing, third.detail) == (True, "1 of 4 sets")


def test_more_samples_give_the_unbiased_estimate(bare):
    """One right of 16: pass@8 = 1 - C(15, 8) / C(16, 8) = 1/2 for a solved problem. Plain counts win if there are."""
    add_results(bare / "eval/x16", "step_000006", {"aime24": evaluated(4, num_samples=16)})
    assert [(cell.text, cell.detail) for cell in row(table(2, bare), "AOPSD")[2:3]] == [
        ("50.0", "4 problems × 16 samples")
    ]
    add_results(bare / "eval/x8", "step_000006", {"aime24": evaluated(1)})
    assert row(table(2, bare), "AOPSD")[2].detail == "1/4"


def test_training_s_own_evaluations_count(tmp_path):
    """The held-out file of the run is called problems.jsonl; called aime24.jsonl it fills that column."""
    run = write_run(tmp_path / "main", steps_per_epoch=2, batch=2, num_held_out=10)
    found = table(2, run)
    assert found.header[5] == "problems"
    last = json.loads((run / "eval/epoch_003.json").read_text())
    solved = sum(count > 0 for count in last["correct_per_problem"].values())
    assert row(found, "AOPSD")[5].detail == f"{solved}/10"
    first = json.loads((run / "eval/epoch_000.json").read_text())
    assert row(found, "Base")[5].text == f"{100 * first['pass_at_k']['8']:.1f}"
    config = run / "config.yaml"
    config.write_text(
        re.sub(r"evaluation: \{data_path: [^,]+,", "evaluation: {data_path: aime24.jsonl,", config.read_text())
    )
    assert row(table(2, run), "AOPSD")[2].detail == f"{solved}/10"


def test_a_run_stands_in_the_row_of_the_method_that_it_equals_and_others_below_as_what_they_are(tmp_path):
    def made(name, method, *overrides):
        run = write_run(tmp_path / name, num_epochs=1, steps_per_epoch=1, batch=2, evaluations=False)
        return configured(run, method, *overrides)

    paths = [
        made("a", "delta_1"),
        made("b", "aopsd", "aopsd.probes.threshold=1.5", "aopsd.seed=3"),
        made("c", "aopsd", "aopsd.seed=4"),
        made("d", "delta_2"),  # AOPSD's own threshold
        made("e", "pg"),
        made("f", "op2sd_4b_paper"),
        *(made(name, name) for name in ("sft", "grpo", "opsd", "op2sd", "dash")),
        made("g", "opsd", "aopsd.probes.threshold=1"),  # which OPSD does not read
        made("h", "shuffled", "aopsd.context.kind=dag_full", "aopsd.mask_truncated=true"),
    ]
    found = table(2, *paths)
    assert [(cells[0].text, cells[0].detail) for cells in found.rows[1:]] == [
        ("SFT", "sft, no evaluation"),
        ("GRPO", "grpo, no evaluation"),
        ("OPSD", "opsd, no evaluation"),
        ("OPSD", "g, no evaluation"),
        ("OP²SD", "op2sd, no evaluation"),
        ("DASH", "dash, no evaluation"),
        ("AOPSD", "c, no evaluation"),
        ("AOPSD", "d, no evaluation"),
        ("delta_1", "a, no evaluation"),
        ("aopsd + probes.threshold=1.5", "b, no evaluation"),
        ("pg", "e, no evaluation"),
        ("op2sd_4b_paper", "f, no evaluation"),
        ("shuffled + context.kind=dag_full, mask_truncated=true", "h, no evaluation"),
    ]
    assert [cells[0].text for cells in table(3, *paths[:5]).rows] == [
        *("Sampled-token PG", "PG + continuation", "Top-16 forward KL", "Top-32 forward KL"),
        *("delta_1", "aopsd + probes.threshold=1.5", "aopsd", "aopsd"),
    ]


def test_runs_of_a_suite_are_told_apart(tmp_path):
    runs = [
        configured(write_run(tmp_path / name / "seed_0", num_epochs=1, steps_per_epoch=1, batch=2), name)
        for name in ("opsd", "delta_1")
    ]
    details = [cells[0].detail for cells in table(2, *runs).rows if "step" in cells[0].detail]
    assert details == ["opsd/seed_0, step 1", "delta_1/seed_0, step 1"]


def test_a_run_without_a_step_is_the_base(bare, tmp_path):
    base = configured(write_run(tmp_path / "base", num_epochs=0, steps_per_epoch=2, batch=2, num_held_out=10), "base")
    found = table(2, bare, base)
    first = json.loads((base / "eval/epoch_000.json").read_text())
    assert row(found, "Base")[5].text == f"{100 * first['pass_at_k']['8']:.1f}"
    assert texts(cells[0] for cells in found.rows) == ["Base", "SFT", "GRPO", "OPSD", "OP²SD", "DASH", "AOPSD"]
    assert all(cells[0].text != "base" for cells in table(3, bare, base).rows)


def test_without_the_list_of_methods_no_run_gets_a_name(bare, monkeypatch):
    monkeypatch.setattr("nemo_aopsd.analysis.report.paper_sources.label_run", lambda aopsd: None)
    assert table(2, bare).rows[-1][0].text == "unknown: no examples/configs here to compare with"
    assert row(table(2, bare), "AOPSD")[1].detail == "no run"


def test_base_from_an_evaluation_of_the_model(bare, tmp_path):
    base = add_results(tmp_path / "base", "tiny-qwen3", {name: evaluated(2) for name in PAPER_SETS})
    other = add_results(tmp_path / "other", "Qwen3", {"aime24": evaluated(3)})
    config = bare / "config.yaml"
    config.write_text(config.read_text().replace("tiny-qwen3", "models/tiny-qwen3"))  # the same by its last name
    found = table(2, bare, other, base)
    assert texts(row(found, "Base", "Qwen3")[1:4]) == ["missing", "75.0", "missing"]
    cells = row(found, "Base", "tiny-qwen3")
    assert texts(cells[1:]) == ["50.0"] * 7
    assert cells[5].detail == "8/16"
    another = write_run(tmp_path / "run", steps_per_epoch=2, batch=2)  # its base is not that of the first run
    config = another / "config.yaml"
    config.write_text(config.read_text().replace("tiny-qwen3", "another"))
    found = table(2, bare, another)
    assert all(cell.missing for cell in row(found, "Base")[1:])
    assert "Models: another, models/tiny-qwen3." in found.caption


# --- Table 3


def with_times(run, seconds):
    """Give the steps of a run these `time/step`."""
    file = run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for record, value in zip(rows, seconds, strict=True):
        record["time/step"] = value
    file.write_text("".join(json.dumps(record) + "\n" for record in rows))
    return run


def test_table_3_minutes_and_relative_time(bare, tmp_path):
    plain = write_run(tmp_path / "plain", num_epochs=2, steps_per_epoch=2, batch=2)
    configured(plain, "pg"), configured(bare, "continuation")
    with_times(plain, [60, 60, 120, 120])  # 2 and 4 minutes
    with_times(bare, [60, 120, 60, 120, 240, 480])  # 3, 3 and 12 minutes
    found = table(3, bare, plain)
    assert [cells[0].text for cells in found.rows] == [
        *("Sampled-token PG", "PG + continuation", "Top-16 forward KL", "Top-32 forward KL")
    ]
    assert texts(found.rows[0][1:]) == ["3", "1.000×"] and found.rows[0][1].detail == "2 epochs, 4 steps"
    assert texts(found.rows[1][1:]) == ["6", "2.000×"] and found.rows[1][1].detail == "3 epochs, 6 steps"
    assert [found.rows[index][1].share for index in (0, 1)] == [0.5, 1.0]
    assert all(cell.detail == "no run" for cells in found.rows[2:] for cell in cells[1:])


def test_an_unfinished_epoch_does_not_count(bare):
    with_times(configured(bare, "continuation"), [60, 120, 60, 120, 1, 1])
    history = (bare / "competence.jsonl").read_text().splitlines(keepends=True)
    (bare / "competence.jsonl").write_text("".join(history[:3]))  # before training, after epochs 1 and 2
    cells = row(table(3, bare), "PG + continuation")
    assert (cells[1].text, cells[1].detail) == ("3", "2 epochs, 4 steps")
    assert (cells[2].missing, cells[2].detail) == (True, "no Sampled-token PG run")
    (bare / "competence.jsonl").write_text(history[0])
    assert row(table(3, bare), "PG + continuation")[1].detail == "no epoch finished"


# --- the page and the command


def test_the_page_has_the_tables(bare, tmp_path):
    base = add_results(tmp_path / "b a <s> e", "<b>Qwen3</b>", {"aime24": evaluated(2)})
    result = CliRunner().invoke(app, ["report", str(bare), "--with", str(base), "--with", str(bare)])
    assert result.exit_code == 0, result.output
    html = (bare / "report.html").read_text()
    for title in ("Table 1: what short", "Table 2: overall", "Table 3: training time"):
        assert html.count(title) == 1
    assert html.count('class="absent">missing<small>no run</small>') == 5 * 7 + 4 * 2
    folded = re.findall(r"<details( open)?>\s*<summary class=\"small\">(\d+) of (\d+) cells have a value", html)
    assert [bool(is_open) for is_open, *_ in folded] == [True, False, False, False]  # side by side, then the paper's
    assert all(int(filled) < int(cells) / 2 for _, filled, cells in folded[1:])
    assert "50.0<small>2/4</small>" in html and "<b>Qwen3" not in html
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
