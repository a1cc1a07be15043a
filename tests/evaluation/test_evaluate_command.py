"""`aopsd evaluate` and `aopsd paired-test` on small models: targets, ids that repeat, tables, and what is refused."""

import json
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from nemo_aopsd import engines, prompts
from nemo_aopsd.cli import app as cli
from nemo_aopsd.cli import evaluate as evaluate_command
from nemo_aopsd.config.schema import AOPSDConfig, EvaluationConfig, ThinkingConfig
from nemo_aopsd.engines import local
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_jsonl, write_jsonl
from nemo_aopsd.models.tokenizer import HFTokenizer
from nemo_aopsd.prompts import fill
from nemo_aopsd.run import checkpoint
from nemo_aopsd.run.target import find_target, with_prompts, write_asked
from tests.evaluation.test_evaluate import Guesser
from tests.local_models import tiny_model, tiny_tokenizer

ANSWERS = ["4", "7"]
CONFIG = """\
policy:
  model_name: model
  max_total_sequence_length: 600
  optimizer: {kwargs: {lr: 0.01}}
  generation: {max_new_tokens: 8}
data: {train: {data_path: one.jsonl}}
logger: {log_dir: run}
checkpointing: {save_period: 1, keep_top_k: 9}
aopsd:
  num_prompts_per_step: 1
  max_num_epochs: 1
  weighting: uniform
  context: {kind: solution}
  curriculum: {name: shuffle}
  evaluation: {num_samples: 3, max_new_tokens: 9, temperature: 0.9}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    tiny_model("qwen3", seed=3).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def write_inputs(model):
    shutil.copytree(model, "model")
    Path("run.yaml").write_text(CONFIG)
    for name in ("one", "two"):
        rows = (
            {"id": f"{name}{i}", "problem": f"WHAT IS {i}?", "answer": answer, "solution": "NO"}
            for i, answer in enumerate(ANSWERS)
        )
        write_jsonl(Path(f"{name}.jsonl"), rows)


@pytest.fixture
def aopsd(tmp_path, monkeypatch, command_line, model):
    """Run a command line beside a model and two benchmarks; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    write_inputs(model)
    return command_line


def test_a_check_reads_all_but_the_model_and_writes_nothing(aopsd):
    Path("model/model.safetensors").unlink()
    code, text, _ = aopsd("evaluate model --data one.jsonl --data two.jsonl --samples 3 --check")
    assert code == 0 and text.startswith("ok: model, 3 samples a problem, problems: 2 of one, 2 of two; ")
    assert "Not checked: the weights" in text and not list(Path().rglob("*.settings.json"))
    assert "model names no held-out problems. Add --data FILE" in aopsd("evaluate model --check")[2]
    asked = "aopsd: {evaluation: {data_path: one.jsonl}}\n"  # of a model that was exported
    Path("model/aopsd.yaml").write_text(asked)
    code, text, told = aopsd("evaluate model --check")
    assert code == 0 and "problems: 2 of one; " in text
    assert told == "without --data, the held-out problems of its run: one.jsonl\n"
    Path("model/aopsd.yaml").write_text(asked.replace("one", "gone"))
    assert "model names gone.jsonl, which is not here (looked from " in aopsd("evaluate model --check")[2]
    Path("model/aopsd.yaml").unlink()
    for wrong in ("--data none.jsonl", "--data one.jsonl --prompts none", "--data one.jsonl --out model"):
        code, text, error = aopsd(f"evaluate model {wrong} --check")
        assert (code, text, error.startswith("error: ")) == (2, "", True), error


