"""Objectives on the teacher's top k, and the top k itself; all layouts of both are in test_loss_parallel."""

from dataclasses import replace

import pytest
import ray
import torch
import torch.multiprocessing as mp

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.engines.nemo_rl.batches import scoring_batch, top_k_batch, top_k_spans
from nemo_aopsd.engines.nemo_rl.top_k import GatherWithRest, top_k_and_norm
from nemo_aopsd.engines.nemo_rl.top_k_loss import TopKLossFn
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.objectives import build_objective
from tests.nemo_rl.parallel_cases import PAD, TOP_K, VOCABULARY, K, logprobs, student, teacher, texts, train_rows


@pytest.fixture(scope="module")
def group():
    """A tensor-parallel group of one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("more", [{"name": "fkl"}, {"name": "fkl", "token_clip": 0.05}, {"name": "dash"}])
def test_on_the_whole_vocabulary_it_is_the_exact_objective(more):
    """Against the objective without a support, on the teacher's whole softmax."""
    config, row = ObjectiveConfig(support=VOCABULARY, **more), train_rows()[2]
    logits = student().double().nan_to_num(0.0)
    current = logprobs(logits, row.prompt, row.response).requires_grad_(True)
    of_teacher = logprobs(teacher().nan_to_num(0.0), row.prompt, row.response)
    values, ids = of_teacher.sort(descending=True)
    columns = torch.cat([current.gather(-1, ids), torch.full_like(current[:, :1], -9.0)], dim=-1)  # no rest is left
    mask = torch.cat([torch.zeros(1, dtype=torch.bool), row.mask])
    data = {"token_mask": mask[None].long(), "sample_mask": torch.ones(1)}
    data["teacher_topk_logits"] = torch.cat([values, values[:1]])[None]
    num_tokens = row.mask.sum()
    loss, _ = TopKLossFn(config)(columns[None], data, torch.ones(()), num_tokens)
    exact = build_objective(replace(config, support=None))
    divergence = exact.divergence(current, of_teacher)[None]
    expected, _ = exact(divergence, divergence=divergence, mask=row.mask[None], num_tokens=num_tokens, num_rows=1)
    found, wanted = (torch.autograd.grad(value, current, retain_graph=True)[0] for value in (loss, expected))
    assert loss.item() == pytest.approx(expected.item(), abs=2e-6) and loss > 0.01
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("which", ["topk_fkl", "dash"])
def test_masked_tokens_may_hold_anything(which):
    batch = top_k_batch(train_rows(), pad_id=PAD, divisible_by=8, rows_multiple=4)
    ignored = batch["token_mask"][:, 1:] == 0
    columns = K + 1 if TopKLossFn(TOP_K[which]).reads_rest else K
    current = torch.randn(*ignored.shape, columns, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    counts = (batch["sample_mask"].sum(), batch["token_mask"].sum())
    results = []
    for garbage in (0.0, torch.nan, -torch.inf):
        dirty = current.masked_fill(ignored[..., None], garbage).requires_grad_(True)
        top = batch["teacher_topk_logits"].clone()
        top[:, :-1][ignored] = garbage
        loss, metrics = TopKLossFn(TOP_K[which])(dirty, {**batch, "teacher_topk_logits": top}, *counts)
        loss.backward()
        assert dirty.grad.isfinite().all() and not dirty.grad[ignored].any() and dirty.grad.any()
        results.append((loss.item(), metrics, dirty.grad))
    assert results[0][:2] == results[1][:2] == results[2][:2]
    assert torch.equal(results[0][2], results[1][2]) and torch.equal(results[0][2], results[2][2])


def test_the_loss_survives_ray():
    copied = ray.cloudpickle.loads(ray.cloudpickle.dumps(TopKLossFn(TOP_K["topk_fkl"])))
    assert copied.objective.config == TOP_K["topk_fkl"]


@pytest.mark.parametrize("chunk_size", [None, 7])
def test_the_teachers_top_k_is_that_of_the_whole_softmax(group, chunk_size):
    _, responses, prompts = texts()
    ids = scoring_batch(prompts, responses, pad_id=PAD, divisible_by=8, rows_multiple=1)["input_ids"]
    logits = teacher()[ids].nan_to_num(0.0) + 300  # a constant that exp alone would not survive
    bounds = {"vocab_start_index": 0, "vocab_end_index": VOCABULARY}
    values, ids = top_k_and_norm(logits, K + 2, group, **bounds, chunk_size=chunk_size)
    found = top_k_spans({"topk_logits": values, "topk_indices": ids}, prompts, responses)
    for row, top in zip(train_rows(), found, strict=True):
        assert torch.equal(top.ids, row.top_k.ids)
        assert (top.ids.dtype, top.logprobs.dtype, top.entropy.dtype) == (torch.int32, torch.float32, torch.float32)
        torch.testing.assert_close(top.logprobs, row.top_k.logprobs, rtol=0, atol=1e-4)  # float32 at 300
        torch.testing.assert_close(top.entropy, row.top_k.entropy, rtol=0, atol=2e-4)


def test_words_that_cannot_come_add_nothing_to_norm_and_entropy(group):
    logits = torch.tensor([[[1.0, 1.0, -torch.inf, -torch.inf], [3.0, -torch.inf, -torch.inf, -torch.inf]]])
    values, _ = top_k_and_norm(logits, 4, group, vocab_start_index=0, vocab_end_index=4)
    log_2 = torch.tensor(2.0).log()
    torch.testing.assert_close(values[0, :, -2:], torch.tensor([[1 + log_2, log_2], [3.0, 0.0]]))


def test_more_than_the_vocabulary_is_refused(group):
    bounds = {"vocab_start_index": 0, "vocab_end_index": 4}
    values, _ = top_k_and_norm(torch.zeros(1, 1, 4), 6, group, **bounds)
    assert values.shape == (1, 1, 6)
    with pytest.raises(UserError, match="has 4 tokens; expected at least the 5 "):
        top_k_and_norm(torch.zeros(1, 1, 4), 7, group, **bounds)


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
