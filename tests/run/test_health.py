"""Which numbers a run is warned of: its own, and those of the demo."""

import pytest

from nemo_aopsd.config.schema import AOPSDConfig, JudgeConfig, ObjectiveConfig
from nemo_aopsd.run.health import WINDOW, entered, entered_fall, findings, rules
from nemo_aopsd.run.record_types import Evaluation, Interval, StepMetrics

RULES = rules(AOPSDConfig())
KEYS = (
    "rollout/truncated",
    "judge/failed",
    "probe/trigger_rate",
    "probe/weight_mean",
    "rollout/leak_rate",
    "dag/progress",
)
# The 36 steps of `aopsd demo`, 32 responses each.
DEMO = """
0 0 0.0214 0.7467 0 0.5531
0 0 0.02091 0.7963 0.0625 0.512
0 0 0.01881 0.7676 0 0.5125
0 0 0.01088 0.6802 0.09375 0.7198
0 0 0.01549 0.6619 0.03125 0.6406
0 0 0.0197 0.8263 0.03125 0.5062
0 0 0.01352 0.7365 0 0.6703
0 0 0.01201 0.6569 0.03125 0.7068
0 0 0.01737 0.5103 0 0.6406
0 0 0.01102 0.6415 0.09375 0.7214
0 0 0.01389 0.7122 0 0.5911
0 0 0.01255 0.6187 0.0625 0.6896
0 0 0.009815 0.365 0 0.8411
0 0 0.01149 0.4086 0.125 0.8234
0 0 0.01223 0.5232 0.03125 0.7417
0 0 0.007692 0.3652 0.0625 0.8229
0 0 0.01145 0.7383 0.03125 0.6719
0 0 0.007663 0.4516 0.09375 0.8302
0 0 0.009199 0.371 0.125 0.874
0 0 0.00866 0.4212 0.03125 0.8875
0 0 0.009874 0.4351 0 0.8365
0 0 0.007941 0.3609 0.09375 0.9094
0 0 0.006318 0.553 0.03125 0.8359
0 0 0.004122 0.3137 0.125 0.9167
0 0 0.00565 0.3781 0.03125 0.9156
0 0 0.006085 0.498 0.0625 0.9453
0 0 0.01007 0.7259 0.1562 0.9583
0 0 0.001434 0.5059 0.09375 0.9688
0 0 0.001971 0.7529 0.1562 0.9583
1 0 0.007217 0.8142 0.2812 0.9844
0 0 0.001472 0.3907 0.2188 0.9938
0 0 0.0004854 0.4596 0.3125 1
0 0 0.0009302 0.7209 0.3125 0.987
0 0 0.0004726 0.6822 0.3125 0.9896
0 0 0.001469 0.4545 0.25 0.9818
0 0 0.001017 0.616 0.2812 0.9479
"""


def steps(*values, **same):
    """A row of metrics for each of `values`, which are dictionaries of short or whole keys."""
    common = {"rollout/count": 32.0, "rollout/mean_tokens": 30.0, **same}
    return [
        StepMetrics(0, step, {"step": step, **common, **row}, f"metrics.jsonl:{step}")
        for step, row in enumerate(values, start=1)
    ]


def names(found):
    return [one.name for one in found]


def told(rows, table=RULES):
    """(step, rule) of every warning of a run that made these rows."""
    return [(rows[end - 1].step, name) for end in range(1, len(rows) + 1) for name in names(entered(table, rows[:end]))]


@pytest.fixture
def demo():
    lines = DEMO.split("\n")[1:-1]
    return steps(*(dict(zip(KEYS, map(float, line.split()), strict=True)) for line in lines))


def test_the_demo_is_told_of_its_leaks_and_of_nothing_else(demo):
    """The README names them as the demo's cost: 3 % at first, 27 % in the end."""
    assert len(demo) == 36 and told(demo) == [(31, "leaks")]
    (found,) = findings(RULES, demo)
    assert (found.first, found.last) == (31, 36) and found.value == pytest.approx(0.2656 - 0.0312, abs=1e-3)
    assert " 23 points " in found.sentence


# name, numbers within the limit, numbers beyond it, value that is told
SICK = [
    ("truncated", {"rollout/truncated": 6.0}, {"rollout/truncated": 8.0}, 0.25),
    ("unread_verdicts", {"judge/failed": 3.0}, {"judge/failed": 4.0}, 0.125),
    ("few_triggers", {"probe/trigger_rate": 0.002}, {"probe/trigger_rate": 0.0019}, 0.0019),
    ("no_progress", {"dag/progress": 0.021}, {"dag/progress": 0.019}, 0.019),
    ("all_progress", {"dag/progress": 0.979}, {"dag/progress": 0.981}, 0.981),
    ("small_weights", {"probe/weight_mean": 0.11}, {"probe/weight_mean": 0.09}, 0.09),
    (
        "negative_divergence",
        {"train/divergence": -1e-9, "train/frac_negative": 0.0},
        {"train/divergence": -2e-5, "train/frac_negative": 0.1},
        -2e-5,
    ),
]


@pytest.mark.parametrize(("name", "well", "sick", "value"), SICK, ids=[row[0] for row in SICK])
def test_a_number_beyond_its_limit_is_told_once(name, well, sick, value):
    assert told(steps(*[well] * 3 * WINDOW)) == []
    rows = steps(*[sick] * 3 * WINDOW)
    ((step, said),) = told(rows)
    assert (said, step) == (name, 1 if name == "negative_divergence" else WINDOW)
    (found,) = findings(RULES, rows)
    assert found.name == name and found.value == pytest.approx(value) and found.first == step
    assert "{" not in found.sentence and "aopsd." in found.remedy


