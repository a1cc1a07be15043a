"""`aopsd doctor`: each check on machines made up for it, worker environments as real processes, and the command."""

import ast
import json
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from nemo_aopsd.cli.app import app
from nemo_aopsd.cluster.doctor import (
    Surroundings,
    diagnose,
    look_around,
    machine,
    model_files,
    places,
    probe,
    versions,
    workers,
)
from nemo_aopsd.cluster.doctor.result import Check, run, worst
from nemo_aopsd.cluster.worker_classes import WORKERS
from nemo_aopsd.config.load import load_config
from tests import REPO

CONFIGS = REPO / "examples/configs"
H100 = "NVIDIA H100 80GB HBM3, 81559, 580.95.05, 9.0"
MATRIX = {"python": "3.12.3", "torch-cuda": "13.0", "nvidia-nccl-cu13": "2.28.9", **versions.TESTED}


def answering(gpus=(H100,), import_error=None, versions=MATRIX, cuda="13.0"):
    """A `run` that answers as a machine with these GPUs and worker environments would."""

    def run(command, seconds):
        if command[0] == "nvidia-smi":
            if not gpus:
                raise FileNotFoundError("nvidia-smi")
            return "\n".join(gpus) if len(command) > 1 else f"| NVIDIA-SMI 580.95.05   CUDA Version: {cuda}  |"
        return "noise of an import\n" + json.dumps({"versions": versions, "import_error": import_error})

    return run


def around(environment=None, installed=MATRIX, **machine_options):
    run = answering(**machine_options)
    found = look_around({"TORCH_CUDA_ARCH_LIST": "9.0"} if environment is None else environment, run)
    return Surroundings(found.environment, dict(installed), found.gpus, found.why_no_gpu, run)


@pytest.fixture
def tiny_cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "check_ports", lambda ports, environment: Check("ports", "ok", "", ""))
    return load_config(CONFIGS / "aopsd_tiny_h100.yaml", [f"logger.log_dir={tmp_path}/run"])


def by_name(diagnosis):
    return {check.name: check for check in diagnosis.checks}


def test_the_matrix_is_that_of_the_verification_log():
    stack = (REPO / "docs/verification.md").read_text()
    for name, words in {"torch": "torch 2.11.0", "transformers": "transformers 5.8.1"}.items():
        assert words in stack and words.endswith(versions.TESTED[name])
    for name, words in {"megatron-bridge": "Megatron-Bridge {}", "transformer-engine": "Transformer Engine {}"}.items():
        assert words.format(versions.TESTED[name]) in " ".join(stack.split())


def test_every_worker_class_of_ours_is_where_its_name_says():
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
        ({"gpus": ("Tesla V100, 32768, 580.1, 7.0",)}, "gpu", "error", "newer"),
        ({"gpus": ("NVIDIA A100, 81920, 580.1, 8.0",)}, "gpu", "warn", "short run"),
        ({"cuda": "12.4"}, "cuda driver", "error", "CUDA 12.4"),
        ({"cuda": "?"}, "cuda driver", "warn", "nvidia-smi"),
        ({"installed": {**MATRIX, "torch-cuda": None}}, "cuda driver", "warn", "CUDA"),
        ({"environment": {}}, "TORCH_CUDA_ARCH_LIST", "error", "export TORCH_CUDA_ARCH_LIST=9.0"),
        ({"environment": {"TORCH_CUDA_ARCH_LIST": "8.0 10.0"}}, "TORCH_CUDA_ARCH_LIST", "warn", "9.0"),
        (
            {"environment": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments: True"}},
            "expandable_segments",
            "error",
            "PYTORCH_CUDA_ALLOC_CONF",
        ),
        ({"installed": {**MATRIX, "nemo-rl": "0.8.0"}}, "nemo-rl", "warn", "tests/gpu"),
        ({"installed": {**MATRIX, "torch": "2.11.0+cu130"}}, "torch", "ok", ""),
        ({"installed": {**MATRIX, "transformers": "5.12.0"}}, "transformers", "error", "container"),
        ({"installed": {"python": "3.12.3"}}, "ray", "error", "container"),
        ({"installed": {**MATRIX, "python": "3.10.1"}}, "python", "error", "PYTHON="),
        ({"import_error": "ImportError: libcudnn"}, "worker megatron", "error", "container"),
        (
            {"import_error": "ModuleNotFoundError: No module named 'nemo_aopsd'"},
            "worker vllm",
            "error",
            "Without building an image",
        ),
        ({"versions": {"vllm": "0.21.0"}}, "worker vllm: vllm", "warn", "tests/gpu"),
        ({"versions": {}}, "worker megatron: transformer-engine", "error", "container"),
    ],
)
def test_each_fault_is_found_with_its_remedy(tiny_cluster, options, name, severity, words):
    check = by_name(diagnose(tiny_cluster, around(**options)))[name]
    assert check.severity == severity and words in check.remedy


