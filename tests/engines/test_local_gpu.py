"""The local engine on a CUDA device against plain CPU forwards of the same weights."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

from nemo_aopsd.config.schema import ObjectiveConfig, TeacherConfig
from nemo_aopsd.engines.local.engine import LocalEngine
from nemo_aopsd.engines.local.merged_attention import by_torch, by_triton
from nemo_aopsd.engines.local.model import LocalModel
from nemo_aopsd.engines.local.network import Network
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.models.tokenizer import HFTokenizer
from nemo_aopsd.types import Branch, Sampling, TrainRow
from tests.local_models import (
    END,
    plain_continuation,
    plain_greedy,
    plain_logprobs,
    tiny_model,
    tiny_settings,
    tiny_tokenizer,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PROMPTS = [[4, 5, 6], [7] * 30, [8, 9]]
RESPONSES = [[10, 11, 12, 13], [14, 15], [16] * 40]
BRANCHES = [[Branch(0, []), Branch(4, [5]), Branch(2, [5, 6])], [], [Branch(t, [t + 4]) for t in range(0, 40, 3)]]
OBJECTIVE = build_objective(ObjectiveConfig())


def on_gpu(kind: str) -> tuple[LocalModel, object]:
    reference = tiny_model(kind)
    return LocalModel(copy.deepcopy(reference).cuda(), tiny_settings(), frozenset([END])), reference


def engine_on(device: str, dtype: torch.dtype = torch.float32, **changes) -> LocalEngine:
    model = tiny_model("qwen3", dtype=dtype).to(device)
    return LocalEngine(model, HFTokenizer(tiny_tokenizer(), [END]), tiny_settings(**changes))


def train_rows(engine: LocalEngine) -> list[TrainRow]:
    old = engine.student.logprobs(PROMPTS, RESPONSES)
    ones = [torch.ones(len(response)) for response in RESPONSES]
    return [TrainRow(p, r, o, o + 1, w, w > 0) for p, r, o, w in zip(PROMPTS, RESPONSES, old, ones, strict=True)]


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_log_probs_branches_and_greedy_text_equal_the_cpu(kind):
    model, reference = on_gpu(kind)
    for prompt, response, found in zip(PROMPTS, RESPONSES, model.logprobs(PROMPTS, RESPONSES), strict=True):
        torch.testing.assert_close(found, plain_logprobs(reference, prompt, response), atol=1e-4, rtol=0)
    continued = model.continue_greedily(PROMPTS, RESPONSES, BRANCHES, 8)
    scored = model.branch_logprobs(PROMPTS, RESPONSES, continued)
    for prompt, response, row, found_row, scores in zip(PROMPTS, RESPONSES, BRANCHES, continued, scored, strict=True):
        assert found_row == [plain_continuation(reference, prompt, response, branch, 8) for branch in row]
        for branch, found in zip(found_row, scores, strict=True):
            expected = plain_logprobs(reference, prompt + response[: branch.position], branch.tokens)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    for prompt, found in zip(
        PROMPTS, model.generate(PROMPTS, Sampling(max_new_tokens=30, temperature=0), 0), strict=True
    ):
        assert found.tokens == plain_greedy(reference, prompt, 30)


def test_the_same_seed_samples_the_same_text_on_both_devices():
    model, reference = on_gpu("llama")
    on_cpu = LocalModel(reference, tiny_settings(), frozenset([END]))
    sampling = Sampling(max_new_tokens=20, top_p=0.9, top_k=20)
    assert model.generate(PROMPTS, sampling, 3) == on_cpu.generate(PROMPTS, sampling, 3)


def test_graphs_write_what_eager_steps_write():
    """600 tokens: the buffer grows twice, rows end at any time, and each change of it is a new graph."""
    prompts = [[4 + row] * (1 + 7 * row) for row in range(9)] * 2
    texts = []
    for enforce_eager in (False, True):
        settings = tiny_settings(generation_batch_size=18, enforce_eager=enforce_eager)
        model = LocalModel(tiny_model("qwen3").cuda(), settings, frozenset([END]))
        texts.append(model.generate(prompts, Sampling(max_new_tokens=600), 5))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("shape", [(128, 12, 2, 128), (3, 6, 6, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_kernel_turns_and_stores_as_torch_does(shape, dtype):
    num_rows, num_queries, num_keys, size = shape
    draw = partial(torch.randn, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    shapes = (num_rows, num_queries + 2 * num_keys, size), (num_rows, 1, size), (num_rows, 1, size)
    given, cursor = [draw(*shape).to(dtype) for shape in shapes], torch.tensor([5], device="cuda")
    found = torch.zeros(2, num_rows, num_keys, 16, size, device="cuda", dtype=dtype)
    expected = found.double()
    queries = by_triton(found.device)(*given, *found, cursor)
    exact = by_torch(*(tensor.double() for tensor in given), *expected, cursor)
    for ours, wanted in ((queries, exact), (found, expected)):
        torch.testing.assert_close(ours.double(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_graphs_see_weights_that_have_moved():
    engine = engine_on("cuda", teacher=TeacherConfig(weights="ema", ema_decay=0.5))
    greedy = Sampling(max_new_tokens=60, temperature=0)
    before = engine.student.generate(PROMPTS, greedy, 0)
    rows = train_rows(engine)
    for _ in range(5):
        engine.train(rows, OBJECTIVE)
    for model in (engine.student, engine.teacher):
        reference = copy.deepcopy(model.network.causal_lm).cpu()
        for prompt, found in zip(PROMPTS, model.generate(PROMPTS, greedy, 0), strict=True):
            assert found.tokens == plain_greedy(reference, prompt, 60)
    assert engine.student.generate(PROMPTS, greedy, 0) != before


def test_bfloat16_decodes_what_the_model_likes_best():
    """To 0.1 nats: in bfloat16 two tokens may be as good as equal."""
    model = LocalModel(tiny_model("qwen3", dtype=torch.bfloat16).cuda(), tiny_settings(), frozenset([END]))
    texts = [found.tokens for found in model.generate(PROMPTS, Sampling(max_new_tokens=60, temperature=0), 0)]
    exact = LocalModel(tiny_model("qwen3").cuda(), tiny_settings(), frozenset([END]))
    best = exact.top_logprobs(PROMPTS, texts, 1)
    for top, own in zip(best, exact.logprobs(PROMPTS, texts), strict=True):
        assert (top.logprobs[:, 0] - own).max() < 0.1


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_rows_in_line_have_states_and_gradients_of_padded_ones(kind):
    """In bfloat16; both are held against float32, where rows are padded."""
    rows = [prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]

    def found(dtype: torch.dtype, in_line: bool) -> list[torch.Tensor]:
        network = Network(tiny_model(kind, dtype=dtype).cuda())
        assert network.in_line == (dtype != torch.float32)
        network.in_line = in_line
        states, kv = network.prefill(rows, keep_kv=True)
        torch.cat(states).square().sum().backward()
        sides = [
            side[i, :, : len(row)] for at in kv.layers for side in (at.keys, at.values) for i, row in enumerate(rows)
        ]
        return [part.detach().float() for part in (*states, *sides, *(w.grad for w in network.body.parameters()))]

    exact, line, padded = found(torch.float32, False), found(torch.bfloat16, True), found(torch.bfloat16, False)
    for expected, one, other in zip(exact, line, padded, strict=True):
        assert (one - expected).norm() <= 1.5 * (other - expected).norm() + 0.01 * expected.norm()


def test_graphs_hold_no_more_memory_after_many_calls():
    model, _ = on_gpu("qwen3")
    held = []
    for call in range(60):
        model.generate(PROMPTS, Sampling(max_new_tokens=40), call)
        held.append(torch.cuda.memory_reserved())
    assert held[-1] == held[4]


@pytest.mark.parametrize("teacher", ["frozen", "ema", "live"])
def test_a_training_step_equals_the_cpu(teacher, tmp_path):
    changes = {"teacher": TeacherConfig(weights=teacher, ema_decay=0.5)}
    gpu, cpu = engine_on("cuda", **changes), engine_on("cpu", **changes)
    rows = train_rows(cpu)
    for _ in range(2):
        assert gpu.train(rows, OBJECTIVE) == pytest.approx(cpu.train(rows, OBJECTIVE), abs=1e-3)
    gpu.save(tmp_path)
    resumed = engine_on("cuda", **changes)
    resumed.load(tmp_path)
    assert resumed.teacher_checksum() == gpu.teacher_checksum()
    assert resumed.train(rows, OBJECTIVE) == pytest.approx(gpu.train(rows, OBJECTIVE), abs=1e-5)
