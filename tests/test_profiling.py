"""Profiles of a stage: files when the variable is set, nothing otherwise."""

import gzip
import json

import torch

from nemo_aopsd.profiling import FOLDER, profiled


@profiled("update")
def work():
    return torch.ones(8, 8) @ torch.ones(8, 8)


def test_each_call_leaves_a_table_and_a_trace(tmp_path, monkeypatch):
    work()
    monkeypatch.setenv(FOLDER, str(tmp_path / "profile"))
    for _ in range(2):
        assert work()[0, 0] == 8
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == [
        f"update_rank0_{number}.{kind}" for number in (1, 2) for kind in ("json.gz", "txt")
    ]
    assert "aten::mm" in (tmp_path / "profile/update_rank0_2.txt").read_text()
    trace = json.loads(gzip.decompress((tmp_path / "profile/update_rank0_2.json.gz").read_bytes()))
    assert any(event.get("name") == "aten::mm" for event in trace["traceEvents"])
