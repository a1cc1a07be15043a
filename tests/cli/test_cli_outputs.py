"""No command writes over what it reads: not `--out`, nor what goes beside it; by no spelling of the path."""

import json
import os
from pathlib import Path

import pytest

from nemo_aopsd.cli import train
from nemo_aopsd.graphs.pipeline.results import files_of
from tests.cli.test_cli import CONFIG, row, write_rows
from tests.cli.test_help import commands
from tests.local_models import tiny_model, tiny_tokenizer

SERVER = "--base-url http://127.0.0.1:9/v1 --model m"
JUDGE = "judge eval --cases cases.jsonl --problems problems.jsonl"
CLASHES = [
    # (command, what the message calls the input, the input)
    ("dag show problems.jsonl --problem p1 --out problems.jsonl", "FILE", "problems.jsonl"),
    ("dag stats problems.jsonl --out problems.jsonl", "FILE", "problems.jsonl"),
    ("dag browse problems.jsonl --out problems.jsonl", "FILE", "problems.jsonl"),
    (f"dag build problems.jsonl --out problems.jsonl {SERVER}", "PROBLEMS", "problems.jsonl"),
    (f"dag build z.rejects.jsonl --out z.jsonl {SERVER}", "PROBLEMS", "z.rejects.jsonl"),
    (f"dag build z.journal.jsonl --out z.jsonl {SERVER}", "PROBLEMS", "z.journal.jsonl"),
    (f"dag build z.summary.json --out z.jsonl {SERVER}", "PROBLEMS", "z.summary.json"),
    ("data prepare problems.jsonl --out problems.jsonl", "SOURCE", "problems.jsonl"),
    ("data prepare problems.jsonl --out held.jsonl --against held.jsonl", "--against", "held.jsonl"),
    ("data prepare z.ids.jsonl --out z.jsonl", "SOURCE", "z.ids.jsonl"),
    ("data prepare problems.jsonl --out z.jsonl --against z.report.json", "--against", "z.report.json"),
    ("data gsm8k problems.jsonl --out problems.jsonl", "SOURCE", "problems.jsonl"),
    ("data gsm8k z.dev.jsonl --out z.jsonl --held-out 1", "SOURCE", "z.dev.jsonl"),
    (f"{JUDGE} {SERVER} --out cases.jsonl", "--cases", "cases.jsonl"),
    (f"{JUDGE} {SERVER} --out problems.jsonl", "--problems", "problems.jsonl"),
    (f"{JUDGE} --config run.yaml --out run.yaml", "--config", "run.yaml"),
    (f"{JUDGE} --config run.yaml --out m.gguf policy.model_name=m.gguf", "policy.model_name", "m.gguf"),
    ("grade answers.jsonl --out answers.jsonl", "FILE", "answers.jsonl"),
    ("grade --cases cases.jsonl --out cases.jsonl", "--cases", "cases.jsonl"),
    ("paired-test runs/a/one.json runs/a/two.json --out runs/a/two.json", "OTHER", "runs/a/two.json"),
    ("paired-test runs/a runs/b --out runs/a/results.json", "FIRST", "runs/a/results.json"),
    ("export .mine.partial --out mine", "TARGET", ".mine.partial"),
    ("export .mine.partial/checkpoints/step_1 --out mine", "TARGET", ".mine.partial/checkpoints/step_1"),
    ("evaluate model --data problems.jsonl --out .", "--data", "problems.jsonl"),
    (
        "diagnose direction run.yaml --out . data.train.data_path=direction.json",
        "data.train.data_path",
        "direction.json",
    ),
    ("compare suites/shared.yaml --out suites", "SUITE", "suites/shared.yaml"),
    ("demo --out runs/a data.train.data_path=runs/a/rollouts/step_000001.jsonl", "data.train.data_path", "runs/a/roll"),
]


