"""The NeMo RL loss against the core's policy gradient, against hand calculation, and inside NeMo RL's own wrappers."""

import copy
import math
from collections import Counter

import pytest
import ray
import torch
from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig, ClippedPGLossFn
from nemo_rl.algorithms.loss.utils import prepare_loss_input, prepare_packed_loss_input
from nemo_rl.algorithms.loss.wrapper import (
    SequencePackingFusionLossWrapper,
    SequencePackingLossWrapper,
    wrap_loss_fn_with_input_preparation,
)
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.model_utils import from_parallel_logits_to_logprobs

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.engines.nemo_rl.batches import response_spans, scoring_batch, training_batch
from nemo_aopsd.engines.nemo_rl.loss import OWN_METRICS, AOPSDLossFn
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.objectives.pg import PolicyGradient
from nemo_aopsd.types import TrainRow

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


def test_loss_metrics_and_gradient_equal_the_cores_policy_gradient():
    data, current = columns()
    num_tokens = counts(data)[1].item() + 1e-8  # NeMo RL's masked_mean adds that much
    loss, metrics, gradient = call(loss_fn(), current, data)

    logprobs = current.clone().requires_grad_(True)
    expected, expected_metrics = PolicyGradient(OBJECTIVE)(
        logprobs,
        old_logprobs=data["prev_logprobs"][:, 1:],
        teacher_logprobs=data["teacher_logprobs"][:, 1:],
        weights=data["probe_weights"][:, 1:],
        mask=data["token_mask"][:, 1:].bool(),
        num_tokens=num_tokens,
        num_rows=1,
    )
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-7)  # the parent divides by a float32 token count
    torch.testing.assert_close(gradient, logprobs.grad, rtol=1e-7, atol=1e-12)
    for name in OWN_METRICS:
        assert metrics[name] == pytest.approx(expected_metrics[f"train/{name}"].item(), rel=1e-6)
        assert 0 < metrics[name] < 1  # the case is one where each of them says something
    assert metrics["loss"] == pytest.approx(loss)


def test_the_first_update_has_the_gradient_minus_advantage_over_tokens():
    current = [-1.0, -2.0, -3.0]
    data, logprobs = one_row(current, prev=current, teacher=[-0.5, -2.5, -90.0], weights=[1.0, 0.5, 1.0])
    data["token_mask"] = torch.tensor([[0, 1, 1, 1]])
    _, metrics, gradient = call(loss_fn(ObjectiveConfig(advantage_clip=10.0)), logprobs, data)
    # Advantages: 1 (-0.5 + 1) = 0.5;  0.5 (-2.5 + 2) = -0.25;  -87, clipped to -10.
    expected = torch.tensor([[-0.5, 0.25, 10.0]], dtype=torch.float64) / 3
    torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=0)
    assert metrics["frac_clipped"] == pytest.approx(1 / 3)
    assert metrics["mean_abs_advantage"] == pytest.approx(10.75 / 3)
    assert metrics["frac_ratio_clipped"] == 0


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


# ---- the other settings of NeMo RL's block


def test_without_the_ratio_the_gradient_is_that_of_reinforce():
    data, logprobs = one_row([-1.0, -2.0], prev=[-9.0, -0.1], teacher=[-0.5, -3.0])
    _, metrics, gradient = call(loss_fn(ObjectiveConfig(), disable_ppo_ratio=True), logprobs, data)
    torch.testing.assert_close(gradient, torch.tensor([[-0.25, 0.5]], dtype=torch.float64), rtol=1e-7, atol=0)
    assert metrics["frac_ratio_clipped"] == 0


def test_a_forced_on_policy_ratio_needs_no_previous_log_probs():
    data, logprobs = one_row([-1.0, -2.0], prev=[-9.0, -0.1], teacher=[-0.5, -3.0])
    del data["prev_logprobs"]
    _, metrics, gradient = call(loss_fn(ObjectiveConfig(), force_on_policy_ratio=True), logprobs, data)
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


