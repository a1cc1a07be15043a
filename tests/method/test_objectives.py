"""The objectives beside pg: equivalences, gradients by finite differences in float64, and sums over micro-batches."""

import math
from dataclasses import replace

import pytest
import torch

from nemo_aopsd.config.schema import READ_BY, TOP_K_KEYS, ObjectiveConfig
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.objectives.dash import coefficients
from nemo_aopsd.method.objectives.divergences import forward_kl, jensen_shannon, reverse_kl
from nemo_aopsd.method.objectives.minillm import mean_of_the_rest
from nemo_aopsd.method.reward import group_advantages
from nemo_aopsd.types import Signal, TrainRow
from tests.method.objective_batch import FORMS, NAMES, Batch, V, draw, float64, objective

# Equivalences


@pytest.mark.parametrize("divergence", ["fkl", "rkl", "jsd"])
def test_gkd_and_the_objectives_of_that_name_have_the_mean_divergence_of_teacher_and_student(divergence):
    batch = Batch()
    sides = batch.logits.log_softmax(-1)[batch.mask], batch.teacher[batch.mask]
    found = {"fkl": forward_kl(*sides), "rkl": reverse_kl(*sides), "jsd": jensen_shannon(*sides, 0.3)}[divergence]
    gkd = objective("gkd", divergence=divergence, jsd_beta=0.3, token_clip=0.05)  # never clipped
    for made in (gkd, objective(divergence, jsd_beta=0.3)):
        assert batch.loss(made)[0].item() == pytest.approx(found.mean().item(), abs=1e-14)


def test_the_exact_term_of_minillm_is_rkl():
    batch = Batch()
    batch.advantages[:] = 0
    assert batch.loss(objective("minillm"))[0].item() == pytest.approx(
        batch.loss(objective("rkl"))[0].item(), abs=1e-14
    )


def test_eopd_with_its_gate_shut_is_pg_and_open_it_adds_the_renormalised_kl():
    batch = Batch()
    policy = batch.loss(objective("pg"))[0].item()
    shut, metrics = batch.loss(objective("eopd", entropy_threshold=math.log(V) + 0.01))
    assert shut.item() == policy and metrics["train/gate_rate"] == 0
    loss, metrics = batch.loss(objective("eopd", entropy_threshold=0.0, entropy_weight=0.7))
    kl = batch.loss(objective("topk_fkl", top_k_form="teacher_renorm"))[0].item()
    assert loss.item() == pytest.approx(policy + 0.7 * kl, abs=1e-12)
    assert metrics["train/gate_rate"] == 1


def recursion(values: list[float], kappa: float) -> float:
    """sum_t A_t of DASH by its definition, from the last token back."""
    mean = sum(values) / len(values)
    total = behind = 0.0
    for value in reversed(values):
        behind = value + behind / (1 + math.exp(kappa * (value - mean)))
        total += behind
    return total


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13, 100])
def test_the_recursion_of_dash_is_its_closed_form(length):
    """sum_t c_t r_t = sum_t A_t."""
    values = draw(1, length, seed=length).abs()
    mask = torch.ones(1, length, dtype=torch.bool)
    found = (coefficients(values, mask, 5.0) * values).sum().item()
    assert found == pytest.approx(recursion(values[0].tolist(), 5.0), rel=1e-12)


def test_dash_skips_masked_tokens_and_padding():
    values = draw(1, 9, seed=0).abs()
    mask = torch.tensor([[True, True, False, True, False, False, True, True, False]])
    padded = torch.where(mask, values, torch.nan)
    found = coefficients(padded, mask, 5.0)[mask]
    expected = coefficients(values[mask][None], torch.ones(1, 5, dtype=torch.bool), 5.0)[0]
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)


