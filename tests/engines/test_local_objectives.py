"""The objectives on the local engine: its chunks against whole softmax tensors, one row at a time and no padding."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from nemo_aopsd.config.schema import CHOICES, ObjectiveConfig, TeacherConfig
from nemo_aopsd.engines.local import network as network_module
from nemo_aopsd.engines.local.engine import LocalEngine
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.types import TrainRow
from tests.engines.test_local_engine import build, captured_gradients, weights
from tests.local_models import END, tiny_model

NAMES = CHOICES["objective.name"]
V = 64
PROMPTS = [[4, 5, 6], [12] * 9, [15], [17, 18], [19, 20, 21]]
CONTEXTS = [[4, 30, 31, 6], [40], [15, 41, 42, 43, 44, 45], [17], [50] * 12]
RESPONSES = [[7, 8, 9, 10, 11, END], [13, 14], [16] * 20, [28], [23, 24, 25]]


def objective(name: str, **changes):
    return build_objective(ObjectiveConfig(name=name, **{"top_k": 5, "entropy_threshold": 1.5} | changes))


def make_engine(**changes) -> LocalEngine:
    """The teacher has other weights than the student, so that no divergence is 0."""
    engine = build(**changes)
    if engine.settings.teacher.weights == "frozen":
        engine.teacher.network.causal_lm.load_state_dict(tiny_model("llama", seed=7).state_dict())
    return engine


def make_rows(engine: LocalEngine, made) -> list[TrainRow]:
    """What the step would collect. Old log-probs are off policy by a little; the last row is masked out."""
    generator = torch.Generator().manual_seed(0)
    old = engine.student.logprobs(PROMPTS, RESPONSES)
    old = [each + 0.1 * torch.randn(len(each), generator=generator) for each in old]
    teacher = engine.teacher.logprobs(CONTEXTS, RESPONSES)
    top = engine.teacher.top_logprobs(CONTEXTS, RESPONSES, 5)
    rows = [
        TrainRow(
            prompt,
            response,
            old[index] if made.needs_old_logprobs else None,
            teacher[index] if made.signal.sampled else None,
            torch.rand(len(response), generator=generator),
            torch.full((len(response),), index != 4),
            teacher_prompt=CONTEXTS[index] if made.signal.full else None,
            top_k=top[index] if made.signal.top_k else None,
            reward=float(index % 2),
        )
        for index, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True))
    ]
    if made.needs_reward:
        rows = [replace(row, advantages=torch.full((len(row.response),), (-0.5) ** i)) for i, row in enumerate(rows)]
    return made.prepare(rows)


def whole_softmax(model, prompt, response) -> torch.Tensor:
    """Log-probs [T, V] by one plain forward."""
    logits = model(input_ids=torch.tensor([prompt + response])).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


def naive_loss(engine: LocalEngine, rows: list[TrainRow], made) -> torch.Tensor:
    """The sum over rows, each with its whole [T, V] tensors, of the objective's share of the loss."""
    rows = [row for row in rows if row.mask.any()]
    num_tokens = float(sum(int(row.mask.sum()) for row in rows))
    total = torch.zeros(())
    for row in rows:
        student = whole_softmax(engine.student.network.causal_lm, row.prompt, row.response)
        divergence = None
        if made.signal.full:
            with torch.no_grad():
                teacher = whole_softmax(engine.teacher.network.causal_lm, row.teacher_prompt, row.response)
            divergence = made.divergence(student, teacher)[None]
        if made.signal.top_k:
            divergence = made.divergence(student, row.top_k)[None]
        names = ("old_logprobs", "teacher_logprobs", "weights", "advantages", "mask")
        columns = {name: None if (value := getattr(row, name)) is None else value[None] for name in names}
        columns["entropy"] = None if row.top_k is None else row.top_k.entropy[None]
        logprobs = student.gather(-1, torch.tensor(row.response)[:, None]).T
        counts = {"num_tokens": num_tokens, "num_rows": float(len(rows))}
        total = total + made(logprobs, divergence=divergence, **columns, **counts)[0]
    return total


