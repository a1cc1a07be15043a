"""What the GPU lanes are told can be checked where there is no GPU."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_aopsd.config.load import load_config
from nemo_aopsd.engines.nemo_rl.settings import read_settings
from tests import REPO
from tests.gpu import layouts


def the_lanes(monkeypatch, tmp_path):
    monkeypatch.setattr(layouts, "SMOLLM2", "/models/smollm2")
    monkeypatch.setattr(layouts, "WORDS", layouts.WORDS.replace("policy.model_name=", "policy.model_name=/models/s"))
    return layouts.lanes(tmp_path)


def test_every_lane_s_config_passes_the_checks_and_fills_its_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    suites = [lane for lane in the_lanes(monkeypatch, tmp_path) if "pytest" in lane.command]
    assert len(suites) == 27
    for lane in suites:
        ours = shlex.split(f"{lane.overrides} {layouts.FIXED_CACHE}")
        overrides = [*ours, f"logger.log_dir={tmp_path}", "aopsd.evaluation.data_path=null"]
        settings = read_settings(load_config(REPO / "examples/configs/aopsd_tiny_h100.yaml", overrides))
        assert settings.gpus_per_node == lane.num_gpus


def test_the_stock_commands_are_those_of_the_docs(tmp_path):
    grpo, sft = (layouts.stock(*names, tmp_path) for names in (("grpo", "nemo_rl_environment"), ("sft", "nemo_rl")))
    assert grpo[:3] == [sys.executable, "-m", "nemo_aopsd.baselines.run_stock"]
    assert grpo[3].endswith("examples/run_grpo.py") and sft[1].endswith("examples/run_sft.py")
    for command in (grpo, sft):
        assert "data.default.prompts=tiny" in command
        assert all(Path(word.split("=")[1]).exists() for word in command if word.startswith("policy.model_name="))
        assert any(word.startswith(f"logger.log_dir={tmp_path}/") for word in command)


def test_a_lane_s_sampler_looks_for_a_port_of_its_own_and_so_does_what_it_starts():
    say = "import os, subprocess, sys; print(os.environ['VLLM_PORT'], flush=True); subprocess.run(sys.argv[1:])"
    command = [sys.executable, "-c", say, sys.executable, "-c", say, "true"]
    variables = {"PYTHONPATH": str(REPO / "tests/gpu/lane"), "VLLM_PORT": "20001", "LANE_PORTS": "800"}
    printed = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["20801", "20801"]


@pytest.mark.parametrize(("num_gpus", "share"), [(2, 1), (2, 2)])
def test_no_gpu_has_more_lanes_than_places_and_all_run(monkeypatch, tmp_path, num_gpus, share):
    monkeypatch.setattr(layouts, "REPO", tmp_path)
    note = (
        "import os, time, json; start = time.time(); time.sleep(0.2); "
        "print(json.dumps([os.environ['CUDA_VISIBLE_DEVICES'], start, time.time()]))"
    )
    sizes = ((1, False), (1, False), (2, False), (1, True), (2, False))
    made = [
        layouts.Lane(f"l{i}", size, command=[sys.executable, "-c", note], alone=alone)
        for i, (size, alone) in enumerate(sizes)
    ]
    monkeypatch.setattr(layouts, "lanes", lambda out: made)
    options = ["--gpus", str(num_gpus), "--share", str(share)]
    monkeypatch.setattr(sys, "argv", ["layouts", str(tmp_path / "out"), *options])
    monkeypatch.setattr(layouts.time, "sleep", lambda seconds: None)
    layouts.main()
    spans = [json.loads((tmp_path / "out" / f"{lane.name}.log").read_text()) for lane in made]
    for lane, (gpus, start, _) in zip(made, spans, strict=True):
        assert len(gpus.split(",")) == lane.num_gpus
        for gpu in gpus.split(","):
            company = [
                other
                for other, (taken, begin, end) in zip(made, spans, strict=True)
                if gpu in taken.split(",") and begin <= start < end
            ]
            assert len(company) <= (1 if any(other.alone for other in company) else share)
    assert (tmp_path / "out/summary.txt").read_text().count("exit 0 after") == len(made)


def test_an_unknown_lane_or_a_missing_container_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["layouts", str(tmp_path), "bf16", "tp2", "--gpus", "1"])
    with pytest.raises(SystemExit):
        layouts.main()
    assert "no lane tp2 on" in capsys.readouterr().err
    monkeypatch.setattr(layouts.importlib.util, "find_spec", lambda name: None)
    assert "cannot import nemo_rl, ray, vllm" in layouts.what_is_missing()
    monkeypatch.setattr(layouts.importlib.util, "find_spec", lambda name: name)
    assert layouts.what_is_missing() is None