def test_fp8_needs_hopper(tmp_path):
    (gpu,) = machine.find_gpus(answering(gpus=("NVIDIA A100, 81920, 580.1, 8.0",)))
    assert machine.check_gpus([gpu], "", 1, is_fp8=True).severity == "error"
    assert gpu.memory == 81920 * 2**20


def test_one_gpu_short_of_eight_is_an_error_that_names_both():
    gpus = machine.find_gpus(answering(gpus=(H100,) * 7))
    check = machine.check_gpus(gpus, "", 8, is_fp8=False)
    assert check.severity == "error" and "7 x NVIDIA H100" in check.found and "cluster.gpus_per_node=7" in check.remedy


def test_nccl_that_may_not_use_nvlink_is_a_warning():
    check = machine.check_nccl(MATRIX, {"NCCL_P2P_DISABLE": "1"}, 8)
    assert check.severity == "warn" and "NCCL_P2P_DISABLE" in check.remedy
    assert machine.check_nccl({}, {}, 8).severity == "warn"
    assert machine.check_nccl({}, {}, 1).severity == "ok"


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


def test_worker_environments_are_found_as_the_engine_finds_them(tmp_path):
    python = tmp_path / WORKERS["vllm"][1] / "bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    own = {"NEMO_RL_VENV_DIR": str(tmp_path)}
    assert workers.find_environment("vllm", own) == workers.Environment(str(python), True)
    assert workers.find_environment("megatron", own).python == sys.executable
    assert workers.find_environment("vllm", own | {"NEMO_RL_PY_EXECUTABLES_SYSTEM": "1"}).python == sys.executable


def test_a_real_process_imports_our_class_and_says_what_it_misses():
    checks = list(workers.check_worker("vllm", {"NEMO_RL_PY_EXECUTABLES_SYSTEM": "1"}, run))
    if "nemo-rl" not in probe.versions():
        assert checks[0].severity == "error" and re.search("No module named '(ray|nemo_rl|vllm)'", checks[0].found)
    assert {check.name for check in checks} >= {"worker vllm", "worker vllm: vllm"}


def test_a_worker_that_hangs_or_crashes_is_an_error_within_its_time(tmp_path):
    python = tmp_path / WORKERS["vllm"][1] / "bin/python"
    python.parent.mkdir(parents=True)
    for script, words in (
        ("sleep 60", "0.5 s"),
        ("echo broken glibc >&2; exit 3", "broken glibc"),
        ("true", "no answer"),
    ):
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        started = time.monotonic()
        (check,) = workers.check_worker("vllm", {"NEMO_RL_VENV_DIR": str(tmp_path)}, run, seconds=0.5)
        assert check.severity == "error" and words in check.found and str(python) in check.remedy
        assert time.monotonic() - started < 10


