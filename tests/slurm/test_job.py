"""What the jobs of slurm/ run, where and with how many GPUs, mostly by their dry runs. test_real_slurm.py runs some."""

import os
import platform
import re
import socket
import subprocess
import sys

import pytest

from nemo_aopsd.config.load import load_config
from tests import REPO
from tests.slurm.scripts import CPU_NODES, DATA, FAKES, MIXED, SUITE, call, fake, planned, refused, without_python

TRAINING = {"qwen3_4b": 1, "qwen3_8b": 1, "qwen3_32b": 2, "qwen3_30b_a3b": 2}  # nodes


@pytest.mark.parametrize(("name", "nodes"), TRAINING.items())
def test_a_plan_names_nodes_roles_container_and_command(name, nodes):
    plan = planned(f"aopsd_{name}", "aopsd.seed=3", AOPSD_CONTAINER="nvcr.io/nemo-rl", AOPSD_DATA=DATA)
    assert f"sbatch --parsable --nodes={nodes} " in plan
    assert ("node.sh worker" in plan) == (nodes > 1)
    assert "--container-image=nvcr.io/nemo-rl" in plan
    assert f"cluster.num_nodes={nodes} cluster.gpus_per_node=8 data.train.data_path={DATA} aopsd.seed=3" in plan
    assert f"{8 * nodes} GPUs" in plan


def test_account_partition_time_mounts_and_a_sif_image_are_variables(tmp_path):
    (tmp_path / "nemo.sif").touch()
    names = {"ACCOUNT": "physics", "PARTITION": "long", "TIME": "01:00:00", "MOUNTS": "/usr:/there"}
    names |= {"SBATCH": "--qos=high --array=0-4", "CONTAINER": str(tmp_path / "nemo.sif"), "DATA": DATA}
    plan = planned("aopsd_qwen3_4b", **{f"AOPSD_{name}": value for name, value in names.items()})
    assert "--account=physics --partition=long --time=01:00:00" in plan
    assert "--qos=high --array=0-4" in plan and "/usr:/there" in plan
    assert "apptainer exec --nv --writable-tmpfs --bind" in plan and "--container-image" not in plan


def test_a_container_can_be_written_to_since_workers_patch_their_libraries():
    assert " --container-writable " in planned("aopsd_qwen3_4b", AOPSD_CONTAINER="nvcr.io/nemo-rl", AOPSD_DATA=DATA)


def test_an_existing_run_is_resumed_and_the_local_engine_needs_no_ray_and_no_gpu(tmp_path):
    env = {"AOPSD_CONTAINER": "none", "AOPSD_ENGINE": "local", "AOPSD_RUN": str(tmp_path)}
    plan = planned("aopsd_qwen3_32b", **env)
    assert "--nodes=1" in plan and "node.sh single" in plan and "--resume" not in plan
    assert "aopsd_tiny_cpu.yaml aopsd.engine=local" in plan
    (tmp_path / "config.yaml").touch()
    assert f"--resume {tmp_path}" in planned("aopsd_qwen3_4b", **env)


@pytest.mark.parametrize(
    ("sinfo", "env", "gpus"),
    [
        (FAKES["sinfo"], {}, 1),
        (FAKES["sinfo"], {"AOPSD_LOCAL_GPUS": "0"}, 0),
        (CPU_NODES, {}, 0),
        (MIXED, {}, 0),  # the default partition has none
        (MIXED, {"AOPSD_PARTITION": "h100"}, 1),
    ],
)
@pytest.mark.parametrize("script", ["aopsd_qwen3_4b", "compare"])
def test_a_local_job_asks_for_one_gpu_where_its_partition_has_some_and_the_plan_says_so(
    script, sinfo, env, gpus, cluster, tmp_path
):
    fake(tmp_path, "sinfo", sinfo)
    plan = planned(script, **SUITE | cluster | {"AOPSD_ENGINE": "local"} | env)
    assert re.findall(r"--gres=gpu:(\d)", plan) == ["1"] * 2 * gpus  # of sbatch and of srun
    assert f"# GPUs of the local engine: {gpus} (AOPSD_LOCAL_GPUS" in plan


