"""Directions of updates: each gradient against one formed by hand, from a model whose gradient is a formula."""

import json
import math
from dataclasses import replace
from itertools import compress

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from nemo_aopsd.analysis.diagnostics.direction import WEIGHTINGS, Arm, Direction, Signal, diagnose_direction
from nemo_aopsd.analysis.diagnostics.direction_page import keeper, show, verdicts
from nemo_aopsd.analysis.diagnostics.yardstick import Yardstick
from nemo_aopsd.cli.diagnose import app
from nemo_aopsd.config.schema import AOPSDConfig, ContextConfig, ObjectiveConfig, ProbeConfig
from nemo_aopsd.engines.local.engine import LocalEngine
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_jsonl
from nemo_aopsd.grading import Grade
from nemo_aopsd.method import step
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.models.tokenizer import HFTokenizer
from nemo_aopsd.run.reader import parse
from nemo_aopsd.run.record_types import Rollout
from nemo_aopsd.types import TrainRow
from tests.fakes import FakeEngine, make_config, make_problem, random_table
from tests.local_models import END, tiny_model, tiny_settings, tiny_tokenizer


class GradientEngine(FakeEngine):
    """What `train` would step along, of the table of logits; the rows are kept."""

    def gradient(self, rows, objective):
        self.rows = getattr(self, "rows", []) + [rows]
        before, self.learning_rate = self.learning_rate, 0.0
        self.train(rows, objective)
        self.learning_rate = before
        return [self.student.logits.grad.clone()]