@pytest.mark.parametrize(
    ("name", "support", "aggregation"),
    [
        *((name, None, "token_mean") for name in NAMES),
        *(("fkl", 5, "token_mean"), ("dash", 5, "seq_mean"), ("pg", None, "seq_mean"), ("fkl", None, "seq_mean")),
    ],
)
def test_chunked_loss_and_gradient_equal_those_of_whole_softmax_tensors(name, support, aggregation, monkeypatch):
    monkeypatch.setattr(network_module, "MAX_LOGITS", 12 * V)  # four positions a chunk where distributions are compared
    engine, made = make_engine(), objective(name, aggregation=aggregation, token_clip=0.2, support=support)
    rows = make_rows(engine, made)
    loss = naive_loss(engine, rows, made)
    model = engine.student.network.causal_lm
    expected = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )
    gradients, metrics = captured_gradients(engine, rows, made)
    assert metrics["train/loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-3
    for key in expected:
        torch.testing.assert_close(gradients[key], expected[key], atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_without_a_valid_token_is_skipped(name):
    engine, made = make_engine(), objective(name)
    rows, before = make_rows(engine, made), weights(engine)
    skipped = engine.train([replace(row, mask=torch.zeros_like(row.mask)) for row in rows], made)
    assert engine.train([], made) == skipped == {"train/loss": 0, "train/grad_norm": 0, "train/skipped": 1}
    assert all(torch.equal(weight, before[key]) for key, weight in weights(engine).items())


@pytest.mark.parametrize("name", ["fkl", "minillm", "eopd"])
def test_no_gradient_reaches_the_teacher(name):
    """A live teacher is the student's network: its side must be a constant, as in the naive loss."""
    engine, made = make_engine(teacher=TeacherConfig(weights="live")), objective(name)
    rows = make_rows(engine, made)
    model = engine.student.network.causal_lm
    expected = torch.autograd.grad(naive_loss(engine, rows, made), list(model.parameters()))
    gradients, _ = captured_gradients(engine, rows, made)
    for found, wanted in zip(gradients.values(), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-3)


def test_top_logprobs_are_those_of_the_whole_softmax(monkeypatch):
    monkeypatch.setattr(network_module, "MAX_LOGITS", 3 * V)
    engine = make_engine()
    found = engine.teacher.top_logprobs(CONTEXTS, RESPONSES, 5)
    for top, context, response in zip(found, CONTEXTS, RESPONSES, strict=True):
        with torch.no_grad():
            whole = whole_softmax(engine.teacher.network.causal_lm, context, response)
        values, ids = whole.topk(5, -1)
        assert (top.ids.dtype, top.logprobs.dtype, top.entropy.dtype) == (torch.int32, torch.float32, torch.float32)
        assert torch.equal(top.ids.long(), ids)
        torch.testing.assert_close(top.logprobs, values, atol=1e-5, rtol=0)
        torch.testing.assert_close(top.entropy, -(whole.exp() * whole).sum(-1), atol=1e-5, rtol=0)


def test_the_entropy_of_a_teacher_that_cannot_say_some_words():
    logits = torch.tensor([[0.0, 0.0, -math.inf, -math.inf], [1.0, -math.inf, -math.inf, -math.inf]])
    *_, entropy = network_module._top(torch.nn.Identity(), logits, 3)
    assert entropy.tolist() == pytest.approx([math.log(2), 0.0])


def test_top_logprobs_of_an_empty_response_and_of_no_rows():
    engine = make_engine()
    [empty] = engine.teacher.top_logprobs([[4]], [[]], 3)
    assert empty.ids.shape == (0, 3) and empty.entropy.shape == (0,)
    assert engine.teacher.top_logprobs([], [], 3) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_key_of_the_top_k_is_of_the_number_that_the_objective_reads(name):
    config = ObjectiveConfig(name=name, top_k=3, support=4)
    number = getattr(config, config.top_k_key) if config.top_k_key else 0
    assert build_objective(config).signal.top_k == number