ANOTHER = "logger: {log_dir: runs/of_the_file}\ncluster: {num_nodes: 2, gpus_per_node: 1}\n"


def another(tmp_path, parent="aopsd_tiny_h100"):
    """Settings of a job whose config is not the script's own."""
    config = tmp_path / "another.yaml"
    config.write_text(f"defaults: {REPO}/examples/configs/{parent}.yaml\n{ANOTHER}", encoding="utf-8")
    return {"AOPSD_CONFIG": str(config), "AOPSD_CONTAINER": "none", "AOPSD_DATA": DATA, "AOPSD_PYTHON": sys.executable}


@pytest.mark.parametrize(
    ("env", "nodes", "gpus", "run"),
    [
        ({}, 2, 1, "runs/of_the_file"),
        ({"AOPSD_GPUS_PER_NODE": "4"}, 2, 4, "runs/of_the_file"),
        ({"AOPSD_NODES": "1", "AOPSD_RUN": "runs/mine"}, 1, 1, "runs/mine"),
    ],
)
def test_folder_and_size_of_another_config_s_run_are_its_own_unless_set(env, nodes, gpus, run, tmp_path):
    settings = another(tmp_path) | env
    plan = planned("aopsd_qwen3_4b", **settings)
    assert f"--nodes={nodes} " in plan and f"# once {nodes * gpus} GPUs are there ({nodes} x {gpus})" in plan
    assert f"cluster.num_nodes={nodes} cluster.gpus_per_node={gpus} " in plan
    assert f" logger.log_dir={REPO}/{run} " in plan
    said = {"AOPSD_NODES": nodes, "AOPSD_GPUS_PER_NODE": gpus, "AOPSD_RUN": run}
    taken = " ".join(f"{name}={value}" for name, value in said.items() if name not in env)
    assert f"# from {settings['AOPSD_CONFIG']}: {taken}\n" in plan


def test_the_local_engine_s_run_folder_is_the_config_s(tmp_path):
    env = another(tmp_path, "aopsd_tiny_cpu") | {"AOPSD_ENGINE": "local"}
    assert f" logger.log_dir={REPO}/runs/of_the_file " in planned("aopsd_qwen3_4b", **env)
    own = planned("aopsd_qwen3_4b", AOPSD_ENGINE="local", AOPSD_CONTAINER="none")
    assert f" logger.log_dir={REPO}/{load_config('examples/configs/aopsd_tiny_cpu.yaml').logger['log_dir']} " in own


def test_a_job_gets_folder_and_size_that_its_submission_read(cluster, tmp_path):
    fake(tmp_path, "sbatch", 'echo "$AOPSD_RUN $AOPSD_NODES $AOPSD_GPUS_PER_NODE" >>"$CALLS"; echo 17')
    assert call("aopsd_qwen3_4b", **cluster | another(tmp_path)).returncode == 0
    assert set((tmp_path / "calls").read_text().splitlines()) == {f"{REPO}/runs/of_the_file 2 1"}


def test_without_a_python_another_config_needs_its_folder_and_size_set(tmp_path):
    env = another(tmp_path) | without_python(tmp_path)
    assert "AOPSD_GPUS_PER_NODE are not all set" in refused("aopsd_qwen3_4b", "--dry-run", **env)
    sizes = {"AOPSD_RUN": str(tmp_path / "run"), "AOPSD_NODES": "1", "AOPSD_GPUS_PER_NODE": "2"}
    assert f"logger.log_dir={tmp_path}/run" in planned("aopsd_qwen3_4b", **env | sizes)


