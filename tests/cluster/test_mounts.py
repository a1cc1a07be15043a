"""Paths of a config against the mounts of a job's container."""

import json
from pathlib import Path

import pytest

from nemo_aopsd.cluster.mounts import paths_here
from nemo_aopsd.errors import UserError
from tests.fakes import make_config


def config(tmp_path, **raw):
    found = make_config(tmp_path / "run", model_name="/there/model")
    found.raw["data"]["train"]["data_path"] = "problems.jsonl"
    found.raw["aopsd"] = {"prompts": "default"}
    for key, value in raw.items():
        found.raw["policy"][key] = value
    return found


def test_each_input_is_found_where_the_longest_mount_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mounts = f"/far:/there,/near/m:/there/model:ro,{tmp_path}:{tmp_path}"
    assert paths_here(config(tmp_path), mounts) == [
        f"{key}={json.dumps(path)}"
        for key, path in (("policy.model_name", "/near/m"), ("data.train.data_path", f"{tmp_path}/problems.jsonl"))
    ]
    assert paths_here(config(tmp_path, model_name="Qwen/Qwen3-4B"), mounts) == [
        f'data.train.data_path="{tmp_path}/problems.jsonl"'
    ]
    assert len(paths_here(config(tmp_path, tokenizer={"name": "/there/tokens"}), "/:/")) == 3


def test_what_no_mount_has_is_refused_with_the_mount_to_add(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        paths_here(config(tmp_path), "/a:/there")
    lines = str(error.value).splitlines()
    assert [line.partition("=")[0] for line in lines] == [
        "data.train.data_path",
        "logger.log_dir",
        "checkpointing.checkpoint_dir",
    ]
    place = Path("problems.jsonl").absolute()
    assert f"in no mount of the container (/there). Add {place}:{place}" in lines[0]
    for mounts in ("/a", "a:/b", "/a:b"):
        with pytest.raises(UserError, match="expected /HERE:/THERE"):
            paths_here(config(tmp_path), mounts)


def test_files_of_ones_own_classes_must_be_in_the_container_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = config(tmp_path)
    found.raw["aopsd"] |= {"weighting": "/code/mine.py:Mine", "judge": {"kind": "my_module:Judge"}}
    mounts = f"/far:/there,{tmp_path}:{tmp_path}"
    assert 'aopsd.weighting="/home/me/mine.py:Mine"' in paths_here(found, f"{mounts},/home/me:/code")
    with pytest.raises(UserError, match=r"^aopsd\.weighting=/code/mine\.py: in no mount .* Add /code/mine\.py:"):
        paths_here(found, mounts)
