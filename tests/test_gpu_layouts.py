"""What the GPU lanes are told can be checked where there is no GPU."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from nemo_aopsd.config_files import load_config
from nemo_aopsd.engines.nemo_rl.settings import read_settings
from tests.gpu import layouts

REPO = Path(__file__).parents[1]


def the_lanes(monkeypatch, tmp_path):
    monkeypatch.setattr(layouts, "SMOLLM2", "/models/smollm2")
    monkeypatch.setattr(layouts, "WORDS", layouts.WORDS.replace("policy.model_name=", "policy.model_name=/models/s"))
    return layouts.lanes(tmp_path)


def test_every_lane_s_config_passes_the_checks_and_fills_its_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    suites = [lane for lane in the_lanes(monkeypatch, tmp_path) if "pytest" in lane.command]
    assert len(suites) == 9
    for lane in suites:
        overrides = [*shlex.split(lane.overrides), f"logger.log_dir={tmp_path}", "aopsd.evaluation.data_path=null"]
        settings = read_settings(load_config(REPO / "examples/configs/aopsd_tiny_h100.yaml", overrides))
        assert settings.gpus_per_node == lane.num_gpus


def test_the_stock_grpo_command_is_the_one_of_the_docs(tmp_path):
    command = layouts.stock_grpo(tmp_path)
    assert command[:3] == [sys.executable, "-m", "nemo_aopsd.engines.nemo_rl.run_stock"]
    assert command[3].endswith("examples/run_grpo.py")
    assert "data.default.prompts=tiny" in command
    assert all(Path(word.split("=")[1]).exists() for word in command if word.startswith("policy.model_name="))


@pytest.mark.parametrize("num_gpus", [2, 4])
def test_lanes_never_share_a_gpu_and_all_run(monkeypatch, tmp_path, num_gpus):
    monkeypatch.setattr(layouts, "REPO", tmp_path)
    note = (
        "import os, time, json; start = time.time(); time.sleep(0.3); "
        "print(json.dumps([os.environ['CUDA_VISIBLE_DEVICES'], start, time.time()]))"
    )
    made = [layouts.Lane(f"l{i}", size, command=[sys.executable, "-c", note]) for i, size in enumerate((1, 1, 2, 2))]
    monkeypatch.setattr(layouts, "lanes", lambda out: made)
    monkeypatch.setattr(sys, "argv", ["layouts", str(tmp_path / "out"), "--gpus", str(num_gpus)])
    monkeypatch.setattr(layouts.time, "sleep", lambda seconds: None)
    layouts.main()
    spans = [json.loads((tmp_path / "out" / f"{lane.name}.log").read_text()) for lane in made]
    for i, (gpus, start, end) in enumerate(spans):
        assert len(gpus.split(",")) == made[i].num_gpus
        for other_gpus, other_start, other_end in spans[:i]:
            overlap = start < other_end and other_start < end
            assert not (overlap and set(gpus.split(",")) & set(other_gpus.split(",")))
    assert (tmp_path / "out/summary.txt").read_text().count("exit 0 after") == len(made)
