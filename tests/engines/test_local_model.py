"""The local `LanguageModel` against plain forwards of the same Hugging Face model, one row at a time."""

from __future__ import annotations

import copy
import random
import weakref
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_aopsd.engines.local import branches as tree
from nemo_aopsd.engines.local import decoding
from nemo_aopsd.engines.local import network as network_module
from nemo_aopsd.engines.local.branches import BranchRow
from nemo_aopsd.engines.local.decoding import sample, sample_with_logprobs
from nemo_aopsd.engines.local.decoding_step import EagerStep
from nemo_aopsd.engines.local.kv import LineKV
from nemo_aopsd.engines.local.memory import batches
from nemo_aopsd.engines.local.model import LocalModel
from nemo_aopsd.engines.local.network import Network, fuse_norms
from nemo_aopsd.types import Branch, Sampling
from tests.local_models import (
    END,
    VOCABULARY,
    plain_continuation,
    plain_greedy,
    plain_logprobs,
    tiny_model,
    tiny_settings,
)

FAMILIES = ("qwen3", "llama")
MODELS = {family: tiny_model(family) for family in FAMILIES}


def local(family: str = "qwen3", **changes) -> LocalModel:
    """Rows in line, and of "llama" padded, as they are on a GPU."""
    model = LocalModel(MODELS[family], tiny_settings(**changes), frozenset([END]))
    assert model.network.in_line
    model.network.in_line = family == "qwen3"
    return model


