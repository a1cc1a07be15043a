import json
import random
import shutil
from dataclasses import replace

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


def test_what_is_saved_comes_back(folder):
    engine = make_engine()
    assert checkpoint.load(folder / "step_1000000", engine) == state(1_000_000, engine)


def test_the_newest_is_the_highest_step_and_other_folders_are_left_alone(folder):
    shutil.copytree(folder / "step_999999", folder / "step_zzz")
    assert checkpoint.load(checkpoint.newest(folder), make_engine()).step == 1_000_000
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
        checkpoint.load(checkpoint.newest(folder), make_engine())
    shutil.rmtree(folder / "step_1000000")
    assert checkpoint.load(checkpoint.newest(folder), make_engine()).step == 999_999


def test_every_flipped_bit_of_a_checkpoint_is_told_by_file(folder):
    path, draw = folder / "step_1000000", random.Random(0)
    files = sorted(path.iterdir())
    assert [file.name for file in files] == ["manifest.json", "state.json", "student.pt"]
    for _ in range(60):
        file = draw.choice(files)
        whole = file.read_bytes()
        content = bytearray(whole)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"step_1000000/\S+: damaged or missing. Delete") as told:
            checkpoint.load(path, make_engine())
        assert file.name in str(told.value) or file.name == "manifest.json"  # a wrong checksum accuses its file
        file.write_bytes(whole)
    assert checkpoint.load(path, make_engine()).step == 1_000_000


def of_earlier_version(path):
    """Checksums in the state, none of the state itself, and of a very large file the size."""
    record = json.loads((path / "state.json").read_text())
    del record["surprise"]
    files = {"student.pt": f"{(path / 'student.pt').stat().st_size} bytes"}
    (path / "state.json").write_text(json.dumps(record | {"files": files}))
    (path / "manifest.json").unlink()


def test_a_checkpoint_of_an_earlier_version_is_read_with_a_warning(folder, monkeypatch, capsys):
    monkeypatch.setattr(checkpoint, "_ONCE_HASHED", 10)
    path, engine = folder / "step_1000000", make_engine()
    of_earlier_version(path)
    assert checkpoint.load(path, engine) == replace(state(1_000_000, engine), surprise={})
    assert "step_1000000: has no manifest.json" in "".join(capsys.readouterr().err.split("\n"))
    (path / "student.pt").write_bytes((path / "student.pt").read_bytes()[:-1])
    with pytest.raises(UserError, match=r"student.pt: damaged or missing"):
        checkpoint.load(path, engine)


def test_a_checkpoint_that_lost_its_manifest_is_damaged(folder):
    (folder / "step_1000000/manifest.json").unlink()
    with pytest.raises(UserError, match=r"manifest.json: damaged or missing"):
        checkpoint.load(checkpoint.newest(folder), make_engine())
