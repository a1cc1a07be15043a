"""Paired comparisons by hand: differences, tests, counts, and what cannot be compared."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nemo_aopsd.cli.app import app
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.compare import Evaluation, compare, load_evaluation, markdown
from nemo_aopsd.stats import pass_at_k
from tests.fake_run import stopped

ONE = Evaluation("one", 2, {"a": {"p": 0, "q": 1, "r": 2}, "b": {"s": 0}})
TWO = Evaluation("two", 2, {"a": {"r": 1, "q": 1, "p": 1}, "b": {"s": 2}})


def test_differences_by_hand():
    parts = compare(ONE, TWO)["parts"]
    assert list(parts) == ["a", "b", "mean"]
    first = parts["a"]["pass_at_k"]["1"]  # pass@1: 0, 1/2, 1 and 1/2, 1/2, 1/2
    assert (first["first"], first["second"], first["difference"]) == (0.5, 0.5, 0.0)
    assert (first["low"], first["high"], first["p_value"]) == (-0.5, 0.5, 1.0)
    second = parts["a"]["pass_at_k"]["2"]  # 0, 1, 1 and 1, 1, 1: one sign either way
    assert second["difference"] == pytest.approx(1 / 3) and second["p_value"] == 1.0
    mean = parts["mean"]["pass_at_k"]["2"]
    assert mean["difference"] == pytest.approx((1 / 3 + 1) / 2)
    assert mean["p_value"] == 0.5  # two problems differ, in the same direction: 2 of 4 sign patterns
    assert (mean["low"], mean["high"]) == (0.5, 1.0)  # b's one problem always gives 1; a's three give 0 to 1


def test_the_mean_over_benchmarks_gives_each_the_same_weight_in_its_p_value():
    """At k = 1 a's one problem gains 1, b's four 1/2, -1/2, -1/2 and -1/2: means of 1 and -1/4, and 3/8 of both.

    With 1 for a and 1/8 for each problem of b, less is left only where all four of b go against a: 2 of 32 sign
    patterns. Pooled, the five add up to 0, and every pattern would give as much.
    """
    zero = Evaluation("zero", 2, {"a": {"p": 0}, "b": {"q": 0, "r": 1, "s": 1, "t": 1}})
    more = Evaluation("more", 2, {"a": {"p": 2}, "b": {"q": 1, "r": 0, "s": 0, "t": 0}})
    found = compare(zero, more)["parts"]["mean"]["pass_at_k"]["1"]
    assert found["difference"] == pytest.approx(3 / 8)
    assert found["p_value"] == pytest.approx(30 / 32)


def test_counts_by_hand():
    parts = compare(ONE, TWO)["parts"]
    expected = {"both": 2, "only_first": 0, "only_second": 1, "neither": 0, "p_value": 1.0}
    assert parts["a"]["solved"] == expected
    assert parts["mean"]["solved"] == {"both": 2, "only_first": 0, "only_second": 2, "neither": 0, "p_value": 0.5}
    total = parts["mean"]
    assert (total["correct_first"], total["correct_second"], total["num_problems"]) == (3, 5, 4)
    assert (total["responses_first"], total["responses_second"]) == (8, 8)
    reverse = compare(TWO, ONE)["parts"]["mean"]["solved"]
    assert (reverse["only_first"], reverse["only_second"]) == (2, 0)


def test_an_evaluation_does_not_differ_from_itself():
    for part in compare(ONE, ONE)["parts"].values():
        for found in part["pass_at_k"].values():
            assert (found["difference"], found["low"], found["high"], found["p_value"]) == (0, 0, 0, 1)
        assert part["solved"]["only_first"] == part["solved"]["only_second"] == 0


def test_different_numbers_of_samples_meet_at_the_smaller_and_solved_is_left_out():
    more = Evaluation("more", 4, {"a": {"p": 1, "q": 1, "r": 4}, "b": {"s": 0}})
    part = compare(ONE, more)["parts"]["a"]
    assert list(part["pass_at_k"]) == ["1", "2"]
    assert part["pass_at_k"]["2"]["second"] == pytest.approx(sum(pass_at_k(4, count, 2) for count in (1, 1, 4)) / 3)
    assert part["solved"] is None and (part["responses_first"], part["responses_second"]) == (6, 12)
    assert "solved problems are not compared" in markdown(compare(ONE, more))


def test_what_is_printed():
    lines = markdown(compare(ONE, TWO)).splitlines()
    assert "| b | 2 | 0.0 % | 100.0 % | +100.0 pp | [no interval: all alike] | 1 |" in lines
    assert (
        "mean: correct samples 3 of 8 and 5 of 8 on 4 problems; both solved 2, only the first 0, only the second 2, "
        "neither 0 (McNemar p = 0.5)" in lines
    )


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"a": ONE.counts["a"]}, r"one has a, b; other has a\. Compare evaluations of the same benchmarks"),
        (ONE.counts | {"a": {"p": 0, "q": 1, "z": 2}}, r"a of one and other: 2 problems .* 'r'"),
    ],
)
def test_other_problems_are_refused(counts, message):
    with pytest.raises(UserError, match=message):
        compare(ONE, Evaluation("other", 2, counts))


def test_one_benchmark_of_the_same_problems_is_the_same_whatever_it_is_called():
    """Training calls held_out what the command calls by its file."""
    trained, asked = (Evaluation(name, 2, {name: {"p": 0, "q": 1}}) for name in ("held_out", "gsm8k_dev"))
    assert compare(trained, asked)["parts"].keys() == {"held_out"}
    with pytest.raises(UserError, match="problems are in one of the two only"):
        compare(trained, replace(asked, counts={"gsm8k_dev": {"p": 0}}))
    with pytest.raises(UserError, match="Compare evaluations of the same benchmarks"):  # ids may be those of others
        compare(asked, replace(asked, counts={"math_dev": {"p": 0, "q": 1}}))


def test_results_of_training_and_of_the_command_are_read(tmp_path):
    epoch = {"epoch": 1, "num_samples": 2, "correct_per_problem": {"p": 1}}
    (tmp_path / "epoch_001.json").write_text(json.dumps(epoch))
    found = load_evaluation(tmp_path / "epoch_001.json")
    assert (found.num_samples, found.counts) == (2, {"held_out": {"p": 1}})
    results = {"settings": {"num_samples": 2}, "benchmarks": {"a": epoch, "b": epoch}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert load_evaluation(tmp_path).counts == {"a": {"p": 1}, "b": {"p": 1}}
    assert load_evaluation(tmp_path / "results.json").name.endswith("results.json")


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", '{"num_samples": 2, "correct_per_problem": {"p": 3}}', '{"benchmarks": {}, "settings": {}}', "3"],
)
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(UserError, match=r"results\.json: not the results"):
        load_evaluation(tmp_path)


def test_a_path_of_nothing_is_named_with_what_may_be_given(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, named in (("nope", "nope"), ("empty", "empty/results.json")):
        with pytest.raises(UserError, match=rf"{tmp_path}/{named}: no such .* a run .*`aopsd evaluate`.*JSON"):
            load_evaluation(tmp_path / name)


def test_a_run_that_did_not_end_is_named_before_anything_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, left in (("whole", (12, 3, 4)), ("half", (9, 2, 3)), ("untrained", (2, 0, 1))):
        stopped(Path(name), *left)

    def said(line):
        result = CliRunner().invoke(app, ["paired-test", *line.split()])
        assert result.exit_code == 0, result.output
        return [text for text in result.output.split("first ")[0].splitlines() if text]

    half = "half is unfinished (9 of 12 steps); compared at its step 8"
    untrained = "untrained is unfinished (2 of 12 steps); its only evaluation is from before training"
    named = ("half/eval/epoch_002.json", "whole/eval/epoch_000.json")  # who names a file knows which
    assert [said(f"whole {file}") for file in named] == [[], []]
    assert said("half whole untrained whole --out pairs.json") == [f"caution: {half}", f"caution: {untrained}"]
    (Path("half") / "metrics.jsonl").unlink()
    assert said("half whole")[0].startswith("caution: whether half is finished is not known: half/metrics.jsonl: ")
    found = [one["cautions"] for one in json.loads(Path("pairs.json").read_text())]
    assert found == [[half], [half, untrained], [half]]
