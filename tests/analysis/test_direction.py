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
from nemo_aopsd.analysis.diagnostics.direction_page import FILES, keeper, show, verdicts, write_direction
from nemo_aopsd.analysis.diagnostics.yardstick import Yardstick, sketch
from nemo_aopsd.cli.diagnose import _move_aside, app
from nemo_aopsd.config.schema import AOPSDConfig, ContextConfig, ObjectiveConfig, ProbeConfig
from nemo_aopsd.engines.local.engine import LocalEngine
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_jsonl
from nemo_aopsd.grading import Grade
from nemo_aopsd.method import reward, step
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.rollout import Draft
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
def measure(tmp_path, monkeypatch):
    """Measures six problems under `dag_full`; an answer is right if its number of tokens is even."""
    monkeypatch.setattr(
        reward, "grade", lambda text, _: Grade(not len(text) % 2, "ungradable" if len(text) % 2 else "correct")
    )

    def call(**settings):
        engine = GradientEngine(random_table(0, end_boost=1.0), random_table(1, end_boost=1.0))
        config = make_config(tmp_path, AOPSDConfig(context=ContextConfig(kind="dag_full"), **settings))
        return engine, diagnose_direction(config, [*map(make_problem, range(6))], engine, ["dag_full"], 4)

    return call


@pytest.fixture
def found(measure):
    return measure(seed=15, probes=ProbeConfig(threshold=1.5, untriggered_weight=0.5))


def test_the_yardstick_is_reinforce_with_the_mean_of_a_problem_as_baseline(found):
    engine, result = found
    stick = result.yardstick
    groups = engine.rows[: len(stick.parts)]
    assert len(groups) == stick.num_mixed == 3  # fewer than there may be
    assert all(len({tuple(row.prompt) for row in rows}) == 1 for rows in groups)
    together = [row for rows in groups for row in rows]
    expected = by_hand(engine, together, [row.advantages for row in together])
    assert torch.allclose(stick.parts.sum(0), expected.flatten().double())
    for rows in groups:
        advantages = [row.advantages[0].item() for row in rows]
        assert sum(advantages) == pytest.approx(0) and len(rows) == 4  # one of them may be 0
        assert {round(value * 4) / 4 for value in advantages} == set(advantages)  # quarters, of four answers
    assert (stick.num_right, stick.num_undecided) == (4, 3)  # of the 7 that are finished
    assert stick.num_answers == 24
    assert sorted(stick.group_of.values()) == [0, 0, 1, 1, 2, 2]  # the others are dealt in turn, too


def test_sampling_says_how_far_it_is_and_no_batch_repeats_another(tmp_path, monkeypatch, capsys):
    """Four batches of six answers, all to one question."""
    monkeypatch.setattr(reward, "grade", lambda text, _: Grade(not len(text) % 2, "correct"))
    engine, kept = GradientEngine(random_table(0, end_boost=1.0), random_table(1)), {}
    config = make_config(tmp_path, generation_batch_size=6)
    diagnose_direction(config, [make_problem(0)], engine, [], 24, kept.__setitem__)
    assert capsys.readouterr().err.startswith("answers, batches: 4 to go\n")
    told = [record["response_text"] for record in kept["answers"]]
    assert len({tuple(told[start : start + 6]) for start in range(0, 24, 6)}) == 4


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_an_arm_is_the_update_that_its_weights_make(found, weighting):
    engine, result = found
    rest, *triggered = updates(engine, result.yardstick)
    rows = dict(zip(WEIGHTINGS, triggered, strict=True))[weighting]
    arm = next(arm for arm in result.arms if arm.weighting == weighting)
    elsewhere = 1.0 if weighting in ("uniform", "zero_triggered") else 0.5
    weights = [elsewhere * one.weights + own.weights for one, own in zip(rest, rows, strict=True)]
    gaps = [(row.teacher_logprobs - row.old_logprobs).clamp(-10, 10) for row in rows]
    whole = by_hand(engine, rows, [w * g for w, g in zip(weights, gaps, strict=True)])
    oracle = result.yardstick.parts.sum(0).view_as(whole)
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