def random_rows(seed: int, sizes: list[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and responses of the given lengths, without an end token inside."""
    generator = random.Random(seed)
    draw = lambda count: [generator.randrange(2, len(VOCABULARY)) for _ in range(count)]  # noqa: E731
    return [draw(prompt) for prompt, _ in sizes], [draw(response) for _, response in sizes]


UNEVEN = [(5, 12), (37, 1), (1, 30), (12, 0), (3, 3), (60, 25), (2, 9)]


def branches_of(responses: list[list[int]], seed: int = 3) -> list[list[Branch]]:
    """Position 0, position T, a repeated position, an empty list, branches with and without tokens."""
    generator = random.Random(seed)
    rows = []
    for index, response in enumerate(responses):
        last = len(response)
        row = [
            Branch(0, []),
            Branch(0, [7, 8, 9]),
            Branch(last, [11]),
            Branch(last, []),
            Branch(last // 2, [5]),
            Branch(last // 2, [6]),
            Branch(generator.randint(0, last), [generator.randrange(2, 60)]),
            Branch(last // 3, [END]),
            Branch(last // 3, [4] * 9),
        ]
        rows.append([] if index == 1 else row[: 3 + index])
    return rows


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.sampled_from([1, 5, 12, 37]), st.sampled_from([0, 1, 5, 12, 37, 300])), max_size=5),
    batch_size=st.integers(1, 4),
    seed=st.integers(0, 100),
    family=st.sampled_from(FAMILIES),
)
def test_logprob_i_belongs_to_token_i_for_any_lengths(sizes, batch_size, seed, family):
    prompts, responses = random_rows(seed, sizes)
    found = local(family, logprob_batch_size=batch_size).logprobs(prompts, responses)
    assert [row.shape for row in found] == [(len(response),) for response in responses]
    assert {row.dtype for row in found} <= {torch.float32}
    for prompt, response, logprobs in zip(prompts, responses, found, strict=True):
        torch.testing.assert_close(logprobs, plain_logprobs(MODELS[family], prompt, response), atol=1e-4, rtol=0)


def test_batches_by_tokens_hold_as_many_rows_as_fit_padded_to_the_longest():
    lengths = [3, 10, 4, 4, 25, 3, 0]
    assert list(batches(range(7), lengths, 1, max_tokens=12)) == [[4], [1], [2, 3, 0], [5, 6]]
    assert list(batches([0, 5, 6], lengths, 2)) == [[0, 5], [6]]
    assert list(batches([6], lengths, 1, max_tokens=12)) == [[6]] and not list(batches([], lengths, 1, max_tokens=12))


def test_logprobs_do_not_depend_on_batches_by_tokens():
    prompts, responses = random_rows(1, UNEVEN)
    whole = local().logprobs(prompts, responses)
    for tokens in (1, 60, 10_000):
        found = local(logprob_mb_tokens=tokens).logprobs(prompts, responses)
        torch.testing.assert_close(found, whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_in_line_have_states_keys_values_and_gradients_of_padded_ones(family):
    rows = [prompt + response for prompt, response in zip(*random_rows(4, UNEVEN), strict=True)]
    found = []
    for in_line in (True, False):
        network = Network(copy.deepcopy(MODELS[family]))
        network.in_line = in_line
        states, _ = network.prefill(rows)
        torch.cat(states).square().sum().backward()
        _, kv = network.prefill(rows, keep_kv=True)
        assert isinstance(kv, LineKV) == in_line
        layers: list[Any] = kv.layers if kv else []
        kept = [side[i, :, : len(row)] for at in layers for side in (at.keys, at.values) for i, row in enumerate(rows)]
        assert len(kept) == 2 * 2 * len(rows) and [len(row) for row in states] == [len(row) for row in rows]
        found.append([*states, *kept, *(weight.grad for weight in network.body.parameters())])
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


def test_rows_of_a_model_with_attention_of_its_own_are_padded_on_a_cpu_too(monkeypatch):
    monkeypatch.setattr(MODELS["qwen3"].__class__, "set_attn_implementation", lambda *_: None)
    own = tiny_model("qwen3")
    model = LocalModel(own, tiny_settings(), frozenset([END]))
    assert own.config._attn_implementation == "sdpa" and not model.network.in_line
    prompts, responses = random_rows(1, UNEVEN)
    found = model.logprobs(prompts, responses)
    expected = [plain_logprobs(own, *row) for row in zip(prompts, responses, strict=True)]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fused_norm_computes_what_the_norm_did(family):
    model, fused = copy.deepcopy(MODELS[family]), copy.deepcopy(MODELS[family])
    for name, weight in fused.named_parameters():
        if "norm" in name:  # all are 1 before training
            torch.nn.init.uniform_(weight, 0.5, 2.0)
            model.get_parameter(name).data.copy_(weight.data)
    ids = torch.arange(2, 40)[None]
    expected = model(input_ids=ids).logits
    assert fuse_norms(fused) == sum("norm" in name for name, _ in model.named_parameters())
    found = fused(input_ids=ids).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(found, expected) or model.dtype != torch.float32  # so CPUs may have it, too
    norm = next(name for name, _ in model.named_parameters() if "norm" in name)
    gradients = [
        torch.autograd.grad(out.logsumexp(-1).sum(), m.get_parameter(norm))[0]
        for out, m in ((found, fused), (expected, model))
    ]
    torch.testing.assert_close(*gradients, atol=1e-3, rtol=1e-3)


def test_a_norm_that_adds_one_to_its_weight_is_left_as_it_is():
    class ShiftedRMSNorm(torch.nn.RMSNorm):
        def forward(self, x):
            return torch.nn.functional.rms_norm(x, self.normalized_shape, 1 + self.weight, self.eps)

    norm = ShiftedRMSNorm(8, eps=1e-6)
    assert fuse_norms(norm) == 0 and "forward" not in vars(norm)
    assert fuse_norms(torch.nn.RMSNorm(8, eps=1e-6)) == 1


def test_logprobs_do_not_depend_on_how_positions_are_chunked(monkeypatch):
    prompts, responses = random_rows(1, UNEVEN)
    whole = local().logprobs(prompts, responses)
    monkeypatch.setattr(network_module, "MAX_LOGITS", 3 * len(VOCABULARY))
    torch.testing.assert_close(local().logprobs(prompts, responses), whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("warm", [True, False], ids=["prefix kept", "prefix missing"])
def test_continuations_equal_plain_greedy_decoding(family, warm):
    prompts, responses = random_rows(2, UNEVEN)
    branches = branches_of(responses)
    model = local(family)
    if warm:
        model.logprobs(prompts, responses)
    found = model.continue_greedily(prompts, responses, branches, 8)
    for prompt, response, row, found_row in zip(prompts, responses, branches, found, strict=True):
        expected = [plain_continuation(MODELS[family], prompt, response, branch, 8) for branch in row]
        assert found_row == expected
    lengths = {len(branch.tokens) for row in found for branch in row}
    assert 8 in lengths


def test_a_continuation_ends_with_its_end_token():
    """With every token an end token but two, greedy text ends early, at different lengths in different branches."""
    model = LocalModel(MODELS["qwen3"], tiny_settings(), frozenset(range(0, len(VOCABULARY), 3)))
    prompts, responses = random_rows(5, [(6, 20), (9, 14)])
    branches = [[Branch(t, []) for t in range(0, 14)], [Branch(t, [5]) for t in range(0, 14)]]
    for row in model.continue_greedily(prompts, responses, branches, 8):
        assert {len(branch.tokens) for branch in row} >= {2, 3}
        for branch in row:
            assert all(token % 3 for token in branch.tokens[:-1])
            assert len(branch.tokens) == 8 or branch.tokens[-1] % 3 == 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("warm", [True, False], ids=["prefix kept", "prefix missing"])
def test_branch_scores_in_one_forward_equal_plain_scores(family, warm, monkeypatch):
    prompts, responses = random_rows(4, UNEVEN)
    branches = branches_of(responses)
    model = local(family, logprob_batch_size=len(prompts))
    if warm:
        model.logprobs(prompts, responses)
    calls = []
    extend = model.network.extend
    monkeypatch.setattr(model.network, "extend", lambda *args: calls.append(1) or extend(*args))
    found = model.branch_logprobs(prompts, responses, branches)
    assert len(calls) == 1
    for prompt, response, row, found_row in zip(prompts, responses, branches, found, strict=True):
        for branch, logprobs in zip(row, found_row, strict=True):
            expected = plain_logprobs(MODELS[family], prompt + response[: branch.position], branch.tokens)
            torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_choices_after_branches_in_one_forward_equal_plain_scores(family, monkeypatch):
    prompts, responses = random_rows(4, UNEVEN)
    branches, choices = branches_of(responses), [9, 4, 31]
    model = local(family, logprob_batch_size=len(prompts))
    calls = []
    extend = model.network.extend
    monkeypatch.setattr(model.network, "extend", lambda *args: calls.append(1) or extend(*args))
    monkeypatch.setattr(network_module, "MAX_LOGITS", 3 * len(VOCABULARY))
    found = model.next_logprobs(prompts, responses, branches, choices)
    assert len(calls) == 1
    for prompt, response, row, found_row in zip(prompts, responses, branches, found, strict=True):
        for branch, logprobs in zip(row, found_row, strict=True):
            before = prompt + response[: branch.position] + branch.tokens
            expected = torch.cat([plain_logprobs(MODELS[family], before, [choice]) for choice in choices])
            torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)


def test_many_branches_are_split_over_forwards_without_a_change(monkeypatch):
    prompts, responses = random_rows(6, UNEVEN)
    branches = [
        [Branch(t % (len(r) + 1), [5 + t % 7, 9]) for t in range(n)] for n, r in zip(range(7), responses, strict=True)
    ]
    expected = local().continue_greedily(prompts, responses, branches, 5)
    scores = local().branch_logprobs(prompts, responses, branches)
    monkeypatch.setattr(tree, "MAX_QUERIES", 10)
    assert local().continue_greedily(prompts, responses, branches, 5) == expected
    torch.testing.assert_close(local().branch_logprobs(prompts, responses, branches), scores, atol=1e-5, rtol=0)


def test_rows_of_a_forward_have_about_equally_many_branch_tokens():
    """What is padded costs as much as what is read. Each row's branches stay in order."""
    rows = [BranchRow(n, n, [4], [5], [Branch(0, [6] * (1 + n))] * (1 + n)) for n in range(26)]
    parts = list(tree.split(rows, extra=1, max_tokens=2000))
    sizes = [[sum(len(branch.tokens) + 1 for branch in row.branches) for row in part] for part in parts]
    assert all(len(part) * max(part) <= 2000 and max(part) <= tree.MAX_QUERIES for part in sizes)
    assert sum(len(part) * max(part) for part in sizes) < 1.3 * sum(map(sum, sizes))
    for row in rows:
        found = [each.branches for part in parts for each in part if each.index == row.index]
        assert list(chain.from_iterable(found)) == row.branches


def test_branches_without_tokens_have_no_scores():
    prompts, responses = random_rows(3, UNEVEN)
    assert [
        len(part) for row in local().branch_logprobs(prompts, responses, [[Branch(0, [])]] * 7) for part in row
    ] == [0] * 7


def count_prefills(model: LocalModel, monkeypatch) -> list[int]:
    counted: list[int] = []
    prefill = model.network.prefill
    monkeypatch.setattr(
        model.network, "prefill", lambda rows, keep_kv=False: counted.append(len(rows)) or prefill(rows, keep_kv)
    )
    return counted


def test_probes_after_logprobs_read_no_prefix_again_and_free_it(monkeypatch):
    prompts, responses = random_rows(7, UNEVEN)
    model = local()
    model.logprobs(prompts, responses)
    assert model.prefixes.num_bytes > 0
    prefills = count_prefills(model, monkeypatch)
    everywhere = [[Branch(0, [5])] for _ in prompts]
    model.continue_greedily(prompts, responses, everywhere, 4)
    assert prefills == [] and model.prefixes.num_bytes == 0
    model.continue_greedily(prompts, responses, everywhere, 4)
    assert sum(prefills) == len(prompts)


def test_beyond_its_budget_a_prefix_is_read_once_for_all_branches_of_a_response(monkeypatch):
    prompts, responses = random_rows(8, UNEVEN)
    branches = branches_of(responses)
    expected = local().branch_logprobs(prompts, responses, branches)
    model = local(prefix_cache_gb=30e3 / 1e9)
    model.logprobs(prompts, responses)
    assert 0 < model.prefixes.num_bytes <= 30e3
    prefills = count_prefills(model, monkeypatch)
    found = model.branch_logprobs(prompts, responses, branches)
    assert 0 < sum(prefills) < sum(map(bool, branches))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_prefix_is_freed_before_the_next_is_computed(monkeypatch):
    prompts, responses = random_rows(8, UNEVEN)
    model = local(logprob_batch_size=1)
    caches: list[weakref.ref] = []
    prefill = model.network.prefill

    def watched(rows, keep_kv=False):
        assert not [cache for cache in caches if cache() is not None]
        hidden, cache = prefill(rows, keep_kv)
        caches.append(weakref.ref(cache))
        return hidden, cache

    monkeypatch.setattr(model.network, "prefill", watched)
    model.branch_logprobs(prompts, responses, [[Branch(0, [5])]] * len(prompts))
    assert len(caches) == len(prompts)


def test_no_rows_and_no_branches_give_empty_results():
    model = local()
    assert model.logprobs([], []) == []
    assert model.generate([], Sampling(max_new_tokens=4), 0) == []
    assert model.branch_logprobs([[4]], [[5]], [[]]) == [[]]
    assert model.continue_greedily([[4]], [[5]], [[]], 8) == [[]]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_generation_equals_plain_greedy_decoding(family, monkeypatch):
    monkeypatch.setattr(EagerStep, "room", 16)  # the buffer grows twice
    prompts, _ = random_rows(9, UNEVEN)
    found = local(family).generate(prompts, Sampling(max_new_tokens=40, temperature=0), seed=0)
    for prompt, generation in zip(prompts, found, strict=True):
        assert generation.tokens == plain_greedy(MODELS[family], prompt, 40)
        assert generation.finished == (generation.tokens[-1] == END)


def test_rows_that_end_early_leave_the_batch_without_touching_the_others():
    """A third of all tokens end a text, so rows leave at every step; each must equal its text when alone."""
    model = LocalModel(MODELS["llama"], tiny_settings(generation_batch_size=16), frozenset(range(0, 60, 9)))
    prompts, _ = random_rows(10, [(3 + 5 * (index % 4), 0) for index in range(16)])
    sampling = Sampling(max_new_tokens=300)
    together = model.generate(prompts, sampling, seed=5)
    assert len({len(generation.tokens) for generation in together}) > 6
    alone = LocalModel(MODELS["llama"], tiny_settings(generation_batch_size=1), model.end_ids)
    assert alone.generate(prompts, sampling, seed=5) == together


@pytest.mark.parametrize("cut", [{}, {"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}])
def test_sampling_says_the_log_probs_at_temperature_1_of_what_it_drew(monkeypatch, cut):
    monkeypatch.setattr(EagerStep, "room", 16)  # the buffer grows, and rows leave it
    changes = {"generation_batch_size": 16, "max_total_sequence_length": 60}
    model = LocalModel(MODELS["llama"], tiny_settings(**changes), frozenset(range(0, 60, 9)))
    prompts = [*random_rows(10, [(3 + 5 * (index % 4), 0) for index in range(16)])[0], [5] * 60]
    sampling = Sampling(max_new_tokens=50, **cut)
    found = model.generate(prompts, replace(sampling, with_logprobs=True), seed=5)
    assert model.generate(prompts, sampling, seed=5) == [replace(row, logprobs=None) for row in found]  # unasked
    assert len({len(row.tokens) for row in found}) > 6 and found[-1].tokens == []  # which has no room
    for prompt, row in zip(prompts, found, strict=True):
        torch.testing.assert_close(row.logprobs, plain_logprobs(MODELS["llama"], prompt, row.tokens), atol=1e-5, rtol=0)


def test_a_log_prob_of_sampling_is_not_rounded_to_bfloat16():
    logits = torch.randn(50, 600, generator=torch.Generator().manual_seed(0)).bfloat16()
    choice, found = sample_with_logprobs(
        logits, Sampling(max_new_tokens=1), torch.full((50,), 0.4, dtype=torch.float64)
    )
    expected = logits.float().log_softmax(-1).gather(-1, choice[:, None])[:, 0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_equal_prompts_are_read_once_and_get_different_samples(monkeypatch):
    model = local()
    alone = local(generation_batch_size=1).generate([[4, 5, 6]] * 3 + [[7]], Sampling(max_new_tokens=20), seed=0)
    prefills = count_prefills(model, monkeypatch)
    found = model.generate([[4, 5, 6]] * 3 + [[7]], Sampling(max_new_tokens=20), seed=0)
    assert found == alone and prefills == [2]
    assert len({tuple(generation.tokens) for generation in found}) == 4


def test_a_row_stops_at_the_longest_total_length_unfinished():
    model = LocalModel(MODELS["qwen3"], tiny_settings(max_total_sequence_length=10), frozenset([0]))
    short, full, over = model.generate([[5] * 7, [5] * 10, [5] * 12], Sampling(max_new_tokens=50), seed=0)
    assert len(short.tokens) == 3 and not short.finished
    assert full.tokens == over.tokens == [] and not full.finished


def test_sampled_frequencies_match_the_model():
    """20,000 first tokens; a frequency differs from its probability by over 5 standard errors once in 10^6 runs."""
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(0)).repeat(20_000, 1)
    uniform = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    counts = torch.bincount(sample(logits, Sampling(max_new_tokens=1), uniform), minlength=30) / 20_000
    probs = logits[0].softmax(-1)
    assert ((counts - probs).abs() <= 5 * (probs * (1 - probs) / 20_000).sqrt()).all()


def test_top_k_and_top_p_cut_the_tail_by_hand():
    logits = torch.tensor([[0.4, 0.1, 0.3, 0.2]]).log().repeat(4, 1)
    uniform = torch.tensor([0.0, 0.45, 0.9, 0.999], dtype=torch.float64)
    # top-k 2 keeps tokens 0 (.4) and 2 (.3): the boundary is at 4/7.
    assert sample(logits, Sampling(max_new_tokens=1, top_k=2), uniform).tolist() == [0, 0, 2, 2]
    # top-p 0.6 keeps 0 and 2, since 0.4 alone does not reach it; top-p 0.3 keeps the first alone.
    assert sample(logits, Sampling(max_new_tokens=1, top_p=0.6), uniform).tolist() == [0, 0, 2, 2]
    assert sample(logits, Sampling(max_new_tokens=1, top_p=0.3), uniform).tolist() == [0, 0, 0, 0]
    assert sample(logits, Sampling(max_new_tokens=1, top_p=1.0, top_k=0), uniform).tolist() == [0, 1, 3, 3]
    # temperature 0.5 squares: .16, .01, .09, .04 of .30, so token 0 ends at .533.
    assert sample(logits, Sampling(max_new_tokens=1, temperature=0.5), uniform).tolist() == [0, 0, 3, 3]


def test_a_model_that_has_diverged_is_sampled_to_the_end():
    logits = torch.full((2, 300), torch.nan)
    assert (sample(logits, Sampling(max_new_tokens=1), torch.tensor([0.3, 0.9], dtype=torch.float64)) < 300).all()


@pytest.mark.parametrize("vocabulary", [5, 128, 1000])
def test_a_token_is_drawn_by_inverting_the_whole_distribution_in_float64(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 4 * torch.randn(300, vocabulary, generator=generator)
    logits[:, 1::3] = -torch.inf  # never drawn
    uniform = torch.rand(300, generator=generator, dtype=torch.float64)
    uniform[0], uniform[1] = 0.0, 1 - 2**-53  # the ends of [0, 1)
    cdf = logits.softmax(-1).double().cumsum(-1)
    expected = [int((cdf[row] > uniform[row] * cdf[row, -1]).nonzero()[0]) for row in range(2, 300)]
    drawn = sample(logits, Sampling(max_new_tokens=1), uniform)
    assert drawn[2:].tolist() == expected and drawn[0] == 0
    assert logits.softmax(-1).gather(-1, drawn[:, None]).min() > 0


def test_no_token_without_mass_is_drawn_where_a_block_ends():
    """Each uniform is what has come up to the end of a block; the next block begins with an empty token."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(512, 8 * decoding.BLOCK, generator=generator)
    logits[:, :: decoding.BLOCK] = -torch.inf
    probs = logits.softmax(-1)
    sums = probs.unflatten(-1, (8, decoding.BLOCK)).sum(-1, dtype=torch.float64)
    for ends in (sums.cumsum(-1) / sums.sum(-1, keepdim=True)).unbind(-1):
        drawn = sample(logits, Sampling(max_new_tokens=1), ends.clamp(max=1 - 2**-53))
        assert probs.gather(-1, drawn[:, None]).min() > 0
