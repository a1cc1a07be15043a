"""The benchmark's arithmetic and its output, on a model small enough for a CPU."""

import sys

import pytest

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


def test_rounds_differ_in_length_as_training_steps_do():
    lengths = [[len(row) for row in decoding.prompts(60, number)] for number in range(2)]
    assert min(lengths[0]) == 300 and max(lengths[0]) == 349
    assert [after - before for before, after in zip(*lengths, strict=True)] == [7] * 60


def test_spread_is_the_median_with_the_range():
    assert decoding.spread((3.0, 1.0, 2.0)) == "2.00 (1.00 to 3.00)"
    assert decoding.host_memory() == pytest.approx(0.5, abs=5) and decoding.host_memory() > 0.01