def test_a_sequence_level_loss_averages_within_each_sequence_first():
    data, current = columns(rows=2, width=4)
    data["token_mask"] = torch.tensor([[0, 1, 1, 1], [0, 0, 0, 1]])
    data["prev_logprobs"][:, 1:] = current
    _, _, gradient = call(loss_fn(token_level_loss=False), current, data)
    advantage = (data["probe_weights"] * data["teacher_logprobs"])[:, 1:] - data["probe_weights"][:, 1:] * current
    share = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0, 0, 1]], dtype=torch.float64) / 2
    torch.testing.assert_close(gradient, -advantage.clamp(-1, 1) * share, rtol=1e-7, atol=0)


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


def test_the_kl_penalty_of_the_block_reads_the_reference_column():
    data, logprobs = one_row([-1.0], prev=[-1.0], teacher=[-1.0])
    data["reference_policy_logprobs"] = torch.tensor([[0.0, -1.5]], dtype=torch.float64)
    config = ClippedPGLossConfig(reference_policy_kl_penalty=0.1)
    loss, _, _ = call(AOPSDLossFn(config, ObjectiveConfig()), logprobs, data)
    assert loss == pytest.approx(0.1 * (math.exp(-0.5) - 1 + 0.5), rel=1e-6)


@pytest.mark.parametrize("name", [*COLUMNS, "reference_policy_logprobs"])
def test_a_missing_column_is_named(name):
    data, current = columns()
    data["reference_policy_logprobs"] = data["teacher_logprobs"]
    del data[name]
    function = AOPSDLossFn(ClippedPGLossConfig(reference_policy_kl_penalty=0.01), OBJECTIVE)
    with pytest.raises(UserError, match=f"the training batch has no {name}: "):
        call(function, current, data)


# ---- what must not count


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, -1e30, 1e30])
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


def test_the_kl_columns_under_the_mask_may_hold_anything_too():
    data, current = columns()
    ignored = data["token_mask"] == 0
    data["reference_policy_logprobs"] = data["teacher_logprobs"].masked_fill(ignored, math.nan)
    data["curr_logprobs_unfiltered"] = current.masked_fill(ignored[:, 1:], math.nan)
    loss, _, gradient = call(AOPSDLossFn(ClippedPGLossConfig(), OBJECTIVE), current, data)
    assert math.isfinite(loss) and gradient.isfinite().all()


@pytest.mark.parametrize("what", ["token_mask", "sample_mask"])
def test_a_batch_without_any_counted_token_has_no_loss_and_no_gradient(what):
    data, current = columns()
    data[what] = torch.zeros_like(data[what])
    loss, metrics, gradient = call(loss_fn(), current, data)
    assert loss == 0 and not gradient.any()
    assert all(math.isfinite(value) for name, value in metrics.items() if name not in EXTREMES)


# ---- the life of the object, and what becomes of the metrics


def test_the_loss_survives_ray_and_holds_plain_values_only():
    function = loss_fn()
    for value in vars(function).values():
        assert value is None or isinstance(value, (bool, int, float, str)) or type(value).__name__ == "LossType"
    data, current = columns()
    copied = ray.cloudpickle.loads(ray.cloudpickle.dumps(function))
    assert call(copied, current, data)[:2] == call(function, current, data)[:2]
    assert (copied.loss_type, copied.input_type) == (function.loss_type, function.input_type)


def test_metrics_are_plain_numbers_whose_names_nemo_rl_sums():
    data, current = columns()
    _, metrics, _ = call(loss_fn(), current, data)
    assert all(type(value) in (int, float) for value in metrics.values())
    assert all(type(metrics[name]) is float for name in OWN_METRICS)
    assert not [name for name in OWN_METRICS if "_min" in name or "_max" in name]


def test_where_losses_name_their_denominators_ours_is_the_token_count(monkeypatch):
    original = ClippedPGLossFn.__init__

    def later_version(self, cfg):
        original(self, cfg)
        self.metric_normalizations = {"probs_ratio": "tokens", "num_valid_samples": "none"}

    monkeypatch.setattr(ClippedPGLossFn, "__init__", later_version)
    known = loss_fn().metric_normalizations
    assert {name: known[name] for name in OWN_METRICS} == dict.fromkeys(OWN_METRICS, "tokens")
    assert known["num_valid_samples"] == "none"


# ---- inside NeMo RL's wrappers: a bigram model, whose logits are the rows of one table

PAD, VOCABULARY = 0, 40


