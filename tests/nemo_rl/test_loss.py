"""The NeMo RL loss against the core's policy gradient and by hand; inside NeMo RL's wrappers: test_loss_parallel."""

import copy
import math
from dataclasses import replace

import pytest
import ray
import torch
from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig
from nemo_rl.distributed.batched_data_dict import BatchedDataDict

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.engines.nemo_rl.loss import OWN_METRICS, AOPSDLossFn
from nemo_aopsd.method.objectives.pg import PolicyGradient

OBJECTIVE = ObjectiveConfig(advantage_clip=1.0)
EXTREMES = {"probs_ratio_min", "probs_ratio_max", "probs_ratio_clamped_min", "probs_ratio_clamped_max"}
COLUMNS = ("prev_logprobs", "generation_logprobs", "teacher_logprobs", "probe_weights")


def loss_fn(objective=OBJECTIVE, **block):
    return AOPSDLossFn(ClippedPGLossConfig(reference_policy_kl_penalty=0, **block), objective)


def columns(rows=3, width=6, seed=0):
    """Float64 columns with gaps, an off-policy student and a mask with holes."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: -3 * torch.rand(rows, width, generator=generator, dtype=torch.float64)  # noqa: E731
    data = {name: draw() for name in COLUMNS}
    data["probe_weights"] = data["probe_weights"] / -3
    data["token_mask"] = (torch.rand(rows, width, generator=generator) < 0.8).long()
    data["sample_mask"] = torch.ones(rows)
    noise = 0.4 * torch.randn(rows, width - 1, generator=generator, dtype=torch.float64)
    return BatchedDataDict(data), data["prev_logprobs"][:, 1:] + noise


def counts(data):
    """The valid sequences and tokens of a whole batch, as NeMo RL counts them (process_global_batch)."""
    tokens = (data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)).sum()
    return data["sample_mask"].sum(), tokens


def call(function, logprobs, data):
    """Loss, metrics, gradient for the log-probs."""
    logprobs = logprobs.detach().clone().requires_grad_(True)
    loss, metrics = function(logprobs, data, *counts(data))
    loss.backward()
    return loss.item(), metrics, logprobs.grad


def one_row(current, prev, teacher, weights=None, **more):
    """A batch of one sequence in float64, all its tokens but the first counted; returns it and the log-probs."""

    def column(values):
        return torch.tensor([[0.0, *values]], dtype=torch.float64)

    data = {"prev_logprobs": column(prev), "teacher_logprobs": column(teacher)}
    data["generation_logprobs"] = data["prev_logprobs"]
    data["probe_weights"] = column(weights or [1.0] * len(prev))
    data["token_mask"] = torch.tensor([[0] + [1] * len(prev)])
    data["sample_mask"] = torch.ones(1)
    return BatchedDataDict(data | more), torch.tensor([current], dtype=torch.float64)


# ---- the formula


@pytest.mark.parametrize("reward", ["none", "added", "direction"])
def test_loss_metrics_and_gradient_equal_the_cores_policy_gradient(reward):
    data, current = columns()
    objective = replace(OBJECTIVE, reward=reward, reward_weight=0.3)
    of_reward = None
    if reward != "none":
        data["advantages"] = torch.tensor([[0.7], [-0.7], [0.0]], dtype=torch.float64).expand(3, 6)
        of_reward = data["advantages"][:, 1:]
    num_tokens = counts(data)[1].item() + 1e-8  # NeMo RL's masked_mean adds that much
    loss, metrics, gradient = call(loss_fn(objective), current, data)

    logprobs = current.clone().requires_grad_(True)
    expected, expected_metrics = PolicyGradient(objective)(
        logprobs,
        old_logprobs=data["prev_logprobs"][:, 1:],
        teacher_logprobs=data["teacher_logprobs"][:, 1:],
        weights=data["probe_weights"][:, 1:],
        mask=data["token_mask"][:, 1:].bool(),
        num_tokens=num_tokens,
        num_rows=1,
        advantages=of_reward,
    )
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-7)  # the parent divides by a float32 token count
    torch.testing.assert_close(gradient, logprobs.grad, rtol=1e-7, atol=1e-12)
    for name in OWN_METRICS:
        assert metrics[name] == pytest.approx(expected_metrics[f"train/{name}"].item(), rel=1e-6)
        assert 0 < metrics[name] < 1  # the case is one where each of them says something
    assert metrics["loss"] == pytest.approx(loss)


def test_off_policy_the_ratio_clip_of_the_objective_binds_not_that_of_the_block():
    data, logprobs = one_row([-1.0, -2.05, -3.0], prev=[-2.0, -2.0, -2.0], teacher=[0.0, 0.0, -5.0])
    objective = ObjectiveConfig(ratio_clip_min=0.1, ratio_clip_max=0.3)
    function = loss_fn(objective, ratio_clip_min=0.9, ratio_clip_max=9.0)
    loss, metrics, gradient = call(function, logprobs, data)
    # Token 1: ratio e, advantage 1, so 1.3 * 1. Token 2: ratio exp(-0.05), advantage 2.05, not clipped.
    # Token 3: ratio exp(-1) = 0.37, advantage -2, so 0.9 * -2.
    inside = math.exp(-0.05) * 2.05
    assert loss == pytest.approx(-(1.3 + inside - 1.8) / 3)
    torch.testing.assert_close(gradient, torch.tensor([[0, -inside / 3, 0]], dtype=torch.float64), rtol=1e-7, atol=0)
    assert metrics["frac_ratio_clipped"] == pytest.approx(2 / 3)


def test_the_advantage_follows_the_student_from_one_call_to_the_next():
    function = loss_fn(ObjectiveConfig())
    data, before = one_row([-1.0], prev=[-1.0], teacher=[-0.95])
    assert call(function, before, data)[2].item() == pytest.approx(-0.05)
    after = before + 0.1  # now the teacher likes the token less than the student does
    assert call(function, after, data)[2].item() == pytest.approx(0.05 * math.exp(0.1))


def test_neither_teacher_nor_weights_get_a_gradient_and_the_batch_is_not_changed():
    data, current = columns()
    data["teacher_logprobs"].requires_grad_(True)
    data["probe_weights"].requires_grad_(True)
    names, values = set(data), copy.deepcopy(dict(data))
    call(loss_fn(), current, data)
    assert data["teacher_logprobs"].grad is None and data["probe_weights"].grad is None
    assert set(data) == names and all(torch.equal(data[name], values[name]) for name in names)


def test_where_the_sampler_has_scored_both_sides_of_a_bracket_come_from_the_same_kernels():
    """Advantages of 1 * (0.5 - 0.1), 0.5 * (-1 + 0.2) and, clipped, 3: gaps of the sampler less the trainer's moves."""
    data, logprobs = one_row([-1.0, -2.2, -3.0], prev=[-1.1, -2.0, -3.0], teacher=[0, 0, 0], weights=[1, 0.5, 1])
    data["gaps"] = torch.tensor([[0.0, 0.5, -1.0, 9.0]], dtype=torch.float64)
    del data["teacher_logprobs"]
    objective = ObjectiveConfig(advantage_clip=3.0)
    _, metrics, gradient = call(loss_fn(objective), logprobs, data)
    expected = torch.tensor([[0.4 * math.exp(0.1), -0.4 * math.exp(-0.2), 3.0]], dtype=torch.float64) / -3
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=0)
    assert metrics["frac_clipped"] == pytest.approx(1 / 3)


