"""The scripts of slurm/ under a real Slurm that this module starts, with the embedded model on the local engine.

It needs root and Debian's slurm-wlm and munge. What takes minutes is left to `make cluster-test`.
"""

import csv
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
NEEDED = ("sbatch", "slurmctld", "slurmd", "munged")
MISSING = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
takes_minutes = pytest.mark.skipif(
    "AOPSD_CLUSTER_TEST" not in os.environ, reason="takes minutes: `make cluster-test` runs it"
)
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)}: apt-get install slurm-wlm munge"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a private Slurm needs root"),
]
STEPS = 24
SMALL = (
    "aopsd.evaluation.data_path=null",
    "aopsd.num_prompts_per_step=8",
    "aopsd.max_num_epochs=1000",
    "aopsd.curriculum.num_initial_attempts=1",
    "checkpointing.save_period=1",
)


class Slurm:
    """A cluster of one node, and what the tests ask of it."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "jobs").mkdir()  # where sbatch itself is to put a log, Slurm makes no folder
        self.env = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "AOPSD_CONTAINER": "none",
            "AOPSD_ENGINE": "local",
            "AOPSD_LOGS": str(folder / "jobs"),
            "AOPSD_PYTHON": sys.executable,
            "AOPSD_GRACE": "5",
            "OMP_NUM_THREADS": "1",
        }
        lines = (REPO / "nemo_aopsd/builtin/data/train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / "train.jsonl").write_text("".join(lines[:32]), encoding="utf-8")
        self.data = f"data.train.data_path={folder / 'train.jsonl'}"

    def call(self, *command, **env):
        done = subprocess.run(command, cwd=REPO, env=self.env | env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def train(self, run, *overrides, steps=STEPS, **env):
        """Number of the job that the script submitted."""
        words = (*SMALL, self.data, f"aopsd.max_num_steps={steps}", *overrides)
        printed = self.call("bash", "slurm/aopsd_qwen3_4b.sh", *words, AOPSD_RUN=str(run), **env)
        return re.search(r"^job (\d+)", printed)[1]

    def job(self, number):
        """Fields of `scontrol show job`, of an array the first listed element's."""
        return dict(re.findall(r"(\w+)=(\S*)", self.call("scontrol", "--oneliner", "show", "job", number)))

    def wait(self, number, timeout=1200):
        """The fields of the job once it has ended. The timeouts are for what hangs: a loaded machine is slow."""
        wait_for(lambda: self.job(number)["JobState"] not in UNENDED, timeout, lambda: str(self.job(number)))
        return self.job(number)

    def wait_for_steps(self, run, steps, timeout=600):
        lines = run / "metrics.jsonl"
        wait_for(lambda: lines.exists() and len(metrics(run)) >= steps, timeout, lambda: "the run does not advance")

    def log(self, name):
        return (self.folder / "jobs" / name).read_text(encoding="utf-8")


UNENDED = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED")


