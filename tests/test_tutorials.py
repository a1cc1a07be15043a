"""The tutorials of docs/: their commands run as they stand, on the built-in model and a few problems."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
import yaml

from nemo_aopsd.analysis.suite import processes
from nemo_aopsd.config.load import load_config
from tests import REPO
from tests.fake_train import CHILD, Forked

BUILTIN = REPO / "nemo_aopsd/builtin"
ELSEWHERE = ("make setup", "source ", "pip ", "hf ", "curl ", "URL=", "MODEL=")  # downloads: not part of the test
FEW = "data.train.data_path=train.jsonl aopsd.evaluation.data_path=held_out.jsonl aopsd.evaluation.num_samples=1"
SHORT = "aopsd.max_num_steps=1 aopsd.num_prompts_per_step=4 aopsd.curriculum.num_initial_attempts=1"
LESS = {  # what a command gets in addition, so that it takes seconds
    "demo": f"{FEW} {SHORT}",
    "train demo": f"{FEW} {SHORT}",
    "train examples/": f"{SHORT} data.train.data_path=own.jsonl policy.generation.max_new_tokens=8",
    "judge eval": "--kind log_odds",
    "diagnose direction": "--answers 4",
}
INSTEAD = {
    **{"$MODEL": "models/student", "examples/data/judge_cases.jsonl": "cases.jsonl"},
    **{"held-out 400": "held-out 2", "--problems 256": "--problems 8"},
}


def blocks(page, language):
    """The fenced blocks of a page, in order."""
    text = (REPO / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page):
    """The lines to type, without those that download."""
    for line in "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines():
        if not line.startswith(ELSEWHERE):
            yield line.replace("make demo", "aopsd demo")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder that looks like a checkout after the downloads."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(REPO / "examples")
    for name, source, count in (("train", "train", 4), ("held_out", "heldout", 2)):
        lines = (BUILTIN / f"data/{source}.jsonl").read_text(encoding="utf-8").splitlines()
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines[:count]), encoding="utf-8")
    lines = (REPO / "examples/data/problems.jsonl").read_text(encoding="utf-8").splitlines()
    model = shutil.copytree(BUILTIN / "model", tmp_path / "models/student")
    settings = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 4096}), encoding="utf-8")
    (tmp_path / "own.jsonl").write_text("\n".join(lines[:4]), encoding="utf-8")
    lines = (REPO / "examples/data/judge_cases.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "cases.jsonl").write_text("\n".join(lines[:3]), encoding="utf-8")
    return tmp_path


def run_all(page, command_line, allowed=(0,)):
    """Run the commands of a page; returns them. `allowed` are exit codes of the demo."""
    ran = []
    for line in commands(page):
        assert line.startswith("aopsd "), line
        words = line.partition("#")[0].removeprefix("aopsd ").strip()
        fitted = " ".join([words, *(less for start, less in LESS.items() if words.startswith(start))])
        for there, here in INSTEAD.items():
            fitted = fitted.replace(there, here)
        code, out, err = command_line(fitted)
        assert code in (allowed if words == "demo" else (0,)), f"{line}\n{out}{err}"
        ran.append(words)
    return ran


@pytest.mark.slow
def test_the_demo_and_own_problems(place, command_line):
    ran = run_all("tutorial_laptop.md", command_line, allowed=(0, 1))  # 1: no gain, after a single step
    assert len(ran) >= 10
    for made in (
        "runs/demo/report.html",
        "runs/opsd/metrics.jsonl",
        "runs/graph.svg",
        "runs/dags.html",
        "runs/smollm2/report.html",
    ):
        assert (place / made).stat().st_size, made


SMALLER = {
    "policy": {"precision": "float32", "generation": {"max_new_tokens": 112}, "prefix_cache_gb": 0},
    "aopsd": {
        "prompts": "tiny",  # those that the built-in model knows
        "max_num_steps": 1,
        "num_prompts_per_step": 4,
        "judge": {"max_new_tokens": 64},
        "curriculum": {"num_initial_attempts": 1},
        "evaluation": {"num_samples": 1, "max_new_tokens": 112},
    },
}


def as_gsm8k(line):
    """A built-in problem in the form of GSM8K, None if a checkpoint gives its answer away."""
    row = json.loads(line)
    values = [node["statement"].split("=") for node in row["dag"]["nodes"]]
    worked = [f"{name} is <<{value}={value}>>{value}" for name, value in values]
    if row["answer"] in {value for _, value in values}:
        return None
    steps = [*worked, f"So <<{row['answer']}={row['answer']}>>{row['answer']}", f"#### {row['answer']}"]
    return json.dumps({"question": row["problem"], "answer": "\n".join(steps)}) + "\n"


@pytest.mark.slow
def test_gsm8k_from_a_file_to_a_comparison(place, command_line, monkeypatch):
    lines = (BUILTIN / "data/train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(as_gsm8k, lines) if row]
    (place / "runs/data").mkdir(parents=True)
    (place / "runs/data/train.jsonl").write_text("".join(rows[:10]), encoding="utf-8")
    (place / "runs/data/test.jsonl").write_text("".join(rows[10:12]), encoding="utf-8")
    at_first = {path.name for path in place.iterdir()}
    for block in blocks("tutorial_gsm8k.md", "yaml"):
        name, content = block.splitlines()[0].removeprefix("# "), yaml.safe_load(block)
        (place / name).write_text(yaml.safe_dump(merged(content, SMALLER) if name == "mine.yaml" else content))
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setattr(processes, "CHILD", CHILD)
    monkeypatch.setattr(processes, "_PAUSE", 0.01)
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=Forked, PIPE=None, STDOUT=None))
    ran = run_all("tutorial_gsm8k.md", command_line)
    assert len(ran) >= 15
    for made in ("runs/direction/direction.md", "runs/mine/report.html", "runs/mine_test/results.md"):
        assert (place / made).stat().st_size, made
    assert len(list(place.glob("runs/compare/suite/*/seed_2"))) == 5
    made = {"mine.yaml", "judged.yaml", "suite.yaml"}  # all else is in runs/
    assert {path.name for path in place.iterdir()} == at_first | made
    member = place / "runs/compare/suite/aopsd/seed_0/config.yaml"
    orders = {
        yaml.safe_load(path.read_text())["aopsd"]["curriculum"]["name"]
        for path in (member, place / "runs/mine/config.yaml")
    }
    assert orders == {"shuffle"}  # that of the published row


def test_gsm8k_through_nemo_rl_is_checked_where_nemo_rl_is_not(place, command_line):
    [config] = blocks("nemo_rl.md", "yaml")
    (place / "mine_gsm8k.yaml").write_text(config.replace("models/coder", "models/student"), encoding="utf-8")
    (place / "runs/data").mkdir(parents=True)
    for name in ("gsm8k", "gsm8k.dev"):
        shutil.copy(place / "own.jsonl", place / f"runs/data/{name}.jsonl")
    [word] = re.findall(r"`aopsd (train mine_gsm8k.yaml --check [^`]*)`", (REPO / "docs/nemo_rl.md").read_text("utf-8"))
    code, out, err = command_line(word)
    assert (code, "4 problems" in out) == (0, True), out + err


def test_the_recipe_of_the_results_page_is_a_part_of_the_tutorial():
    [recipe] = blocks("results.md", "bash")
    typed = [line for line in recipe.splitlines() if not line.startswith("#")]
    assert len(typed) == 3
    assert set(typed) <= {line.partition("#")[0].strip() for line in commands("tutorial_gsm8k.md")}


@pytest.mark.parametrize("page", ["tutorial_gsm8k.md", "nemo_rl.md"])
def test_a_killed_run_of_a_tutorial_has_a_checkpoint_to_go_on_from(page, place):
    config = blocks(page, "yaml")[0]
    (place / "mine.yaml").write_text(config, encoding="utf-8")
    loaded = load_config(place / "mine.yaml", [])
    assert loaded.checkpointing["enabled"]
    assert loaded.checkpointing["save_period"] * 2 <= loaded.aopsd.max_num_steps


def test_the_sweep_has_as_many_runs_as_its_script_says():
    script = (REPO / "examples/gsm8k.sh").read_text(encoding="utf-8")
    suite = yaml.safe_load((REPO / "examples/suites/gsm8k_sweep.yaml").read_text(encoding="utf-8"))
    assert re.findall(r"--seeds 1 .*# (\d+) runs", script) == [str(len(suite["members"]))]


# Of a run at its greatest, GB: weights, gradients, Adam, a pack with its logits, kept keys and values.
@pytest.mark.parametrize(
    ("shape", "gigabytes"),
    [((896, 24, 14, 4864), 28), ((1536, 28, 12, 8960), 70)],  # Qwen2.5-Coder of 0.5B and 1.5B
)
def test_the_stated_memory_of_a_gsm8k_run_is_that_of_the_plan(shape, gigabytes, tmp_path, command_line):
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    settings = dict(zip(names, shape, strict=True)) | {"vocab_size": 151936, "tie_word_embeddings": True}
    settings |= {"model_type": "qwen2", "num_key_value_heads": 2, "max_position_embeddings": 32768}
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    config = REPO / "examples/configs/gsm8k.yaml"
    code, out, err = command_line(f"plan {config} --gpu h100 --json policy.model_name={tmp_path}")
    assert code == 0, err
    assert round(json.loads(out)["memory_bytes"]["training"] / 1e9) == gigabytes
    for page in ("examples/gsm8k.sh", "docs/tutorial_gsm8k.md"):
        assert f"{gigabytes} GB" in (REPO / page).read_text(encoding="utf-8"), page


def merged(under, over):
    """`over` on top of `under`, block by block."""
    both = {
        key: merged(under[key], over[key]) if isinstance(over[key], dict) else over[key] for key in under.keys() & over
    }
    return {**over, **under, **both}