def test_before_an_update_the_second_bracket_is_zero_and_the_ratio_one():
    data, logprobs = one_row([-1.0, -2.0], prev=[0, 0], teacher=[0, 0])
    data["gaps"] = torch.tensor([[0.0, 0.1, -1e-9]], dtype=torch.float64)
    data["generation_logprobs"] = torch.tensor([[0.0, -1.2, -1.5]], dtype=torch.float64)
    del data["teacher_logprobs"], data["prev_logprobs"]
    block = {"use_importance_sampling_correction": True, "truncated_importance_sampling_ratio": 1.1}
    function = loss_fn(ObjectiveConfig(), **block, truncated_importance_sampling_type="tis")
    _, metrics, gradient = call(function, logprobs, data)
    expected = torch.tensor([[-0.1 * 1.1 / 2, 1e-9 * math.exp(-0.5) / 2]], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=0)
    assert (metrics["probs_ratio_min"], metrics["probs_ratio_max"]) == (1, 1)


# ---- the other settings of NeMo RL's block


@pytest.mark.parametrize("switch", ["disable_ppo_ratio", "force_on_policy_ratio"])
def test_without_the_ratio_the_gradient_is_that_of_reinforce(switch):
    data, logprobs = one_row([-1.0, -2.0], prev=[-9.0, -0.1], teacher=[-0.5, -3.0])
    if switch == "force_on_policy_ratio":
        del data["prev_logprobs"]
    _, metrics, gradient = call(loss_fn(ObjectiveConfig(), **{switch: True}), logprobs, data)
    torch.testing.assert_close(gradient, torch.tensor([[-0.25, 0.5]], dtype=torch.float64), rtol=1e-7, atol=0)
    assert metrics["frac_ratio_clipped"] == 0


