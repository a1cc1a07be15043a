"""Divergences by plain Python over a small vocabulary, on the whole of it and on the teacher's likeliest words."""

import math

import pytest
import torch

from nemo_aopsd.method.objectives.divergences import (
    forward_kl,
    forward_kl_on_top_k,
    jensen_shannon,
    reverse_kl,
    top_k_forward_kl,
)
from nemo_aopsd.types import TopK
from tests.method.objective_batch import FORMS, V, draw, float64, objective, top_of


def plain_kl(p: list[float], q: list[float]) -> float:
    """KL(p || q) of probabilities."""
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_divergences_equal_their_sums_over_the_vocabulary():
    student, teacher = draw(3, V, seed=1).log_softmax(-1), draw(3, V, seed=2).log_softmax(-1)
    for n in range(3):
        s, p = student[n].exp().tolist(), teacher[n].exp().tolist()
        mixture = [0.3 * a + 0.7 * b for a, b in zip(p, s, strict=True)]
        assert forward_kl(student, teacher)[n].item() == pytest.approx(plain_kl(p, s), abs=1e-12)
        assert reverse_kl(student, teacher)[n].item() == pytest.approx(plain_kl(s, p), abs=1e-12)
        expected = 0.3 * plain_kl(p, mixture) + 0.7 * plain_kl(s, mixture)
        assert jensen_shannon(student, teacher, 0.3)[n].item() == pytest.approx(expected, abs=1e-12)


def test_the_token_clip_binds_above_only_by_hand():
    """P = (.5, .3, .2), S = (.2, .3, .5): the terms are .4581, 0 and -.1833."""
    teacher, student = float64([0.5, 0.3, 0.2]).log(), float64([0.2, 0.3, 0.5]).log()
    assert forward_kl(student, teacher).item() == pytest.approx(0.3 * math.log(2.5), abs=1e-12)
    assert forward_kl(student, teacher, 0.05).item() == pytest.approx(0.05 - 0.2 * math.log(2.5), abs=1e-12)


INF = math.inf
SURE, EVEN = [0.0, -INF, -INF], [-math.log(3)] * 3


