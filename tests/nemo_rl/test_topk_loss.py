"""Top-k forward KL inside NeMo RL's own wrappers, and the teacher's top k, against whole softmax tensors in float64."""

from dataclasses import replace

import pytest
import ray
import torch
from nemo_rl.algorithms.loss.wrapper import SequencePackingLossWrapper

from nemo_aopsd.config import ObjectiveConfig
from nemo_aopsd.engines.nemo_rl.batches import top_k_batch, top_k_spans
from nemo_aopsd.engines.nemo_rl.top_k import top_k_and_norm
from nemo_aopsd.engines.nemo_rl.topk_loss import TopKLossFn, prepare_without_padding
from nemo_aopsd.errors import UserError
from nemo_aopsd.objectives import build_objective
from nemo_aopsd.types import TopK, TrainRow
from tests.nemo_rl import test_loss
from tests.nemo_rl.test_loss import PAD, VOCABULARY, group, table, train  # noqa: F401  group is a fixture

K = 5
FORMS = ("none", "renorm", "teacher_renorm")
LAYOUTS = {
    "rows of 1": {"size": 1},
    "rows of 4": {"size": 4},
    "packed": {"size": 4, "wrapper": SequencePackingLossWrapper},
    "packed without padding": {"size": 2, "wrapper": SequencePackingLossWrapper, "pad_to": 1},
    "packed by the packer for two ranks": {"size": -112, "wrapper": SequencePackingLossWrapper},
}


@pytest.fixture(autouse=True)
def as_in_our_worker(monkeypatch):
    monkeypatch.setattr(test_loss, "prepare_loss_input", prepare_without_padding)


def objective(form, **more):
    return ObjectiveConfig(name="topk_fkl", top_k=K, top_k_form=form, **more)


def teacher_top_k(prompt, response):
    """Of the bigram teacher: the reference, without NeMo RL."""
    before = torch.tensor([prompt[-1], *response[:-1]])
    logprobs = table(3).double()[before].log_softmax(-1)
    values, ids = logprobs.topk(K)
    return TopK(ids.int(), values.float(), -(logprobs.exp() * logprobs).sum(-1).float())


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randint(1, VOCABULARY, (n,), generator=generator).tolist()  # noqa: E731
    made = []
    for prompt_length, length in ((4, 5), (7, 90), (1, 37), (30, 12)):
        prompt, response = draw(prompt_length), draw(length)
        mask = torch.rand(length, generator=generator) < 0.8
        made.append(TrainRow(prompt, response, None, None, torch.ones(length), mask))
    return [replace(row, top_k=teacher_top_k(row.prompt, row.response)) for row in made]


def reference(rows, config):
    """Loss, metrics and gradient of the core's objective on each pair's own whole softmax."""
    student, function = table(5).double().requires_grad_(True), build_objective(config)
    num_tokens = sum(row.mask.sum().item() for row in rows)
    total, metrics = 0.0, {}
    for row in rows:
        before = torch.tensor([row.prompt[-1], *row.response[:-1]])
        logprobs = student[before].log_softmax(-1)
        top = TopK(row.top_k.ids, row.top_k.logprobs.double(), row.top_k.entropy)
        divergence = function.divergence(logprobs, top)[None]
        counts = {"mask": row.mask[None], "num_tokens": num_tokens, "num_rows": len(rows)}
        loss, found = function(divergence, divergence=divergence, **counts)
        total = total + loss
        metrics = {name: metrics.get(name, 0.0) + value.item() for name, value in found.items()}
    total.backward()
    return total.item(), metrics, student.grad[1:]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean"])
def test_every_layout_has_the_loss_metrics_and_gradient_of_the_core(group, rows, layout, form, aggregation):  # noqa: F811
    config = objective(form, aggregation=aggregation)
    batch = top_k_batch(rows, pad_id=PAD, divisible_by=8, rows_multiple=4)
    loss, metrics, gradient = train(TopKLossFn(config), batch, group, **LAYOUTS[layout])
    expected, expected_metrics, expected_gradient = reference(rows, config)
    assert loss == pytest.approx(expected, abs=2e-6)
    assert {f"train/{name}": value for name, value in metrics.items()} == pytest.approx(expected_metrics, abs=2e-6)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-7)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("layout", ["rows of 1", "packed"])