def test_importance_sampling_correction_weighs_each_token_by_trainer_over_sampler():
    data, logprobs = one_row([-1.0, -2.0], prev=[-1.0, -2.0], teacher=[-0.5, -3.0])
    data["generation_logprobs"] = torch.tensor([[0.0, -1.2, -1.5]], dtype=torch.float64)
    block = {"truncated_importance_sampling_type": "tis", "truncated_importance_sampling_ratio": 1.1}
    function = loss_fn(ObjectiveConfig(), use_importance_sampling_correction=True, **block)
    _, metrics, gradient = call(function, logprobs, data)
    # exp(0.2) = 1.22 is truncated to 1.1; exp(-0.5) stays.
    expected = torch.tensor([[-0.5 * 1.1 / 2, math.exp(-0.5) / 2]], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=0)
    assert metrics["is_oob_ratio"] == pytest.approx(0.5)


def test_sequence_level_ratios_are_the_mean_over_the_counted_tokens_alone():
    data, logprobs = one_row([-1.0, -2.0, -4.0], prev=[-1.1, -2.3, -90.0], teacher=[-0.5, -1.0, -1.0])
    data["token_mask"] = torch.tensor([[0, 1, 1, 0]])
    block = {"token_level_loss": False, "sequence_level_importance_ratios": True}
    loss, metrics, _ = call(loss_fn(ObjectiveConfig(), **block), logprobs, data)
    ratio = math.exp((0.1 + 0.3) / 2)  # 1.2214, clipped to 1.2 for both positive advantages
    assert ratio > 1.2
    assert loss == pytest.approx(-1.2 * (0.5 + 1.0) / 2)
    assert metrics["frac_ratio_clipped"] == pytest.approx(1)


def test_cispo_counts_a_clipped_ratio_whatever_the_advantage():
    data, logprobs = one_row([-1.0, -1.0], prev=[-2.0, -1.0], teacher=[-3.0, -3.0])
    _, metrics, gradient = call(loss_fn(ObjectiveConfig(), use_cispo=True), logprobs, data)
    torch.testing.assert_close(gradient, torch.tensor([[1.2, 1.0]], dtype=torch.float64), rtol=1e-7, atol=0)
    assert metrics["frac_ratio_clipped"] == pytest.approx(0.5)


# ---- what must not count


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -1e30])
@pytest.mark.parametrize("block", [{}, {"use_importance_sampling_correction": True}, {"token_level_loss": False}])
def test_masked_tokens_may_hold_anything(garbage, block):
    data, current = columns(rows=4)
    data["token_mask"][:, 3:] = 0
    data["token_mask"][3] = 0
    data["sample_mask"] = torch.tensor([1.0, 1.0, 0.0, 1.0])
    clean = call(loss_fn(**block), current, data)
    ignored = (data["token_mask"] * data["sample_mask"].unsqueeze(-1)) == 0
    for name in COLUMNS:
        data[name] = data[name].masked_fill(ignored, garbage)
    dirty = call(loss_fn(**block), current.masked_fill(ignored[:, 1:], garbage), data)
    assert dirty[:2] == clean[:2]
    assert torch.equal(dirty[2], clean[2])
    assert math.isfinite(clean[0]) and clean[2].isfinite().all()
    assert not clean[2][ignored[:, 1:]].any() and clean[2].any()


@pytest.mark.parametrize("what", ["token_mask", "sample_mask"])
def test_a_batch_without_any_counted_token_has_no_loss_and_no_gradient(what):
    data, current = columns()
    data[what] = torch.zeros_like(data[what])
    loss, metrics, gradient = call(loss_fn(), current, data)
    assert loss == 0 and not gradient.any()
    assert all(math.isfinite(value) for name, value in metrics.items() if name not in EXTREMES)


# ---- the life of the object, and what becomes of the metrics


def test_the_loss_survives_ray_and_holds_and_gives_plain_values_only():
    function = loss_fn()
    for name, value in vars(function).items():
        if name == "metric_normalizations":  # of NeMo RL's next version: an enum by metric
            continue
        plain = isinstance(value, (bool, int, float, str, ObjectiveConfig))
        assert value is None or plain or type(value).__name__ == "LossType"
    data, current = columns()
    copied = ray.cloudpickle.loads(ray.cloudpickle.dumps(function))
    assert call(copied, current, data)[:2] == call(function, current, data)[:2]
    assert (copied.loss_type, copied.input_type) == (function.loss_type, function.input_type)
    metrics = call(function, current, data)[1]
    assert all(type(value) in (int, float) for value in metrics.values())
    assert not [name for name in OWN_METRICS if "_min" in name or "_max" in name]  # NeMo RL sums all others