def wait_for(condition, seconds, told):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.5)


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def learnt(run):
    """What every attempt at a run must agree on, whatever interrupted it."""
    return [{key: line[key] for key in line if "time" not in key and "second" not in key} for line in metrics(run)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    for above in (folder, folder.parent):
        above.chmod(0o755)  # munge's socket must be reachable
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as two:  # beside a Slurm of another test
        ports = {"SLURMCTLD_PORT": str(one.getsockname()[1]), "SLURMD_PORT": str(two.getsockname()[1])}
    command = ["bash", str(REPO / "tests/slurm/slurm.sh"), "start", str(folder)]
    try:
        subprocess.run(command, env=os.environ | ports, check=True, timeout=60)
        yield Slurm(folder)
    finally:
        subprocess.run(["bash", str(REPO / "tests/slurm/slurm.sh"), "stop", str(folder)], check=True, timeout=60)


@pytest.fixture(scope="module")
def straight(slurm):
    """A run that nothing interrupted, and its job."""
    run = slurm.folder / "runs/straight"
    number = slurm.train(run)
    return run, number, slurm.wait(number)


def test_a_job_is_submitted_killed_and_goes_on(slurm):
    """The way of a user, in less than a minute; the others look closer."""
    run = slurm.folder / "runs/quick"
    number = slurm.train(
        run, "aopsd.curriculum.name=shuffle", "aopsd.num_prompts_per_step=4", steps=6, AOPSD_CHECK="false"
    )
    slurm.wait_for_steps(run, 2)
    slurm.call("scontrol", "requeue", number)
    job = slurm.wait(number)
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("COMPLETED", "0:0", "1")
    assert f"--resume {run}" in slurm.log(f"aopsd-qwen3-4b-{number}-restart-1/driver.sh")
    assert [line["step"] for line in metrics(run)] == [1, 2, 3, 4, 5, 6]


def test_what_slurm_refuses_is_told_by_a_dry_run_and_nothing_is_submitted(slurm):
    env = slurm.env | {"AOPSD_CHECK": "false", "AOPSD_PARTITION": "none", "AOPSD_RUN": str(slurm.folder / "runs/no")}
    command = ["bash", "slurm/aopsd_qwen3_4b.sh", "--dry-run"]
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "Slurm would refuse this job: error: invalid partition" in done.stderr
    assert "# Slurm: would start at " in slurm.call(*command, AOPSD_CHECK="false", AOPSD_RUN=env["AOPSD_RUN"])
    assert slurm.call("squeue", "--noheader") == ""


@takes_minutes
def test_a_job_trains_and_reports_and_has_logs_by_role(slurm, straight):
    run, number, job = straight
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
    assert [line["step"] for line in metrics(run)] == list(range(1, STEPS + 1))
    assert (run / "report.html").stat().st_size > 10_000
    assert "ended with exit code 0" in slurm.log(f"aopsd-qwen3-4b-{number}.log")
    assert f"step {STEPS}/" in slurm.log(f"aopsd-qwen3-4b-{number}/driver.log")
    assert "examples/run_aopsd.py --config" in slurm.log(f"aopsd-qwen3-4b-{number}/driver.sh")


@takes_minutes
def test_sbatch_itself_works_and_the_exit_code_of_the_training_is_the_jobs(slurm):
    output = slurm.call(
        *("sbatch", "--parsable", f"--output={slurm.folder}/jobs/direct.log"),
        *("slurm/aopsd_qwen3_4b.sh", "aopsd.nonsense=1"),
        AOPSD_RUN=str(slurm.folder / "runs/bad"),
    )
    job = slurm.wait(output.strip())
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "2:0")
    assert "unknown key `aopsd.nonsense`" in slurm.log("direct.log")


@takes_minutes
def test_an_array_trains_a_seed_an_element(slurm):
    run = slurm.folder / "runs/seeds"
    number = slurm.train(run, steps=2, AOPSD_SBATCH="--array=3-4")
    for element in (3, 4):
        assert slurm.wait(f"{number}_{element}")["ExitCode"] == "0:0"
        folder = run / f"seed_{element}"
        assert f"seed: {element}\n" in (folder / "config.yaml").read_text(encoding="utf-8")
        assert len(metrics(folder)) == 2
    assert learnt(run / "seed_3") != learnt(run / "seed_4")