def by_hand(engine, rows, factors):
    """-sum_t f_t d log p(y_t | y_t-1) / d logits over N: one row of the table a token, onehot - p."""
    table = engine.student.logits.detach()
    total, num_tokens = torch.zeros_like(table), sum(len(row.response) for row in rows)
    for row, values in zip(rows, factors, strict=True):
        last = row.prompt[-1]
        for token, factor in zip(row.response, values.tolist(), strict=True):
            change = -table[last].softmax(-1)
            change[token] += 1
            total[last] -= factor * change
            last = token
    return total / num_tokens


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Everything of one small measurement; an answer is right if its number of tokens is even."""
    monkeypatch.setattr(
        step, "grade", lambda text, _: Grade(not len(text) % 2, "ungradable" if len(text) % 2 else "correct")
    )
    engine = GradientEngine(random_table(0, end_boost=1.0), random_table(1, end_boost=1.0))
    aopsd = AOPSDConfig(
        context=ContextConfig(kind="dag_full"), probes=ProbeConfig(threshold=1.5, untriggered_weight=0.5)
    )
    problems = [make_problem(index) for index in range(6)]
    result = diagnose_direction(make_config(tmp_path, aopsd), problems, engine, ["dag_full"], 4)
    return engine, result


def test_the_yardstick_is_reinforce_with_the_mean_of_a_problem_as_baseline(found):
    engine, result = found
    stick = result.yardstick
    groups = engine.rows[: len(stick.groups)]
    assert len(groups) == stick.num_mixed == 3  # fewer than there may be
    assert all(len({tuple(row.prompt) for row in rows}) == 1 for rows in groups)
    together = [row for rows in groups for row in rows]
    expected = by_hand(engine, together, [row.advantages for row in together])
    assert torch.allclose(sum(group[0] for group in stick.groups), expected)
    for rows in groups:
        advantages = [row.advantages[0].item() for row in rows]
        assert sum(advantages) == pytest.approx(0) and len(rows) == 4  # one of them may be 0
        assert {round(value * 4) / 4 for value in advantages} == set(advantages)  # quarters, of four answers
    assert (stick.num_right, stick.num_undecided) == (5, 3)  # of the 8 that are finished
    assert stick.num_answers == 24


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_an_arm_is_the_update_that_its_weights_make(found, weighting):
    engine, result = found
    rest, *triggered = engine.rows[len(result.yardstick.groups) :]
    rows = dict(zip(WEIGHTINGS, triggered, strict=True))[weighting]
    arm = next(arm for arm in result.arms if arm.weighting == weighting)
    elsewhere = 1.0 if weighting in ("uniform", "zero_triggered") else 0.5
    weights = [elsewhere * one.weights + own.weights for one, own in zip(rest, rows, strict=True)]
    gaps = [(row.teacher_logprobs - row.old_logprobs).clamp(-10, 10) for row in rows]
    whole = by_hand(engine, rows, [w * g for w, g in zip(weights, gaps, strict=True)])
    oracle = sum(group[0] for group in result.yardstick.groups)
    expected = (whole * oracle).sum() / whole.norm() / oracle.norm()
    assert arm.cosine == pytest.approx(expected.item(), abs=1e-6)
    marked = torch.cat([own.weights for own in rows])[torch.cat([gap.abs() for gap in gaps]) >= 1.5]
    assert (
        len(marked)
        and (weighting != "zero_triggered" or not marked.any())
        and (arm.triggered_cosine is None) == (weighting == "zero_triggered")
    )
    uniform = next(arm for arm in result.arms if arm.weighting == "uniform")
    assert arm.less_uniform == pytest.approx(arm.cosine - uniform.cosine, abs=1e-6)
    if arm.triggered_cosine is not None:
        apart = arm.triggered_cosine - uniform.triggered_cosine
        assert arm.triggered_less_uniform == pytest.approx(apart, abs=1e-6)
    if weighting == "normalised":
        assert marked.mean().item() == pytest.approx(1, abs=0.2)  # 1 before the cap


def yardstick(*groups, mixed=100):
    return Yardstick([[torch.tensor(group)] for group in groups], 1024, 512, mixed, 128)


def test_with_masked_answers_the_weights_are_made_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "grade", lambda text, _: Grade(not len(text) % 2, "correct"))
    engine = GradientEngine(random_table(0, end_boost=1.0), random_table(1, end_boost=1.0))
    context = ContextConfig(kind="dag_full")
    aopsd = AOPSDConfig(context=context, probes=ProbeConfig(threshold=0.5), mask_truncated=True)
    problems = [make_problem(index) for index in range(6)]
    diagnose_direction(make_config(tmp_path, aopsd), problems, engine, ["dag_full"], 4)
    arms = dict(zip(WEIGHTINGS, engine.rows[-len(WEIGHTINGS) :], strict=True))
    masks = [row.mask.all().item() for row in arms["continuation"]]
    assert set(masks) == {True, False}
    own, matched = (
        [(row.weights * row.gap.abs()).sum().item() for row in arms[name]] for name in ("continuation", "gap_matched")
    )
    assert own != pytest.approx(matched)
    assert sum(compress(own, masks)) == pytest.approx(sum(compress(matched, masks)))


def test_a_noisy_yardstick_says_how_much_it_can_show():
    same = yardstick([1.0, 0.0], [1.0, 0.0])
    assert (same.agreement, same.ceiling) == (1, 1)
    assert yardstick([1.0, 0.0], [0.0, 1.0]).ceiling == 0
    slanted = yardstick([0.5, 0.0], [0.5, 0.0], [0.5, 0.0], [0.5, math.sqrt(3)])  # halves [1, 0] and [1, sqrt(3)]
    assert slanted.agreement == pytest.approx(0.5) and slanted.ceiling == pytest.approx(math.sqrt(2 * 0.5 / 1.5))
    nowhere = same.bearing([torch.zeros(2)])
    assert (nowhere.norm, nowhere.cosine, nowhere.error) == (0, None, None)


def test_an_interval_is_student_s_of_the_groups():
    """By hand: products 3, 3, 4 and 4 with a gradient of norm 5; the whole is [2, 2], of norm sqrt(8)."""
    along = yardstick([1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]).bearing([torch.tensor([3.0, 4.0])])
    norms = 5 * math.sqrt(8)
    assert along.norm == 5 and along.cosine == pytest.approx(14 / norms)
    spread = math.sqrt(4 * 0.25 / 3)  # of the four products about 3.5
    assert along.error == pytest.approx(3.182 * math.sqrt(4) * spread / norms)
    assert yardstick([1.0, 0.0]).bearing([torch.tensor([3.0, 4.0])]).error == math.inf  # one group has no spread


def test_two_weightings_are_held_against_the_same_groups():
    """By hand: products 3, 3, 4, 4 over 5, less 4, 4, 0, 0 over 4, over sqrt(8)."""
    stick = yardstick([1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0])
    slanted, straight = stick.bearing([torch.tensor([3.0, 4.0])]), stick.bearing([torch.tensor([4.0, 0.0])])
    difference, error = slanted.less(straight)
    assert difference == pytest.approx((14 / 5 - 2) / math.sqrt(8))
    parts = [-0.4, -0.4, 0.8, 0.8]  # about 0.2
    spread = math.sqrt(sum((part - 0.2) ** 2 for part in parts) / 3)
    assert error == pytest.approx(3.182 * math.sqrt(4) * spread / math.sqrt(8))
    assert slanted.less(slanted) == (0, 0)  # what both share falls out
    assert slanted.less(stick.bearing([torch.zeros(2)])) == (None, None)


@pytest.mark.parametrize("heavy", [False, True])
def test_an_update_that_points_nowhere_gets_a_verdict_in_five_of_a_hundred(heavy):
    generator, decided = torch.Generator().manual_seed(0), 0
    for _ in range(600):
        groups = torch.randn(8, 50, generator=generator)
        groups = groups**3 if heavy else groups
        found = Yardstick([[group] for group in groups], 1024, 512, 100, 128).bearing([torch.eye(50)[0]])
        decided += abs(found.cosine) > found.error
    assert decided / 600 < 0.07 and (heavy or decided / 600 > 0.03)


def test_without_right_and_wrong_answers_there_is_no_direction(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "grade", lambda *_: Grade(False, "wrong"))
    engine = GradientEngine(random_table(0), random_table(1))
    keep = keeper(tmp_path / "out")
    with pytest.raises(UserError, match="8 answers, 0 right"):
        diagnose_direction(make_config(tmp_path), [make_problem(0), make_problem(1)], engine, ["none"], 4, keep)
    kept = [one for _, one in read_jsonl(tmp_path / "out/answers.jsonl")]  # what there is to look at
    assert len(kept) == 8 and not any(one["correct"] for one in kept)


def test_the_local_engines_gradient_is_what_it_would_step_along():
    engine = LocalEngine(tiny_model("qwen3"), HFTokenizer(tiny_tokenizer(), [END]), tiny_settings(max_grad_norm=1e9))
    generator = torch.Generator().manual_seed(0)
    rows = [
        TrainRow(
            [2, 5 + row],
            list(range(6, 9 + row)),
            *torch.randn(2, 3 + row, generator=generator).unbind(),
            ones,
            ones > 0,
        )
        for row, ones in ((row, torch.ones(3 + row)) for row in range(5))
    ]
    objective, before = build_objective(ObjectiveConfig()), engine.student.logprobs([[2]], [[5, 6]])[0]
    gradient = engine.gradient(rows, objective)
    assert torch.equal(engine.student.logprobs([[2]], [[5, 6]])[0], before)
    norm = math.sqrt(sum(part.double().square().sum().item() for part in gradient))
    assert engine.train(rows, objective)["train/grad_norm"] == pytest.approx(norm, rel=1e-6)


def test_the_command_writes_page_and_numbers(tmp_path):
    out = tmp_path / "direction"
    words = ["direction", "demo", "policy.generation.max_new_tokens=96", "--problems", "12", "--answers", "4"]
    result = CliRunner().invoke(app, [*words, "--context", "dag_full", "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    numbers = json.loads((out / "direction.json").read_text())
    assert [arm["weighting"] for arm in numbers["arms"]] == list(WEIGHTINGS)
    assert numbers["seed"] == 0 and " seed 0 (another aopsd.seed " in " ".join(result.output.split())
    assert numbers["yardstick"]["num_answers"] == 48 and numbers["contexts"][0]["rollouts"] == 12
    answers, rollouts = ([*read_jsonl(out / f"{name}.jsonl")] for name in ("answers", "rollouts"))
    assert sum(one["correct"] for _, one in answers) == numbers["yardstick"]["num_right"] and len(answers) == 48
    owners = {one["problem_id"]: one["group"] for _, one in answers if one["group"] is not None}
    assert sorted(owners.values()) == [place % 8 for place in range(len(owners))] or len(owners) > 8
    assert len(owners) == numbers["yardstick"]["num_mixed"]
    kept = [parse(Rollout, json.dumps(one | {"epoch": 0, "step": 1}).encode(), where) for where, one in rollouts]
    triggered = [abs(gap) >= AOPSDConfig().probes.threshold for one in kept for gap in one.gaps()]
    assert sum(triggered) / len(triggered) == pytest.approx(numbers["contexts"][0]["triggered"])
    assert {one["context"] for _, one in rollouts} == {"dag_full"} and len(kept) == 12
    page, lines = (out / "direction.md").read_text(), result.output.splitlines()
    assert "| dag_full | normalised |" in page
    *_, written = lines
    assert written == f"{out / 'direction.md'}, direction.json, answers.jsonl, rollouts.jsonl"
    uniform, own = [line for line in page.splitlines() if line.startswith("- dag_full: ")]
    few = f"- dag_full: undecided with {len(owners)} problems that have right and wrong answers "
    assert uniform.startswith(f"{few}(uniform ") and own.startswith(f"{few}(continuation ")  # the config's
    assert all(line[2:] in " ".join(result.output.split()) for line in (uniform, own))
    assert max(map(len, lines[:-1])) <= 80 and "…" not in result.output
    assert sum(line.split()[0] in WEIGHTINGS for line in lines if line.strip()) == len(WEIGHTINGS)


@pytest.mark.parametrize(
    ("cosine", "error", "verdict"),
    [
        (-0.114, 0.05, "points away from correctness (uniform -0.11 \u00b1 0.05)"),
        (0.2, 0.1, "points towards correctness (uniform 0.2 \u00b1 0.1)"),
        (0.2, 0.21, "undecided: the interval holds 0 (uniform 0.2 \u00b1 0.21)"),
        (None, None, "undecided: its update or the yardstick is 0 (uniform)"),
    ],
)
def test_a_sentence_a_context_says_where_its_uniform_update_points(cosine, error, verdict):
    arms = [
        Arm("dag_frontier", weighting, *values, *[None] * 3, 1.0, 1.0)
        for weighting, values in (("continuation", (0.9, 0.1, 0.3, 0.4)), ("uniform", (cosine, error, 0.0, 0.0)))
    ]
    enough = Direction(yardstick([1.0], [1.0], mixed=16), [], arms)
    assert verdicts(enough) == [f"dag_frontier: {verdict}"]
    of_both = verdicts(enough, "continuation")
    assert of_both[1] == verdicts(enough)[0] and "(continuation 0.9 \u00b1 0.1)" in of_both[0]
    assert of_both[2] == "dag_frontier: continuation and uniform weights are not told apart (+0.3 \u00b1 0.4)"
    few = verdicts(Direction(yardstick([1.0], [1.0], mixed=15), [], arms))[0]
    told = "dag_frontier: undecided with 15 problems that have right and wrong answers ("
    assert few.startswith(told if cosine else "dag_frontier: undecided: its update")


def test_a_weighting_that_is_not_measured_is_said_to_have_no_verdict():
    found = Direction(yardstick([1.0], [1.0], mixed=16), [], [Arm("none", "uniform", *[0.1] * 9)])
    assert len(verdicts(found)) == 1
    assert "no verdict on aopsd.weighting=mine.py:Mine," in verdicts(found, "mine.py:Mine")[-1]


def test_the_widest_numbers_and_names_fit_80_columns(tmp_path, capsys):
    config = replace(make_config(tmp_path), policy={"model_name": "m"})
    signal = Signal("other_problem", 1024, 1024, 1.0, 10.0, -10.0, 1.0, 20.0, 10.0, 1.0)
    arms = [Arm(signal.context, weighting, *[-0.987654] * 7, 98.7654, 98.7654) for weighting in WEIGHTINGS]
    show(Direction(yardstick([0.0], [0.0]), [signal], arms), config, Console(width=80))
    said = capsys.readouterr().out
    assert "…" not in said and said.count("-0.988") == 7 * len(WEIGHTINGS) and max(map(len, said.splitlines())) <= 80
    assert all(number in said.split() for number in ("1.000", "10.000", "-10.000", "20.000"))


@pytest.mark.parametrize(
    ("more", "key"), [(["--context", "dag_ful"], "dag_ful"), (["aopsd.engine=nemo_rl"], "aopsd.engine")]
)
def test_what_it_cannot_do_is_refused(more, key, tmp_path):
    with pytest.raises(UserError, match=key):
        CliRunner().invoke(app, ["direction", "demo", *more, "--out", str(tmp_path)], catch_exceptions=False)
