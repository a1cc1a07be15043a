"""The command that makes GSM8K's tables from counts by problem, on counts small enough for a calculation by hand."""

import json

import pytest

from benchmarks import gsm8k_counts

STUDY = {
    "problems": "0002 0013 0017",
    "right_and_samples": {
        "base": {"0": "0/2 0/2 0/2", "1": "0/2 1/2 1/2"},
        "grpo": {"0": "1/2 1/2 -", "1": "1/2 1/2 2/2"},
        "once": {"1": "1/2 1/2 1/2"},
        "more": {"0": "2/2 2/2 2/2", "1": "2/2 2/2 2/2", "2": "0/2 0/2 0/2"},
    },
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command with a file of counts of its own; returns the lines that it prints."""
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps({"model": STUDY}), encoding="utf-8")
    monkeypatch.setattr(gsm8k_counts, "COUNTS", counts)

    def lines(*arguments):
        monkeypatch.setattr("sys.argv", ["gsm8k_counts", *map(str, arguments)])
        gsm8k_counts.main()
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return lines


def test_over_seeds_both_intervals_equal_a_hand_calculation(run):
    """`grpo` less `base` on the two problems that all were asked: 50 and 50 points with seed 0, 50 and 0 with seed 1.

    t: 50 and 25 have a standard error of 12.5, so 37.5 -+ 12.706 * 12.5. c: the seeds' deviations of 12.5 grow to
    12.5 * sqrt(2) = 17.68, so the lowest of all draws, seed 1 and the second problem twice each, is 0 - 5.18, at 1 in
    16, and the highest, seed 0 twice, is 50 + 5.18, at 1 in 4.
    """
    lines = run()
    over = lines[lines.index("over seeds, less base") + 1 :]
    assert over[0] == "base 16.7 % of 12 samples"
    assert over[1] == (
        "grpo 60.0 % of 10 samples, +37.5 t [-121.3, +196.3] c [-5.2, +55.2] on 2 problems: "
        "+50.0 (seed 0), +25.0 (seed 1)"
    )


def test_over_seeds_only_seeds_of_both_are_compared_and_one_seed_is_in_no_such_table(run):
    """`more` has right answers alone with seeds 0 and 1: 100 and 100 - 100 / 3 points; its seed 2 has no base."""
    lines = run()
    over = lines[lines.index("over seeds, less base") + 1 :]
    assert [line.split()[0] for line in over] == ["base", "grpo", "more"]
    assert "66.7 % of 18 samples, +83.3 " in over[2]
    assert over[2].endswith(" on 3 problems: +100.0 (seed 0), +66.7 (seed 1)")
    assert not any(line.startswith("over seeds") for line in run("once"))


def test_each_seed_has_a_table_with_intervals_over_problems(run):
    """`once` less `base` is 50, 0 and 0 points: a resample has a mean of 0 at 8 in 27 and of 50 at 1 in 27."""
    lines = run()
    assert lines[:4] == [
        "model",
        "seed 0, less base",
        "base 0.0 % of 6 samples",
        "grpo 50.0 % of 4 samples, +50.0 [+50.0, +50.0] on 2 problems",
    ]
    assert "once 50.0 % of 6 samples, +16.7 [+0.0, +50.0] on 3 problems" in lines


def _evaluated(folder, *evaluations):
    for epoch, right in enumerate(evaluations):
        content = {"num_samples": 2, "correct_per_problem": {f"train-{name}": n for name, n in right.items()}}
        (folder / "eval").mkdir(parents=True, exist_ok=True)
        (folder / f"eval/epoch_{epoch:03d}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_runs_are_added_with_the_evaluation_before_training_as_their_seeds_base(run, tmp_path):
    first = _evaluated(tmp_path / "grpo/seed_1", {"0017": 1, "0002": 0}, {"0017": 2, "0002": 1})
    other = _evaluated(tmp_path / "sft_seed_1", {"0002": 2, "0017": 2}, {"0002": 1, "0017": 0})
    lines = run("--add", first, other, "--study", "new")
    assert [line.split(": ")[1][:5] for line in lines] == ["added", "added", "left ", "added"]
    studies = json.loads(gsm8k_counts.COUNTS.read_text(encoding="utf-8"))
    assert studies["model"] == STUDY
    assert studies["new"] == {
        "problems": "0017 0002",
        "right_and_samples": {"base": {"1": "1/2 0/2"}, "grpo": {"1": "2/2 1/2"}, "sft": {"1": "0/2 1/2"}},
    }


@pytest.mark.parametrize(
    ("evaluations", "named"),
    [
        ([{"0002": 0, "0013": 0, "0017": 0}], "found 1"),  # has not ended
        ([{"0002": 0, "0013": 0, "0017": 0}, {"0002": 0, "0013": 0, "0017": 2}], "other counts"),
        ([{"0002": 0, "0013": 0, "0666": 0}, {"0002": 1, "0013": 1, "0666": 1}], "2 problems"),
    ],
)
def test_a_run_that_does_not_fit_the_study_is_refused_and_nothing_is_written(run, tmp_path, capsys, evaluations, named):
    before = gsm8k_counts.COUNTS.read_bytes()
    fits = _evaluated(tmp_path / "new/seed_0", *[dict.fromkeys(["0002", "0013", "0017"], 0)] * 2)
    odd = _evaluated(tmp_path / "grpo/seed_0", *evaluations)
    with pytest.raises(SystemExit, match="1"):
        run("--add", fits, odd, "--study", "model")
    assert named in capsys.readouterr().err
    assert gsm8k_counts.COUNTS.read_bytes() == before


def test_a_member_that_no_study_has_is_an_error_that_names_those_there_are(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("grop")
    assert "base, grpo, more, once" in capsys.readouterr().err
