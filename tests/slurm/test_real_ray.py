"""Ray as slurm/node.sh starts it, on two nodes of a real Slurm: both work, end with the job, and a lost one ends it.

Needs what test_real_slurm.py needs, and Ray beside this Python. The two nodes are one machine, with a daemon each.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.slurm.test_real_slurm import REPO, Slurm, takes_minutes, wait_for
from tests.slurm.test_real_slurm import pytestmark as needs_slurm

RAY = Path(sys.executable).with_name("ray")
pytestmark = [
    *needs_slurm,
    takes_minutes,
    pytest.mark.skipif(not RAY.exists(), reason=f"no {RAY}: a Python that has Ray"),
]
GIVES_UP_ONCE = """#!/bin/bash
# Ray, whose first worker ends at once
if [[ "$*" == *--address* && ! -e {mark} ]]; then touch {mark}; exit 1; fi
exec {ray} "$@"
"""
PORTS = {"SLURMCTLD_PORT": "16917", "SLURMD_PORT": "16918"}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    for above in (folder, folder.parent):
        above.chmod(0o755)
    script = ["bash", str(REPO / "tests/slurm/slurm.sh")]
    subprocess.run([*script, "start", str(folder), "2"], check=True, timeout=60, env=os.environ | PORTS)
    try:
        made = Slurm(folder)
        (folder / "bin").mkdir()
        (folder / "bin/ray").write_text(GIVES_UP_ONCE.format(mark=folder / "gave-up", ray=RAY))
        (folder / "bin/ray").chmod(0o755)
        made.env |= {
            "AOPSD_ENGINE": "nemo_rl",
            "AOPSD_FAKE_GPUS": "1",
            "AOPSD_RAY_PORT": "19911",
            "AOPSD_WAIT": "180",
            "AOPSD_PYTHON": sys.executable,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        }
        yield made
    finally:
        subprocess.run([*script, "stop", str(folder)], check=True, timeout=60)


class Job:
    """A job of two_nodes.sh, once its driver has heard from both nodes."""

    def __init__(self, slurm, name):
        self.slurm, self.out = slurm, slurm.folder / name
        printed = slurm.call("bash", "tests/slurm/two_nodes.sh", AOPSD_TEST_OUT=str(self.out))
        self.number = re.search(r"^job (\d+)", printed)[1]
        wait_for(self.out.exists, 300, lambda: slurm.call("scontrol", "show", "job", self.number) + self.logs())
        self.nodes = json.loads(self.out.read_text())

    def logs(self):
        folder = self.slurm.folder / "jobs"
        return "\n".join(f"== {path}\n{path.read_text()[-2000:]}" for path in folder.rglob("*.log"))

    def log(self, name):
        return self.slurm.log(f"two-nodes-{self.number}{name}")


def raylets():
    """Process ids by the node id in their command line."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0].endswith("/raylet") and any(":19911" in word for word in words):
            found[int(path.parent.name)] = " ".join(words)
    return found


def test_two_nodes_work_though_one_starts_twice_and_end_with_the_job(slurm):
    job = Job(slurm, "both")
    assert len({node for node, _ in job.nodes}) == 2
    assert len(raylets()) == 2
    job.out.with_suffix(".end").touch()
    ended = slurm.wait(job.number)
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), job.logs()
    assert job.log("/ray-worker-0.log").count("starting Ray again") == 1
    assert "2 of 2 GPUs are there" in job.log("/ray-head.log")
    wait_for(lambda: not raylets(), 30, lambda: str(raylets()))


def test_a_lost_node_ends_the_job_in_two_minutes_and_says_so(slurm):
    job = Job(slurm, "lost")
    by_worker = {pid: words for pid, words in raylets().items() if "--head" not in words}
    (worker,) = by_worker
    start = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    ended = slurm.wait(job.number, timeout=120)
    assert time.monotonic() - start < 120
    assert ended["JobState"] == "FAILED" and ended["ExitCode"] != "0:0"
    assert "Ray died on" in job.log("/ray-worker-0.log")
    said = job.log(".log") + job.log("/driver.log")
    assert "the Ray workers ended before the driver" in said or "ActorDiedError" in said
    wait_for(lambda: not raylets(), 30, lambda: str(raylets()))
