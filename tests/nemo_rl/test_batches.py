"""Ragged lists to NeMo RL batches and back: every column where it belongs, whatever the lengths."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_aopsd.engines.nemo_rl.batches import (
    response_spans,
    sampler_scored_batch,
    scoring_batch,
    training_batch,
)
from nemo_aopsd.types import TrainRow

PAD = 0
LAYOUT = {"pad_id": PAD, "divisible_by": 1, "rows_multiple": 1}
FLOATS = ("prev_logprobs", "generation_logprobs", "teacher_logprobs", "probe_weights")

tokens = st.integers(1, 10_000)
ragged = st.lists(
    st.tuples(st.lists(tokens, min_size=1, max_size=12), st.lists(tokens, max_size=12)), min_size=1, max_size=7
)
layouts = st.fixed_dictionaries(
    {"pad_id": st.just(PAD), "divisible_by": st.integers(1, 9), "rows_multiple": st.integers(1, 5)}
)


def split(pairs):
    return [list(prompt) for prompt, _ in pairs], [list(response) for _, response in pairs]


def row(prompt, response, seed=0, **fields):
    """A row with its own numbers in every field, so that a swap of two fields shows."""
    generator = torch.Generator().manual_seed(seed)
    old, teacher, weights, sampler = -torch.rand(4, len(response), generator=generator) - 0.01
    mask = torch.ones(len(response), dtype=torch.bool)
    values = {"old_logprobs": old, "teacher_logprobs": teacher, "weights": -weights, "mask": mask}
    return TrainRow(prompt, response, **values | {"sampler_logprobs": sampler} | fields)


@given(ragged, layouts)
@settings(deadline=None)
def test_a_scoring_batch_holds_each_row_then_padding_then_dummy_rows(pairs, layout):
    prompts, responses = split(pairs)
    rows = [prompt + response for prompt, response in pairs]
    batch = scoring_batch(prompts, responses, **layout)
    ids, lengths = batch["input_ids"], batch["input_lengths"]
    assert (ids.dtype, lengths.dtype) == (torch.int64, torch.int32)
    num_rows, width = ids.shape
    assert num_rows % layout["rows_multiple"] == 0 and 0 <= num_rows - len(rows) < layout["rows_multiple"]
    longest = max(map(len, rows))
    assert width % layout["divisible_by"] == 0 and 0 <= width - longest < layout["divisible_by"]

    expected = rows + [min(rows, key=len)] * (num_rows - len(rows))
    assert lengths.tolist() == [len(r) for r in expected]
    assert ids.tolist() == [r + [PAD] * (width - len(r)) for r in expected]
    assert batch["sample_mask"].tolist() == [1.0] * len(rows) + [0.0] * (num_rows - len(rows))
    masks = [[0] * len(p) + [1] * len(r) + [0] * (width - len(p) - len(r)) for p, r in pairs]
    assert batch["token_mask"].tolist() == masks + [[0] * width] * (num_rows - len(rows))


@given(ragged, layouts)
@settings(deadline=None)
def test_spans_are_the_columns_of_the_response_tokens(pairs, layout):
    """The "log-prob" of a token is its own id here, so the spans must give the responses back."""
    prompts, responses = split(pairs)
    ids = scoring_batch(prompts, responses, **layout)["input_ids"]
    spans = response_spans(ids.double(), prompts, responses)
    assert [span.tolist() for span in spans] == responses
    assert all(span.dtype == torch.float32 for span in spans)


@given(ragged, layouts, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_training_batch_holds_every_field_at_its_token_and_zero_elsewhere(pairs, layout, random):
    rows = []
    for seed, (prompt, response) in enumerate(pairs):
        mask = torch.tensor([random.random() < 0.7 for _ in response], dtype=torch.bool)
        rows.append(row(prompt, response, seed, mask=mask))
    batch = training_batch(rows, **layout)
    assert all(batch[name].dtype == torch.float32 and batch[name].device.type == "cpu" for name in FLOATS)
    fields = dict(zip(FLOATS, ("old_logprobs", "sampler_logprobs", "teacher_logprobs", "weights"), strict=True))
    for index in range(batch.size):
        for column in range(batch["input_ids"].shape[1]):
            source = rows[index] if index < len(rows) else None
            position = column - len(source.prompt) if source else -1
            counts = source is not None and 0 <= position < len(source.response) and bool(source.mask[position])
            assert batch["token_mask"][index, column] == counts
            for name, field in fields.items():
                expected = getattr(source, field)[position].item() if counts else 0.0
                assert batch[name][index, column].item() == expected


def test_where_the_sampler_has_scored_a_gap_stands_for_the_teacher():
    rows = [row([1], [2, 3], seed=1), row([1, 4], [5], seed=2)]
    batch = sampler_scored_batch(rows, None, **LAYOUT)
    assert not {"teacher_logprobs", "prev_logprobs"} & set(batch)
    first = rows[0].teacher_logprobs - rows[0].old_logprobs
    assert torch.equal(batch["gaps"][0, 1:3], first) and batch["gaps"][1, :2].tolist() == [0, 0]
    assert torch.equal(batch["generation_logprobs"][0, 1:3], rows[0].sampler_logprobs)
    of_trainer = [torch.tensor([-1.0, -2.0]), torch.tensor([-3.0])]
    batch = sampler_scored_batch(rows, of_trainer, **LAYOUT)
    assert batch["prev_logprobs"][:2, :3].tolist() == [[0, -1, -2], [0, 0, -3]]
    rewarded = [replace(each, advantages=torch.full((len(each.response),), 0.5)) for each in rows]
    batch = sampler_scored_batch(rewarded, None, **LAYOUT)
    assert batch["advantages"][:2, :3].tolist() == [[0, 0.5, 0.5], [0, 0, 0.5]]
    with pytest.raises(AssertionError, match="generation_logprobs"):
        sampler_scored_batch([replace(rows[0], sampler_logprobs=None)], None, **LAYOUT)


def test_spans_are_copies_without_gradient():
    scores = torch.full((1, 4), -1.0, requires_grad=True)
    (span,) = response_spans(scores, [[5, 6]], [[7, 8]])
    span.zero_()
    assert not span.requires_grad and scores.eq(-1).all()


def test_a_row_without_sampler_log_probs_has_the_old_ones_there():
    known, unknown = row([1], [2, 3], seed=1), row([1], [2, 3], seed=2, sampler_logprobs=None)
    batch = training_batch([known, unknown], **LAYOUT)
    assert torch.equal(batch["generation_logprobs"][0, 1:], known.sampler_logprobs)
    assert torch.equal(batch["generation_logprobs"][1], batch["prev_logprobs"][1])
    assert torch.equal(batch["prev_logprobs"][1, 1:], unknown.old_logprobs)


def test_a_log_prob_that_is_not_finite_is_named():
    with pytest.raises(ValueError, match=r"row 1: .* token 2 is nan"):
        response_spans(torch.tensor([[0.0] * 4, [0, 0, -1, math.nan]]), [[1], [1]], [[2], [2, 3, 4]])
    rows = [row([1], [2, 3]), row([1], [2, 3], sampler_logprobs=torch.tensor([-math.inf, -1.0]))]
    with pytest.raises(ValueError, match="row 1: generation_logprobs at response token 0 is -inf"):
        training_batch(rows, **LAYOUT)


def test_a_token_that_does_not_count_may_lack_a_log_prob():
    teacher, mask = torch.tensor([math.nan, -2.0]), torch.tensor([False, True])
    batch = training_batch([row([1], [2, 3], teacher_logprobs=teacher, mask=mask)], **LAYOUT)
    assert batch["teacher_logprobs"].tolist() == [[0.0, 0.0, -2.0]]
