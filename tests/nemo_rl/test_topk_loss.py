"""Top-k objectives inside NeMo RL's own wrappers, and the teacher's top k, against whole softmax tensors in float64."""

from dataclasses import replace

import pytest
import ray
import torch
import torch.multiprocessing as mp
from nemo_rl.algorithms.loss.wrapper import SequencePackingLossWrapper

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.engines.nemo_rl.batches import top_k_batch, top_k_spans
from nemo_aopsd.engines.nemo_rl.top_k import GatherWithRest, top_k_and_norm
from nemo_aopsd.engines.nemo_rl.topk_loss import TopKLossFn, prepare
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.types import TopK, TrainRow
from tests.nemo_rl import test_loss
from tests.nemo_rl.test_loss import PAD, VOCABULARY, group, table, train  # noqa: F401  group is a fixture

K = 5
OBJECTIVES = {
    **{form: {"name": "topk_fkl", "top_k_form": form} for form in ("none", "renorm", "teacher_renorm", "tail")},
    "fkl": {"name": "fkl", "support": K},
    "clipped fkl": {"name": "fkl", "support": K, "token_clip": 0.05},
    "dash": {"name": "dash", "support": K, "token_clip": 0.05},
}
LAYOUTS = {
    "rows of 1": {"size": 1},
    "rows of 4": {"size": 4},
    "packed": {"size": 4, "wrapper": SequencePackingLossWrapper},
    "packed without padding": {"size": 2, "wrapper": SequencePackingLossWrapper, "pad_to": 1},
    "packed by the packer for two ranks": {"size": -112, "wrapper": SequencePackingLossWrapper},
}


@pytest.fixture(autouse=True)
def as_in_our_worker(monkeypatch):
    monkeypatch.setattr(test_loss, "prepare_loss_input", prepare)


def objective(which, **more):
    return ObjectiveConfig(**{"top_k": K, **OBJECTIVES[which], **more})


def teacher_top_k(prompt, response, k=K):
    """Of the bigram teacher: the reference, without NeMo RL."""
    before = torch.tensor([prompt[-1], *response[:-1]])
    logprobs = table(3).double()[before].log_softmax(-1)
    values, ids = logprobs.topk(k)
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
@pytest.mark.parametrize("which", OBJECTIVES)
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean"])
def test_every_layout_has_the_loss_metrics_and_gradient_of_the_core(group, rows, layout, which, aggregation):  # noqa: F811
    config = objective(which, aggregation=aggregation)
    batch = top_k_batch(rows, pad_id=PAD, divisible_by=8, rows_multiple=4)
    loss, metrics, gradient = train(TopKLossFn(config), batch, group, **LAYOUTS[layout])
    expected, expected_metrics, expected_gradient = reference(rows, config)
    assert loss == pytest.approx(expected, abs=2e-6)
    assert {f"train/{name}": value for name, value in metrics.items()} == pytest.approx(expected_metrics, abs=2e-6)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-7)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("which", ["fkl", "clipped fkl", "dash"])