def test_the_probe_reads_versions_of_source_trees_and_imports_nothing(tmp_path):
    (tmp_path / "nemo_rl").mkdir()
    (tmp_path / "nemo_rl/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "nemo_rl/package_info.py").write_text("MAJOR = 0\nMINOR = 7\nPATCH = 0\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    line = [sys.executable, "-P", str(workers.PROBE), "json.JSONDecoder"]
    done = subprocess.run(line, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert answer["versions"]["nemo-rl"] == "0.7.0" and answer["versions"]["torch-cuda"] == "13.0"
    assert answer["import_error"] is None
    assert probe.import_error("json.Missing").startswith("AttributeError")


MOUNTS = textwrap.dedent(
    """\
    /dev/sda1 / ext4 rw 0 0
    server:/x /home nfs4 rw 0 0
    fs /home/a\\040b lustre rw 0 0
    tmp /home/new xfs rw 0 0
    fuse /odd fuse.thing rw 0 0
    """
)


@pytest.mark.parametrize(
    ("path", "nodes", "severity"),
    [("/x/y", 1, "ok"), ("/x/y", 2, "error"), ("/home/u", 2, "ok"), ("/home", 2, "ok")],
)
def test_several_nodes_need_a_shared_file_system(tmp_path, path, nodes, severity):
    (tmp_path / "mounts").write_text(MOUNTS)
    assert places.check_shared("run", Path(path), nodes, tmp_path / "mounts").severity == severity


def test_room_is_compared_with_what_is_free(tmp_path):
    assert places.check_space("room", tmp_path, 99, "all", free=100).severity == "ok"
    check = places.check_space("room", tmp_path, 5e9, "all", free=2 * 10**9)
    assert check.severity == "error" and "3.0 GB" in check.remedy


def test_a_folder_that_is_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    assert places.check_writable("cache", tmp_path / "file" / "hub", "Set HF_HOME").severity == "error"
    assert places.check_writable("cache", tmp_path / "new" / "hub", "Set HF_HOME").severity == "ok"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_caches_follow_their_variables():
    assert places.hf_home({"HF_HOME": "/a"}) == Path("/a")
    assert places.hf_home({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface")
    assert places.converted_models({"HF_HOME": "/a"}) == Path("/a/nemo_rl")
    assert places.converted_models({"NRL_MEGATRON_CHECKPOINT_DIR": "/m"}) == Path("/m")


def test_a_model_that_is_not_there_and_a_tokenizer_without_template(tmp_path):
    check, content = model_files.check_model(str(tmp_path))
    assert check.severity == "error" and content is None
    (tmp_path / "config.json").write_text("[]")
    assert model_files.check_model(str(tmp_path))[0].found.startswith(f"{tmp_path}/config.json")
    embedded = REPO / "nemo_aopsd/builtin/model"
    for file in embedded.iterdir():
        if "chat_template" not in file.name and file.suffix == ".json":
            text = json.loads(file.read_text())
            if file.name == "tokenizer_config.json":
                text.pop("chat_template", None)
            (tmp_path / file.name).write_text(json.dumps(text))
    check = model_files.check_tokenizer(str(tmp_path), (None,))
    assert check.severity == "error" and "chat template" in check.found
    assert model_files.check_tokenizer(str(embedded), (None, False)).severity == "ok"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that counts its questions and an empty cache; `error` is what it answers, `file` what it has."""
    import huggingface_hub
    from huggingface_hub import constants

    found = SimpleNamespace(asked=[], error=None, file=None)

    def ask(url, timeout):
        found.asked.append(url)
        if found.error:
            raise found.error

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", ask)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file: str(found.file))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return found


def test_a_model_of_the_hub_that_cannot_be_fetched_is_an_error_that_says_how(hub, tmp_path):
    hub.error = OSError("no network\nmore")
    check, content = model_files.check_model("Qwen/Qwen3-4B")
    assert check.severity == "error" and content is None and len(hub.asked) == 1
    assert check.found.endswith("OSError: no network") and "hf download Qwen/Qwen3-4B" in check.remedy
    hub.error, hub.file = None, tmp_path / "config.json"
    hub.file.write_text('{"model_type": "qwen3"}')
    check, content = model_files.check_model("Qwen/Qwen3-4B")
    assert check.severity == "ok" and content.model_type == "qwen3"


def test_without_a_network_the_hub_is_asked_once_and_nothing_else_is_printed(monkeypatch, capfd):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    started = time.monotonic()
    check, _ = model_files.check_model("a/b")
    assert "ConnectError" in check.found and "config.json" in check.found
    assert model_files.check_tokenizer("a/b", (None,)).severity == "error"
    assert time.monotonic() - started < 20 and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["nope", "./nope", "/nope/a", "runs/a/model", "~/model", "../model"])
def test_a_wrong_path_is_no_question_to_the_hub(hub, name):
    check, _ = model_files.check_model(name)
    assert "no such folder" in check.found and "Check the path" in check.remedy
    check = model_files.check_tokenizer(name, (None,))
    assert "no such folder" in check.found and "Check the path" in check.remedy and hub.asked == []


def test_what_the_cache_has_is_not_asked_for(hub, tmp_path):
    folder = tmp_path / "cache/models--a--b"
    shutil.copytree(REPO / "nemo_aopsd/builtin/model", folder / "snapshots/c0ffee")
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("c0ffee")
    check, content = model_files.check_model("a/b")
    assert check.severity == "ok" and content.model_type == "qwen3"
    assert model_files.check_tokenizer("a/b", (None,)).severity == "ok" and hub.asked == []
    for file in (folder / "snapshots/c0ffee").glob("*chat_template*"):
        file.unlink()
    settings = folder / "snapshots/c0ffee/tokenizer_config.json"
    settings.write_text(json.dumps({k: v for k, v in json.loads(settings.read_text()).items() if k != "chat_template"}))
    assert "chat template" in model_files.check_tokenizer("a/b", (None,)).found and hub.asked == []


def test_the_hub_is_asked_once_for_a_model_that_it_does_not_give(hub, monkeypatch):
    hub.error = OSError("no network")
    monkeypatch.setattr(model_files, "check_tokenizer", None)
    found = by_name(diagnose(load_config(CONFIGS / "aopsd_tiny_cpu.yaml", ["policy.model_name=a/b"]), around(gpus=())))
    assert found["tokenizer"].severity == "error" and found["tokenizer"].remedy == found["model"].remedy
    assert len(hub.asked) == 1


def test_a_gguf_file_is_not_counted_and_no_fault(tmp_path):
    assert model_files.check_model(str(tmp_path / "m.gguf"))[0].severity == "error"
    (tmp_path / "m.gguf").write_text("")
    check, content = model_files.check_model(str(tmp_path / "m.gguf"))
    assert check.severity == "ok" and content is None
    assert model_files.check_tokenizer(str(tmp_path / "m.gguf"), (None,)).severity == "ok"
    config = load_config(CONFIGS / "aopsd_tiny_cpu.yaml", [f"policy.model_name={tmp_path}/m.gguf"])
    found = by_name(diagnose(config, around(gpus=())))
    assert found["parameters"].severity == "ok" and "memory" not in found


def test_a_family_that_cannot_be_counted_is_a_warning_and_no_table(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_5"}')
    config = load_config(CONFIGS / "aopsd_tiny_cpu.yaml", [f"policy.model_name={tmp_path}"])
    diagnosis = diagnose(config, around(gpus=()))
    assert by_name(diagnosis)["parameters"].severity == "warn" and diagnosis.memory == []
    assert by_name(diagnosis)["tokenizer"].severity == "error"


def test_dtensor_is_not_estimated_and_says_so(tiny_cluster):
    tiny_cluster.raw["policy"]["megatron_cfg"]["enabled"] = False
    tiny_cluster.raw["policy"]["dtensor_cfg"]["enabled"] = True
    found = by_name(diagnose(tiny_cluster, around()))
    assert found["memory"].severity == "warn" and "worker dtensor" in found and "worker megatron" not in found


def test_worst_is_the_highest():
    assert worst([]) == "ok"
    assert worst([Check("a", "warn", "", ""), Check("b", "error", "", ""), Check("c", "ok", "", "")]) == "error"


@pytest.mark.parametrize(
    ("bad", "installed", "code"),
    [
        ([], {"python": "3.12.1", "torch": "2.11", "transformers": "5.8"}, 0),  # nothing asks for NeMo RL
        ([str(CONFIGS / "aopsd_tiny_cpu.yaml")], {"python": "3.12.1", "torch": "2.11", "transformers": "5.8"}, 0),
        ([str(CONFIGS / "aopsd_tiny_cpu.yaml")], {"python": "3.12.1", "torch": "2.10", "transformers": "5.8"}, 2),
    ],
)
def test_the_exit_code_is_the_severity_and_json_says_the_same(monkeypatch, bad, installed, code):
    monkeypatch.setattr(probe, "versions", lambda: installed)
    monkeypatch.setenv("PATH", "/nowhere")
    outcome = CliRunner().invoke(app, ["doctor", *bad, "--json"])
    answer = json.loads(outcome.stdout)
    assert outcome.exit_code == answer["exit_code"] == code
    assert {"name", "severity", "found", "expected", "remedy"} == set(answer["checks"][0])


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.train.data_path={}/nope.jsonl", "nope.jsonl: no such file"),
        ("data.train.data_path={}/cycle.jsonl", "cycle.jsonl:1"),
        ("aopsd.evaluation.data_path={}/nope.jsonl", "nope.jsonl: no such file"),
    ],
)
def test_problems_that_training_would_refuse_are_an_error(command_line, tmp_path, override, words):
    nodes = [{"id": name, "statement": f"step {name}"} for name in "ab"]
    graph = {"nodes": nodes, "edges": [["a", "b"], ["b", "a"]]}
    (tmp_path / "cycle.jsonl").write_text(json.dumps({"id": "p", "problem": "?", "answer": "1", "dag": graph}))
    words_of_config = f"{CONFIGS}/aopsd_tiny_cpu.yaml {override.format(tmp_path)}"
    code, _, refused = command_line(f"train --check {words_of_config} logger.log_dir={tmp_path}/run")
    assert code == 2 and words in refused
    code, out, _ = command_line(f"doctor {words_of_config} --json")
    (check,) = [check for check in json.loads(out)["checks"] if check["name"] == "problems"]
    assert code == 2 and check["severity"] == "error" and refused.strip() == f"error: {check['found']}"


def test_problems_and_held_out_ones_are_counted():
    config = load_config(CONFIGS / "aopsd_tiny_cpu.yaml")
    check = by_name(diagnose(config, around(gpus=())))["problems"]
    assert check.severity == "ok" and check.found.startswith("384, ") and "400 held out, " in check.found


def test_a_method_goes_over_the_config_and_over_no_other():
    def error_of(*words):
        return str(CliRunner().invoke(app, ["doctor", *map(str, words)]).exception)

    assert "methods/sft.yaml" in error_of(CONFIGS / "aopsd_qwen3_8b.yaml", "--method", "sft")  # refused on a cluster
    assert "Did you mean `opsd`?" in error_of(CONFIGS / "aopsd_tiny_cpu.yaml", "--method", "ops")
    assert "goes over a CONFIG" in error_of("--method", "opsd")


def test_the_table_shows_findings_remedies_and_sums(monkeypatch):
    monkeypatch.setattr(probe, "versions", lambda: {"python": "3.12.1", "torch": "2.10", "transformers": "4.9"})
    monkeypatch.setenv("COLUMNS", "200")
    outcome = CliRunner().invoke(app, ["doctor", str(CONFIGS / "aopsd_tiny_cpu.yaml")])
    assert outcome.exit_code == 2
    assert (
        "pip install 'torch>=2.11'" in outcome.stdout and "kept KV" in outcome.stdout and "2 errors" in outcome.stdout
    )


def test_without_a_config_no_model_library_is_loaded():
    command = "from nemo_aopsd.cli import main\ntry: main()\nexcept SystemExit: pass"
    code = f"import sys\n{command}\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, "doctor"], check=True, capture_output=True)


def test_a_config_without_sizes_is_one_message(tiny_cluster):
    tiny_cluster.raw["cluster"]["gpus_per_node"] = None
    with pytest.raises(ValueError, match=r"cluster\.gpus_per_node: expected a whole number"):
        diagnose(tiny_cluster, around())