@pytest.fixture(scope="module")
def group():
    """A tensor-parallel group of one: NeMo RL then takes the very path of its Megatron workers."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def table(seed):
    """[V, V] logits of the next token. Those after padding are NaN, as padding may be."""
    logits = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    logits[PAD] = math.nan
    return logits


def scores(logits, prompts, responses, group):
    """`get_logprobs` of the bigram model: NeMo RL's own log-probs, a zero put in front as its workers do."""
    ids = scoring_batch(prompts, responses, pad_id=PAD, divisible_by=8, rows_multiple=3)["input_ids"]
    found = from_parallel_logits_to_logprobs(logits[ids], ids, 0, VOCABULARY, group, inference_only=True)
    return response_spans(torch.nn.functional.pad(found, (1, 0)), prompts, responses)


def rollouts(group, lengths=(5, 90, 37, 12), teacher_extra=50):
    """Rows of another student than the one that learns, so off policy; the teacher reads longer prompts."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randint(1, VOCABULARY, (n,), generator=generator).tolist()  # noqa: E731
    prompts, responses = [draw(n) for n in (4, 7, 1, 30)], [draw(n) for n in lengths]
    longer = [draw(teacher_extra) + prompt[:-1] + draw(1) for prompt in prompts]
    fields = zip(
        prompts,
        responses,
        scores(table(2), prompts, responses, group),
        scores(table(3), longer, responses, group),
        [torch.rand(n, generator=generator) for n in lengths],
        [torch.rand(n, generator=generator) < 0.8 for n in lengths],
        scores(table(2) * 1.01, prompts, responses, group),
        strict=True,
    )
    return [TrainRow(*row) for row in fields], longer


def packed(logits, part, pad_to):
    """Packed logits [1, T, V] of a micro-batch and both lists of borders, each sequence padded to `pad_to`."""
    lengths = part["input_lengths"].tolist()
    padded = [-(-length // pad_to) * pad_to for length in lengths]
    ids = torch.full((sum(padded),), PAD)
    for start, length, row in zip(torch.tensor([0, *padded]).cumsum(0), lengths, part["input_ids"], strict=False):
        ids[start : start + length] = row[:length]
    borders = [torch.tensor([0, *sizes]).cumsum(0).int() for sizes in (lengths, padded)]
    return logits[ids].unsqueeze(0), borders


def micro_batches(batch, size):
    """NeMo RL's own: `size` rows each, or bins of at most `-size` tokens made by its packer."""
    if size > 0:
        yield from batch.make_microbatch_iterator(size)
        return
    packing = {
        "max_tokens_per_microbatch": -size,
        "input_key": "input_ids",
        "input_lengths_key": "input_lengths",
        "algorithm": "modified_first_fit_decreasing",
        "sequence_length_pad_multiple": 8,
    }
    shards, _ = batch.shard_by_batch_size(2, sequence_packing_args=packing)
    for shard in shards:
        yield from shard.get_batch(0).make_microbatch_iterator_for_packable_sequences()


def train(function, batch, group, size, wrapper=None, pad_to=8):
    """Loss, metrics and gradient of one optimizer step, added up as NeMo RL adds them up."""
    logits = table(5).requires_grad_(True)
    parallel = {"vocab_parallel_rank": 0, "vocab_parallel_group": group}
    prepare = prepare_packed_loss_input if wrapper is SequencePackingFusionLossWrapper else prepare_loss_input
    total, metrics, parts = 0.0, Counter(), list(micro_batches(batch, size))
    for part in parts:
        if wrapper is None:
            wrapped = lambda *args: wrap_loss_fn_with_input_preparation(*args, function, prepare, **parallel)  # noqa: E731
            output = logits[part["input_ids"]]
        else:
            output, borders = packed(logits, part, pad_to)
            wrapped = wrapper(function, prepare, *borders, **parallel)
        loss, found = wrapped(output, part, *counts(batch))
        loss.backward()
        total += loss.item()
        metrics.update({name: value for name, value in found.items() if name not in EXTREMES})
    assert sum(part.size for part in parts) == batch.size
    return total, dict(metrics), logits.grad[1:]  # without the gradient of padding's NaN logits