def updates(engine, stick):
    """The rows of each update, in the order that they were made in, group by group; behind those of the yardstick."""
    num = len(stick.parts)
    made = engine.rows[num:]
    return [[row for rows in made[start : start + num] for row in rows] for start in range(0, len(made), num)]


def yardstick(*parts, mixed=100):
    return Yardstick(torch.tensor(parts, dtype=torch.float64), {}, 1024, 512, mixed, 128)


def same_in_each_group(gradient, num):
    return torch.tensor([gradient] * num, dtype=torch.float64) / num


def test_with_masked_answers_the_weights_are_made_of_the_others(measure):
    engine, result = measure(probes=ProbeConfig(threshold=0.5), mask_truncated=True)
    arms = dict(zip(WEIGHTINGS, updates(engine, result.yardstick)[1:], strict=True))
    masks = [row.mask.all().item() for row in arms["continuation"]]
    assert set(masks) == {True, False}
    own, matched = (
        [(row.weights * row.gap.abs()).sum().item() for row in arms[name]] for name in ("continuation", "gap_matched")
    )
    assert own != pytest.approx(matched)
    assert sum(compress(own, masks)) == pytest.approx(sum(compress(matched, masks)))


@pytest.mark.parametrize(("which", "rollouts"), [("mask", 6), ("drop", 0)])
def test_a_context_of_which_no_rollout_counts_has_no_update(which, rollouts, measure, monkeypatch):
    if which == "mask":
        monkeypatch.setattr(Draft, "in_loss", lambda *_: False)
    else:
        monkeypatch.setattr(step, "_fits", lambda *_: False)
    _, found = measure(mask_truncated=True)
    assert found.signals[0].rollouts == rollouts and (found.signals[0].mean_gap is None) == (which == "drop")
    assert all(arm.cosine is None and arm.triggered_norm == arm.untriggered_norm == 0 for arm in found.arms)
    told = "dag_full: undecided: its update or the yardstick is 0"
    assert [sentence[: len(told)] for sentence in verdicts(found)] == [told]


def test_a_noisy_yardstick_says_how_much_it_can_show():
    same = yardstick([1.0, 0.0], [1.0, 0.0])
    assert (same.agreement, same.ceiling) == (1, 1)
    assert yardstick([1.0, 0.0], [0.0, 1.0]).ceiling == 0
    slanted = yardstick([0.5, 0.0], [0.5, 0.0], [0.5, 0.0], [0.5, math.sqrt(3)])  # halves [1, 0] and [1, sqrt(3)]
    assert slanted.agreement == pytest.approx(0.5) and slanted.ceiling == pytest.approx(math.sqrt(2 * 0.5 / 1.5))
    nowhere = same.bearing(torch.zeros(2, 2, dtype=torch.float64))
    assert (nowhere.norm, nowhere.cosine, nowhere.error) == (0, None, None)


def test_an_interval_is_the_jackknife_s_over_groups_of_both_sides():
    """By hand: cosines of [2, 1] with [2, 1], and without each of three groups; deviations about their mean."""
    stick = yardstick([1.0, 0.0], [1.0, 0.0], [0.0, 1.0])
    along = stick.bearing(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64))
    assert along.norm == pytest.approx(math.sqrt(5)) and along.cosine == pytest.approx(4 / 5)
    # [1, 1] with [0, 2]; [1, 1] with [1, 1]; [2, 0] with [1, 1]
    without = [1 / math.sqrt(2), 1.0, 1 / math.sqrt(2)]
    assert along.without == pytest.approx(without)
    mean = sum(without) / 3
    variance = (3 - 1) / 3 * sum((value - mean) ** 2 for value in without)
    assert along.error == pytest.approx(4.303 * math.sqrt(variance))
    assert yardstick([1.0, 0.0]).bearing(torch.ones(1, 2, dtype=torch.float64)).error == math.inf  # nothing is left


