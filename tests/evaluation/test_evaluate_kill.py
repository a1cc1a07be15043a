"""SIGKILL at random points: the files of results are those of an evaluation that nobody disturbed."""

import json
import multiprocessing
import random
import time

import pytest

from nemo_aopsd.config.schema import EvaluationConfig
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.evaluation.epochs import sampling_of
from nemo_aopsd.evaluation.samples import BlockSampler, RowSampler
from nemo_aopsd.evaluation.session import Session
from nemo_aopsd.manifest import NAME
from tests.evaluation.test_evaluate import Guesser, Words

NUM_KILLS = 4


class Slow(Guesser):
    def generate(self, prompts, sampling, seed):
        time.sleep(0.004 * len(prompts))
        return super().generate(prompts, sampling, seed)

    def stream(self, prompts, sampling, seeds):
        for row in random.sample(range(len(prompts)), len(prompts)):
            time.sleep(0.004)
            yield row, self._guess(prompts[row][-1], random.Random(seeds[row]))


def evaluate(out, kind):
    config = EvaluationConfig(num_samples=4)
    sampling = sampling_of(config)
    new_sampler = {
        "blocks": lambda seed: BlockSampler(Slow(), sampling, seed, 5),
        "rows": lambda seed: RowSampler(Slow(), sampling, seed),
    }[kind]
    benchmarks = {
        name: [Problem(id=f"{name}-{i}", problem=f"What is {i} + 0?", answer=str(i), where="x:1") for i in range(9)]
        for name in ("one", "two", "three")
    }
    Session("m", Words(), new_sampler, config, "default", None, 3, {"weights": "w"}).run(benchmarks, out)


def contents(out):
    """Every file of the results; `calls.jsonl` notes how long each call took, the manifest how it was written."""
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name not in ("calls.jsonl", NAME)}


def size(out):
    return sum(path.stat().st_size for path in out.glob("*.jsonl")) if out.is_dir() else 0


def kill_at(point, out, kind):
    """Kill a process of its own as soon as its samples have grown to `point` bytes; was it still at work?"""
    process = multiprocessing.get_context("fork").Process(target=evaluate, args=(out, kind))
    process.start()
    while process.is_alive() and size(out) < point:
        time.sleep(0.001)
    process.kill()
    process.join()
    return process.exitcode == -9


@pytest.mark.parametrize("kind", ["blocks", "rows"])
def test_killed_at_random_points_it_ends_in_the_same_files(tmp_path, kind):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    evaluate(whole, kind)
    points = sorted(random.sample(range(1, int(0.9 * size(whole))), NUM_KILLS))
    assert all(kill_at(point, killed, kind) for point in points)
    evaluate(killed, kind)
    assert contents(killed) == contents(whole)
    expected = {f"{name}{suffix}" for name in ("one", "two", "three") for suffix in (".jsonl", ".settings.json")}
    assert set(contents(whole)) == expected | {"results.json", "results.md", "results.svg"}
    results = json.loads((killed / "results.json").read_text())
    assert all(part["num_responses"] == 36 for part in results["benchmarks"].values())
