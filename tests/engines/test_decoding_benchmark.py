"""The benchmark's arithmetic and its output, on a model small enough for a CPU."""

import sys

from benchmarks import decoding
from tests.local_models import tiny_model


def test_every_stage_is_timed_and_the_table_has_a_row_a_way(monkeypatch, capsys):
    monkeypatch.setattr(decoding, "load", lambda path: tiny_model("llama"))
    monkeypatch.setattr(decoding, "WAYS", [(True, False)])
    monkeypatch.setattr(decoding, "prompts", lambda rows, number: [[4 + number, 5, 6] for _ in range(rows)])
    monkeypatch.setattr(sys, "argv", ["decoding", "--rows", "2", "--tokens", "6", "--probes", "2", "--rounds", "2"])
    decoding.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["round 0", "round 1"]
    assert lines[-3] == "| way | decoding | log-probs | continuations | scores |"
    assert lines[-1].startswith("| eager, without cuDNN | ") and lines[-1].count(" to ") == 4