def test_two_weightings_are_held_against_the_same_groups():
    stick = yardstick([1.0, 0.0], [1.0, 0.0], [0.0, 1.0])
    one = stick.bearing(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64))
    other = stick.bearing(same_in_each_group([3.0, 4.0], 3))
    difference, error = one.less(other)
    assert difference == pytest.approx(4 / 5 - 10 / 5 / math.sqrt(5))
    apart = [a - b for a, b in zip(one.without, other.without, strict=True)]
    variance = (3 - 1) / 3 * sum((value - sum(apart) / 3) ** 2 for value in apart)
    assert error == pytest.approx(4.303 * math.sqrt(variance))
    assert one.less(one) == (0, 0)  # what both share falls out
    assert one.less(stick.bearing(torch.zeros(3, 2, dtype=torch.float64))) == (None, None)


@pytest.mark.parametrize("heavy", [False, True])
def test_updates_of_their_own_answers_get_a_verdict_by_chance_in_five_of_a_hundred_at_most(heavy):
    """One that points nowhere, and two that point equally on average: both sides are noisy, and the noise is shared."""
    generator, decided, apart = torch.Generator().manual_seed(0), 0, 0

    def noise():
        values = torch.randn(8, 100, generator=generator, dtype=torch.float64)
        return values**3 if heavy else values

    for _ in range(400):
        truth, shared = torch.zeros(100), noise()
        truth[0] = 4.0
        stick = Yardstick(truth + noise(), {}, 1024, 512, 100, 128)
        nowhere, one, other = noise(), truth + shared + noise(), truth + shared + noise()
        along = stick.bearing(nowhere)
        decided += abs(along.cosine) > along.error
        difference, error = stick.bearing(one).less(stick.bearing(other))
        apart += abs(difference) > error
    assert decided / 400 < 0.07 and apart / 400 < 0.07
    assert heavy or (decided and apart)  # not because an interval is endless


@pytest.mark.parametrize("shapes", [[(40, 30), (7,)], [(3,), (2000,), (3, 5)]])
def test_a_sketch_keeps_inner_products(shapes):
    generator = torch.Generator().manual_seed(0)
    one, noise = ([torch.randn(*shape, generator=generator) for shape in shapes] for _ in range(2))
    other = [0.5 * a + b for a, b in zip(one, noise, strict=True)]
    whole = [torch.cat([part.flatten() for part in gradient]).double() for gradient in (one, other)]
    exact = [sketch(gradient) for gradient in (one, other)]
    assert all(torch.equal(found, entries) for found, entries in zip(exact, whole, strict=True))
    norms = whole[0].norm() * whole[1].norm()
    for size in (101, 499):  # smaller than either
        short = [sketch(gradient, size) for gradient in (one, other)]
        assert all(len(found) == size for found in short) and torch.equal(short[0], sketch(one, size))
        assert abs(short[0] @ short[1] - whole[0] @ whole[1]) < 3 * norms / math.sqrt(size)
        both = sketch([a + 2 * b for a, b in zip(one, other, strict=True)], size)
        torch.testing.assert_close(both, short[0] + 2 * short[1], atol=1e-4, rtol=0)  # linear, to float32


@pytest.mark.parametrize(
    ("end_boost", "remedy"), [(-50.0, "8 of the answers were cut off: raise policy"), (50.0, "Take more --answers")]
)
def test_without_right_and_wrong_answers_there_is_no_direction(end_boost, remedy, tmp_path, monkeypatch):
    monkeypatch.setattr(reward, "grade", lambda *_: Grade(False, "wrong"))
    engine = GradientEngine(random_table(0, end_boost=end_boost), random_table(1))
    keep = keeper(tmp_path / "out")
    with pytest.raises(UserError, match=f"8 answers, 0 right.*{remedy}"):
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


