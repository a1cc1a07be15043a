import json
import shutil

import pytest

from nemo_aopsd.errors import UserError
from nemo_aopsd.run import checkpoint
from nemo_aopsd.run.checkpoint import CheckpointState
from tests.fakes import make_engine


def state(step, engine):
    seen = {"positive": [0.5], "negative": []}
    return CheckpointState(step, 2, 300, 4.5, engine.teacher_checksum(), "p", "h", {"epoch": 1}, seen)


@pytest.fixture
def folder(tmp_path):
    engine = make_engine()
    for step in (999_999, 1_000_000):
        checkpoint.save(tmp_path, engine, state(step, engine), keep=3)
    return tmp_path


def test_what_is_saved_comes_back_and_a_state_without_one_of_its_keys_is_damaged(folder):
    engine, path = make_engine(), folder / "step_1000000"
    assert checkpoint.load(path, engine) == state(1_000_000, engine)
    record = json.loads((path / "state.json").read_text())
    for key in record:
        (path / "state.json").write_text(json.dumps({name: record[name] for name in record if name != key}))
        if key == "surprise":  # older checkpoints lack it
            assert checkpoint.load(path, engine).surprise == {}
            continue
        with pytest.raises(UserError, match=r"step_1000000/state.json: damaged"):
            checkpoint.load(path, engine)


def test_the_newest_is_the_highest_step_and_other_folders_are_left_alone(folder):
    shutil.copytree(folder / "step_999999", folder / "step_zzz")
    assert checkpoint.load_latest(folder, make_engine()).step == 1_000_000
    checkpoint.save(folder, make_engine(), state(1_000_001, make_engine()), keep=1)
    assert sorted(path.name for path in folder.iterdir()) == ["step_1000001", "step_zzz"]


@pytest.mark.parametrize("name", ["state.json", "student.pt"])
@pytest.mark.parametrize("damage", [b"{}", b"\xff\x00", None])
def test_a_damaged_checkpoint_is_named_and_deleting_it_goes_back_to_the_one_before(folder, name, damage):
    target = folder / "step_1000000" / name
    target.write_bytes(target.read_bytes()[:-1] if damage is None else damage)
    if damage == b"{}" and name == "student.pt":
        target.unlink()
    with pytest.raises(UserError, match=rf"step_1000000/{name}: "):
        checkpoint.load_latest(folder, make_engine())
    shutil.rmtree(folder / "step_1000000")
    assert checkpoint.load_latest(folder, make_engine()).step == 999_999


def test_no_checkpoint_is_none(tmp_path):
    assert checkpoint.load_latest(tmp_path, make_engine()) is None


def test_of_a_very_large_file_the_size_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_HASHED", 10)
    engine = make_engine()
    checkpoint.save(tmp_path, engine, state(1, engine), keep=1)
    target = tmp_path / "step_000001" / "student.pt"
    assert checkpoint.load_latest(tmp_path, make_engine()).step == 1
    target.write_bytes(target.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"student.pt: damaged or missing"):
        checkpoint.load_latest(tmp_path, make_engine())