LAYOUTS = {
    "rows of 1": {"size": 1},
    "rows of 2": {"size": 2},
    "packed, one bin": {"size": 4, "wrapper": SequencePackingLossWrapper},
    "packed without padding": {"size": 2, "wrapper": SequencePackingLossWrapper, "pad_to": 1},
    "packed by the packer for two ranks": {"size": -112, "wrapper": SequencePackingLossWrapper},
    "packed and fused": {"size": 4, "wrapper": SequencePackingFusionLossWrapper},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "block",
    [{}, {"use_importance_sampling_correction": True}, {"token_level_loss": False}, {"force_on_policy_ratio": True}],
    ids=str,
)
def test_packing_and_micro_batch_size_change_neither_loss_nor_metrics_nor_gradient(group, layout, block):
    rows, _ = rollouts(group)
    batch = training_batch(rows, pad_id=PAD, divisible_by=8, rows_multiple=4)
    whole = train(loss_fn(**block), batch, group, size=4)
    loss, metrics, gradient = train(loss_fn(**block), batch, group, **LAYOUTS[layout])
    assert loss == pytest.approx(whole[0], abs=2e-6)
    assert metrics == pytest.approx(whole[1], abs=2e-6)
    torch.testing.assert_close(gradient, whole[2], rtol=1e-5, atol=1e-7)
    assert gradient.isfinite().all() and gradient.abs().max() > 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dummy_rows_change_nothing(group, layout):
    rows, _ = rollouts(group)
    plain = training_batch(rows[:3], pad_id=PAD, divisible_by=8, rows_multiple=1)
    filled = training_batch(rows[:3], pad_id=PAD, divisible_by=8, rows_multiple=4)
    loss, metrics, gradient = train(loss_fn(), filled, group, **LAYOUTS[layout])
    expected = train(loss_fn(), plain, group, size=3)
    assert loss == pytest.approx(expected[0], abs=2e-6)
    assert metrics == pytest.approx(expected[1], abs=2e-6)
    torch.testing.assert_close(gradient, expected[2], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layout", ["rows of 1", "packed, one bin"])
def test_an_empty_response_and_a_row_of_one_token_change_nothing(group, layout):
    rows, _ = rollouts(group)
    nothing = torch.zeros(0)
    empty = TrainRow([3], [], nothing, nothing, nothing, nothing.bool())
    expected = train(loss_fn(), training_batch(rows[:3], pad_id=PAD, divisible_by=8, rows_multiple=1), group, size=3)
    batch = training_batch([*rows[:2], empty, rows[2]], pad_id=PAD, divisible_by=8, rows_multiple=4)
    loss, metrics, gradient = train(loss_fn(), batch, group, **LAYOUTS[layout])
    assert loss == pytest.approx(expected[0], abs=2e-6)
    assert {name: metrics[name] for name in OWN_METRICS} == pytest.approx(
        {name: expected[1][name] for name in OWN_METRICS}, abs=2e-6
    )
    torch.testing.assert_close(gradient, expected[2], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layout", [{"size": 4}, *LAYOUTS.values()], ids=["rows of 4", *LAYOUTS])
def test_alignment_from_scores_to_gradient_with_a_teacher_prompt_1500_tokens_longer(group, layout):
    """Every log-prob of the reference comes from its own softmax over the pair (token before, token)."""
    if layout["size"] < 0:
        layout = layout | {"size": -1000}
    rows, longer = rollouts(group, lengths=(5, 900, 37, 12), teacher_extra=1500)
    batch = training_batch(rows, pad_id=PAD, divisible_by=8, rows_multiple=4)
    loss, _, gradient = train(loss_fn(), batch, group, **layout)

    student = table(5).double().requires_grad_(True)
    old, teacher = table(2).double().log_softmax(-1), table(3).double().log_softmax(-1)
    total, num_tokens = 0.0, sum(row.mask.sum().item() for row in rows)
    for row, teacher_prompt in zip(rows, longer, strict=True):
        ids = torch.tensor(row.response)
        before = torch.tensor([row.prompt[-1], *row.response[:-1]])
        before_for_teacher = torch.tensor([teacher_prompt[-1], *row.response[:-1]])
        current = student.log_softmax(-1)[before, ids]
        advantage = (row.weights * (teacher[before_for_teacher, ids] - current.detach())).clamp(-1, 1)
        ratio = (current - old[before, ids]).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        total = total - surrogate[row.mask].sum() / num_tokens
    total.backward()
    assert loss == pytest.approx(total.item(), abs=2e-6)
    torch.testing.assert_close(gradient.double(), student.grad[1:], rtol=1e-4, atol=1e-7)
