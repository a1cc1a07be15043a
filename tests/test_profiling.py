"""Profiles of a stage: files of the third time when the variable is set, nothing otherwise."""

import gzip
import json

import torch

from nemo_aopsd import profiling
from nemo_aopsd.profiling import FOLDER, profiled


@profiled("update")
def work(size):
    return torch.ones(size, 8) @ torch.ones(8, 8)


def test_the_third_call_leaves_a_table_and_a_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(profiling, "_calls", profiling.Counter())
    work(1)
    monkeypatch.setenv(FOLDER, str(tmp_path / "profile"))
    for size in (2, 3, 5, 7):
        assert work(size)[0, 0] == 8
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["update_rank0.json.gz", "update_rank0.txt"]
    assert "aten::mm" in (tmp_path / "profile/update_rank0.txt").read_text()
    trace = json.loads(gzip.decompress((tmp_path / "profile/update_rank0.json.gz").read_bytes()))
    products = [event for event in trace["traceEvents"] if event.get("name") == "aten::mm"]
    assert len(products) == 1
