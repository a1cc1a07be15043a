"""What goes wrong in a run on a cluster: a clear error or a counted failure, and never half a checkpoint.

NeMo RL's workers are faked on a CPU. Deaths at other moments: test_engine.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from safetensors.torch import load_file, save_file

from nemo_aopsd.engines import nemo_rl
from nemo_aopsd.engines.nemo_rl import cluster
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_journal
from nemo_aopsd.run.trainer import train

pytestmark = pytest.mark.usefixtures("one_process")


def run_folder(config):
    return Path(config.logger["log_dir"])


def changed(config, *, policy=None, **aopsd):
    """The config with other settings and short answers; a checkpoint each step."""
    judge = replace(config.aopsd.judge, max_new_tokens=24)
    short = {"generation": config.policy["generation"] | {"max_new_tokens": 16}}
    return replace(
        config,
        policy=config.policy | short | (policy or {}),
        aopsd=replace(config.aopsd, judge=judge, **aopsd),
        checkpointing=config.checkpointing | {"save_period": 1, "keep_top_k": 9},
    )


def contents(folder):
    """Every file of a folder with its bytes, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoints(config):
    folder = run_folder(config) / "checkpoints"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def other_model(config, folder, scale):
    """The config with the embedded model in `folder`, its weights scaled."""
    shutil.copytree(config.policy["model_name"], folder)
    for path in folder.glob("*.safetensors"):
        weights = load_file(path)
        save_file({name: weight * scale for name, weight in weights.items()}, path, metadata={"format": "pt"})
    tokenizer = config.policy["tokenizer"] | {"name": str(folder)}
    return changed(config, policy={"model_name": str(folder), "tokenizer": tokenizer}, max_num_steps=3)


def test_another_model_of_the_same_shape_is_refused_by_the_teacher_s_checksum(config, problems, engine, tmp_path):
    train(changed(config), problems, None, engine, run_folder(config), resume=False)
    before = contents(run_folder(config))
    other = other_model(config, tmp_path / "other", 1.5)
    with pytest.raises(UserError, match=r"step_000002: the teacher's weights differ .*SHA-256.*policy\.model_name"):
        train(other, problems, None, nemo_rl.build(other), run_folder(config), resume=True)
    assert contents(run_folder(config)) == before


@pytest.mark.parametrize("moment", ["run_all_workers_sharded_data", "get_logprobs", "train", "save_checkpoint"])
def test_a_worker_that_dies_in_the_second_step_leaves_the_first_checkpoint(
    config, problems, engine, monkeypatch, moment
):
    config = changed(config)
    policy = engine.cluster.policy
    owner = engine.cluster.generation if moment.startswith("run") else policy
    save = policy.save_checkpoint

    def die(*args, **kwargs):
        if moment == "save_checkpoint":
            Path(args[0]).parent.mkdir(parents=True)
            Path(args[0]).write_bytes(b"half")
        raise ray.exceptions.ActorDiedError()

    def save_once(*paths):
        save(*paths)
        monkeypatch.setattr(owner, moment, die)

    monkeypatch.setattr(policy, "save_checkpoint", save_once)
    with pytest.raises(UserError, match=r"a worker died.*--resume"):
        train(config, problems, None, engine, run_folder(config), resume=False)
    assert checkpoints(config) == ["step_000001"]

    again = nemo_rl.build(config)
    train(config, problems, None, again, run_folder(config), resume=True)
    assert checkpoints(config) == ["step_000001", "step_000002"]
    assert [line["step"] for line in read_journal(run_folder(config) / "metrics.jsonl", "step")] == [1, 2]


TERMINATED = """
import os, signal, sys, time, ray, typer
from nemo_aopsd.cli.options import interruptible
from nemo_aopsd.engines.nemo_rl import cluster
cluster.init_ray = lambda: ray.init(num_cpus=1, include_dashboard=False)
try:
    with interruptible("To go on: so."):
        cluster._start_ray()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
except typer.Exit as ended:
    sys.exit(ended.exit_code)
"""


@pytest.mark.slow
def test_sigterm_says_how_to_go_on_although_ray_takes_the_signal():
    done = subprocess.run([sys.executable, "-c", TERMINATED], capture_output=True, text=True, timeout=200)
    assert done.returncode == 143 and "ended by SIGTERM. To go on: so.\n" in done.stderr


def test_workers_compile_without_processes_that_one_could_wait_for(monkeypatch):
    """NeMo RL hands the environment that it finds to all workers."""
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "")  # so that it is put back
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
    found = []
    monkeypatch.setattr(cluster, "init_ray", lambda: found.append(os.environ["TORCHINDUCTOR_COMPILE_THREADS"]))
    cluster._start_ray()
    assert found == ["1"]