def test_a_config_s_own_parts_are_found_on_the_user_s_pythonpath(tmp_path):
    env = another(tmp_path)
    own = "aopsd.objective.name=my_parts:HalfSquaredGap"
    assert "no module `my_parts`" in refused("aopsd_qwen3_4b", "--dry-run", own, **env)
    assert f" {own} " in planned("aopsd_qwen3_4b", own, **env, PYTHONPATH=str(REPO / "examples"))


@pytest.mark.parametrize("name", TRAINING)
def test_what_a_script_says_of_its_own_config_is_in_the_file(name):
    head = (REPO / f"slurm/aopsd_{name}.sh").read_text(encoding="utf-8")
    own = dict(re.findall(r"\bOWN_(\w+)=(\S+)", head))
    config = load_config(REPO / own["CONFIG"])
    cluster = config.raw["cluster"]
    said = (config.logger["log_dir"], str(cluster["num_nodes"]), str(cluster["gpus_per_node"]))
    assert (own["RUN"], own["NODES"], own["GPUS"]) == said


def test_targets_of_an_evaluation_become_an_array():
    plan = planned(
        "evaluate", "--samples", "4", AOPSD_CONTAINER="none", AOPSD_TARGETS="examples docs", AOPSD_DATA="aime25 " + DATA
    )
    assert "--array=0-1" in plan
    assert f"--out {REPO}/runs/evaluations/examples --data aime25 --data {DATA} --samples 4" in plan


def test_graphs_are_built_with_a_server_of_the_job_or_with_another():
    env = {"AOPSD_CONTAINER": "none", "AOPSD_PROBLEMS": DATA, "AOPSD_DAGS": "runs/dags.jsonl", "AOPSD_MODEL": "M"}
    plan = planned("dag_build", **env)
    assert "source slurm/serve.sh M 8000 8 1800" in plan
    assert "dag build examples/data/problems.jsonl --out runs/dags.jsonl --base-url http://localhost:8000/v1" in plan
    plan = planned("dag_build", **env, AOPSD_BASE_URL="http://elsewhere/v1")
    assert "serve.sh" not in plan and "--base-url http://elsewhere/v1" in plan


@pytest.mark.parametrize(("element", "run"), [("0", "base/seed_0"), ("2", "aopsd/seed_0"), ("4", "opsd/seed_1")])
def test_a_suite_is_an_array_with_an_element_a_member_and_seed(element, run):
    plan = planned("compare", **SUITE, AOPSD_SEEDS="2", AOPSD_OUT="out", SLURM_ARRAY_TASK_ID=element)
    assert "--array=0-5" in plan and "--gres" not in plan
    assert f"compare examples/suites/embedded.yaml --seeds 2 --out {REPO}/out --only {run} \n" in plan


def test_an_array_has_a_seed_an_element_and_no_other():
    env = {"AOPSD_CONTAINER": "none", "AOPSD_DATA": DATA, "AOPSD_SBATCH": "--qos=long --array=0-4"}
    assert "aopsd.seed is made from --array" in refused("aopsd_qwen3_4b", "--dry-run", "aopsd.seed=1", **env)
    assert "--array=0-4" in planned("aopsd_qwen3_4b", **env)


JOB = {"ID": "17", "NODELIST": "n1", "NAME": "job", "NUM_NODES": "1"}


