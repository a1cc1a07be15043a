"""The local engine's optimizer step, teachers, save and load, on tiny random models."""

from __future__ import annotations

import json
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from nemo_aopsd.config.nemo_rl_keys import OptimizerKwargs
from nemo_aopsd.config.schema import ObjectiveConfig, TeacherConfig
from nemo_aopsd.engines.local import attention
from nemo_aopsd.engines.local import network as network_module
from nemo_aopsd.engines.local.engine import LocalEngine
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.models.tokenizer import HFTokenizer
from nemo_aopsd.types import Branch, Sampling, TrainRow
from tests.local_models import END, plain_logprobs, tiny_model, tiny_settings, tiny_tokenizer

OBJECTIVE = build_objective(ObjectiveConfig())


def build(seed: int = 0, dtype: torch.dtype = torch.float32, kind: str = "llama", **changes) -> LocalEngine:
    tokenizer = HFTokenizer(tiny_tokenizer(), [END])
    return LocalEngine(tiny_model(kind, seed, dtype), tokenizer, tiny_settings(**changes))


def row(prompt: list[int], response: list[int], seed: int = 0, counted: bool = True, engine=None) -> TrainRow:
    """Teacher log-probs and weights are random; old log-probs are the engine's own, or random without one."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.rand(len(response), generator=generator)  # noqa: E731
    old = engine.student.logprobs([prompt], [response])[0] if engine else -draw()
    return TrainRow(prompt, response, old, -3 * draw(), draw(), torch.full((len(response),), counted))


def rows_for(engine: LocalEngine) -> list[TrainRow]:
    return [
        row([4, 5, 6], [7, 8, 9, 10, 11, END], 0, engine=engine),
        row([12] * 9, [13, 14], 1, engine=engine),
        row([15], [16] * 20, 2, engine=engine),
        row([17, 18], [], 3, engine=engine),
        row([19, 20, 21, 22], [23, 24, 25], 4, counted=False, engine=engine),
        row([26, 27], [28, 29, 30, 31], 5, engine=engine),
    ]


def weights(engine: LocalEngine, role: str = "student") -> dict[str, torch.Tensor]:
    return {name: w.detach().clone() for name, w in getattr(engine, role).network.causal_lm.named_parameters()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


def captured_gradients(engine: LocalEngine, rows: list[TrainRow], objective=OBJECTIVE) -> tuple[dict, dict]:
    """Gradients just before the optimizer uses them, and the metrics of the step."""
    gradients = {}
    step = engine.optimizer.step

    def spy(*source) -> float:
        gradients.update({name: m.grad.clone() for name, m in engine.optimizer.masters.items()})
        return step(*source)

    engine.optimizer.step = spy
    return gradients, engine.train(rows, objective)


def plain_gradients(engine: LocalEngine, rows: list[TrainRow]) -> tuple[dict, float]:
    """The pg loss written out per token, one plain forward a row, gradient by autograd."""
    model = engine.student.network.causal_lm
    num_tokens = sum(int(r.mask.sum()) for r in rows)
    total = torch.zeros(())
    for r in rows:
        if not r.mask.any():
            continue
        logprobs = model(input_ids=torch.tensor([r.prompt + r.response])).logits[0].log_softmax(-1)
        for t, token in enumerate(r.response):
            now = logprobs[len(r.prompt) - 1 + t, token]
            advantage = (r.weights[t] * (r.teacher_logprobs[t] - now.detach())).clamp(-10, 10)
            ratio = (now - r.old_logprobs[t]).exp()
            total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) / num_tokens
    gradients = torch.autograd.grad(total, list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), gradients, strict=True)), float(total.detach())


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_gradients_equal_a_plain_per_token_loss(kind, monkeypatch):
    monkeypatch.setattr(network_module, "MAX_LOGITS", 5 * 64)  # several chunks, so that checkpointing is at work
    engine = build(kind=kind)
    rows = rows_for(engine)
    expected, loss = plain_gradients(engine, rows)
    gradients, metrics = captured_gradients(engine, rows)
    assert metrics["train/loss"] == pytest.approx(loss, abs=1e-5)
    norm = torch.sqrt(sum((gradient**2).sum() for gradient in expected.values()))
    assert metrics["train/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    for name in expected:
        torch.testing.assert_close(gradients[name], expected[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("tokens", [1, 40, 10_000])
def test_a_gradient_does_not_depend_on_micro_batches_by_tokens(tokens):
    by_rows, by_tokens = build(), build(train_mb_tokens=tokens)
    expected, _ = captured_gradients(by_rows, rows_for(by_rows))
    found, _ = captured_gradients(by_tokens, rows_for(by_tokens))
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-4)


def test_metrics_of_an_own_objective_may_be_plain_numbers(tmp_path):
    base = "from nemo_aopsd.method.objectives.base import BaseObjective\nclass Mine(BaseObjective):\n"
    call = "    def __call__(self, logprobs, **_):\n        return logprobs.mean(), {'train/half': 0.5, 'train/one': 1}"
    (tmp_path / "mine.py").write_text(base + call)
    engine = build(train_mb_tokens=1)  # a micro-batch for each of the four rows that count
    metrics = engine.train(rows_for(engine), build_objective(ObjectiveConfig(name=f"{tmp_path}/mine.py:Mine")))
    assert (metrics["train/half"], metrics["train/one"]) == (2.0, 4.0)


def test_a_gradient_that_is_not_finite_is_told_with_the_own_objective_whose_loss_is(tmp_path):
    base = "from nemo_aopsd.method.objectives.base import BaseObjective\nclass Mine(BaseObjective):\n"
    call = "    def __call__(self, logprobs, **_):\n        return (logprobs - logprobs.detach()).sum().sqrt(), {}"
    (tmp_path / "mine.py").write_text(base + call)
    engine = build()
    with pytest.raises(UserError, match=rf"^the gradient norm is nan: the loss is 0, .*={tmp_path}/mine\.py:Mine"):
        engine.train(rows_for(engine), build_objective(ObjectiveConfig(name=f"{tmp_path}/mine.py:Mine")))


def test_in_bfloat16_the_gradients_of_micro_batches_add_up():
    whole, parts = (build(dtype=torch.bfloat16, train_mb_tokens=tokens) for tokens in (10_000, 1))
    expected, _ = captured_gradients(whole, rows_for(whole))
    found, _ = captured_gradients(parts, rows_for(parts))
    for name in expected:
        assert (found[name] - expected[name]).norm() < 0.1 * expected[name].norm(), name


def test_an_empty_or_masked_row_beside_others_stays_finite_and_changes_nothing():
    engine, without = build(), build()
    rows = rows_for(engine)
    metrics = engine.train(rows, OBJECTIVE)
    assert metrics["train/skipped"] == 0
    assert all(torch.isfinite(torch.tensor(value)) for value in metrics.values())
    assert without.train([r for r in rows if r.mask.any()], OBJECTIVE) == metrics
    assert_same(weights(engine), weights(without))


def test_a_diverged_step_is_refused_before_it_reaches_the_weights():
    engine = build()
    before = weights(engine)
    bad = row([4], [5, 6])
    bad.teacher_logprobs[0] = float("nan")
    with pytest.raises(UserError, match=r"gradient norm is nan.*policy\.optimizer\.kwargs\.lr"):
        engine.train([bad], OBJECTIVE)
    assert_same(weights(engine), before)


@pytest.mark.parametrize(("kind", "decay"), [("frozen", 1.0), ("ema", 0.75), ("live", 0.0)])
def test_a_teacher_stays_or_follows_or_is_the_student(kind, decay):
    engine = build(teacher=TeacherConfig(weights=kind, ema_decay=0.75))
    expected, checksum = weights(engine), engine.teacher_checksum()
    for _ in range(3):
        engine.train(rows_for(engine), OBJECTIVE)
        expected = {key: decay * expected[key] + (1 - decay) * weight for key, weight in weights(engine).items()}
    for key, weight in weights(engine, "teacher").items():
        torch.testing.assert_close(weight, expected[key], atol=1e-6 * (kind == "ema"), rtol=1e-5 * (kind == "ema"))
    assert (engine.teacher_checksum() == checksum) == (kind == "frozen")


def test_the_checksum_sees_names_shapes_and_bytes():
    engine = build()
    checksum = engine.teacher_checksum()
    assert build().teacher_checksum() == checksum != build(seed=1).teacher_checksum()
    weight = engine.teacher.network.causal_lm.model.norm.weight
    with torch.no_grad():
        weight[0] = torch.nextafter(weight[0], torch.tensor(2.0))
    assert engine.teacher_checksum() != checksum


def test_training_forgets_the_prefixes_of_the_old_weights():
    engine = build(teacher=TeacherConfig(weights="live"))
    prompts, responses, branches = [[4, 5]], [[6, 7, 8]], [[Branch(2, [9, 10])]]
    rows = rows_for(engine)
    engine.student.logprobs(prompts, responses)
    engine.teacher.logprobs(prompts, responses)
    engine.train(rows, OBJECTIVE)
    expected = plain_logprobs(engine.student.network.causal_lm, [4, 5, 6, 7], [9, 10])
    for model in (engine.student, engine.teacher):
        torch.testing.assert_close(
            model.branch_logprobs(prompts, responses, branches)[0][0], expected, atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("kind", ["frozen", "ema", "live"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_continuing_from_a_checkpoint_equals_not_stopping(tmp_path, kind, dtype):
    changes = {"teacher": TeacherConfig(weights=kind, ema_decay=0.9)}
    straight = build(dtype=dtype, **changes)
    rows = rows_for(straight)
    straight.train(rows, OBJECTIVE)
    straight.train(rows, OBJECTIVE)
    straight.save(tmp_path)
    resumed = build(dtype=dtype, **changes)
    resumed.load(tmp_path)
    for _ in range(2):
        assert resumed.train(rows, OBJECTIVE) == straight.train(rows, OBJECTIVE)
    assert_same(weights(resumed), weights(straight))
    assert_same(weights(resumed, "teacher"), weights(straight, "teacher"))
    sampling = Sampling(max_new_tokens=10)
    assert resumed.student.generate([[4, 5]], sampling, 0) == straight.student.generate([[4, 5]], sampling, 0)


def test_a_checkpoint_before_the_first_step_loads(tmp_path):
    engine = build()
    engine.save(tmp_path)
    other = build()
    other.load(tmp_path)
    rows = rows_for(engine)
    assert other.train(rows, OBJECTIVE) == engine.train(rows, OBJECTIVE)


def test_a_failed_write_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        build().save(tmp_path / "missing")
    assert caught.value.filename == str(tmp_path / "missing/student.safetensors")


def test_small_updates_survive_bfloat16():
    """At lr 1e-4 one step is below the spacing of bfloat16 at 1.0; only float32 masters add up forty of them."""
    engine = build(dtype=torch.bfloat16, optimizer=OptimizerKwargs(lr=1e-4, weight_decay=0.0))
    before = weights(engine)["model.norm.weight"]
    rows = [row([4, 5], [9, 10, 11])]
    engine.train(rows, OBJECTIVE)
    assert torch.equal(weights(engine)["model.norm.weight"], before)
    for _ in range(39):
        engine.train(rows, OBJECTIVE)
    assert not torch.equal(weights(engine)["model.norm.weight"], before)


def test_export_reads_back_as_a_hugging_face_directory(tmp_path):
    engine = build()
    engine.train(rows_for(engine), OBJECTIVE)
    engine.export(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(
        plain_logprobs(model, [4, 5], [6, 7]), engine.student.logprobs([[4, 5]], [[6, 7]])[0], atol=1e-5, rtol=0
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "1+1"}]
    assert HFTokenizer(tokenizer, [END]).render(messages, None) == engine.tokenizer.render(messages, None)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
    assert engine.student.network.causal_lm.config._attn_implementation == attention.NAME
    assert attention.NAME not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda engine: engine.student.generate([[4]], Sampling(max_new_tokens=2), 0), "policy.generation_batch_size"),
        (lambda engine: engine.student.logprobs([[4]], [[5]]), "logprob_mb_tokens"),
        (lambda engine: engine.teacher.top_logprobs([[4]], [[5]], 2), "logprob_mb_tokens"),
        (lambda engine: engine.teacher.continue_greedily([[4]], [[5]], [[Branch(0, [])]], 2), "policy.prefix_cache_gb"),
        (lambda engine: engine.train([row([4], [5])], OBJECTIVE), "train_mb_tokens"),
    ],
)
def test_a_gpu_out_of_memory_names_the_setting_that_sizes_the_stage(monkeypatch, call, key):
    engine = build()
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    for model in (engine.student, engine.teacher):
        monkeypatch.setattr(model.network, "body", Mock(side_effect=full))
    with pytest.raises(UserError, match=f"Tried to allocate 2.00 GiB.*Lower .*{key}") as caught:
        call(engine)
    assert caught.value.__cause__ is full
