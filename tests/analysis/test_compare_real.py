"""`aopsd compare` with the embedded model, and the suites that are shipped."""

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_aopsd.analysis.suite.folder import load_configs, write_configs
from nemo_aopsd.analysis.suite.spec import check_alike, load_suite
from nemo_aopsd.cli import app as cli
from nemo_aopsd.config.shipped import find_method
from tests import REPO

SUITES = sorted((REPO / "examples/suites").glob("*.yaml"))
SUITE = f"""\
config: {REPO}/examples/configs/aopsd_tiny_cpu.yaml
settings:
  data: {{train: {{data_path: train.jsonl}}}}
  policy: {{generation: {{max_new_tokens: 24}}}}
  aopsd:
    max_response_tokens: 100
    num_prompts_per_step: 4
    curriculum: {{num_initial_attempts: 1}}
    evaluation: {{data_path: heldout.jsonl, num_samples: 2, max_new_tokens: 24, period: 1000}}
members:
  base: {{config: none.yaml, settings: {{aopsd: {{max_num_steps: 0, curriculum: {{name: shuffle}}}}}}}}
  aopsd: {{config: none.yaml}}
"""


def call(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["aopsd", *words])
    with pytest.raises(SystemExit) as stop:
        cli.run()
    return stop.value.code


@pytest.mark.slow
def test_the_embedded_model_through_a_suite(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("train", "heldout"):
        lines = (REPO / f"nemo_aopsd/builtin/data/{name}.jsonl").read_text().splitlines()[:6]
        Path(f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    Path("none.yaml").write_text("aopsd: {}\n")
    Path("suite.yaml").write_text(SUITE)
    assert call(monkeypatch, "compare", "suite.yaml", "--seeds", "1", "--jobs", "2", "--out", "out") == 0
    with open("out/results.csv", newline="") as file:
        base, aopsd = csv.DictReader(file)
    last_step = float(aopsd["response tokens"]) / float(aopsd["steps"])
    assert 100 <= float(aopsd["response tokens"]) < 100 + 2 * last_step  # the step that reaches it is the last
    assert (base["responses"], base["steps"]) == ("12", "0.0")
    assert float(aopsd["supervision bytes per token"]) == 13.0  # int32 id, float32 log-prob, float32 weight, mask

    shared = [Path(f"out/{name}/seed_0/eval/epoch_000.jsonl").read_text() for name in ("base", "aopsd")]
    assert shared[0] == shared[1] and len(shared[0].splitlines()) == 12


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_every_shipped_suite_can_be_read(path, tmp_path, monkeypatch):
    monkeypatch.chdir(REPO)
    suite = load_suite(path, find_method)
    assert suite.members[0].name == "base" and suite.reference in {member.name for member in suite.members}
    few = {member.file.stem: member for member in suite.members}  # one a method; tests/config loads every method
    few = tuple(few[name] for name in ("base", "sft", "grpo", "aopsd") if name in few)
    assert len(few) > 1
    suite = replace(suite, members=few)
    write_configs(suite, tmp_path)
    configs = load_configs(suite, tmp_path)
    check_alike(configs)
    assert configs["base"].aopsd.max_num_steps == 0
    budgets = {(config.aopsd.max_response_tokens, config.aopsd.max_train_seconds) for config in configs.values()}
    assert len(budgets) == 1
