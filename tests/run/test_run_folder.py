"""The run folder: kept runs are never overwritten."""

import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_aopsd import prompts
from nemo_aopsd.config.load import load_config, to_yaml
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import write_jsonl
from nemo_aopsd.run.access import lock
from nemo_aopsd.run.folder import commands_of, load_run_config, require_run, write_config
from nemo_aopsd.run.own_files import keep_extensions
from nemo_aopsd.run.place import check_free, check_place, move_aside
from nemo_aopsd.run.resume import check_resumable

CONFIG = """\
policy: {{model_name: m, max_total_sequence_length: 640, generation: {{max_new_tokens: 16}}}}
data: {{train: {{data_path: problems.jsonl}}}}
logger: {{log_dir: {run}}}
"""


@pytest.fixture
def run(tmp_path):
    """A folder that holds a run, with every kind of file that a run writes, half-written ones too."""
    run = tmp_path / "run"
    for name in (
        *("metrics.jsonl", "competence.jsonl", "initial_progress.jsonl", "report.html"),
        *("rollouts/step_000001.jsonl", "rollouts/.step_000002.jsonl.partial"),
        *("eval/epoch_000.jsonl", "eval/epoch_000.json", "eval/epoch_000.settings.json"),
        *(f"eval/heldout_step_000036_x1/{name}" for name in ("heldout.jsonl", "heldout.settings.json", ".lock")),
        *(f"eval/heldout_step_000036_x1/{name}" for name in ("results.json", "results.md", "results.svg")),
        "eval/heldout_step_000036_x1/calls.jsonl",
        *("eval/stopped/aime24.jsonl", "eval/stopped/aime24.settings.json"),
        *("checkpoints/step_000001/state.json", "checkpoints/.step_000002.partial/model.safetensors"),
        *(f"diagnostics/{name}" for name in ("gaps.svg", "continuations.json", "leaks.md", ".utility.md.partial")),
        "diagnostics/teacher/train_0a1b2c3d_x4/full_dag.jsonl",
        *(f"audit/{name}" for name in ("events.jsonl", "key.jsonl", "sample.json", "report.md", "enrichment.svg")),
    ):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("x")
    (tmp_path / "config.yaml").write_text(CONFIG.format(run=run))
    (run / "config.yaml").write_text(to_yaml(load_config(tmp_path / "config.yaml")))
    return run


def config_of(run, *overrides):
    return load_config(run.parent / "config.yaml", overrides)


def test_what_holds_a_run_or_parts_of_one_or_cannot_be_written_is_not_free(run, tmp_path):
    write_config(run, (run / "config.yaml").read_text(), "aopsd train config.yaml")
    with pytest.raises(UserError, match=r"already holds a run.*--resume.*logger\.log_dir"):
        check_free(run, run / "checkpoints")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.yaml").write_text("my: own")
    with pytest.raises(UserError, match=r"mine holds a config.yaml that no run has written.*log_dir"):
        check_free(tmp_path / "mine", tmp_path / "mine/checkpoints")
    check_free(tmp_path / "new/deep", tmp_path / "new/deep/checkpoints")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: not a folder that can be written"):
        check_free(tmp_path / "file/run", tmp_path / "checkpoints")
    for index, left in enumerate(("metrics.jsonl", "eval/epoch_000.json", "checkpoints/step_000002/state.json")):
        parts = tmp_path / f"parts_{index}"
        (parts / left).parent.mkdir(parents=True)
        (parts / left).write_text("")
        with pytest.raises(UserError, match=r"parts of a run without its config.yaml: "):
            check_free(parts, parts / "checkpoints")
    (tmp_path / "shared/step_000004").mkdir(parents=True)
    with pytest.raises(UserError, match=r"shared holds another run's checkpoints"):
        check_free(tmp_path / "another", tmp_path / "shared")


