"""Losses and metrics of the policy terms by hand: advantages of both signs, and clips that differ below and above."""

import math
from functools import partial

import pytest
import torch

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.objectives.base import clipped_surrogate
from nemo_aopsd.types import TrainRow

values = partial(torch.tensor, dtype=torch.float64)

# Clips at 0.9 and 1.4. Ratio, advantage, the surrogate min(rho A, clip(rho) A), and whether the clip binds: only where
# the ratio has moved as the advantage asks.
RATIOS = [
    (1.3, 2.0, 2.6, False),  # a clip at 1.1, that from below, would bind here
    (1.5, 2.0, 2.8, True),
    (0.5, 2.0, 1.0, False),
    (0.8, -2.0, -1.8, True),  # a clip at 0.6, that from above, would not
    (0.95, -2.0, -1.9, False),
    (1.5, -2.0, -3.0, False),
]
CLIPS = {"ratio_clip_min": 0.1, "ratio_clip_max": 0.4}


def columns(ratios, **more):
    """One response whose student moved by `ratios` since collection."""
    old = torch.full((1, len(ratios)), -2.0, dtype=torch.float64)
    counts = {"mask": torch.ones(1, len(ratios), dtype=torch.bool), "num_tokens": len(ratios), "num_rows": 1}
    return {"logprobs": old + values([ratios]).log(), "old_logprobs": old, **counts, **more}


def call(name: str, settings: dict, logprobs: torch.Tensor, **rest):
    loss, metrics = build_objective(ObjectiveConfig(name=name, **settings))(logprobs, **rest)
    return loss.item(), {key.removeprefix("train/"): value.item() for key, value in metrics.items()}


def test_the_clips_below_and_above_bind_by_the_sign_of_the_advantage():
    ratios, advantages, surrogates, binds = zip(*RATIOS, strict=True)
    data = columns(ratios)
    found, bound = clipped_surrogate(
        data["logprobs"], data["old_logprobs"], values([advantages]), data["mask"], ObjectiveConfig(**CLIPS)
    )
    assert found[0].tolist() == pytest.approx(surrogates)
    assert bound[0].tolist() == list(binds)


def test_no_ratio_overflows_and_within_the_bound_its_gradient_is_its_own():
    """Log-ratios of 100, beyond float32's exp, of the bound and of little less; A = 0 must not meet an infinity."""
    logprobs = torch.tensor([[-1.0, -1.0, -1.0, -1.0, -1.0]], requires_grad=True)
    log_ratios, advantages = (
        torch.tensor([[100.0, 100.0, -100.0, 19.0, 0.0]]),
        torch.tensor([[0.0, -1.0, 1.0, -1.0, 2.0]]),
    )
    mask = torch.ones(1, 5, dtype=torch.bool)
    found, _ = clipped_surrogate(logprobs, logprobs.detach() - log_ratios, advantages, mask, ObjectiveConfig())
    found.sum().backward()
    expected = [0.0, -math.exp(20), math.exp(-20), -math.exp(19), 2.0]
    assert found[0].tolist() == pytest.approx(expected, rel=1e-5)
    assert logprobs.grad[0].tolist() == pytest.approx([0.0, 0.0, 0.0, -math.exp(19), 2.0], rel=1e-5)


def test_grpo_by_hand():
    ratios, advantages, surrogates, _ = zip(*RATIOS, strict=True)
    loss, metrics = call("grpo", CLIPS, **columns(ratios, advantages=values([advantages])))
    assert loss == pytest.approx(-sum(surrogates) / 6)
    assert metrics == pytest.approx({"loss": loss, "frac_ratio_clipped": 2 / 6, "mean_abs_advantage": 2.0})


