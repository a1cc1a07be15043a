"""The benchmark of a step on this machine, and its baseline: small, and with numbers by hand."""

import json

import pytest

from benchmarks import baseline, step_cost
from nemo_aopsd import clock

TINY = "--rollouts 2 --tokens 12 --layers 1 --hidden 64 --vocabulary 128 --repeats 2 --threads 1 --trigger-rate 0.1"


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setattr(clock, "time", clock.time)  # which the benchmark replaces

    def main(*words):
        monkeypatch.setattr("sys.argv", ["step_cost", *words, "--baseline", str(tmp_path / "file.json")])
        step_cost.main()

    return main


def test_a_file_is_written_and_held_against(run, tmp_path, monkeypatch, capsys):
    run(*TINY.split(), "--write")
    path = tmp_path / "file.json"
    written = json.loads(path.read_text())
    assert written["sizes"]["hidden"] == 64 and written["device"] == "CPU"
    assert {"uniform: rollout", "uniform: update", "continuation: teacher"} <= written["stages"].keys()
    assert all(len(values) == 2 and min(values) > 0 for values in written["stages"].values())
    slow = {stage: [value / 1000 for value in values] for stage, values in written["stages"].items()}
    path.write_text(json.dumps(written | {"stages": slow, "torch": "1.0"}))
    with pytest.raises(SystemExit) as ended:
        run()  # with the file's sizes: the default model would take minutes
    assert ended.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("torch: 1.0 in ") for line in lines) and lines[-1].startswith("SLOWER: continuation")


THEN = [1.0, 1.01, 0.99, 1.0, 1.02]


@pytest.mark.parametrize(
    ("found", "is_slower"),
    [
        ([1.1, 1.11, 1.09, 1.1, 1.12], True),
        ([1.03, 1.03, 1.03, 1.03, 1.03], False),  # surely slower, but by less than 5 %
        ([0.8, 1.1, 0.9, 1.2, 1.1], False),  # by 10 %, but it may be chance
        ([0.5, 0.5, 0.5, 0.5, 0.5], False),
    ],
)
def test_slower_is_by_five_per_cent_and_beyond_chance(found, is_slower):
    assert baseline.compare({"rollout": THEN}, {"rollout": found, "new": found}, "") == (
        {"rollout"} if is_slower else set()
    )


def test_what_is_slower_once_only_is_chance(tmp_path, capsys):
    path = tmp_path / "file.json"
    baseline.write(path, {"rollout": THEN, "update": THEN}, {})
    slow = {"rollout": [1.2] * 5, "update": [1.2] * 5}
    assert baseline.hold_against(path, slow, lambda: slow | {"update": THEN}) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "SLOWER: rollout"
    assert baseline.hold_against(path, slow, lambda: {"rollout": THEN, "update": THEN}) == 0
    assert baseline.hold_against(path, {"rollout": THEN, "update": THEN}, lambda: pytest.fail("not asked")) == 0


def test_a_stage_is_divided_by_the_yardstick_beside_it():
    steps = [
        {"rollout": 2.0, "probes": 0.1, "processor time": 5.0},
        {"rollout": 6.0, "probes": 0.1, "processor time": 5.0},
    ]
    found = baseline.over({"uniform": steps}, [1.0, 2.0])
    assert found == {"uniform: rollout": [2.0, 3.0]}  # and probes are 2 % of the step