# Gradients


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean"])
@pytest.mark.parametrize(
    "changes",
    [
        *({"name": name} for name in NAMES if name not in ("pg", "eopd", "dash")),
        *({"name": "topk_fkl", "top_k_form": form} for form in FORMS[1:]),
        {"name": "fkl", "token_clip": 0.05},
        {"name": "gkd", "divergence": "rkl"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_gradient_equals_finite_differences(changes, aggregation):
    batch, made = Batch(), objective(**changes, aggregation=aggregation)
    logits = batch.logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: batch.loss(made, x)[0], logits, eps=1e-6, atol=1e-7, rtol=1e-5)
    assert torch.autograd.grad(batch.loss(made, logits)[0], logits)[0].abs().max() > 1e-3


def numeric_gradient(value, logits: torch.Tensor) -> torch.Tensor:
    steps = 1e-6 * torch.eye(logits.numel(), dtype=torch.float64).view(-1, *logits.shape)
    return float64([(value(logits + step) - value(logits - step)) / 2e-6 for step in steps]).view_as(logits)


def test_gradient_of_dash_equals_finite_differences_with_its_gates_held_fixed():
    batch, made = Batch(), objective("dash", token_clip=0.3)
    logits = batch.logits.clone().requires_grad_()
    batch.loss(made, logits)[0].backward()

    def divergences(x):
        return forward_kl(x.log_softmax(-1), batch.teacher, 0.3)

    fixed = coefficients(divergences(batch.logits), batch.mask, 5.0)
    value = lambda x: ((fixed * divergences(x))[batch.mask].sum() / batch.mask.sum()).item()  # noqa: E731
    torch.testing.assert_close(logits.grad, numeric_gradient(value, batch.logits), atol=1e-8, rtol=1e-5)


@pytest.mark.parametrize(("name", "threshold"), [("pg", math.inf), ("eopd", 1.2)])
def test_gradient_of_a_policy_term_equals_finite_differences_with_its_advantage_held_fixed(name, threshold):
    """Advantages are clipped on both sides; pg is eopd without a gate that opens."""
    batch, made = Batch(), objective(name, entropy_threshold=threshold, advantage_clip=0.25)
    logits = batch.logits.clone().requires_grad_()
    batch.loss(made, logits)[0].backward()
    gap = batch.teacher.gather(-1, batch.tokens).squeeze(-1) - batch.chosen(batch.logits)
    weighted = (batch.weights * gap)[batch.mask]
    assert (weighted > 0.25).any() and (weighted < -0.25).any()
    fixed = (batch.weights * gap).clamp(-0.25, 0.25)
    open_gates = -(batch.teacher.exp() * batch.teacher).sum(-1) >= threshold
    assert open_gates.any() == (name == "eopd") and not open_gates.all()
    top = batch.teacher.topk(4, -1)

    def value(x):
        ratio = (batch.chosen(x) - batch.old).exp()
        policy = torch.minimum(ratio * fixed, ratio.clamp(0.8, 1.2) * fixed)
        inside = top.values.log_softmax(-1)
        kl = (inside.exp() * (inside - x.log_softmax(-1).gather(-1, top.indices))).sum(-1)
        return ((open_gates * kl - policy)[batch.mask].sum() / batch.mask.sum()).item()

    torch.testing.assert_close(logits.grad, numeric_gradient(value, batch.logits), atol=1e-8, rtol=1e-5)


# Sums over micro-batches, and what must not reach the loss


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean"])
@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_add_up_to_the_same_loss_metrics_and_gradient(name, aggregation):
    batch, made = Batch(rows=5, width=6, seed=9), objective(name, aggregation=aggregation)
    batch.mask[1, 2:] = False
    counts = (float(batch.mask.sum()), 5.0)
    whole = batch.logits.clone().requires_grad_()
    loss, metrics = batch.loss(made, whole)
    loss.backward()
    parts = batch.logits.clone().requires_grad_()
    found: dict[str, float] = {}
    for rows in (slice(0, 1), slice(1, 4), slice(4, 5)):
        part, part_metrics = batch.loss(made, parts, rows, counts)
        part.backward()
        for key, value in {**part_metrics, "loss": part}.items():
            found[key] = found.get(key, 0.0) + value.item()
    assert found == pytest.approx({key: value.item() for key, value in {**metrics, "loss": loss}.items()}, abs=1e-12)
    torch.testing.assert_close(parts.grad, whole.grad, atol=1e-14, rtol=1e-10)


def test_seq_mean_weighs_responses_and_token_mean_weighs_tokens():
    batch = Batch()
    batch.mask[:] = torch.tensor([[True] * 4, [True, False, False, False]])
    logprobs = batch.chosen(batch.logits)
    first, second = -logprobs[0].mean().item(), -logprobs[1, 0].item()
    assert batch.loss(objective("sft", aggregation="seq_mean"))[0].item() == pytest.approx((first + second) / 2)
    assert batch.loss(objective("sft"))[0].item() == pytest.approx((4 * first + second) / 5)


@pytest.mark.parametrize("name", NAMES)
def test_masked_tokens_may_hold_anything(name):
    batch, made = Batch(rows=3), objective(name)
    batch.mask[1] = False
    expected = batch.loss(made)[0].item()
    counted = batch.mask
    for column in ("old", "weights", "advantages"):
        garbage = -torch.inf if column == "old" else torch.nan
        setattr(batch, column, torch.where(counted, getattr(batch, column), garbage))
    batch.teacher = torch.where(counted.unsqueeze(-1), batch.teacher, torch.zeros(()).double())
    logits = batch.logits.clone().requires_grad_()
    loss, metrics = batch.loss(made, logits)
    loss.backward()
    assert loss.item() == expected
    assert all(torch.isfinite(value) for value in metrics.values())
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[~counted] == 0).all()


def test_negative_divergences_are_counted_and_rounding_is_not():
    batch = Batch()
    batch.teacher = batch.logits.log_softmax(-1) - 1e-9  # all divergences are -1e-9
    assert batch.loss(objective("fkl"))[1]["train/frac_negative"] == 0
    batch = Batch()
    student = batch.logits.log_softmax(-1)
    terms = (batch.teacher.exp() * (batch.teacher - student)).clamp(max=0.05).sum(-1)[batch.mask]
    found = batch.loss(objective("fkl", token_clip=0.05))[1]["train/frac_negative"].item()
    assert found == pytest.approx((terms < 0).double().mean().item()) and found > 0


def test_a_clip_of_the_sum_bounds_positions_and_takes_their_gradient():
    batch = Batch()
    batch.logits.requires_grad_()
    whole = (batch.teacher.exp() * (batch.teacher - batch.logits.log_softmax(-1))).sum(-1)[batch.mask]
    bound = whole.detach().median().item()
    loss, metrics = batch.loss(objective("fkl", sum_clip=bound))
    assert loss.item() == pytest.approx(whole.clamp(max=bound).mean().item())
    assert metrics["train/divergence"].item() == pytest.approx(whole.mean().item())
    found = torch.autograd.grad(loss, batch.logits)[0].abs().sum(-1)[batch.mask]
    assert ((found > 0) == (whole <= bound)).all() and 0 < (whole > bound).sum() < len(whole)


# What needs the whole step


def row(prompt: list[int], gap: list[float]) -> TrainRow:
    gaps = torch.tensor(gap)
    old = torch.full_like(gaps, -1.0)
    mask = torch.ones(len(gaps), dtype=torch.bool)
    return TrainRow(prompt, [5] * len(gaps), old, old + gaps, torch.ones(len(gaps)), mask)


def test_grpo_advantages_by_hand_within_the_group_of_a_prompt():
    """Rewards 1, 0, 0, 1 have mean 1/2 and sample deviation 1/sqrt(3); 1, 1 tell nothing."""
    high = 0.5 / (1 / math.sqrt(3) + 1e-6)
    found = group_advantages("aabaab", [1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    assert found == pytest.approx([high, -high, 0, -high, high, 0])


def test_the_mean_of_the_rest_of_a_long_response_in_float32_is_that_in_float64():
    values = draw(16384, seed=5) - 4
    mask = draw(16384, seed=6) > -1
    behind, count, expected = 0.0, 0, []
    for value, counts in zip(reversed(values.tolist()), reversed(mask.tolist()), strict=True):
        expected.append(behind / max(count, 1))
        behind, count = (behind + value, count + 1) if counts else (behind, count)
    found = mean_of_the_rest(values.float(), mask)
    torch.testing.assert_close(found.double(), float64(expected[::-1]), atol=1e-6, rtol=1e-6)
    assert mean_of_the_rest(torch.empty(0), torch.empty(0, dtype=torch.bool)).shape == (0,)


def test_minillm_whitens_over_the_valid_tokens_of_the_step():
    rows = [row([1], gap=[0.0, 1.0, 2.0, 3.0]), row([2], gap=[0.0, -4.0])]
    rows[0] = replace(rows[0], mask=torch.tensor([True, True, True, False]))
    found = objective("minillm", whiten=True, advantage_clip=100.0).prepare(rows)
    values = torch.cat([each.advantages[each.mask] for each in found])
    assert values.mean().item() == pytest.approx(0, abs=1e-6)
    assert values.std().item() == pytest.approx(1, abs=1e-5)


# Declarations


@pytest.mark.parametrize("name", NAMES)
def test_only_who_reads_the_setting_of_a_reward_asks_for_one(name):
    asks = build_objective(ObjectiveConfig(name=name, reward="added")).needs_reward
    assert asks == (name in READ_BY["reward"] or name == "grpo")


@pytest.mark.parametrize("name", NAMES)
def test_the_config_knows_without_torch_what_the_objective_declares(name):
    config = ObjectiveConfig(name=name)
    made = build_objective(config)
    assert config.reads_teacher == (made.signal != Signal())
    assert config.reads_solutions == (made.on_policy_rate < 1)
    seven = build_objective(replace(config, top_k=7, support=7))
    assert (seven.signal.top_k == 7) == (name in TOP_K_KEYS)
    if config.top_k_key:
        assert name in READ_BY[config.top_k_key]


def test_each_objective_declares_the_least_signal():
    declared = {name: build_objective(ObjectiveConfig(name=name, top_k=32)).signal for name in NAMES}
    assert declared == {
        "pg": Signal(sampled=True),
        "sft": Signal(),
        "grpo": Signal(),
        **dict.fromkeys(("fkl", "rkl", "jsd", "dash", "gkd"), Signal(full=True)),
        "topk_fkl": Signal(top_k=32),
        "eopd": Signal(sampled=True, top_k=32, entropy=True),
        "minillm": Signal(sampled=True, full=True),
    }