def test_pg_by_hand():
    """The gap is 4, 1, -8 and -1, weighed by 1, 1/2, 1 and 1: advantages 3 (clipped), 0.5, -3 (clipped) and -1."""
    data = columns([1.0, 1.5, 0.8, 1.0])
    data["teacher_logprobs"] = data["logprobs"] + values([[4.0, 1.0, -8.0, -1.0]])
    data["weights"] = values([[1.0, 0.5, 1.0, 1.0]])
    loss, metrics = call("pg", CLIPS | {"advantage_clip": 3.0}, **data)
    assert loss == pytest.approx(-(3.0 + 1.4 * 0.5 - 0.9 * 3.0 - 1.0) / 4)
    expected = {"loss": loss, "frac_clipped": 2 / 4, "frac_ratio_clipped": 2 / 4, "mean_abs_advantage": 7.5 / 4}
    assert metrics == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # The teacher's 3 (of 4, clipped), -1, 0.1, -0.1 and, where no group tells anything, 0.5.
        ({"reward": "added", "reward_weight": 2.0}, [3.0 + 1.0, -1.0 + 1.0, 0.1 - 1.0, -0.1 - 1.0, 0.5]),
        # Factors of a right answer: e^3 and e^-1, both clipped; of a wrong one e^-0.1 and e^0.1.
        ({"reward": "direction"}, [0.5 * 1.3, 0.5 * 0.7, -0.5 * math.exp(-0.1), -0.5 * math.exp(0.1), 0.0]),
    ],
)
def test_pg_with_a_reward_by_hand(settings, expected):
    data = columns([1.0] * 5, weights=values([[1.0, 1.0, 1.0, 1.0, 0.5]]))
    data["teacher_logprobs"] = data["logprobs"] + values([[4.0, -1.0, 0.1, -0.1, 1.0]])
    data["advantages"] = values([[0.5, 0.5, -0.5, -0.5, 0.0]])
    made = build_objective(ObjectiveConfig(advantage_clip=3.0, evidence_clip=0.3, **settings))
    logprobs = data.pop("logprobs").requires_grad_()
    loss, metrics = made(logprobs, **data)
    loss.backward()
    assert loss.item() == pytest.approx(-sum(expected) / 5)
    assert (-5 * logprobs.grad[0]).tolist() == pytest.approx(expected)
    assert metrics["train/frac_clipped"].item() == pytest.approx(1 / 5)
    assert metrics["train/mean_abs_advantage"].item() == pytest.approx(sum(map(abs, expected)) / 5)


def test_the_on_policy_gradient_is_minus_advantage_over_tokens_and_the_teacher_gets_none():
    data = columns([1.0, 1.0, 1.0], weights=values([[1.0, 0.5, 1.0]]))
    data["mask"][0, 2] = False
    teacher = data["logprobs"] + values([[2.0, -1.0, 1.0]])
    logprobs, teacher = data.pop("logprobs").requires_grad_(), teacher.requires_grad_()
    made = build_objective(ObjectiveConfig())
    made(logprobs, **data | {"teacher_logprobs": teacher, "num_tokens": 2})[0].backward()
    assert logprobs.grad[0].tolist() == pytest.approx([-1.0, 0.25, 0.0])
    assert teacher.grad is None


def test_minillm_by_hand():
    gap = torch.tensor([0.0, 1.0, -9.0, -1.0, 3.0])
    row = TrainRow([1], [5] * 5, gap - gap, gap, torch.ones(5), torch.ones(5, dtype=torch.bool))
    made = build_objective(ObjectiveConfig(name="minillm", advantage_clip=2.0))
    advantages = made.prepare([row])[0].advantages
    # (1 - 9 - 1 + 3) / 4, (-9 - 1 + 3) / 3 = -2.33 clipped, (-1 + 3) / 2, 3 clipped, and nothing behind the last
    assert advantages.tolist() == pytest.approx([-1.5, -2.0, 1.0, 2.0, 0.0])

    data = columns([1.0, 0.8, 1.5, 0.5, 1.0], advantages=advantages[None].double())
    divergence = values([[0.5, 0.25, 1.0, 2.0, 0.75]])
    loss, metrics = call("minillm", CLIPS | {"advantage_clip": 2.0}, divergence=divergence, **data)
    surrogate = -1.5 - 0.9 * 2.0 + 1.4 * 1.0 + 0.5 * 2.0 + 0.0
    assert loss == pytest.approx((4.5 - surrogate) / 5)
    expected = {"loss": loss, "divergence": 4.5 / 5, "frac_ratio_clipped": 2 / 5, "mean_abs_advantage": 6.5 / 5}
    assert metrics == pytest.approx(expected)


def test_eopd_by_hand():
    """Gates open at entropies 0.8 and 2; behind one of them teacher and student agree. No gap, so no policy term."""
    data = columns([1.0] * 4, weights=values([[1.0] * 4]))
    data |= {"teacher_logprobs": data["logprobs"], "entropy": values([[0.8, 2.0, 0.7, 0.0]])}
    settings = {"entropy_threshold": 0.8, "entropy_weight": 3.0}
    loss, metrics = call("eopd", settings, divergence=values([[0.5, 0.0, 4.0, math.inf]]), **data)
    assert loss == pytest.approx(3.0 * 0.5 / 4)
    assert metrics["divergence"] == pytest.approx(0.5 / 4) and metrics["gate_rate"] == 2 / 4


@pytest.mark.parametrize("name", ["fkl", "rkl", "jsd", "topk_fkl", "dash", "gkd"])
def test_the_divergence_of_a_distillation_is_the_mean_over_valid_tokens(name):
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    divergence = values([[0.5, 0.25, 1.0, 9.0], [0.05, math.nan, 9.0, 9.0]])
    _, metrics = call(name, {}, divergence, divergence=divergence, mask=mask, num_tokens=4, num_rows=2)
    assert metrics["divergence"] == pytest.approx(1.8 / 4)
