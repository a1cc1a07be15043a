import errno
import json
import os
import re

import pytest

from nemo_aopsd.errors import UserError
from nemo_aopsd.files import (
    append_jsonl,
    atomic_directory,
    atomic_write,
    derive_seed,
    is_full,
    keep_inputs,
    naming,
    read_journal,
    read_json,
)


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    target = tmp_path / "state.json"
    atomic_write(target, "old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("name", ["taken", "missing/x" + "y" * 300])
def test_a_failed_write_names_the_file_that_was_asked_for(tmp_path, name):
    (tmp_path / "taken").mkdir()
    (tmp_path / "missing").mkdir()
    with pytest.raises(OSError) as caught:
        atomic_write(tmp_path / name, "x")
    assert caught.value.filename == str(tmp_path / name) and "partial" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_named_as_it_was_asked_for(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError) as caught, atomic_directory(tmp_path / "file/folder"):
        pass
    assert "partial" not in str(caught.value)


def test_what_is_read_is_kept_from_what_is_written(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/inside").write_text("x")
    os.symlink(tmp_path / "a", tmp_path / "link")
    os.link(tmp_path / "a", tmp_path / "hard")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling")
    clashes = [
        ("a", "a"),
        ("link", "a"),
        ("a", "link"),
        ("hard", "a"),
        ("folder/../a", "a"),
        ("folder", "folder/inside"),
    ]
    clashes += [("nowhere", "dangling"), ("x", ".x.partial"), ("x", ".x.partial/step_1")]
    for written, read in clashes:
        with pytest.raises(UserError, match=r"^--out: would write .* over FILE .* Choose another --out"):
            keep_inputs([tmp_path / "other", tmp_path / written], [("--map", None), ("FILE", tmp_path / read)])
    for written, read in [("b", "a"), ("folder/inside", "folder"), ("folder/x", "folder/inside"), ("c/b", "a")]:
        keep_inputs([tmp_path / written], [("FILE", tmp_path / read), ("--config", None)])
    keep_inputs([], [("FILE", tmp_path / "a")])


def test_a_folder_in_the_place_of_a_file_and_a_file_in_the_place_of_a_folder_are_told_before_the_work(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"^--out: .*folder is a folder; expected a file"):
        keep_inputs([tmp_path / "folder"], [])
    keep_inputs([tmp_path / "folder"], [], is_folder=True)
    for below in ("a/x", "a/x/y"):
        with pytest.raises(UserError, match=r"^--calibrate: \S*/a is a file, so that .* Choose another --calibrate"):
            keep_inputs([tmp_path / below], [], "--calibrate")
    keep_inputs([tmp_path / "new/x", None], [])


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("make", [OSError, lambda number, text: RuntimeError(f"I/O error: {text} (os error {number})")])
def test_a_failed_write_names_its_file_whoever_raised_it(tmp_path, full, make):
    """safetensors and tokenizers, written in Rust, raise errors of their own."""
    with pytest.raises(OSError, match=re.escape(os.strerror(full))) as told, naming(tmp_path / "x"):
        raise make(full, os.strerror(full))
    assert told.value.filename == str(tmp_path / "x") and is_full(told.value)
    with pytest.raises(RuntimeError, match=r"^other$"), naming(tmp_path / "x"):
        raise RuntimeError("other")


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "step_000001"
    with pytest.raises(RuntimeError), atomic_directory(target) as partial:
        (partial / "a").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with atomic_directory(target) as partial:
        (partial / "a").write_text("whole")
        assert not target.exists()
    assert (target / "a").read_text() == "whole"


def test_a_folder_left_by_a_kill_is_swept_away(tmp_path):
    (tmp_path / ".step_000001.partial").mkdir()
    (tmp_path / ".step_000001.partial" / "stale").write_text("x")
    with atomic_directory(tmp_path / "step_000001"):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["step_000001"]


def test_a_journal_line_cut_by_a_kill_is_left_out(tmp_path):
    journal = tmp_path / "journal.jsonl"
    append_jsonl(journal, {"a": 1})
    append_jsonl(journal, {"a": "π"})
    whole = journal.read_bytes()
    for cut in range(len(whole) + 1):
        journal.write_bytes(whole[:cut])
        complete = whole[:cut].split(b"\n")[:-1]
        assert read_journal(journal) == [json.loads(line) for line in complete]
    assert read_journal(tmp_path / "absent.jsonl") == []


def test_seeds_differ_by_every_part_and_fit_a_generator():
    seeds = {derive_seed(run, stage, step) for run in range(3) for stage in ("rollout", "judge") for step in range(9)}
    assert len(seeds) == 54
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xe9", "broken JSON"),
        (b'{"a": 1', "broken JSON"),
        (b"[" * 100_000, "broken JSON"),
        (b"[]", "expected an object with a, b, got"),
        (b'{"a": 1}', "expected an object with a, b, got"),
    ],
)
def test_a_damaged_object_is_named_with_its_remedy(tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"x\.json: {message}.* Make it anew\."):
        read_json(path, "a", "b", remedy="Make it anew.")
    path.write_bytes(b'{"a": 1, "b": 2}')
    assert read_json(path, "a", "b", remedy="") == {"a": 1, "b": 2}


def test_a_folder_s_files_are_as_readable_as_the_folder(tmp_path):
    with atomic_directory(tmp_path / "model") as folder:
        (folder / "inner").mkdir()
        for path in (folder / "a", folder / "inner/b"):
            path.touch(0o600)
    allowed = (tmp_path / "model").stat().st_mode & 0o666
    assert all((tmp_path / "model" / name).stat().st_mode & 0o777 == allowed != 0o600 for name in ("a", "inner/b"))