@takes_minutes
def test_a_suite_is_an_array_of_members_and_seeds_and_then_a_table(slurm):
    held_out = (REPO / "nemo_aopsd/builtin/data/heldout.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (slurm.folder / "heldout.jsonl").write_text("".join(held_out[:8]), encoding="utf-8")
    settings = {
        "data": {"train": {"data_path": str(slurm.folder / "train.jsonl")}},
        "aopsd": {
            "num_prompts_per_step": 8,
            "max_num_steps": 2,
            "evaluation": {"data_path": str(slurm.folder / "heldout.jsonl"), "num_samples": 2},
        },
    }
    config = str(REPO / "examples/configs/aopsd_tiny_cpu.yaml")
    suite, out = slurm.folder / "suite.yaml", slurm.folder / "runs/suite"
    suite.write_text(json.dumps({"config": config, "settings": settings, "members": {"base": None, "frontier": None}}))
    printed = slurm.call(
        *("bash", "slurm/compare.sh"),
        **{"AOPSD_SUITE": str(suite), "AOPSD_MEMBERS": "base frontier", "AOPSD_SEEDS": "2", "AOPSD_OUT": str(out)},
    )
    number = re.search(r"^job (\d+)", printed)[1]
    for element in range(4):
        assert slurm.wait(f"{number}_{element}")["ExitCode"] == "0:0"
    table = ("-c", "from nemo_aopsd.cli import main; main()", "compare", str(suite), "--seeds", "2", "--out", str(out))
    slurm.call(sys.executable, *table)
    rows = csv.DictReader((out / "results.csv").read_text(encoding="utf-8").splitlines())
    assert {row["member"]: row["seeds"] for row in rows} == {"base": "2", "frontier": "2"}
    assert [len(metrics(out / f"frontier/seed_{seed}")) for seed in (0, 1)] == [2, 2]


@takes_minutes
def test_a_requeued_job_goes_on_and_learns_the_same(slurm, straight):
    run = slurm.folder / "runs/requeued"
    number = slurm.train(run)
    slurm.wait_for_steps(run, 4)
    slurm.call("scontrol", "requeue", number)
    job = slurm.wait(number)
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("COMPLETED", "0:0", "1")
    assert f"--resume {run}" in slurm.log(f"aopsd-qwen3-4b-{number}-restart-1/driver.sh")
    assert learnt(run) == learnt(straight[0])


@takes_minutes
def test_a_cancelled_job_goes_on_with_the_same_command(slurm, straight):
    run = slurm.folder / "runs/cancelled"
    number = slurm.train(run)
    slurm.wait_for_steps(run, 4)
    slurm.call("scancel", number)
    assert slurm.wait(number)["JobState"] == "CANCELLED"
    assert len(metrics(run)) < STEPS
    again = slurm.train(run)
    assert slurm.wait(again)["ExitCode"] == "0:0"
    assert f"--resume {run}" in slurm.log(f"aopsd-qwen3-4b-{again}/driver.sh")
    assert learnt(run) == learnt(straight[0])


@takes_minutes
def test_a_job_at_its_time_limit_requeues_itself_and_goes_on(slurm):
    run = slurm.folder / "runs/limit"
    steps = 130
    number = slurm.train(run, steps=steps, AOPSD_SBATCH="--signal=B:USR1@15")
    slurm.wait_for_steps(run, 4)  # then the limit comes near, however long they took
    soon = datetime.now() + timedelta(seconds=45)
    slurm.call("scontrol", "update", f"JobId={number}", f"EndTime={soon:%FT%T}")
    wait_for(lambda: slurm.job(number)["Restarts"] == "1", 120, lambda: str(slurm.job(number)))
    slurm.call("scontrol", "update", f"JobId={number}", "TimeLimit=60")
    job = slurm.wait(number)
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("COMPLETED", "0:0", "1")
    assert f"--resume {run}" in slurm.log(f"aopsd-qwen3-4b-{number}-restart-1/driver.sh")
    assert "time limit near; requeued" in slurm.log(f"aopsd-qwen3-4b-{number}.log")
    assert [line["step"] for line in metrics(run)] == list(range(1, steps + 1))


@takes_minutes
def test_a_job_that_saves_nothing_before_its_limit_is_not_requeued_for_ever(slurm):
    run = slurm.folder / "runs/hopeless"
    (run / "checkpoints").mkdir(parents=True)
    slow = "aopsd.num_prompts_per_step=32"  # its initial attempts are one batch, all journalled at the end
    number = slurm.train(run, slow, "aopsd.curriculum.num_initial_attempts=4000", AOPSD_TIME="1",
                         AOPSD_SBATCH="--signal=B:USR1@15")  # fmt: skip
    job = slurm.wait(number)
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("FAILED", "1:0", "0")
    assert "before anything was saved; not requeued" in slurm.log(f"aopsd-qwen3-4b-{number}.log")
