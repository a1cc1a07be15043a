import math

import torch

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.method.objectives.pg import PolicyGradient


def columns(batch: int, width: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: -3 * torch.rand(batch, width, generator=generator, dtype=torch.float64)  # noqa: E731
    return {
        "old_logprobs": draw(),
        "teacher_logprobs": draw(),
        "weights": torch.rand(batch, width, generator=generator, dtype=torch.float64),
        "mask": torch.rand(batch, width, generator=generator) < 0.8,
    }


def reference(logprobs, advantage, old, mask, num_tokens, eps=0.2):
    """The formula of methods.md 3.1, token by token in plain Python; the advantage is a constant."""
    total = 0.0
    for row in range(len(logprobs)):
        for t in range(len(logprobs[row])):
            if mask[row][t]:
                ratio = math.exp(logprobs[row][t] - old[row][t])
                a = advantage[row][t]
                total += min(ratio * a, min(max(ratio, 1 - eps), 1 + eps) * a)
    return -total / num_tokens


def test_on_policy_gradient_is_minus_advantage_over_tokens_and_the_teacher_gets_none():
    data = columns(2, 4)
    data["teacher_logprobs"].requires_grad_(True)
    logprobs = data["old_logprobs"].clone().requires_grad_(True)
    num_tokens = data["mask"].sum().item()
    loss, _ = PolicyGradient(ObjectiveConfig())(logprobs, **data, num_tokens=num_tokens, num_rows=1)
    loss.backward()
    advantage = data["weights"] * (data["teacher_logprobs"] - logprobs).detach()
    assert torch.allclose(logprobs.grad, -advantage * data["mask"] / num_tokens, atol=1e-14)
    assert data["teacher_logprobs"].grad is None


def test_gradient_in_float64_equals_finite_differences_with_the_advantage_held_fixed():
    """Off policy too: the clip is active at some tokens. Parameters are logits, so softmax is in the chain."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    chosen = torch.randint(6, (2, 4, 1), generator=generator)
    data = columns(2, 4, seed=4)
    data["mask"][:] = True
    objective = PolicyGradient(ObjectiveConfig(advantage_clip=1.5))

    def logprobs(x):
        return x.log_softmax(-1).gather(-1, chosen).squeeze(-1)

    data["old_logprobs"] = (logprobs(logits) + 0.25 * torch.randn(2, 4, generator=generator).double()).detach()
    loss, _ = objective(logprobs(logits), **data, num_tokens=8, num_rows=1)
    loss.backward()
    fixed = (data["weights"] * (data["teacher_logprobs"] - logprobs(logits).detach())).clamp(-1.5, 1.5)

    def value(x):
        rows = (logprobs(x), fixed, data["old_logprobs"], data["mask"])
        return reference(*(row.tolist() for row in rows), 8)

    numeric, step = torch.zeros_like(logits), 1e-6
    with torch.no_grad():
        for index in range(logits.numel()):
            offset = torch.zeros(logits.numel(), dtype=torch.float64)
            offset[index] = step
            offset = offset.view_as(logits)
            numeric.view(-1)[index] = (value(logits + offset) - value(logits - offset)) / (2 * step)
    assert torch.allclose(logits.grad, numeric, atol=1e-8)
    assert logits.grad.abs().max() > 1e-3


def test_the_advantage_is_bounded_by_c_on_both_sides():
    data = columns(1, 2)
    data |= {"mask": torch.ones(1, 2, dtype=torch.bool), "weights": torch.ones(1, 2, dtype=torch.float64)}
    data["teacher_logprobs"] = torch.tensor([[-1.0, -60.0]], dtype=torch.float64)
    data["old_logprobs"] = torch.tensor([[-60.0, -1.0]], dtype=torch.float64)
    logprobs = data["old_logprobs"].clone().requires_grad_(True)
    loss, metrics = PolicyGradient(ObjectiveConfig(advantage_clip=10.0))(logprobs, **data, num_tokens=2, num_rows=1)
    loss.backward()
    assert torch.allclose(logprobs.grad, torch.tensor([[-5.0, 5.0]], dtype=torch.float64))
    assert metrics["train/frac_clipped"].item() == 1


def test_a_token_that_the_teacher_prefers_gains_probability_and_a_disfavoured_one_loses():
    logits = torch.zeros(1, 2, 3, dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(-1)[..., 0]
    data = {
        "old_logprobs": logprobs.detach(),
        "teacher_logprobs": torch.tensor([[-0.1, -5.0]], dtype=torch.float64),
        "weights": torch.ones(1, 2, dtype=torch.float64),
        "mask": torch.ones(1, 2, dtype=torch.bool),
    }
    loss, _ = PolicyGradient(ObjectiveConfig())(logprobs, **data, num_tokens=2, num_rows=1)
    loss.backward()
    after = (logits - 0.1 * logits.grad).log_softmax(-1)[..., 0]
    assert after[0, 0] > logprobs[0, 0]
    assert after[0, 1] < logprobs[0, 1]


def test_ratio_clip_stops_the_gradient_where_it_binds_and_says_how_often():
    data = {
        "old_logprobs": torch.tensor([[-2.0, -2.0]], dtype=torch.float64),
        "teacher_logprobs": torch.zeros(1, 2, dtype=torch.float64),  # positive advantage
        "weights": torch.ones(1, 2, dtype=torch.float64),
        "mask": torch.ones(1, 2, dtype=torch.bool),
    }
    logprobs = torch.tensor([[-1.0, -2.05]], dtype=torch.float64, requires_grad=True)  # ratios e and 0.95
    loss, metrics = PolicyGradient(ObjectiveConfig())(logprobs, **data, num_tokens=2, num_rows=1)
    loss.backward()
    assert logprobs.grad[0, 0] == 0
    assert logprobs.grad[0, 1] < 0
    assert metrics["train/frac_ratio_clipped"].item() == 0.5