def test_on_the_whole_vocabulary_it_is_the_exact_objective(group, rows, which):  # noqa: F811
    """Against the objective without a support, on the teacher's whole softmax."""
    whole = [replace(row, top_k=teacher_top_k(row.prompt, row.response, VOCABULARY)) for row in rows]
    config = objective(which, support=VOCABULARY)
    batch = top_k_batch(whole, pad_id=PAD, divisible_by=8, rows_multiple=4)
    loss, _, gradient = train(TopKLossFn(config), batch, group, **LAYOUTS["packed"])

    student, exact = table(5).double().requires_grad_(True), build_objective(replace(config, support=None))
    total, num_tokens = 0.0, sum(row.mask.sum().item() for row in rows)
    for row in rows:
        before = torch.tensor([row.prompt[-1], *row.response[:-1]])
        teacher = table(3).double()[before].log_softmax(-1)
        divergence = exact.divergence(student[before].log_softmax(-1), teacher)[None]
        counts = {"mask": row.mask[None], "num_tokens": num_tokens, "num_rows": len(rows)}
        total = total + exact(divergence, divergence=divergence, **counts)[0]
    total.backward()
    assert loss == pytest.approx(total.item(), abs=2e-6)
    torch.testing.assert_close(gradient.double(), student.grad[1:], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("layout", ["rows of 1", "packed"])
def test_dummy_rows_change_nothing(group, rows, layout):  # noqa: F811
    config = objective("none", aggregation="seq_mean")
    batch = top_k_batch(rows[:3], pad_id=PAD, divisible_by=8, rows_multiple=4)
    loss, _, gradient = train(TopKLossFn(config), batch, group, **LAYOUTS[layout])
    expected, _, expected_gradient = reference(rows[:3], config)
    assert loss == pytest.approx(expected, abs=2e-6)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("which", ["none", "dash"])
def test_masked_tokens_may_hold_anything(rows, which):
    batch = top_k_batch(rows, pad_id=PAD, divisible_by=8, rows_multiple=4)
    ignored = batch["token_mask"][:, 1:] == 0
    columns = K + 1 if TopKLossFn(objective(which)).reads_rest else K
    student = torch.randn(*ignored.shape, columns, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    counts = (batch["sample_mask"].sum(), batch["token_mask"].sum())
    results = []
    for garbage in (0.0, torch.nan, -torch.inf):
        dirty = student.masked_fill(ignored[..., None], garbage).requires_grad_(True)
        teacher = batch["teacher_topk_logits"].clone()
        teacher[:, :-1][ignored] = garbage
        loss, metrics = TopKLossFn(objective(which))(dirty, {**batch, "teacher_topk_logits": teacher}, *counts)
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


def test_words_that_cannot_come_add_nothing_to_norm_and_entropy(group):  # noqa: F811
    logits = torch.tensor([[[1.0, 1.0, -torch.inf, -torch.inf], [3.0, -torch.inf, -torch.inf, -torch.inf]]])
    values, _ = top_k_and_norm(logits, 4, group, vocab_start_index=0, vocab_end_index=4)
    log_2 = torch.tensor(2.0).log()
    torch.testing.assert_close(values[0, :, -2:], torch.tensor([[1 + log_2, log_2], [3.0, 0.0]]))


def test_more_than_the_vocabulary_is_refused(group):  # noqa: F811
    bounds = {"vocab_start_index": 0, "vocab_end_index": 4}
    values, _ = top_k_and_norm(torch.zeros(1, 1, 4), 6, group, **bounds)
    assert values.shape == (1, 1, 6)
    with pytest.raises(UserError, match="top 5 are wanted, the vocabulary has 4"):
        top_k_and_norm(torch.zeros(1, 1, 4), 7, group, **bounds)


def test_a_field_of_another_length_is_named(rows):
    rows[1] = replace(rows[1], top_k=rows[0].top_k)
    with pytest.raises(ValueError, match="row 1: found 5 top-k positions and 90 mask entries for a response of 90"):
        top_k_batch(rows, pad_id=PAD, divisible_by=8, rows_multiple=1)


def logits_and_ids():
    """Logits [2, 9, 6] of which one position has next to nothing outside of its ids, and ids [2, 9, 3].

    Two ranks have three words each: at one position those of the first are just the ids.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 9, 6, generator=generator)
    ids = torch.rand(2, 9, 6, generator=generator).argsort(-1)[..., :3]
    ids[1, 1] = torch.tensor([2, 0, 1])
    logits[0, 0] -= 40 * (1 - torch.zeros(6).scatter(0, ids[0, 0], 1.0))
    return logits, ids


def gathered_on_a_rank(rank, world, store, results):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(store, world), rank=rank, world_size=world
    )
    logits, ids = logits_and_ids()
    width = logits.shape[-1] // world
    start = rank * width
    local = logits[..., start : start + width].clone().requires_grad_(True)
    found = GatherWithRest.apply(local, ids, start, start + width, 4, torch.distributed.group.WORLD)
    (found * torch.arange(found.numel()).view_as(found).cos()).sum().backward()
    results[rank] = found.detach(), local.grad
    torch.distributed.destroy_process_group()


def test_the_rest_on_two_tensor_parallel_ranks(tmp_path):
    world = 2
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(gathered_on_a_rank, (world, str(tmp_path / "store"), results), nprocs=world)
        found = [results[rank] for rank in range(world)]
    logits, ids = logits_and_ids()
    logits = logits.double().requires_grad_(True)
    logprobs = logits.log_softmax(-1)
    rest = logprobs.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    expected = torch.cat([logprobs.gather(-1, ids), rest], dim=-1)
    assert expected[0, 0, -1] < -30  # one minus the others' sum would be 0 in float32
    (expected * torch.arange(expected.numel()).view_as(expected).cos()).sum().backward()
    for values, _ in found:
        torch.testing.assert_close(values.double(), expected.detach(), rtol=1e-6, atol=1e-5)
    gradient = torch.cat([each for _, each in found], dim=-1)
    torch.testing.assert_close(gradient.double(), logits.grad, rtol=1e-5, atol=1e-6)