@pytest.mark.parametrize(
    ("student", "teacher", "forward", "reverse", "jensen"),
    [
        # M = (2/3, 1/6, 1/6): half of log 3/2, and half of 1/3 log 1/2 + 2/3 log 2
        (EVEN, SURE, math.log(3), INF, 0.5 * math.log(1.5) + 0.5 * math.log(2) / 3),
        (SURE, EVEN, INF, math.log(3), 0.5 * math.log(1.5) + 0.5 * math.log(2) / 3),
        (SURE, SURE, 0.0, 0.0, 0.0),
        # nothing in common: M = (1/2, 1/2, 0)
        (SURE, [-INF, 0.0, -INF], INF, INF, math.log(2)),
    ],
)
def test_zero_times_log_zero_is_zero_by_hand(student, teacher, forward, reverse, jensen):
    student, teacher = float64([student]), float64([teacher])
    assert forward_kl(student, teacher).item() == pytest.approx(forward, abs=1e-12)
    assert reverse_kl(student, teacher).item() == pytest.approx(reverse, abs=1e-12)
    assert jensen_shannon(student, teacher, 0.5).item() == pytest.approx(jensen, abs=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        *({"name": name} for name in ("rkl", "jsd", "gkd")),
        *({"name": "fkl"} | more for more in ({}, {"token_clip": 0.05}, {"support": V}, {"support": V + 1})),
        *({"name": "topk_fkl", "top_k": k, "top_k_form": form} for k in (4, V + 1) for form in FORMS),
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_words_that_neither_side_can_say_change_neither_value_nor_gradient(changes, dtype):
    made, found = objective(**changes), []
    reduced = objective(**{key: min(n, V) if key in ("support", "top_k") else n for key, n in changes.items()})
    for function, more in ((reduced, 0), (made, 2)):
        logits = torch.nn.functional.pad(draw(5, V, seed=3), (0, more), value=-INF).to(dtype).requires_grad_()
        teacher = torch.nn.functional.pad(draw(5, V, seed=4), (0, more), value=-INF).to(dtype).log_softmax(-1)
        side = teacher if function.signal.full else top_of(teacher, function.signal.top_k)
        value = function.divergence(logits.log_softmax(-1), side)
        found.append((value, torch.autograd.grad(value.sum(), logits)[0]))
    (value, gradient), (padded, padded_gradient) = found
    tolerance = {"atol": 1e-12 if dtype == torch.float64 else 1e-6, "rtol": 0}
    torch.testing.assert_close(padded, value, **tolerance)
    torch.testing.assert_close(padded_gradient[:, :V], gradient, **tolerance)
    assert (padded_gradient[:, V:] == 0).all() and gradient.abs().max() > 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_at_k_equal_to_the_vocabulary_every_form_is_the_forward_kl_with_its_gradient(form):
    logits, teacher = draw(5, V, seed=3).requires_grad_(), draw(5, V, seed=4).log_softmax(-1)
    found = top_k_forward_kl(logits.log_softmax(-1), top_of(teacher, V), form)
    expected = forward_kl(logits.log_softmax(-1), teacher)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    gradients = [torch.autograd.grad(value.sum(), logits, retain_graph=True)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


def test_top_k_forms_by_hand():
    """P = (.5, .3, .2) and K = 2, S = (.4, .2, .4): Z_P = .8, Z_S = .6."""
    teacher = TopK(torch.tensor([[0, 1]]), float64([[0.5, 0.3]]).log(), torch.zeros(1))
    student = float64([[0.4, 0.2, 0.4]]).log()
    plain = 0.5 * math.log(0.5 / 0.4) + 0.3 * math.log(0.3 / 0.2)
    expected = {
        "none": plain,
        "renorm": plain_kl([0.625, 0.375], [2 / 3, 1 / 3]),
        "teacher_renorm": 0.625 * math.log(0.625 / 0.4) + 0.375 * math.log(0.375 / 0.2),
        "tail": plain + 0.2 * math.log(0.2 / 0.4),
    }
    for form in FORMS:
        assert top_k_forward_kl(student, teacher, form).item() == pytest.approx(expected[form], abs=1e-12)


def test_the_tail_is_finite_in_float32_when_the_teacher_is_sure():
    teacher = torch.tensor([[0.0, -30.0, -40.0, -50.0]]).log_softmax(-1)
    logits = torch.zeros(1, 4, requires_grad=True)
    value = top_k_forward_kl(logits.log_softmax(-1), top_of(teacher, 2), "tail")
    value.sum().backward()
    assert torch.isfinite(value).all() and torch.isfinite(logits.grad).all()


def test_the_tail_begins_beyond_what_sixteen_probabilities_round_to():
    """In float32 the sum of K probabilities is 1 but for K eps. A rest of 8 eps is none, one of 32 eps counts."""
    eps = torch.finfo(torch.float32).eps
    for left, counts in ((8 * eps, False), (32 * eps, True)):
        words = torch.full((1, 16), math.log((1 - left) / 16))
        found = forward_kl_on_top_k(words, torch.tensor([-1.0]), words, "tail").item()
        assert found == (pytest.approx(left * (math.log(left) + 1), rel=0.1) if counts else 0)


def test_on_a_support_only_single_words_are_clipped_by_hand():
    """P = (.5, .3, .2) and K = 2, S = (.2, .6, .2): .4581 is clipped, -.2079 stays, the rest is equal in both."""
    teacher = TopK(torch.tensor([[0, 1]]), float64([[0.5, 0.3]]).log(), torch.zeros(1))
    student = float64([[0.2, 0.6, 0.2]]).log()
    found = objective("fkl", support=2, token_clip=0.05).divergence(student, teacher)
    assert found.item() == pytest.approx(0.05 - 0.3 * math.log(2), abs=1e-12)
    student = float64([[0.5, 0.49, 0.01]]).log()  # now the rest adds .5991, far more than tau
    found = objective("fkl", support=2, token_clip=0.05).divergence(student, teacher)
    assert found.item() == pytest.approx(0.3 * math.log(0.3 / 0.49) + 0.2 * math.log(20), abs=1e-12)