def test_a_new_run_says_that_its_folder_holds_other_files(run, tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("train.log", ".hidden", "a.py", "b.py", "c.py", "d.py"):
        (folder / name).write_text("")
    [told] = check_place(config_of(run, f"logger.log_dir={folder}"))
    assert "notes is not empty (4 names: a.py, b.py, c.py, ...)" in told
    assert check_place(config_of(run, f"logger.log_dir={tmp_path / 'new'}")) == []


def test_one_process_at_a_time_writes_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    writer = f"process {os.getpid()} on {socket.gethostname()} (Slurm job 4711) is writing a run there"
    code = f"from pathlib import Path; from nemo_aopsd.run.folder import lock\nwith lock(Path({str(tmp_path)!r})): pass"
    with lock(tmp_path):
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert writer in second.stderr
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_which_a_process_starts_is_named_by_it_and_one_that_was_killed_there_is_begun_anew(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    writer = f"process {os.getpid()} on {socket.gethostname()} is writing a run there"
    with lock(tmp_path), pytest.raises(UserError, match=re.escape(writer)):
        require_run(tmp_path)
    (tmp_path / ".lock").write_text("99999\n")
    with pytest.raises(UserError, match=r"no run in it .*start it again, without --resume"):
        require_run(tmp_path)
    check_free(tmp_path, tmp_path / "checkpoints")


def test_two_names_of_one_file_are_one_setting(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py", "other.py"):
        (tmp_path / name).write_text("class A:\n    def judge(self): ...\n    def __init__(self, aopsd): ...\n")
    (tmp_path / "model").mkdir()
    whole = [f"policy.model_name={tmp_path}/model", f"aopsd.judge.kind={tmp_path}/mine.py:A"]
    (run / "config.yaml").write_text(to_yaml(config_of(run, *whole)))
    check_resumable(run, config_of(run, "policy.model_name=model", "aopsd.judge.kind=mine.py:A"))
    for override in ("policy.model_name=run", "aopsd.judge.kind=other.py:A", "policy.model_name=nowhere"):
        with pytest.raises(UserError, match=override.partition("=")[0]):
            check_resumable(run, config_of(run, *whole, override))


def test_a_command_that_is_refused_leaves_neither_a_lock_nor_the_folders_of_it(tmp_path):
    (tmp_path / "mine").mkdir()
    for run in (tmp_path / "mine", tmp_path / "new/run"):
        with pytest.raises(UserError, match="refused"), lock(run):
            assert (run / ".lock").read_text().split()[0] == str(os.getpid())
            raise UserError("refused")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_a_lock_whose_file_was_deleted_on_the_way_is_taken_anew(tmp_path, monkeypatch):
    """As when its holder ends between the opening of the file and the lock on it."""
    flock, todo = fcntl.flock, [tmp_path / ".lock"]

    def deleting(file, mode):
        flock(file, mode)
        while todo:
            todo.pop().unlink()

    monkeypatch.setattr(fcntl, "flock", deleting)
    taken = pytest.raises(UserError, match=rf"process {os.getpid()} on .* is writing")
    with lock(tmp_path), taken, lock(tmp_path):
        pass


def test_the_first_command_stays_and_those_that_resumed_are_listed_below_it(run):
    settings = (run / "config.yaml").read_text()
    (run / "config.yaml").unlink()
    for command in ("aopsd train demo 'a=1\n2'", "aopsd train demo --resume run", "aopsd train x --resume run"):
        write_config(run, settings, command)
    commands = ["aopsd train demo 'a=1\\n2'", "aopsd train demo --resume run", "aopsd train x --resume run"]
    assert commands_of(run) == commands
    opening = f"# {commands[0]}\n# resumed: {commands[1]}\n# resumed: {commands[2]}\n"
    assert (run / "config.yaml").read_text() == opening + settings
    assert load_config(run / "config.yaml").raw == load_config(run.parent / "config.yaml").raw
    (run / "config.yaml").write_text("# by hand\n" + settings)
    assert commands_of(run) == []


def test_a_run_that_was_moved_is_read_where_it_is(run, tmp_path):
    moved = tmp_path / 'moved "é😀"'
    run.rename(moved)
    config = load_run_config(moved)
    assert config.logger["log_dir"] == str(moved)
    assert config.checkpointing["checkpoint_dir"] == str(moved / "checkpoints")


def test_prompts_of_ones_own_that_are_gone_or_changed_are_those_that_the_run_keeps(run, tmp_path):
    family, kept = Path(prompts.__file__).parent / "default", run / "extensions/prompts"
    mine = shutil.copytree(family, tmp_path / "mine")
    config = config_of(run, f"aopsd.prompts={mine}")
    (run / "config.yaml").write_text(to_yaml(config))
    keep_extensions(run, config.aopsd)
    assert prompts.is_family("default") and not prompts.is_family(str(family))  # an absolute path is no family's name
    assert load_run_config(run).aopsd.prompts == str(mine)
    (mine / "student.txt").write_text("Guess: {problem}")
    assert load_run_config(run).aopsd.prompts == str(kept)
    shutil.rmtree(mine)
    assert load_run_config(run).aopsd.prompts == str(kept)
    assert prompts.read(str(kept), "student") == prompts.read("default", "student")
    shutil.rmtree(kept)  # of a run that kept none
    assert load_run_config(run).aopsd.prompts == str(mine)


def test_parts_of_ones_own_may_lie_elsewhere_when_a_run_goes_on_but_not_differ(run, tmp_path):
    for place in ("here", "there"):
        shutil.copytree(Path(prompts.__file__).parent / "tiny", tmp_path / place)
        shutil.copy(Path(__file__).parents[2] / "examples/my_parts.py", tmp_path / place)

    def parts(place, kind="RisingWeights"):
        folder = tmp_path / place
        weighting = f"aopsd.weighting={folder / 'my_parts.py'}:{kind}"
        return config_of(run, f"aopsd.prompts={folder}", weighting, "aopsd.scoring=trainer")

    (run / "config.yaml").write_text(to_yaml(parts("here")))
    keep_extensions(run, parts("here").aopsd)
    shutil.rmtree(tmp_path / "here")
    check_resumable(run, parts("there"))
    with pytest.raises(UserError, match=r"settings:\n  aopsd\.weighting: .*\nGo on"):
        check_resumable(run, parts("there", "UnsurprisingOnly"))
    for name in ("my_parts.py", "student.txt"):
        (tmp_path / "there" / name).write_text((tmp_path / "there" / name).read_text() + "\n")
    with pytest.raises(UserError, match=r"settings:\n  aopsd\.prompts: .*\n  aopsd\.weighting: .*\nGo on"):
        check_resumable(run, parts("there"))


def test_a_run_whose_optimizer_left_vllm_too_little_goes_on_without_it_on_the_gpu(run):
    on_nemo, keeps = "aopsd.engine=nemo_rl", "aopsd.keep_optimizer_on_gpu=true"
    (run / "config.yaml").write_text(to_yaml(config_of(run, on_nemo, keeps)))
    check_resumable(run, config_of(run, on_nemo))


def test_a_run_is_resumed_by_the_same_config_only(run, tmp_path, monkeypatch):
    check_resumable(run, config_of(run))
    with pytest.raises(UserError, match=r"nowhere: no such run folder"):
        check_resumable(tmp_path / "nowhere", config_of(run))
    lengths = "aopsd.max_num_epochs=9", "checkpointing.save_period=1", "policy.logprob_batch_size=2"
    too_long = "aopsd.context.on_overlong=drop"  # of a run that a row too long has ended
    check_resumable(run, config_of(run, *lengths, too_long))
    with pytest.raises(UserError) as error:
        check_resumable(run, config_of(run, "aopsd.seed=1", "+policy.extra=2", "aopsd.max_num_epochs=9"))
    changed = "  aopsd.seed: 0 -> 1\n  policy.extra: None -> 2\n"
    assert f"{changed}Go on with its own ones, `aopsd train --resume {run}`, or" in str(error.value)
    with pytest.raises(UserError, match="checkpoint_dir"):
        check_resumable(run, config_of(run, "checkpointing.checkpoint_dir=/elsewhere"))
    monkeypatch.chdir(tmp_path)
    check_resumable(run, config_of(run, "logger.log_dir=run"))  # the same place by another name


def test_a_run_goes_on_with_a_budget_that_holds_what_it_has_done(run):
    totals = [{"rollout/total_tokens": 100 * step, "time/total": 2.5 * step} for step in range(1, 6)]
    lines = [{"step": step, "epoch": (step - 1) // 2} | total for step, total in enumerate(totals, start=1)]
    write_jsonl(run / "metrics.jsonl", lines)
    # Each limit with which this run could have come so far: the step that reaches one is the last.
    least = {"max_num_epochs": 3, "max_num_steps": 5, "max_response_tokens": 401, "max_train_seconds": 10.01}
    for key, limit in least.items():
        check_resumable(run, config_of(run, f"aopsd.{key}={limit}"))
    check_resumable(run, config_of(run, "aopsd.max_num_steps=null"))
    for key, limit, reached in (
        *(("max_num_epochs", 2, 3), ("max_num_steps", 4, 5), ("max_num_steps", 0, 5)),
        *(("max_response_tokens", 400, 500), ("max_train_seconds", 10.0, 12.5)),
    ):
        with pytest.raises(UserError, match=rf"step 5, in epoch 3.*Set aopsd\.{key}={reached} or more"):
            check_resumable(run, config_of(run, f"aopsd.{key}={limit}"))


def test_a_budget_that_the_first_step_used_up_is_no_smaller_one(run):
    (run / "metrics.jsonl").write_text('{"step": 1, "epoch": 0, "rollout/total_tokens": 100, "time/total": 9.0}\n')
    check_resumable(run, config_of(run, "aopsd.max_response_tokens=1", "aopsd.max_train_seconds=0.1"))


def test_a_run_moves_aside_whole_and_nothing_else_does(run, tmp_path):
    def files(folder):
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    (run / "audit/labels").mkdir()
    (run / "audit/labels/me.jsonl").write_text("work of hours")
    whole = files(run)
    (run / "notes.md").write_text("precious")
    (run / "checkpoints").rename(tmp_path / "other")
    (run / "checkpoints").symlink_to(tmp_path / "other")
    (tmp_path / "run.1").mkdir()
    assert move_aside(run) == tmp_path / "run.2"
    assert files(run) == ["notes.md"] and load_run_config(tmp_path / "run.2")
    assert files(tmp_path / "run.2") == [name for name in whole if not name.startswith("checkpoints/")]
    assert (tmp_path / "run.2/checkpoints/step_000001/state.json").exists()
    assert move_aside(run) is None and move_aside(run / "nowhere") is None