def test_the_command_writes_page_and_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "direction"
    (tmp_path / "mine.py").write_text(
        "from nemo_aopsd.method.context import teacher_messages\nclass Mine:\n    field, adaptive = 'dag', False\n"
        "    def messages(self, problem, reached, prompts): return teacher_messages(problem, 'dag_full', prompts)\n"
    )
    words = ["direction", "demo", "policy.generation.max_new_tokens=96", "--problems", "12", "--answers", "4"]
    result = CliRunner().invoke(app, [*words, "--context", "mine.py:Mine", "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    numbers = json.loads((out / "direction.json").read_text())
    assert [arm["weighting"] for arm in numbers["arms"]] == list(WEIGHTINGS)
    assert numbers["seed"] == 0 and " seed 0 (another aopsd.seed " in " ".join(result.output.split())
    assert numbers["yardstick"]["num_answers"] == 48 and numbers["contexts"][0]["rollouts"] == 12
    answers, rollouts = ([*read_jsonl(out / f"{name}.jsonl")] for name in ("answers", "rollouts"))
    assert sum(one["correct"] for _, one in answers) == numbers["yardstick"]["num_right"] and len(answers) == 48
    owners = {one["problem_id"]: one["group"] for _, one in answers if one["group"] is not None}
    assert len(owners) == 12 and set(owners.values()) == set(range(min(8, numbers["yardstick"]["num_mixed"])))
    kept = [parse(Rollout, json.dumps(one | {"epoch": 0, "step": 1}).encode(), where) for where, one in rollouts]
    triggered = [abs(gap) >= AOPSDConfig().probes.threshold for one in kept for gap in one.gaps()]
    assert sum(triggered) / len(triggered) == pytest.approx(numbers["contexts"][0]["triggered"])
    assert {one["context"] for _, one in rollouts} == {"mine.py:Mine"} and len(kept) == 12
    page, lines = (out / "direction.md").read_text(), result.output.splitlines()
    assert "\nmine.py:Mine" in page and "\nnormalised" in page
    *_, written = lines
    assert written == f"{out / 'direction.md'}, direction.json, answers.jsonl, rollouts.jsonl"
    uniform, own = [line for line in page.splitlines() if line.startswith("mine.py:Mine: ")]
    num_mixed = numbers["yardstick"]["num_mixed"]
    few = f"mine.py:Mine: undecided with {num_mixed} problems of right and wrong answers, 16 needed "
    assert uniform.startswith(f"{few}(uniform ") and own.startswith(f"{few}(continuation ")  # the config's
    assert all(line in " ".join(result.output.split()) for line in (uniform, own))
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
    signal = Signal("dag_frontier", 8, 0, 0.5, 0.1, -0.1, 0.02, 1.0, 0.5, 0.0)
    enough = Direction(yardstick([1.0], [1.0], mixed=80), [signal], arms)
    none = "dag_frontier: no weighting is above uniform weights beyond its interval: aopsd.weighting=uniform"
    assert verdicts(enough) == [f"dag_frontier: {verdict}", none]
    of_both = verdicts(enough, "continuation")
    assert of_both[1] == verdicts(enough)[0] and "(continuation 0.9 \u00b1 0.1)" in of_both[0]
    assert of_both[2:] == ["dag_frontier: continuation and uniform weights are not told apart (+0.3 \u00b1 0.4)", none]
    few = verdicts(Direction(yardstick([1.0], [1.0], mixed=15), [], arms))[0]
    told = "dag_frontier: undecided with 15 problems of right and wrong answers, 16 needed ("
    assert few.startswith(told if cosine else "dag_frontier: undecided: its update")


def test_the_weighting_to_try_is_the_best_that_is_no_control():
    arms = [
        Arm("dag_full", weighting, 0.1, 0.1, *apart, *[None] * 3, 1.0, 1.0)
        for weighting, apart in {
            "uniform": (0.0, 0.0),
            "continuation": (0.05, 0.04),
            "normalised": (0.1, 0.04),
            "gap_only": (0.2, 0.3),
            "shuffled": (0.4, 0.1),
        }.items()
    ]
    signal = Signal("dag_full", 8, 0, None, 0.1, -0.1, 0.02, 1.0, 0.5, 0.0)
    told = verdicts(Direction(yardstick([1.0], [1.0], mixed=80), [signal], arms))
    best = "dag_full: normalised is above uniform weights (+0.1 \u00b1 0.04): try aopsd.weighting=normalised"
    assert told[-1] == best
    *_, told = verdicts(Direction(yardstick([1.0], [1.0], mixed=79), [signal], arms), "continuation")
    assert told == "no weighting to try: 79 problems of right and wrong answers, 80 needed"


def test_an_earlier_folder_is_moved_aside_unless_it_has_more(tmp_path):
    out = tmp_path / "direction"
    assert _move_aside(out, FILES) is None
    for number in (1, 2):
        out.mkdir()
        (out / "answers.jsonl").write_text(str(number))
        assert _move_aside(out, FILES) == tmp_path / f"direction.{number}" and not out.exists()
    assert (tmp_path / "direction.1/answers.jsonl").read_text() == "1"
    out.mkdir()
    (out / "notes.txt").touch()
    assert _move_aside(out, FILES) is None  # nothing of it would be replaced
    (out / "direction.md").touch()
    with pytest.raises(UserError, match=r"notes\.txt beside it"):
        _move_aside(out, FILES)


def test_a_weighting_that_is_not_measured_is_said_to_have_no_verdict():
    found = Direction(yardstick([1.0], [1.0], mixed=80), [], [Arm("none", "uniform", *[0.1] * 9)])
    assert len(verdicts(found)) == 1
    assert "no verdict on aopsd.weighting=mine.py:Mine," in verdicts(found, "mine.py:Mine")[-1]


def test_an_infinite_error_is_null_in_json_and_the_page_is_plain_text(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    config = replace(make_config(tmp_path), policy={"model_name": "m"})
    arm = Arm("none", "uniform", 0.1, math.inf, *[0.1] * 7)
    page, numbers = write_direction(tmp_path, Direction(yardstick([1.0]), [], [arm]), config)
    assert "\x1b" not in page.read_text()
    assert json.loads(numbers.read_text(), parse_constant=pytest.fail)["arms"][0]["error"] is None


def test_the_widest_numbers_and_names_fit_80_columns(tmp_path, capsys):
    config = replace(make_config(tmp_path), policy={"model_name": "m"})
    signal = Signal("other_problem", 1024, 1024, 1.0, 10.0, -10.0, 1.0, 20.0, 10.0, 1.0)
    arms = [Arm(signal.context, weighting, *[-0.987654] * 7, 98.7654, 98.7654) for weighting in WEIGHTINGS]
    show(Direction(yardstick([0.0], [0.0]), [signal], arms), config, Console(width=80))
    said = capsys.readouterr().out
    assert "…" not in said and said.count("-0.988") == 7 * len(WEIGHTINGS) and max(map(len, said.splitlines())) <= 80
    assert all(number in said.split() for number in ("1.000", "10.000", "-10.000", "20.000"))


@pytest.mark.parametrize(
    ("more", "key"),
    [
        (["--context", "dag_ful"], "dag_ful"),
        (["--context", "none", "--context", "no.py:Mine"], r"aopsd\.context\.kind=no\.py:Mine: no file"),
        (["aopsd.engine=nemo_rl"], "aopsd.engine"),
    ],
)
def test_what_it_cannot_do_is_refused(more, key, tmp_path):
    with pytest.raises(UserError, match=key):
        CliRunner().invoke(app, ["direction", "demo", *more, "--out", str(tmp_path)], catch_exceptions=False)
