"""`aopsd doctor`: each check on machines made up for it, worker environments as real processes, and the command."""

import ast
import json
import platform
import re
import shutil
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from nemo_aopsd import engines
from nemo_aopsd.cli.app import app
from nemo_aopsd.cluster import WORKERS
from nemo_aopsd.cluster.doctor import Surroundings, diagnose, look_around, machine, model, probe, versions
from nemo_aopsd.cluster.doctor.result import Check, run
from nemo_aopsd.config.load import load_config
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import write_jsonl
from tests import REPO, raw_graph

CONFIGS = REPO / "examples/configs"
H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0"
A100 = "NVIDIA A100, 81920, 8.0"
MATRIX = {"python": "3.12.3", **versions.TESTED}
EMBEDDED = REPO / "nemo_aopsd/builtin/model"


def answering(gpus=(H100,), import_error=None, versions=MATRIX):
    """A `run` that answers as a machine with these GPUs and worker environments would."""

    def run(command, seconds):
        if command[0] == "nvidia-smi":
            if not gpus:
                raise FileNotFoundError("nvidia-smi")
            return "\n".join(gpus)
        return "noise of an import\n" + json.dumps({"versions": versions, "import_error": import_error})

    return run


def around(installed=MATRIX, **machine_options):
    run = answering(**machine_options)
    found = look_around({}, run)
    return Surroundings(found.environment, dict(installed), found.gpus, found.why_no_gpu, run)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Settings with 8 problems of the built-in set to train on and 8 to measure on, not its 784."""
    folder = tmp_path_factory.mktemp("few")
    lines = (REPO / "nemo_aopsd/builtin/data/train.jsonl").read_text(encoding="utf-8").splitlines()
    for name, own in (("problems", lines[:8]), ("held_out", lines[8:16])):
        (folder / f"{name}.jsonl").write_text("\n".join(own), encoding="utf-8")
    return [f"data.train.data_path={folder}/problems.jsonl", f"aopsd.evaluation.data_path={folder}/held_out.jsonl"]


@pytest.fixture
def tiny_cluster(tmp_path, monkeypatch, few):
    monkeypatch.setattr(machine, "check_ports", lambda ports, environment: Check("ports", "ok", "", ""))
    words = [f"logger.log_dir={tmp_path}/run", f"policy.model_name={EMBEDDED}", *few]
    return load_config(CONFIGS / "aopsd_tiny_h100.yaml", words)


def by_name(diagnosis):
    return {check.name: check for check in diagnosis.checks}


def test_versions_are_those_of_the_verification_log_and_worker_classes_where_their_names_say():
    stack = " ".join((REPO / "docs/verification.md").read_text().split())
    names = {"torch": "torch", "megatron-bridge": "Megatron-Bridge", "transformer-engine": "Transformer Engine"}
    for package, name in names.items():
        assert f"{name} {versions.TESTED[package]}" in stack
    for ours, _ in WORKERS.values():
        module, _, name = ours.rpartition(".")
        source = (REPO / module.replace(".", "/")).with_suffix(".py").read_text()
        assert name in {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)}


def test_a_tested_machine_has_nothing_to_say(tiny_cluster):
    diagnosis = diagnose(tiny_cluster, around())
    assert [check for check in diagnosis.checks if check.severity != "ok"] == []
    assert diagnosis.parameters > 0 and {row.place for row in diagnosis.memory} == {"gpu", "host"}


@pytest.mark.parametrize(
    ("options", "name", "severity", "words"),
    [
        ({"gpus": ()}, "gpu", "error", "node that trains"),
        ({"gpus": ("Tesla V100, 32768, 7.0",)}, "gpu", "error", "newer"),
        ({"gpus": (A100,)}, "gpu", "warn", "aopsd.max_num_steps=2"),
        ({"installed": {**MATRIX, "nemo-rl": "0.8.0"}}, "nemo-rl", "warn", "tests/gpu"),
        ({"installed": {**MATRIX, "torch": "2.11.0+cu130"}}, "torch", "ok", ""),
        ({"installed": {**MATRIX, "transformers": "5.12.0"}}, "transformers", "error", "container"),
        ({"installed": {"python": "3.12.3"}}, "nemo-rl", "error", "container"),
        ({"installed": {"python": "3.12.3", "nemo-rl": "0.7.0"}}, "ray", "error", "container"),
        ({"installed": {**MATRIX, "python": "3.10.1"}}, "python", "error", "PYTHON="),
        ({"import_error": "ImportError: libcudnn"}, "worker megatron", "error", "container"),
        ({"import_error": "No module named 'nemo_aopsd'"}, "worker vllm", "error", "Without building an image"),
        ({"versions": {"vllm": "0.21.0"}}, "worker vllm: vllm", "warn", "tests/gpu"),
        ({"versions": {}}, "worker megatron: transformer-engine", "error", "container"),
    ],
)
def test_each_fault_is_found_with_its_remedy(tiny_cluster, options, name, severity, words):
    check = by_name(diagnose(tiny_cluster, around(**options)))[name]
    assert check.severity == severity and words in check.remedy


def test_gpus_are_counted_and_fp8_needs_hopper():
    (gpu,) = machine.find_gpus(answering(gpus=(A100,)))
    assert gpu.memory == 81920 * 2**20 and machine.check_gpus([gpu], "", 1, is_fp8=True).severity == "error"
    check = machine.check_gpus(machine.find_gpus(answering(gpus=(H100,) * 7)), "", 8, is_fp8=False)
    assert check.severity == "error" and "7 x NVIDIA H100" in check.found and "cluster.gpus_per_node=7" in check.remedy


def test_a_port_in_use_is_named_unless_ray_is_to_be_joined():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        check = machine.check_ports([port], {})
        assert check.severity == "warn" and str(port) in check.found
        assert machine.check_ports([port], {"RAY_ADDRESS": "auto"}).severity == "ok"
        assert machine.check_ports([port], {"RAY_ADDRESS": "local"}).severity == "warn"  # a Ray of its own
    assert machine.check_ports([port], {}).severity == "ok"


@pytest.fixture
def worker(tmp_path):
    """Makes the interpreter of vLLM's worker a shell script; returns its path."""
    python = tmp_path / WORKERS["vllm"][1] / "bin/python"
    python.parent.mkdir(parents=True)

    def make(script):
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        return python

    return make


