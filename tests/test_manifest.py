"""The manifest: what a kill leaves is put back, and what a flipped bit leaves is told by file."""

import os
import random
import shutil

import pytest

from nemo_aopsd.errors import UserError
from nemo_aopsd.manifest import NAME, Manifest

BEGUN = [{"n": 1}, {"n": 2}]


@pytest.fixture
def folder(tmp_path):
    """A journal in two pieces, a file that was replaced, and one that was removed."""
    manifest = Manifest(tmp_path)
    manifest.append(tmp_path / "j.jsonl", BEGUN)
    manifest.replace(tmp_path / "s.json", "old")
    manifest.replace(tmp_path / "s.json", "newer")
    manifest.replace(tmp_path / "gone", "x")
    manifest.remove(tmp_path / "gone")
    manifest.append(tmp_path / "j.jsonl", [{"n": 3}])
    return tmp_path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_as_it_was_written_passes_and_nothing_changes(folder):
    before = contents(folder)
    assert Manifest(folder).check([folder / "other"]) == [] and contents(folder) == before
    assert set(before) == {"j.jsonl", "s.json", NAME} and before["j.jsonl"].count(b"\n") == 3


def changes(manifest, folder):
    """Each kind of change, as a function; what the file was before it is what a kill in it leaves."""
    return {
        "append": (folder / "j.jsonl", lambda: manifest.append(folder / "j.jsonl", [{"n": 4}, {"n": 5}])),
        "begin": (folder / "new.jsonl", lambda: manifest.append(folder / "new.jsonl", BEGUN)),
        "replace": (folder / "s.json", lambda: manifest.replace(folder / "s.json", "newest")),
        "create": (folder / "t.json", lambda: manifest.replace(folder / "t.json", "text")),
        "remove": (folder / "s.json", lambda: manifest.remove(folder / "s.json")),
    }


@pytest.mark.parametrize("kind", ["append", "begin", "replace", "create", "remove"])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_kill_between_announcement_and_change_is_put_back(folder, kind, share):
    """Or in the middle of an append."""
    before, manifest = contents(folder), Manifest(folder)
    path, change = changes(manifest, folder)[kind]
    change()
    after = path.read_bytes() if path.exists() else b""
    old = before.get(path.name)
    if kind in ("append", "begin"):
        os.truncate(path, len(old or b"") + int(share * (len(after) - len(old or b""))))
    elif old is None:
        path.unlink()
    else:
        path.write_bytes(old)
    assert manifest.check([]) == [] and contents(folder) == before
    change()
    assert manifest.check([]) == [] and (path.read_bytes() if path.exists() else b"") == after


@pytest.mark.parametrize("cut", [1, 5, 70])
def test_a_line_of_the_manifest_that_was_cut_short_announced_nothing(folder, cut):
    before = contents(folder)
    with (folder / NAME).open("ab") as file:
        file.write(before[NAME].splitlines()[0][:cut])
    assert Manifest(folder).check([]) == [] and contents(folder) == before


def test_every_flipped_bit_is_told_by_file(folder, tmp_path_factory):
    """That of a line break may cut the last line of the manifest off, and nothing else passes."""
    draw = random.Random(0)
    for _ in range(60):
        copy = tmp_path_factory.mktemp("flipped") / "run"
        shutil.copytree(folder, copy)
        path = draw.choice([copy / "j.jsonl", copy / "s.json", copy / NAME])
        content = bytearray(path.read_bytes())
        content[draw.randrange(len(content) - (path.name == NAME))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"run/{path.name}.*damaged.*Restore"):
            Manifest(copy).check([])


def test_lines_that_another_process_added_are_damage(folder):
    (folder / "j.jsonl").write_bytes((folder / "j.jsonl").read_bytes() + b'{"n": 9}\n')
    with pytest.raises(UserError, match=r"j\.jsonl: damaged"):
        Manifest(folder).check([])


def test_a_missing_file_is_told_once(folder):
    (folder / "j.jsonl").unlink()
    assert "missing" in Manifest(folder).check([])[0] and "j.jsonl" in Manifest(folder).path.read_text()
    assert Manifest(folder).check([]) == []


def test_without_a_manifest_the_files_are_taken_as_they_are_and_that_is_told_once(folder):
    (folder / NAME).unlink()
    with (folder / "j.jsonl").open("ab") as file:
        file.write(b'{"n": ')  # a kill of an earlier version
    present = [folder / "j.jsonl", folder / "no.json"]
    assert NAME in Manifest(folder).check(present)[0]
    assert (folder / "j.jsonl").read_bytes().count(b"\n") == 3 and Manifest(folder).check(present) == []
    (folder / "j.jsonl").write_bytes(b"{}\n")
    with pytest.raises(UserError, match=r"j\.jsonl: damaged"):
        Manifest(folder).check(present)
    assert Manifest(folder / "nothing").check([]) == [] and not (folder / "nothing").exists()
