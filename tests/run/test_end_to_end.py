"""The real command on the embedded model, a process at a time: killed without warning, it goes on as if nothing was."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests import REPO
from tests.run import outcome

EMBEDDED = REPO / "nemo_aopsd/builtin"
SETTINGS = [
    *("data.train.data_path=train.jsonl", "aopsd.evaluation.data_path=held_out.jsonl"),
    *("aopsd.evaluation.num_samples=1", "aopsd.evaluation.max_new_tokens=32", "aopsd.evaluation.period=2"),
    *("aopsd.num_prompts_per_step=4", "aopsd.max_num_epochs=2", "aopsd.curriculum.num_initial_attempts=1"),
    *("aopsd.probes.threshold=1.0", "checkpointing.save_period=2", "policy.generation.max_new_tokens=64"),
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with 8 training and 2 held-out problems of the embedded set."""
    folder = tmp_path_factory.mktemp("end_to_end")
    for name, source, count in (("train", "train", 8), ("held_out", "heldout", 2)):
        lines = (EMBEDDED / f"data/{source}.jsonl").read_text(encoding="utf-8").splitlines()
        (folder / f"{name}.jsonl").write_text("\n".join(lines[:count]), encoding="utf-8")
    return folder


def start(folder, *more):
    line = [sys.executable, "-c", "from nemo_aopsd.cli import main; main()", "train", "demo"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    output = subprocess.PIPE
    return subprocess.Popen([*line, *SETTINGS, *more], cwd=folder, env=environment, stdout=output, stderr=output)


def finish(process):
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()


@pytest.fixture(scope="module")
def uninterrupted(folder):
    finish(start(folder, "logger.log_dir=whole"))
    return outcome(folder / "whole")


def test_the_run_is_about_something(uninterrupted):
    metrics, rollouts, evals, competence, states = uninterrupted
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    for epoch in (0, 1):
        visited = [line["problem_id"] for rows in rollouts.values() for line in rows if line["epoch"] == epoch]
        assert len(visited) == len(set(visited)) == 8
    assert any(line["reached"] for rows in rollouts.values() for line in rows)
    assert any(line["probes"] for rows in rollouts.values() for line in rows)
    assert len(competence) == 3 and len(evals) == 6
    assert len({state["teacher_checksum"] for state in states}) == 1


def test_killed_without_warning_and_resumed_it_ends_in_the_same_files(folder, uninterrupted):
    run = folder / "killed"
    process = start(folder, "logger.log_dir=killed")
    deadline = time.monotonic() + 300
    while not (run / "rollouts/step_000003.jsonl").exists():  # mid-epoch, one step after the last checkpoint
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(start(folder, "--resume", "killed"))
    assert outcome(run) == uninterrupted