def test_worker_environments_are_found_as_the_engine_finds_them(tmp_path, worker):
    own = {"NEMO_RL_VENV_DIR": str(tmp_path)}
    assert versions.worker_python("vllm", own) == sys.executable
    python = worker("true")
    assert versions.worker_python("vllm", own) == str(python)
    assert versions.worker_python("megatron", own) == sys.executable
    assert versions.worker_python("vllm", own | {"NEMO_RL_PY_EXECUTABLES_SYSTEM": "1"}) == sys.executable


def test_a_real_process_imports_our_class_and_says_what_it_misses():
    checks = list(versions.check_worker("vllm", {"NEMO_RL_PY_EXECUTABLES_SYSTEM": "1"}, run))
    if "nemo-rl" not in probe.versions(versions.TESTED):
        assert checks[0].severity == "error" and re.search("No module named '(ray|nemo_rl|vllm)'", checks[0].found)
    assert {check.name for check in checks} >= {"worker vllm", "worker vllm: vllm"}


def not_installed(package):
    raise PackageNotFoundError(package)


def test_a_checkout_of_nemo_rl_on_the_path_counts_and_is_not_imported(monkeypatch, tmp_path):
    folder = tmp_path / "nemo_rl"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('imported')")
    (folder / "package_info.py").write_text('__version__ = "0.7.1"')
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(probe, "version", not_installed)
    assert probe.versions(["nemo-rl", "no-such-package"]) == {"python": platform.python_version(), "nemo-rl": "0.7.1"}


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo broken glibc >&2; exit 3", "broken glibc"), ("true", "no answer"), ("exec sleep 60", "s")],
)
def test_a_worker_that_hangs_or_crashes_is_an_error(monkeypatch, tmp_path, worker, script, words):
    python = worker(script)
    monkeypatch.setattr(versions, "SECONDS", 0.5 if "sleep" in script else 60)
    (check,) = versions.check_worker("vllm", {"NEMO_RL_VENV_DIR": str(tmp_path)}, run)
    assert check.severity == "error" and words in check.found and str(python) in check.remedy