def test_dummy_rows_change_nothing(group, rows, layout):  # noqa: F811
    config = objective("none", aggregation="seq_mean")
    batch = top_k_batch(rows[:3], pad_id=PAD, divisible_by=8, rows_multiple=4)
    loss, _, gradient = train(TopKLossFn(config), batch, group, **LAYOUTS[layout])
    expected, _, expected_gradient = reference(rows[:3], config)
    assert loss == pytest.approx(expected, abs=2e-6)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-7)


def test_masked_tokens_may_hold_anything(rows):
    batch = top_k_batch(rows, pad_id=PAD, divisible_by=8, rows_multiple=4)
    ignored = batch["token_mask"][:, 1:] == 0
    student = torch.randn(*ignored.shape, K, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    counts = (batch["sample_mask"].sum(), batch["token_mask"].sum())
    results = []
    for garbage in (0.0, torch.nan, -torch.inf):
        dirty = student.masked_fill(ignored[..., None], garbage).requires_grad_(True)
        teacher = batch["teacher_topk_logits"].clone()
        teacher[:, :-1][ignored] = garbage
        loss, metrics = TopKLossFn(objective("none"))(dirty, {**batch, "teacher_topk_logits": teacher}, *counts)
        loss.backward()
        assert dirty.grad.isfinite().all() and not dirty.grad[ignored].any() and dirty.grad.any()
        results.append((loss.item(), metrics, dirty.grad))
    assert results[0][:2] == results[1][:2] == results[2][:2]
    assert torch.equal(results[0][2], results[1][2]) and torch.equal(results[0][2], results[2][2])


def test_the_loss_survives_ray():
    copied = ray.cloudpickle.loads(ray.cloudpickle.dumps(TopKLossFn(objective("renorm"))))
    assert copied.objective.config == objective("renorm")


@pytest.mark.parametrize("chunk_size", [None, 7])
def test_the_teachers_top_k_is_that_of_the_whole_softmax(group, rows, chunk_size):  # noqa: F811
    batch = top_k_batch(rows, pad_id=PAD, divisible_by=8, rows_multiple=1)
    logits = table(3)[batch["input_ids"]].nan_to_num(0.0) + 300  # a constant that exp alone would not survive
    bounds = {"vocab_start_index": 0, "vocab_end_index": VOCABULARY}
    values, ids = top_k_and_norm(logits, K + 2, group, **bounds, chunk_size=chunk_size)
    prompts, responses = [row.prompt for row in rows], [row.response for row in rows]
    found = top_k_spans({"topk_logits": values, "topk_indices": ids}, prompts, responses)
    for row, top in zip(rows, found, strict=True):
        assert torch.equal(top.ids, row.top_k.ids)
        assert (top.ids.dtype, top.logprobs.dtype, top.entropy.dtype) == (torch.int32, torch.float32, torch.float32)
        torch.testing.assert_close(top.logprobs, row.top_k.logprobs, rtol=0, atol=1e-4)  # float32 at 300
        torch.testing.assert_close(top.entropy, row.top_k.entropy, rtol=0, atol=2e-4)


def test_more_than_the_vocabulary_is_refused(group):  # noqa: F811
    bounds = {"vocab_start_index": 0, "vocab_end_index": 4}
    values, _ = top_k_and_norm(torch.zeros(1, 1, 4), 6, group, **bounds)
    assert values.shape == (1, 1, 6)
    with pytest.raises(UserError, match="top_k is 5, the vocabulary 4"):
        top_k_and_norm(torch.zeros(1, 1, 4), 7, group, **bounds)


def test_a_field_of_another_length_is_named(rows):
    rows[1] = replace(rows[1], top_k=rows[0].top_k)
    with pytest.raises(ValueError, match="row 1: found 5 top-k positions and 90 mask entries for a response of 90"):
        top_k_batch(rows, pad_id=PAD, divisible_by=8, rows_multiple=1)