def job(script, folder, **env):
    """The batch script as Slurm runs it; `srun` is a stand-in of the caller's."""
    (folder / "slurm_script").symlink_to(REPO / f"slurm/{script}.sh")
    fake(folder, "scontrol", 'echo "$*" >>"$CALLS"; echo n1')
    env |= {f"SLURM_JOB_{key}": value for key, value in JOB.items()} | {"SLURM_CPUS_ON_NODE": "2"}
    env |= {"SLURM_SUBMIT_DIR": str(REPO)}
    command = ["bash", str(folder / "slurm_script")]
    return subprocess.run(command, cwd=REPO, env=os.environ | env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("script", "env"),
    [
        ("aopsd_qwen3_4b", {"AOPSD_DATA": DATA}),
        ("compare", SUITE),
        ("evaluate", {"AOPSD_TARGETS": "examples", "AOPSD_DATA": "aime25"}),
        ("dag_build", {"AOPSD_PROBLEMS": DATA, "AOPSD_DAGS": "runs/d.jsonl", "AOPSD_MODEL": "M"}),
    ],
)
def test_a_job_runs_what_the_dry_run_has_shown(script, env, cluster, tmp_path):
    env = cluster | env | {"AOPSD_CONTAINER": "none", "AOPSD_RUN": str(tmp_path / "run"), "AOPSD_OUT": str(tmp_path)}
    fake(tmp_path, "sinfo", CPU_NODES)
    env |= {"AOPSD_PYTHON": sys.executable}
    _, shown = planned(script, **env).split("driver.log:\n")
    fake(tmp_path, "srun", "echo n1")
    done = job(script, tmp_path, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = (tmp_path / "logs/job-17/driver.sh").read_text(encoding="utf-8")
    assert ran.replace("job-17", "NAME-JOB") == shown.partition("# once ")[0]


@pytest.mark.parametrize(
    ("saved", "goes_on"),
    [
        ("metrics.jsonl", False),  # a resume makes its steps again
        ("rollouts/step_000001.jsonl", False),
        ("checkpoints/step_1/state.json", True),
        ("elsewhere/step_1/state.json", True),
        ("initial_progress.jsonl", True),
        ("eval/epoch_000.jsonl", True),
    ],
)
def test_at_its_limit_a_training_goes_on_only_from_what_a_resume_keeps(saved, goes_on, cluster, tmp_path):
    run = tmp_path / "run"
    (run / saved).parent.mkdir(parents=True)
    checkpoints = run / ("elsewhere" if "elsewhere" in saved else "checkpoints")
    (run / "config.yaml").write_text(f"checkpointing:\n  checkpoint_dir: {checkpoints}\n", encoding="utf-8")
    fake(tmp_path, "srun", f"echo line >>{run / saved}; kill -USR1 $PPID; exit 143")
    env = {"AOPSD_CONTAINER": "none", "AOPSD_ENGINE": "local", "AOPSD_RUN": str(run), "AOPSD_CHECK": "false"}
    done = job("aopsd_qwen3_4b", tmp_path, **cluster | env)
    requeued = "requeue 17" in (tmp_path / "calls").read_text(encoding="utf-8")
    assert (requeued, "not requeued" in done.stdout) == (goes_on, not goes_on), done.stdout + done.stderr


def test_a_job_that_slurm_stops_does_not_call_it_a_success(cluster, tmp_path):
    fake(tmp_path, "srun", "kill -TERM $PPID; exit 0")
    env = {"AOPSD_CONTAINER": "none", "AOPSD_ENGINE": "local", "AOPSD_RUN": str(tmp_path), "AOPSD_CHECK": "false"}
    last = job("aopsd_qwen3_4b", tmp_path, **cluster | env).stdout.splitlines()[-1]
    assert "stopped by scancel, by a requeue" in last and "exit code 0" not in last


def test_a_command_runs_on_a_node_as_a_job_would(cluster, tmp_path):
    fake(tmp_path, "srun", 'echo "$@ [$PYTHONPATH]"')
    env = cluster | {"AOPSD_PARTITION": "long", "AOPSD_ACCOUNT": "physics", "PYTHONPATH": "/opt/site"}
    done = call("run", "aopsd", "doctor", "x.yaml", **env, AOPSD_CONTAINER="image", AOPSD_GPUS_PER_NODE="4")
    assert done.stdout.startswith("--nodes=1 --ntasks=1 --export=ALL --account=physics --partition=long --gres=gpu:4 ")
    assert f"--container-image=image --container-mounts={REPO}:{REPO}," in done.stdout
    assert done.stdout.endswith(f" python -m nemo_aopsd doctor x.yaml [{REPO}:/opt/site]\n")
    (tmp_path / "nemo.sif").touch()
    done = call("run", "ls", "-l", **env, AOPSD_CONTAINER=str(tmp_path / "nemo.sif"), AOPSD_GPUS_PER_NODE="0")
    assert "apptainer exec --nv" in done.stdout and "--gres" not in done.stdout
    assert done.stdout.endswith(f"nemo.sif ls -l [{REPO}:/opt/site]\n")


def node(role, folder, ray, **env):
    """slurm/node.sh with a stand-in for Ray, which has one log."""
    fake(folder, "ray", f'echo "$@" >>"$CALLS"; cd "$RAY_TMPDIR/ray/session_latest/logs"; {ray}')
    fake(folder, "sleep", ":")
    (folder / "ray/session_latest/logs").mkdir(parents=True)
    (folder / "ray/session_latest/logs/worker.err").touch()
    env |= {"AOPSD_GPUS_PER_NODE": "0", "AOPSD_NODES": "1", "AOPSD_HEAD": "localhost", "AOPSD_WAIT": "0"}
    env |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CALLS": str(folder / "calls"), "RAY_TMPDIR": str(folder)}
    command = ["bash", "slurm/node.sh", role, str(folder)]
    return subprocess.run(command, cwd=REPO, env=os.environ | env, capture_output=True, text=True, timeout=60)


def test_of_a_ray_that_dies_the_process_that_ended_is_named_and_its_logs_are_kept(tmp_path):
    (tmp_path / "driver.sh").touch()
    done = node("head", tmp_path, "echo '  gcs [exit code=1]' >ray_process_exit.log; exit 1", AOPSD_RAY_PORT="1")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "  gcs [exit code=1]")
    assert (tmp_path / f"ray-of-{platform.node()}/worker.err").exists()
    # What nobody uses: the client server cannot be turned off, and ends Ray unless the node is up in 30 s.
    started = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert len(started) == 4 and len(set(started)) == 1  # again, for it also gives up if its node is not up in 30 s
    assert "--include-dashboard=false" in started[0] and started[0].endswith("--ray-client-server-port=2")