def test_the_probe_reads_versions_and_imports_nothing_but_the_class(tmp_path):
    (tmp_path / "torch-2.11.0.dist-info").mkdir()
    (tmp_path / "torch-2.11.0.dist-info/METADATA").write_text("Name: torch\nVersion: 2.11.0\n")
    (tmp_path / "torch.py").write_text("raise SystemExit('imported')")
    line = [sys.executable, "-P", str(versions.PROBE), "json.JSONDecoder", "torch", "no-such-package"]
    done = subprocess.run(line, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert answer["import_error"] is None and answer["versions"].keys() == {"python", "torch"}
    assert answer["versions"]["torch"] == "2.11.0"
    assert probe.import_error("json.Missing").startswith("AttributeError")


def test_checkpoints_take_14_bytes_a_parameter_and_one_more_than_are_kept(monkeypatch, tiny_cluster, tmp_path):
    diagnosis = diagnose(tiny_cluster, around())
    kept = tiny_cluster.checkpointing["keep_top_k"] + 1
    expected = by_name(diagnosis)["room for checkpoints"].expected
    assert expected.startswith(f"{kept * 14 * diagnosis.parameters / 1e6:.1f} MB: {kept} checkpoints")
    usage = shutil.disk_usage(tmp_path)._replace(free=2 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert machine.check_space("room", tmp_path / "new", 2e9, "all").severity == "ok"
    check = machine.check_space("room", tmp_path, 5e9, "all")
    assert check.severity == "error" and "3.0 GB" in check.remedy


def test_a_folder_that_is_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for name, severity in (("file", "error"), ("new", "ok")):
        assert machine.check_writable("cache", tmp_path / name / "hub", "Set HF_HOME").severity == severity
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    assert machine.hf_home({"HF_HOME": "/a"}) == Path("/a")
    assert machine.hf_home({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The snapshot of the model a/b in an otherwise empty cache of the hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache/models--a--b"
    shutil.copytree(EMBEDDED, folder / "snapshots/c0ffee")
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("c0ffee")
    return folder / "snapshots/c0ffee"


def test_a_model_is_found_in_its_folder_and_in_the_cache(cache):
    for name in ("a/b", str(EMBEDDED)):
        check, content = model.check_model(name)
        assert check.severity == "ok" and content.model_type == "qwen3"
        assert model.check_tokenizer(name).severity == "ok"
    for file in set(cache.glob("tokenizer*")) - {cache / "tokenizer.json"}:
        file.unlink()
    assert model.check_tokenizer("a/b").severity == model.check_tokenizer(str(cache)).severity == "ok"


@pytest.mark.parametrize(
    ("name", "severity", "remedy"),
    [
        ("Qwen/Qwen3-4B", "warn", "hf download Qwen/Qwen3-4B"),  # may be fetched when the run starts
        *((name, "error", "owner/name") for name in ("nope", "./nope", "/nope/a", "runs/a/model", "../model")),
        ("nope.gguf", "error", "path"),
    ],
)
def test_a_model_that_is_not_here(cache, name, severity, remedy):
    check, content = model.check_model(name)
    assert check.severity == severity and remedy in check.remedy
    assert model.check_tokenizer(name).severity == severity
    assert (content is not None) == (name == "Qwen/Qwen3-4B")  # a published architecture is known all the same


def test_a_hub_name_is_no_model_of_the_local_engine_even_where_the_cache_has_it(cache, tmp_path, monkeypatch):
    """One answer of doctor, plan and train: download it into a folder, and name that."""
    monkeypatch.chdir(tmp_path)
    for name in ("a/b", "Qwen/Qwen3-4B"):
        remedy = f"hf download {name} --local-dir models/{name[2:] if name == 'a/b' else 'Qwen3-4B'}"
        check, content = model.check_model(name, "local")
        assert check.severity == model.check_tokenizer(name, "local").severity == "error"
        assert remedy in check.remedy and "policy.model_name=models/" in check.remedy and content is not None
        config = load_config(CONFIGS / "aopsd_tiny_cpu.yaml", [f"policy.model_name={name}"])
        with pytest.raises(UserError, match=f"{remedy}; then set policy.model_name=models/"):
            engines.pick(config).check(config)
    assert model.check_model("nope", "local")[0].remedy == "Check the path"


@pytest.mark.parametrize(("precision", "severity"), [("bfloat16", "warn"), ("float32", "ok")])
@pytest.mark.skipif(torch.cuda.is_available(), reason="the engine would take the GPU")
def test_bfloat16_on_a_cpu_is_told_by_doctor_and_engine(precision, severity, capsys, few):
    config = load_config(CONFIGS / "aopsd_tiny_cpu.yaml", [f"policy.precision={precision}", *few])
    assert by_name(diagnose(config, around(gpus=())))["precision"].severity == severity
    assert machine.check_precision(precision, has_gpu=True).severity == "ok"
    engines.pick(config).build(config)
    assert capsys.readouterr().err.count("policy.precision=bfloat16 on a CPU") == (severity == "warn")


@pytest.mark.parametrize(("file", "severity"), [("m.gguf", "error"), ("config.json", "warn"), ("config.json", "error")])
def test_what_cannot_be_counted_has_no_table(tmp_path, file, severity):
    is_broken, name = severity == "error", tmp_path / file if file == "m.gguf" else tmp_path
    (tmp_path / file).write_text("[]" if is_broken else '{"model_type": "qwen3_5"}')
    config = load_config(CONFIGS / "aopsd_tiny_cpu.yaml", [f"policy.model_name={name}"])
    diagnosis = diagnose(config, around(gpus=()))
    found = by_name(diagnosis)
    assert found["model"].severity == ("error" if is_broken else "ok")
    assert f"{tmp_path}/{file}" in found["model"].found or not is_broken
    assert found["parameters"].severity == ("ok" if is_broken else severity)
    assert diagnosis.memory == [] and diagnosis.parameters is None and "memory" not in found
    assert found["tokenizer"].severity == ("ok" if file == "m.gguf" else "error")


def test_dtensor_is_not_estimated_and_a_config_without_sizes_is_one_message(tiny_cluster):
    tiny_cluster.raw["policy"]["megatron_cfg"]["enabled"] = False
    tiny_cluster.raw["policy"]["dtensor_cfg"]["enabled"] = True
    found = by_name(diagnose(tiny_cluster, around()))
    assert found["memory"].severity == "warn" and "worker dtensor" in found and "worker megatron" not in found
    tiny_cluster.raw["cluster"]["gpus_per_node"] = None
    with pytest.raises(UserError, match=r"cluster\.gpus_per_node is null"):
        diagnose(tiny_cluster, around())


# The command


def doctored(words=(), config="aopsd_tiny_cpu"):
    """The checks of the command by name."""
    outcome = CliRunner().invoke(app, ["doctor", str(CONFIGS / f"{config}.yaml"), *words, "--json"])
    return {check["name"]: check for check in json.loads(outcome.stdout)["checks"]}


@pytest.mark.parametrize(
    ("words", "torch", "code"),
    [([], "2.11", 0), ([CONFIGS / "aopsd_tiny_cpu.yaml"], "2.11", 0), ([CONFIGS / "aopsd_tiny_cpu.yaml"], "2.10", 2)],
)
def test_the_exit_code_is_the_severity_and_json_says_the_same(monkeypatch, words, torch, code, few):
    installed = {"python": "3.12.1", "torch": torch, "transformers": "5.8"}  # nothing asks for NeMo RL
    monkeypatch.setattr(probe, "versions", lambda packages: installed)
    monkeypatch.setenv("PATH", "/nowhere")
    outcome = CliRunner().invoke(app, ["doctor", *map(str, words), *(few if words else ()), "--json"])
    answer = json.loads(outcome.stdout)
    assert outcome.exit_code == answer["exit_code"] == code
    assert {"name", "severity", "found", "expected", "remedy"} == set(answer["checks"][0])
    if words:
        assert {"name", "place", "turns", "bytes", "formula"} == set(answer["memory"][0])


def test_problems_are_counted_and_those_that_training_would_refuse_are_an_error(tmp_path):
    def problems(*words):
        return doctored(words)["problems"]

    checks = doctored()
    check = checks["problems"]
    assert check["severity"] == checks["prompts"]["severity"] == "ok" and check["found"].startswith("384, ")
    assert "400 held-out problems, " in check["found"]
    trained_on = load_config(CONFIGS / "aopsd_tiny_cpu.yaml", []).data["train"]["data_path"]
    check = problems(f"aopsd.evaluation.data_path={trained_on}")
    assert check["severity"] == "warn" and "384 of 384 evaluation problems are also trained on" in check["found"]
    circle = {"id": "p", "problem": "?", "answer": "1", "dag": raw_graph("ab", ["ab", "ba"])}
    write_jsonl(tmp_path / "cycle.jsonl", [circle])
    for key, file, named in (
        ("data.train.data_path", "cycle.jsonl", "cycle.jsonl:1"),
        ("aopsd.evaluation.data_path", "nope.jsonl", "nope.jsonl: no such file"),
    ):
        check = problems(f"{key}={tmp_path}/{file}")
        assert check["severity"] == "error" and named in check["found"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("aopsd_qwen3_4b_megatron", ["cluster.gpus_per_node=3"]),
        ("aopsd_qwen3_4b_megatron", []),  # TORCH_CUDA_ARCH_LIST
        ("aopsd_qwen3_4b_megatron", ["aopsd.objective.name=examples.my_parts:HalfSquaredGap"]),  # not for workers
        ("aopsd_tiny_cpu", ["logger.log_dir={old}"]),
        ("aopsd_tiny_cpu", ["logger.log_dir={old}", "data.train.data_path=nope.jsonl"]),
        ("aopsd_tiny_cpu", ["aopsd.weighting=uniform", "aopsd.probes.length=4"]),
        ("aopsd_tiny_cpu", ["aopsd.thinking.student=false"]),
        ("aopsd_tiny_cpu", ["policy.max_total_sequence_length=130", "policy.generation.max_new_tokens=20"]),
    ],
)
def test_doctor_and_check_refuse_and_warn_of_the_same(tmp_path, monkeypatch, capsys, config, words, few):
    """Here, where NeMo RL is not: doctor tells of it beside, and of all that `aopsd train --check` would refuse."""
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "old").mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        (tmp_path / "old" / name).write_text("")
    words = [f"logger.log_dir={tmp_path}/new", *few, *(word.format(old=tmp_path / "old") for word in words)]
    outcome = CliRunner().invoke(app, ["train", str(CONFIGS / f"{config}.yaml"), *words, "--check"])
    refused = str(outcome.exception) if isinstance(outcome.exception, UserError) else ""
    warned = [line.removeprefix("warning: ").rstrip(".") for line in outcome.stderr.splitlines()]
    assert refused or warned
    checks = doctored(words, config)
    told = {name: check for name, check in checks.items() if name in ("run folder", "settings", "problems", "prompts")}
    assert "\n".join(check["found"] for check in told.values() if check["severity"] == "error") == refused
    found = [check["found"] for check in told.values() if check["severity"] == "warn"]
    assert refused or "; ".join(found) == "; ".join(warned)


def test_what_is_wrong_comes_first_and_each_remedy_once(monkeypatch, few):
    monkeypatch.setattr(probe, "versions", lambda packages: {"python": "3.12.1", "torch": "2.10"})
    monkeypatch.setenv("COLUMNS", "2000")  # no line wraps, however long the path of this folder is
    words = [str(CONFIGS / "aopsd_tiny_cpu.yaml"), "policy.model_name=nope", *few]
    printed = CliRunner().invoke(app, ["doctor", *words]).stdout
    assert "pip install 'torch>=2.11'" in printed and printed.count("\n       Check the path.") == 1
    assert ".;" not in printed and not re.search(r" +$", printed, re.MULTILINE)
    levels = [line.split()[0] for line in printed.splitlines() if line[:1] not in ("", " ")]
    assert levels[:-1] == sorted(levels[:-1]) and {"error", "ok"} <= set(levels)
    assert "kept KV" in CliRunner().invoke(app, ["doctor", words[0], *few]).stdout


def test_without_nemo_rl_what_is_beside_it_is_not_looked_at_and_no_word_is_broken(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("COLUMNS", "80")
    words = [str(CONFIGS / "aopsd_qwen3_4b_megatron.yaml"), "checkpointing.enabled=false"]
    checks = json.loads(CliRunner().invoke(app, ["doctor", *words, "--json"]).stdout)["checks"]
    assert [check["name"] for check in checks if check["severity"] == "error"] == ["nemo-rl", "gpu", "settings"]
    told = next(check["found"] for check in checks if check["name"] == "nemo-rl")
    passed_over = re.findall(r"[\w-]+", told.partition(", so ")[2].partition(" and the workers")[0])
    assert {"ray", "vllm", "megatron-core"} <= set(passed_over)
    assert not set(passed_over) & {check["name"] for check in checks}  # what is said to be left out is left out
    assert all(max(map(len, text.splitlines())) <= 80 for text in [CliRunner().invoke(app, ["doctor", *words]).stdout])
    printed = CliRunner().invoke(app, ["doctor", *words]).stdout
    assert (
        printed.startswith("error  nemo-rl: not installed") and len(printed.partition("\nmemory ")[0].splitlines()) < 40
    )
    assert "containers/README.md" in printed and "Qwen/Qwen3-4B-Instruct-2507" in printed


def test_without_a_config_no_model_library_is_loaded():
    command = "from nemo_aopsd.cli import main\ntry: main()\nexcept SystemExit: pass"
    code = f"import sys\n{command}\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, "doctor"], check=True, capture_output=True)