@pytest.fixture
def aopsd(tmp_path, monkeypatch, command_line):
    """Run a command line in a folder where every input is there; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "find_recipe", lambda path: tmp_path / "run.yaml")
    (tmp_path / "run.yaml").write_text(CONFIG)
    write_rows("problems.jsonl", *map(row, range(8)))
    write_rows("cases.jsonl", {"problem_id": "p0", "attempt": "x", "established": []})
    suite = "config: ../run.yaml\nreference: opsd\nmembers: {base: , opsd: }\n"
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/metrics.jsonl").touch()
    given = {path for _, _, path in CLASHES if Path(path).suffix and not Path(path).exists()}
    given -= {".mine.partial", "runs/a/roll", "suites/shared.yaml"}
    given |= {".mine.partial/checkpoints/step_1/model", "runs/a/rollouts/step_000001.jsonl"}
    given |= {"runs/a/one.json", "runs/b/results.json"}
    for name in given:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("precious\n")
    Path("suites").mkdir()
    Path("suites/shared.yaml").write_text(suite)
    return command_line


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("line", "name", "path"), CLASHES, ids=[line for line, _, _ in CLASHES])
def test_what_is_read_is_not_written_over(aopsd, tmp_path, line, name, path):
    if line.startswith("evaluate"):
        tiny_model("qwen3", seed=3).save_pretrained("model")
        tiny_tokenizer().save_pretrained("model")
    before = contents(tmp_path)
    code, _, err = aopsd(line)
    assert code == 2 and "error: --out: would write " in err and f" over {name} {path}" in err, err
    assert "Choose another --out" in err and contents(tmp_path) == before


def test_every_command_with_an_output_is_among_the_cases():
    with_output = {name for name, command in commands() if any(parameter.name == "out" for parameter in command.params)}
    tried = {name for name in with_output if any(line.startswith(f"{name} ") for line, _, _ in CLASHES)}
    assert with_output == tried


def test_links_other_spellings_and_the_file_on_the_way_are_seen_through(aopsd, tmp_path):
    os.symlink("problems.jsonl", "symbolic")
    os.link("problems.jsonl", "hard")
    os.symlink(".", "to_folder")
    before = Path("problems.jsonl").read_bytes()
    folder = tmp_path.name
    for out in ("./problems.jsonl", f"../{folder}/problems.jsonl", "symbolic", "hard", "to_folder/problems.jsonl"):
        code, _, err = aopsd(f"dag stats problems.jsonl --out {out}")
        assert code == 2 and "over FILE problems.jsonl" in err and Path("problems.jsonl").read_bytes() == before, out
    os.rename("problems.jsonl", ".stats.jsonl.partial")
    code, _, err = aopsd("dag stats .stats.jsonl.partial --out stats.jsonl")
    assert code == 2 and "would write .stats.jsonl.partial over FILE" in err


def test_patterns_where_a_diagnosis_goes(tmp_path):
    from nemo_aopsd.analysis.diagnostics.output import Result
    from nemo_aopsd.cli.diagnose import _write
    from nemo_aopsd.errors import UserError

    result = Result(name="gaps", title="", settings={}, samples={}, tables=[], figure="<svg/>")
    mine = tmp_path / "diagnostics/gaps.json"
    mine.parent.mkdir()
    mine.write_text("precious")
    with pytest.raises(UserError, match=r"RUN: would write .*gaps\.json over --patterns .* Choose another RUN"):
        _write(tmp_path, result, [("--patterns", mine)])
    assert mine.read_text() == "precious"


def test_an_output_that_is_no_input_is_written_and_a_folder_in_its_place_named(aopsd):
    for _ in range(2):  # and again
        assert aopsd("dag stats problems.jsonl --out stats.jsonl")[0] == 0
    Path("taken").mkdir()
    code, _, err = aopsd("dag stats problems.jsonl --out taken")
    assert code == 2 and err == "error: --out: taken is a folder; expected a file to write. Name a file in it.\n"


@pytest.mark.parametrize("place", files_of(Path("dags.jsonl")), ids=str)
def test_a_first_build_replaces_nothing_that_it_did_not_make(aopsd, place):
    place.write_text("precious\n")
    code, _, err = aopsd(f"dag build problems.jsonl --out dags.jsonl {SERVER}")
    assert code == 2 and str(place) in err and "hoose another --out" in err
    assert place.read_text() == "precious\n"


def test_what_prepare_writes_is_listed(aopsd, tmp_path):
    from nemo_aopsd.data.prepare import files_of as prepared

    before = set(contents(tmp_path))
    assert aopsd("data prepare problems.jsonl --out kept.jsonl")[0] == 0
    assert set(contents(tmp_path)) - before == {tmp_path / path for path in prepared(Path("kept.jsonl"))}
    assert len(json.loads(Path("kept.ids.jsonl").read_text().splitlines()[0])) == 2