def test_a_ray_that_ends_while_the_driver_runs_is_not_started_again(tmp_path):
    (tmp_path / "driver.sh").touch()
    (tmp_path / "head-up").write_text("host:1\n", encoding="utf-8")
    assert node("worker", tmp_path, "touch ../../../driver.log; exit 1").returncode == 2
    assert len((tmp_path / "calls").read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.parametrize(("code", "kept"), [(0, False), (3, True)])
def test_logs_of_ray_are_kept_on_the_head_if_the_driver_fails(code, kept, tmp_path):
    (tmp_path / "driver.sh").write_text(f"exit {code}\n", encoding="utf-8")
    fake(tmp_path, "python", "echo 0")  # GPUs that are there
    with socket.create_server(("", 0)) as head:
        port = str(head.getsockname()[1])
        done = node("head", tmp_path, "exec tail -f /dev/null", AOPSD_RAY_PORT=port, AOPSD_PYTHON="python")
    assert done.returncode == code
    assert (tmp_path / f"ray-of-{platform.node()}/worker.err").exists() == kept


@pytest.mark.parametrize("failed", [False, True])
def test_logs_of_ray_are_kept_on_a_worker_if_the_driver_failed(failed, tmp_path):
    (tmp_path / "driver.sh").touch()
    (tmp_path / "head-up").write_text("host:1\n", encoding="utf-8")
    ended = f"{'touch ../../../failed;' if failed else ''} touch ../../../stop; exec tail -f /dev/null"
    assert node("worker", tmp_path, ended).returncode == 0
    assert (tmp_path / f"ray-of-{platform.node()}/worker.err").exists() == failed
