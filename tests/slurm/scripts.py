"""Calls of the scripts of slurm/ without Slurm, and stand-ins for its commands."""

import os
import subprocess
import sys

from tests import REPO

DATA = "examples/data/problems.jsonl"
FAKES = {  # the least of a cluster whose nodes have 4 GPUs and no Pyxis
    "sbatch": 'case $* in *--test-only*) echo "sbatch: Job 18 to start at noon on nodes n1" >&2 ;; '
    '*) echo "sbatch $*" >>"$CALLS"; echo 17 ;; esac',
    "squeue": "echo aopsd-qwen3-4b RUNNING None",
    "sleep": ":",
    "sinfo": "echo gpu:h100:4; echo 'gpu:h100:2(S:0-1)'",
    "srun": "echo usage",
}
SUITE = {"AOPSD_CONTAINER": "none", "AOPSD_SUITE": "examples/suites/embedded.yaml", "AOPSD_MEMBERS": "base opsd aopsd"}
CHECKED = {"AOPSD_CHECK": "true", "AOPSD_PYTHON": sys.executable, "AOPSD_CONTAINER": "image", "AOPSD_DATA": DATA}
FOREIGN = ("AOPSD_", "SLURM_", "PYTHONPATH", "HF_")


def call(script, *args, folder=REPO, **env):
    """By a path relative to `folder`; without the program's own check, which takes seconds, unless `env` asks."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    clean["AOPSD_CHECK"] = "false"
    command = ["bash", os.path.relpath(REPO / f"slurm/{script}.sh", folder), *args]
    return subprocess.run(command, cwd=folder, env=clean | env, capture_output=True, text=True, timeout=60)


def planned(script, *args, **env):
    done = call(script, "--dry-run", *args, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(script, *args, **env):
    """The one line with which a script refuses, before anything is submitted."""
    done = call(script, *args, **env)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("error: ")


CPU_NODES = "echo 'cpu (null)'"
MIXED = "if [[ $* == *--partition* ]]; then echo 'h100 gpu:h100:4'; else echo 'cpu* (null)'; echo 'h100 gpu:h100:4'; fi"
NONE = {"AOPSD_CONTAINER": "none"}


def fake(folder, name, body):
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


FOUR = {"AOPSD_CONTAINER": "none", "AOPSD_DATA": DATA, "AOPSD_GPUS_PER_NODE": "4", "AOPSD_MIN_GPUS": "4"}


def without_python(folder):
    """Environment of a checkout in `folder` for which no Python of the host imports the package."""
    for name in ("python", "python3"):
        (folder / name).write_text("#!/bin/bash\nexit 1\n")
        (folder / name).chmod(0o755)
    for name in ("slurm", "examples"):
        (folder / name).symlink_to(REPO / name)
    return {"AOPSD_PYTHON": "python", "PATH": f"{folder}:{os.environ['PATH']}", "AOPSD_HOME": str(folder)}
