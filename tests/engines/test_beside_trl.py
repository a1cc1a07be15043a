"""The benchmark beside TRL, without TRL: what it shows TRL, and its arithmetic."""

import json
from argparse import Namespace
from dataclasses import replace

import pytest
import torch

from benchmarks import beside_trl as bench
from nemo_aopsd.config.load import load_config
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.method.context import teacher_messages


def run(number, arm, *seconds):
    return bench.Run(number, arm, [bench.Step(value, value / 2, 100.0) for value in seconds], 3.0, 4)


def test_a_ratio_is_of_the_medians_of_a_round_and_a_half_round_has_none():
    runs = [run(1, bench.TRL, 30.0, 20.0, 90.0), run(1, bench.OURS, 10.0), run(2, bench.OURS, 10.0)]
    found = bench.summary([*runs, run(2, bench.TRL, 20.0), run(3, bench.TRL, 500.0)])
    assert found["ratio"] == {"median": 2.5, "least": 2.0, "greatest": 3.0}
    assert found["ours"]["ms_per_token"] == 100.0 and found["ours"]["rollout"]["median"] == 5.0
    assert "ratio" not in bench.summary([run(1, bench.TRL, 30.0)])
    assert bench.report(bench.summary([run(1, bench.TRL, 30.0)])).endswith("no round")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return load_config(bench.DEMO, [*bench.METHOD, f"logger.log_dir={tmp_path_factory.mktemp('run')}/run"])


@pytest.mark.parametrize("family", ["tiny", "default"])
def test_trl_shows_its_teacher_our_prompt(config, family):
    problem = load_problems(config.data["train"]["data_path"])[0]
    asked = replace(config, aopsd=replace(config.aopsd, prompts=family))
    row = bench.both_prompts(problem, asked)
    shown = row["prompt"][:-1] + [{"role": "user", "content": row["privileged_context"]}]  # as TRL does it
    assert shown == teacher_messages(problem, "solution", family)
    assert problem.solution in row["privileged_context"] and problem.solution not in str(row["prompt"])


def test_a_micro_batch_that_does_not_fit_is_halved_and_the_file_has_what_there_was(config, monkeypatch, tmp_path):
    args = Namespace(rounds=2, micro_batch=8, minutes=None, json=tmp_path / "found.json")

    def trl(config, problems, number, args):
        if args.micro_batch > 2:
            raise torch.OutOfMemoryError
        if number == 2:
            raise KeyboardInterrupt
        return [bench.Step(6.0, 3.0, 50.0)]

    monkeypatch.setattr(bench, "trl", trl)
    monkeypatch.setattr(bench, "ours", lambda *_: [bench.Step(2.0, 1.0, 50.0)])
    with pytest.raises(KeyboardInterrupt):
        bench.measure(config, [], args)
    found = json.loads(args.json.read_text())
    assert found["ratio"]["median"] == 3.0 and args.micro_batch == 2
    assert {each["micro_batch"] for each in found["runs"] if each["arm"] == "TRL"} == {2}