@pytest.fixture(scope="module")
def trained(tmp_path_factory, model):
    """A finished run, made once."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["aopsd", "train", "run.yaml"])
        write_inputs(model)
        with pytest.raises(SystemExit) as stop:
            cli.run()
    assert stop.value.code == 0
    return folder / "run"


def samples(folder, name):
    return [line for _, line in read_jsonl(Path(folder, f"{name}.jsonl"))]


OPTIONS = "--samples 4 --max-new-tokens 10 --batch-size 3"


def test_the_same_seed_gives_the_same_ids_whatever_else_is_evaluated(aopsd):
    assert aopsd(f"evaluate model --data one.jsonl --data two.jsonl {OPTIONS} --out both")[0] == 0
    assert aopsd(f"evaluate model --data two.jsonl {OPTIONS} --out alone")[0] == 0
    assert aopsd(f"evaluate model --data two.jsonl {OPTIONS} --seed 5 --out other")[0] == 0
    assert samples("both", "two") == samples("alone", "two")
    texts = [[line["response_text"] for line in samples(*place)] for place in (("both", "one"), ("both", "two"))]
    assert texts[0] != texts[1]  # the same questions, but a benchmark has seeds of its own
    assert [line["response_text"] for line in samples("other", "two")] != texts[1]
    assert len({line["seed"] for line in samples("both", "one")}) == 3  # 8 rows in blocks of three


def test_results_as_json_markdown_and_figure(aopsd):
    code, out, _ = aopsd(f"evaluate model --data one.jsonl --data two.jsonl {OPTIONS} --out results")
    assert code == 0
    assert re.search(r"^\| one \| 0\.0 % \[0\.0, 65\.8\] \| 0\.0 % .* \| 0 of 2 \| ", out, re.MULTILINE)
    assert re.search(r"\n\| mean \| .* 0 of 4 \|", out)
    results = json.loads(Path("results/results.json").read_text())
    assert results["settings"]["num_samples"] == 4 and results["settings"]["temperature"] == 0.6
    assert results["settings"]["longest_row"] == 2048 and results["settings"]["engine"] == "local"
    assert list(results["benchmarks"]) == ["one", "two"] and results["macro"]["num_responses"] == 16
    page = Path("results/results.md").read_text()
    assert "| mean | 0.0 % [0.0, 49.0] | 0 of 16 | 0.0 % [0.0, 49.0] | 0 of 4 |" in page
    assert "temperature `0.6`, top_p `0.95`, top_k `20`, max_new_tokens `10`" in page and "prompts `default`" in page
    assert "(results.svg)" in page and "\n| 4 | " in page
    figure = Path("results/results.svg").read_text()
    ElementTree.fromstring(figure)
    assert all(text in figure for text in ("one (n = 2)", "two (n = 2)", "mean over benchmarks (n = 4)", "pass@k"))
    calls = samples("results", "calls")
    assert [(call["benchmark"], call["new_samples"]) for call in calls] == [("one", 8), ("two", 8)]


def test_one_benchmark_with_one_sample(aopsd):
    code, out, _ = aopsd("evaluate model --data one.jsonl --samples 1 --max-new-tokens 5 --temperature 0")
    assert code == 0 and "at most 5 tokens; greedy, " in out
    page = Path("evaluations/one_model_x1/results.md").read_text()
    assert "mean |" not in page.split("##")[0] and page.count("pass@1 = avg@N") == 1
    ElementTree.fromstring(Path("evaluations/one_model_x1/results.svg").read_text())


def test_a_second_call_samples_nothing_and_other_settings_are_refused(aopsd):
    command = f"evaluate model --data one.jsonl {OPTIONS} --out results"
    assert aopsd(command)[0] == 0
    own = ("calls.jsonl", "manifest.jsonl")  # each call notes what it did
    before = {path.name: path.read_bytes() for path in Path("results").iterdir() if path.name not in own}
    assert aopsd(command)[0] == 0
    assert json.loads(Path("results/calls.jsonl").read_text().splitlines()[1])["new_samples"] == 0
    for changed, named in [
        (f"{command} --temperature 1", "temperature 0.6 -> 1.0"),
        (command.replace("--batch-size 3", "--batch-size 4"), "block_size 3 -> 4"),
        (f"{command} --seed 1", "(another seed)"),
        (f"{command} --no-thinking", "prompts_and_answers"),
    ]:
        code, _, err = aopsd(changed)
        assert code == 2 and "one.jsonl: made with other settings" in err and named in err
    weights = Path("model/model.safetensors").read_bytes()
    Path("model/model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    code, _, err = aopsd(command)
    assert code == 2 and "weights 'model " in err
    Path("model/model.safetensors").write_bytes(weights)
    for name in ("one.jsonl", "one.settings.json"):
        whole = Path("results", name).read_bytes()
        Path("results", name).write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        code, _, err = aopsd(command)
        assert code == 2 and f"{name}: damaged" in err
        Path("results", name).write_bytes(whole)
    assert {path.name: path.read_bytes() for path in Path("results").iterdir() if path.name not in own} == before


def test_a_run_its_checkpoints_and_how_they_compare(aopsd, trained):
    shutil.copytree(trained, "run")
    code, out, err = aopsd("evaluate run --data two.jsonl")  # its questions are those of one.jsonl
    assert err.startswith("warning: two: 2 of 2 evaluation problems are also trained on, such as 'two0'")
    assert code == 0 and re.search(r"\nstep_000002 \w{12}, 3 samples a problem, .*; run/eval/two_step_000002_x3/", out)
    assert "prompts default, temperature 0.9, top-p 0.95, top-k 20, at most 9 tokens; seed 0 (another --seed " in out
    settings = json.loads(Path("run/eval/two_step_000002_x3/two.settings.json").read_text())
    assert (settings["temperature"], settings["max_new_tokens"], settings["longest_row"]) == (0.9, 9, 600)
    code, out, _ = aopsd("evaluate run/checkpoints/step_000001 --data two.jsonl")
    assert code == 0 and "step_000001" in out
    earlier, later = "run/eval/two_step_000001_x3", "run/eval/two_step_000002_x3"
    assert samples(earlier, "two") != samples(later, "two")
    code, out, _ = aopsd(f"paired-test {earlier} {later} {later} --out pairs.json")
    assert code == 0 and out.count("| two | 3 |") == 2 and out.endswith("pairs.json\n")
    assert len(json.loads(Path("pairs.json").read_text())) == 2
    code, out, err = aopsd(f"paired-test {earlier} {later} {Path(earlier).resolve()}")
    assert code == 2 and not out and "is the same evaluation as FIRST" in err

    shutil.move("run/checkpoints/step_000001", "apart")
    code, _, err = aopsd("evaluate apart --data two.jsonl")
    assert code == 2 and "a checkpoint without its run" in err and "Pass --config" in err
    assert aopsd("evaluate apart --data two.jsonl --config run.yaml --out again")[0] == 0
    settings = Path("run/config.yaml").read_text()
    assert "  prompts: default\n" in settings
    Path("run/config.yaml").write_text(settings.replace("  prompts: default\n", "  prompts: gone\n"))
    shutil.copytree(Path(prompts.__file__).with_name("default"), "run/extensions/prompts")  # as the run keeps its own
    code, out, _ = aopsd("evaluate apart --data two.jsonl --config run/config.yaml --out kept")
    assert code == 0 and "prompts run/extensions/prompts, " in out
    assert samples("again", "two") == samples(earlier, "two")  # the place of a checkpoint says nothing of its weights


def test_a_warning_of_the_tokenizer_names_the_model_of_the_config_not_a_checkpoint(aopsd, trained):
    shutil.copytree(trained, "run")
    write_jsonl(Path("unread.jsonl"), [{"id": "a", "problem": "what is it?", "answer": "4"}])
    _, _, err = aopsd("evaluate run --data unread.jsonl --samples 1 --max-new-tokens 1")
    assert "warning: 1 of 1 questions are mostly unknown tokens to model (first: unread.jsonl:1" in err


def test_a_run_that_has_evaluated_the_same_problems_is_said_to_have_drawn_others(aopsd, trained):
    shutil.copytree(trained, "run")
    settings = Path("run/config.yaml").read_text()
    assert "    data_path: null\n" in settings
    Path("run/config.yaml").write_text(settings.replace("    data_path: null\n", "    data_path: two.jsonl\n"))
    said = "the run's own evaluations of two.jsonl drew other samples"
    assert said not in aopsd("evaluate run")[1]
    Path("run/eval/epoch_000.json").touch()
    assert said in aopsd("evaluate run")[1] and said not in aopsd("evaluate run --data one.jsonl")[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("evaluate . --data one.jsonl", r"\.: no run in it \(config\.yaml\), no checkpoint"),
        ("evaluate model --data nowhere.jsonl", r"nowhere\.jsonl: no such file"),
        ("evaluate model --data one.jsonl --engine vllm", r"vLLM is not installed"),
        ("evaluate model --data one.jsonl --gpu-memory 0.3", "--gpu-memory .* --engine vllm"),
        ("evaluate model --data one.jsonl --top-p 0", r"`aopsd\.evaluation\.top_p` must be .*; got 0\.0"),
        (
            "evaluate model --data one.jsonl --temperature 0.001",
            r"aopsd\.evaluation\.temperature` must be 0 \(greedy\)",
        ),
        ("evaluate model --data one.jsonl --temperature inf", r"--temperature inf: expected a finite number"),
        ("evaluate model --data one.jsonl --prompts klingon", r"no such prompt"),
        ("paired-test model model", r"results\.json: no such file"),
    ],
)
def test_what_cannot_be_done_is_one_message(aopsd, monkeypatch, options, message):
    monkeypatch.setitem(sys.modules, "vllm", None)
    code, _, err = aopsd(options)
    assert code == 2 and re.match("error: ", err) and re.search(message, err) and "Traceback" not in err


def test_ctrl_c_says_how_to_go_on(aopsd, monkeypatch):
    monkeypatch.setattr(local, "open_model", lambda config: (Guesser(fail_after=0), local_tokenizer()))
    code, _, err = aopsd(f"evaluate model --data one.jsonl {OPTIONS} --out results")
    assert code == 130 and "start the same command to go on" in err
    assert not Path("results/results.json").exists()


def local_tokenizer():
    return HFTokenizer(tiny_tokenizer(), [1])


def test_the_vllm_engine_is_given_rows_and_a_seed_each(aopsd, trained, monkeypatch):
    asked = []

    class Streaming:
        def stream(self, prompts, sampling, seeds):
            asked.append((len(prompts), sampling.temperature, len(set(seeds))))
            generations = dict(enumerate(Guesser().generate([["What is 4"]] * len(prompts), sampling, 0)))
            yield from ((row, replace(generation, tokens=[5, 6])) for row, generation in reversed(generations.items()))

    class Module:
        @staticmethod
        def open_model(config, memory_share):
            asked.append(memory_share)
            return Streaming(), local_tokenizer()

    monkeypatch.setattr(engines, "pick_vllm", lambda: Module)
    assert aopsd(f"evaluate model --data one.jsonl --engine vllm --gpu-memory 0.3 {OPTIONS} --out results")[0] == 0
    assert asked == [0.3, (8, 0.6, 8)]
    assert aopsd(f"evaluate model --data one.jsonl --engine vllm {OPTIONS} --out whole")[0] == 0
    assert asked[2:] == [0.9, (8, 0.6, 8)]
    assert [line["problem_id"] for line in samples("results", "one")] == ["one0"] * 4 + ["one1"] * 4
    shutil.copytree(trained, "run")
    code, _, err = aopsd("evaluate run --data one.jsonl --engine vllm")
    assert code == 2 and "step_000002 is a checkpoint, but vLLM takes a model directory" in err


def test_an_exported_checkpoint_is_a_model_that_answers_as_the_checkpoint_does(aopsd, trained):
    shutil.copytree(trained, "run")
    settings = Path("run/config.yaml").read_text()
    assert "    model: student\n" in settings
    Path("run/config.yaml").write_text(settings.replace("    model: student\n", "    model: judge_that_is_gone\n"))
    code, out, _ = aopsd("export run --out exported")
    assert (code, out) == (0, "exported\nto ask it as its run does: aopsd evaluate exported --data FILE\n")
    assert aopsd("evaluate run --data one.jsonl --out from_run")[0] == 0
    assert aopsd("evaluate exported --data one.jsonl --out from_export")[0] == 0
    assert len(samples("from_run", "one")) == 6 and samples("from_run", "one") == samples("from_export", "one")
    for target, name in (("run", "step_000002"), ("exported", "exported")):
        code, _, err = aopsd(f"evaluate {target} --data one.jsonl --prompts tiny --thinking --out other")
        assert code == 0 and f"{name}: asked with prompts tiny instead of default, thinking True " in err
        shutil.rmtree("other")
    assert "asked with" not in aopsd("evaluate model --data one.jsonl --prompts tiny --samples 1 --max-new-tokens 5")[2]
    code, _, err = aopsd("export run --out exported")
    assert code == 2 and "--out exported: exists" in err
    code, _, err = aopsd("export exported --out again")
    assert code == 2 and "exported: is a model directory already" in err


def test_an_exported_model_carries_how_its_run_asks_it_and_prompts_of_a_users_own(tmp_path, monkeypatch, model):
    exported = shutil.copytree(model, tmp_path / "exported")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "student.txt").write_text("MINE {problem}")
    (tmp_path / "mine" / "notes.md").write_text("not a prompt")
    asked = AOPSDConfig(
        prompts="tiny",
        thinking=ThinkingConfig(student=False),
        evaluation=EvaluationConfig(data_path="held_out.jsonl", top_p=1.0, top_k=0, num_samples=4),
    )
    write_asked(asked, exported)
    found = find_target(exported).config.aopsd
    assert (found.prompts, found.thinking) == ("tiny", asked.thinking)
    assert found.evaluation == asked.evaluation
    assert found.teacher.weights == "live"  # one network is enough to sample
    monkeypatch.chdir(tmp_path)
    write_asked(replace(asked, prompts=str(tmp_path / "mine")), exported)
    shutil.rmtree("mine")
    found = find_target(exported).config.aopsd
    assert fill(found.prompts, "student", problem="x") == "MINE x"
    assert [path.name for path in Path(found.prompts).iterdir()] == ["student.txt"]
    (exported / "aopsd.yaml").write_text("aopsd: {promts: tiny}")
    with pytest.raises(UserError, match=r"aopsd\.yaml:1: unknown key `aopsd\.promts`\. Did you mean `aopsd\.prompts`"):
        find_target(exported)


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["config.yaml", "metrics.jsonl"], "a run of `aopsd train`"),
        (["state.json"], "a checkpoint"),
        (["config.json"], "a model"),
    ],
)
def test_a_folder_of_another_kind_is_refused(aopsd, files, kind):
    for file in files:
        Path("out", file).parent.mkdir(parents=True, exist_ok=True)
        Path("out", file).touch()
    before = sorted(Path("out").rglob("*"))
    code, _, err = aopsd("evaluate model --data one.jsonl --out out")
    assert code == 2 and f"out: holds {kind}. Choose another folder." in err
    assert sorted(Path("out").rglob("*")) == before


def test_a_checkpoint_that_training_replaces_while_it_is_read_is_one_message(aopsd, trained, monkeypatch):
    shutil.copytree(trained, "run")
    load, newest = checkpoint.load, Path("run/checkpoints/step_000002")

    def load_slowly(path, engine):
        path.rename(path.with_name("step_000003"))  # training goes on
        return load(path, engine)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "load", load_slowly)
        for command in ("evaluate run --data one.jsonl", "export run --out exported"):
            code, _, err = aopsd(command)
            assert code == 2 and err.count("error: ") == 1 and f"{newest}: training replaced it by a newer" in err
            newest.with_name("step_000003").rename(newest)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "newest", lambda folder: folder / "step_000009")
        assert "step_000009: training replaced it" in aopsd("evaluate run --data one.jsonl")[2]
    code, out, _ = aopsd("evaluate run --data one.jsonl")
    assert code == 0 and "step_000002 " in out


def test_a_damaged_checkpoint_is_none_that_training_replaced(aopsd, trained):
    shutil.copytree(trained, "run")
    Path("run/checkpoints/step_000001/student.safetensors").unlink()
    code, _, err = aopsd("evaluate run/checkpoints/step_000001 --data one.jsonl")
    assert code == 2 and "step_000001/student.safetensors: damaged or missing" in err


def test_targets_by_hand(tmp_path, model):
    found = find_target(model)
    assert (found.name, found.checkpoint, found.config.max_row_tokens) == ("model", None, 2048)
    assert found.weights == find_target(model).weights
    asked = with_prompts(found, "tiny", False)
    assert (asked.config.aopsd.prompts, asked.config.aopsd.thinking.student) == ("tiny", False)
    assert with_prompts(found, None, None) == found
    writer = gguf.GGUFWriter(file := tmp_path / "x.gguf", "llama")
    writer.add_context_length(4096)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert find_target(file).config.max_row_tokens == 4096  # longer rows would be refused once it is loaded
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:30])
    with pytest.raises(UserError, match=r"cut or damaged: .*\. Check it, or copy it again\.$"):
        find_target(tmp_path / "cut.gguf")
    (tmp_path / "cut.gguf").unlink()
    with pytest.raises(UserError, match=rf"no model .* Name the file: {file}\."):
        find_target(tmp_path)


def test_the_checkpoint_is_chosen_on_other_problems_than_it_is_tested_on(aopsd, trained, monkeypatch):
    Path("dev.jsonl").write_text('{"id": "d", "problem": "AND 3?", "answer": "9"}\n')
    command = f"evaluate {trained} --data one.jsonl {OPTIONS}"
    code, out, err = aopsd(f"{command} --choose-on dev.jsonl --out even")
    assert "warning: one: 2 of 2" in err and "warning: dev" not in err  # what it is trained on, and what not
    assert code == 0 and "chosen: step_000001, of 2 kept" in out  # of equal ones the earliest
    dev = json.loads((trained / "eval/dev_step_000002_x4/results.json").read_text())
    assert list(dev["benchmarks"]) == ["dev"] and dev["settings"]["weights"].startswith("step_000002 ")

    measured = evaluate_command._Asked.measure

    def better_later(self, target, benchmarks, out):
        found, results, folder = measured(self, target, benchmarks, out)
        if "dev" in benchmarks:
            results["macro"]["pass_at_k"]["1"] = {"step_000001": 0.25, "step_000002": 0.5}[found.name]
        return found, results, folder

    monkeypatch.setattr(evaluate_command._Asked, "measure", better_later)
    out = aopsd(f"{command} --choose-on dev.jsonl --out later")[1]
    assert "step_000001: pass@1 25.0 % on dev" in out and "chosen: step_000002, of 2 kept" in out
    tested = json.loads(Path("later/results.json").read_text())
    assert list(tested["benchmarks"]) == ["one"] and tested["settings"]["weights"].startswith("step_000002 ")


def test_a_choice_on_the_test_problems_or_among_no_checkpoints_is_refused(aopsd, trained):
    code, _, err = aopsd(f"evaluate {trained} --data one.jsonl --choose-on two.jsonl")  # the same questions
    assert code == 2 and "--choose-on: 2 of its problems are in --data, too, such as two.jsonl:1" in err
    Path("dev.jsonl").write_text('{"id": "d", "problem": "AND 3?", "answer": "9"}\n')
    code, _, err = aopsd("evaluate model --data one.jsonl --choose-on dev.jsonl")
    assert code == 2 and "model: is no run (config.yaml)" in err