def test_a_student_that_learns_to_reach_every_checkpoint_is_not_warned_of_it(demo):
    late = [row.number("dag/progress") for row in demo[-WINDOW:]]
    assert sum(late) / WINDOW > 0.98 and "all_progress" not in names(findings(RULES, demo))


def test_a_rise_counts_from_the_first_steps():
    low, high = {"rollout/leak_rate": 0.3}, {"rollout/leak_rate": 0.41}
    assert told(steps(*[high] * 40)) == [] == told(steps(*[high] * WINDOW, *[low] * 40))
    assert told(steps(*[low] * WINDOW, *[high] * 40)) == [(2 * WINDOW, "leaks")]  # once all of a window are high


def test_a_number_is_told_again_only_after_a_window_in_its_range():
    well, sick = {"rollout/truncated": 0.0}, {"rollout/truncated": 32.0}
    once = [*[well] * WINDOW, *[sick] * 4]
    back = [*[well] * 3 * WINDOW, *[sick] * 4]
    assert told(steps(*once, *back)) == [(WINDOW + 2, "truncated"), (len(once) + 3 * WINDOW + 2, "truncated")]
    flicker = [{"train/divergence": sign * 0.1, "train/frac_negative": 0.1} for sign in (-1, 1)] * 20
    assert told(steps(*flicker)) == [(1, "negative_divergence")]


def test_no_number_no_rule():
    assert findings(RULES, steps(*[{}] * 20)) == [] == findings(RULES, [])
    one = [{"probe/weight_mean": 0.01}, *[{}] * 19]  # a single step with probes tells little
    assert findings(RULES, steps(*one)) == []
    assert findings(RULES, steps({"probe/trigger_rate": 0.0})) == []  # the first steps are not over


def test_the_remedy_of_a_negative_divergence_is_the_key_that_causes_it():
    for objective, key in (("fkl", "token_clip"), ("topk_fkl", "top_k_form")):
        table = {rule.name: rule for rule in rules(AOPSDConfig(objective=ObjectiveConfig(objective)))}
        assert f"aopsd.objective.{key} " in table["negative_divergence"].remedy


def test_the_remedy_of_a_judge_that_finds_nothing_is_of_its_kind():
    for kind, remedy in (("log_odds", "aopsd.judge.threshold (here "), ("list", "try another aopsd.judge.kind")):
        table = {rule.name: rule for rule in rules(AOPSDConfig(judge=JudgeConfig(kind)))}
        assert remedy in table["no_progress"].remedy


# name, a step of few responses that chance does not give at the limit, one that it may give, steps until it is told
EARLY = [
    ("truncated", {"rollout/truncated": 4.0}, {"rollout/truncated": 2.0}, 1),  # 0.2^4 = 0.0016; at least 2 of 4: 0.18
    ("unread_verdicts", {"judge/failed": 4.0}, {"judge/failed": 1.0}, 1),  # 0.1^4; at least 1 of 4: 0.34
    (
        "few_triggers",
        {"probe/trigger_rate": 0.0},
        {"probe/trigger_rate": 1 / 800},
        3,
    ),  # 0.998^2400 = 0.008, of 1600: 0.04
]


@pytest.mark.parametrize(("name", "sick", "doubtful", "after"), EARLY, ids=[row[0] for row in EARLY])
def test_a_rate_far_beyond_its_limit_needs_no_8_steps(name, sick, doubtful, after):
    """As a run of 4 steps of 4 responses of 200 tokens."""
    few = {"rollout/count": 4.0, "rollout/mean_tokens": 200.0}
    rows = steps(*[sick] * 4, **few)
    assert told(rows) == [(after, name)] and names(findings(RULES, rows)) == [name]
    assert told(steps(doubtful, **few)) == []
    assert told(steps({"rollout/mean_tokens": 0.0, "probe/trigger_rate": 0.0})) == []  # no token, no rate


def evaluation(step, *counts):
    """Of `counts` correct samples of 4 a problem."""
    rate = sum(counts) / 4 / len(counts)
    return Evaluation(
        num_samples=4,
        correct_per_problem={str(key): count for key, count in enumerate(counts)},
        epoch=step // 12,
        step=step,
        num_problems=len(counts),
        pass_at_k={1: rate},
        pass_at_k_interval={1: Interval(0, 1)},
        leak_rate=0,
        truncation_rate=0,
        mean_tokens=1,
    )


def test_a_fall_of_pass_at_1_is_told_once_with_the_best_before_it():
    best, low, lower = evaluation(12, *[3] * 40), evaluation(24, *[1] * 40), evaluation(36, *[0] * 40)
    first = evaluation(0, *[2] * 40)
    (found,) = findings(RULES, [], [first, best, low, lower])
    assert (found.name, found.value, found.first, found.last) == ("fallen", -0.75, 12, 36)
    assert (
        "0.750 at step 12 to 0.000 at step 36 (no interval of the change: it is -0.750 for each problem)"
        in found.sentence
    )
    assert entered_fall([first, best, low]).last == 24 and entered_fall([first, best, low, lower]) is None
    assert entered_fall([first]) is None is entered_fall([first, best])
    assert [one.last for one in findings(RULES, [], [first, best, low, best])] == [24]  # it has recovered
    assert "max_num_steps=12" in found.remedy and "diagnose direction" in entered_fall([first, low]).remedy


def test_a_fall_that_chance_may_give_is_not_told():
    before = evaluation(12, *[2, 2] * 20)
    after = evaluation(24, *[1, 3] * 19, 1, 2)  # 19 problems better by 1 of 4 samples, 20 worse: the mean is near 0
    assert after.pass_at_k[1] < before.pass_at_k[1] and findings(RULES, [], [before, after]) == []
