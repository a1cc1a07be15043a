"""SIGKILL at random points: the files of results are those of an evaluation that nobody disturbed."""

import json
import random
import subprocess
import sys
import time

import pytest

from tests import REPO

ROOT = REPO
NUM_KILLS = 4

SCRIPT = """
import random, sys, time
from pathlib import Path
from nemo_aopsd.config.schema import EvaluationConfig
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.evaluation.epochs import sampling_of
from nemo_aopsd.evaluation.samples import BlockSampler, RowSampler
from nemo_aopsd.evaluation.session import Session
from tests.evaluation.test_evaluate import Guesser, Words

class Slow(Guesser):
    def generate(self, prompts, sampling, seed):
        time.sleep(0.004 * len(prompts))
        return super().generate(prompts, sampling, seed)

    def stream(self, prompts, sampling, seeds):
        for row in random.sample(range(len(prompts)), len(prompts)):
            time.sleep(0.004)
            yield row, self._guess(prompts[row][-1], random.Random(seeds[row]))

config = EvaluationConfig(num_samples=4)
sampling = sampling_of(config)
new_sampler = {
    "blocks": lambda seed: BlockSampler(Slow(), sampling, seed, 5),
    "rows": lambda seed: RowSampler(Slow(), sampling, seed),
}[sys.argv[2]]
benchmarks = {
    name: [Problem(id=f"{name}-{i}", problem=f"What is {i} + 0?", answer=str(i), where="x:1") for i in range(9)]
    for name in ("one", "two", "three")
}
made_with = {"weights": "w"}
session = Session("m", Words(), new_sampler, config, "default", None, 3, made_with)
session.run(benchmarks, Path(sys.argv[1]))
"""


def contents(out):
    """Every file of the results; `calls.jsonl` notes how long each call took, and so differs."""
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name not in ("calls.jsonl", ".lock")}


def size(out):
    return sum(path.stat().st_size for path in out.glob("*.jsonl")) if out.is_dir() else 0


def run_killed(command, out, points):
    """Run `command` again and again, killed as soon as its samples have grown to each of `points` bytes, then in peace.

    Returns how many kills came before it was done.
    """
    kills = 0
    for point in points:
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and size(out) < point:
                time.sleep(0.001)
            if process.poll() is None:
                process.kill()
                kills += 1
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return kills


@pytest.mark.parametrize("kind", ["blocks", "rows"])
def test_killed_at_random_points_it_ends_in_the_same_files(tmp_path, kind):
    def command(out):
        return [sys.executable, "-c", SCRIPT, str(out), kind]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole), cwd=ROOT, check=True)
    points = sorted(random.sample(range(1, int(0.9 * size(whole))), NUM_KILLS))
    assert run_killed(command(killed), killed, points) == NUM_KILLS
    assert contents(killed) == contents(whole)
    expected = {f"{name}{suffix}" for name in ("one", "two", "three") for suffix in (".jsonl", ".settings.json")}
    assert set(contents(whole)) == expected | {"results.json", "results.md", "results.svg"}
    results = json.loads((killed / "results.json").read_text())
    assert all(part["num_responses"] == 36 for part in results["benchmarks"].values())
