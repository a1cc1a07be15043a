"""The step of fixed shape against the eager one, without a GPU: a "graph" that runs the network again in place."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends
from transformers import AutoConfig, AutoModelForCausalLM

from nemo_aopsd.engines.local import attention, decoding
from nemo_aopsd.engines.local.decoding_step import EagerStep, GraphStep
from nemo_aopsd.engines.local.kv import FixedKVBuffer
from nemo_aopsd.engines.local.merged_attention import by_torch, by_triton, merged_attention
from nemo_aopsd.engines.local.model import LocalModel
from nemo_aopsd.engines.local.network import Network
from nemo_aopsd.errors import UserError
from nemo_aopsd.types import Sampling
from tests.local_models import END, tiny_model, tiny_settings

ROOM = 32
PROMPTS = [[4 + row] * (1 + 7 * row) for row in range(9)] * 2  # 18 rows of 1 to 57 tokens, two of each


class Replayed:
    """In a CUDA graph's place: the same work on the same tensors, which must hold all that a step reads."""

    made = 0

    def __init__(self, step: GraphStep):
        self.step, self.addresses = step, addresses(step)
        step.hidden = step._extend()  # a capture names its tensors; what they hold comes with the replay
        assert step.mask.shape[-1] % 8 == 0
        Replayed.made += 1

    def replay(self) -> None:
        assert addresses(self.step) == self.addresses  # a graph reads where it was captured
        length = self.step.kv.length
        self.step.hidden.copy_(self.step._extend())
        self.step.kv.length = length  # and leaves Python alone


def addresses(step: GraphStep) -> list[int]:
    sides = [side for layer in step.kv._layers for side in layer]
    return [tensor.data_ptr() for tensor in (step.mask, step.tokens, step.positions, step.kv.cursor, *sides)]


def generate(monkeypatch, step_class, sampling, size):
    monkeypatch.setattr(step_class, "room", ROOM)
    monkeypatch.setattr(GraphStep, "_capture", lambda step: Replayed(step))
    monkeypatch.setattr(LocalModel, "_step_class", step_class)
    model = LocalModel(tiny_model("qwen3"), tiny_settings(generation_batch_size=size), frozenset([END]))
    return model.generate(PROMPTS, sampling, seed=5)


@pytest.mark.parametrize(
    ("sampling", "size"), [({}, 8), ({"top_k": 10, "top_p": 0.9}, 18), ({"temperature": 0}, 18), ({}, 1)]
)
def test_a_step_of_fixed_shape_writes_the_same_text(monkeypatch, sampling, size):
    """The buffer grows, and rows end at any time."""
    sampling = Sampling(max_new_tokens=80, **sampling)
    expected = generate(monkeypatch, EagerStep, sampling, size)
    Replayed.made = 0
    assert generate(monkeypatch, GraphStep, sampling, size) == expected
    lengths = [len(generation.tokens) for generation in expected]
    assert min(lengths) < ROOM and max(lengths) > 2 * ROOM
    batches = -(-len(PROMPTS) // size)
    assert Replayed.made <= batches * (1 + math.log2(size) + 80 / ROOM)  # where the buffer changes, not at each step


def test_shapes_recur_rows_by_sixteens_and_columns_by_128(monkeypatch):
    """cuDNN's attention, the first choice here, is planned for each shape: these are few."""
    shapes, kernels, extend = set(), set(), Network.extend

    def spy(network, tokens, mask, *rest):
        shapes.add(tuple(mask.shape[::3]))
        kernels.add(_cur_sdpa_kernel_backends(with_priority=True)[0])
        return extend(network, tokens, mask, *rest)

    monkeypatch.setattr(Network, "extend", spy)
    Replayed.made = 0
    generate(monkeypatch, GraphStep, Sampling(max_new_tokens=80), 18)
    assert shapes == {(18, 128), (16, 256)} and Replayed.made == 2
    assert kernels == {SDPBackend.CUDNN_ATTENTION}


@pytest.mark.parametrize(
    ("step_class", "num_rows", "num_running", "kept"),
    [
        (EagerStep, 9, 7, 7),
        (GraphStep, 40, 16, 16),
        (GraphStep, 40, 17, 32),
        (GraphStep, 40, 21, 40),
        (GraphStep, 16, 2, 16),
    ],
)
def test_how_many_rows_are_kept(step_class, num_rows, num_running, kept):
    running = torch.arange(num_rows) >= num_rows - num_running
    kv = SimpleNamespace(room=5, length=2000, rebuild=lambda rows, room: rebuilt.append((len(rows), room)))
    decoder, rebuilt = SimpleNamespace(step_class=step_class, rows=torch.arange(num_rows), kv=kv, _fit_step=str), []
    choice = decoding.Decoder._make_room(decoder, torch.arange(num_rows), running, num_running)
    assert choice.tolist() == decoder.rows.tolist() and len(choice) == kept
    assert rebuilt == ([(kept, max(step_class.room, 250))] if kept < num_rows else [])  # an eighth of its length


class Graph:
    def capture_begin(self, **_):
        pass

    def capture_end(self):
        raise RuntimeError("failed due to a previous error during capture")


class Stream:
    def wait_stream(self, _):
        pass


@pytest.mark.parametrize(
    ("error", "told", "message"),
    [
        (
            RuntimeError("not permitted\nmore"),
            UserError,
            r"LlamaForCausalLM: .*not permitted.*policy.enforce_eager=true",
        ),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError, "memory"),
    ],
)
def test_a_step_that_cannot_be_captured_says_why(monkeypatch, error, told, message):
    network = SimpleNamespace(graph_memory=(SimpleNamespace(pool=lambda: 1), Stream()), causal_lm=tiny_model("llama"))
    step = GraphStep(network, SimpleNamespace(length=0), torch.zeros(1, 1, 1, 4))
    step._extend = mock.Mock(side_effect=error)
    fakes = {
        "CUDAGraph": Graph,
        "stream": nullcontext,
        "current_stream": Stream,
        "mem_get_info": lambda _: (2**40, 2**40),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    with pytest.raises(told, match=message):
        step._capture()


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (6, 1)])
def test_grouped_attention_is_attention_with_repeated_keys(heads, queries):
    """Softmax written out, in float64."""
    torch.manual_seed(0)
    num_heads, num_keys = heads
    query = torch.randn(3, num_heads, queries, 8, dtype=torch.float64)
    key, value = torch.randn(2, 3, num_keys, 11, 8, dtype=torch.float64)
    hidden = torch.rand(3, 1, queries, 11) < 0.4
    hidden[..., 0] = False
    mask = torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, torch.finfo(torch.float64).min)
    module = type("M", (), {"num_key_value_groups": num_heads // num_keys, "is_causal": True})()
    found, _ = attention.grouped_sdpa(module, query, key, value, mask, scaling=0.3)
    key, value = (side.repeat_interleave(num_heads // num_keys, 1) for side in (key, value))
    weights = (0.3 * query @ key.transpose(-1, -2)).masked_fill(hidden, -torch.inf).softmax(-1)
    torch.testing.assert_close(found, (weights @ value).transpose(1, 2))


class Quantised(torch.nn.Linear):
    """Its weights are no matrix to multiply by."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("family", "linear", "merged"),
    [(family, torch.nn.Linear, 2) for family in ("llama", "mistral", "qwen2", "qwen3")]
    + [("phi3", torch.nn.Linear, 0), ("qwen2", Quantised, 0)],
)
def test_merged_attention_is_the_models_own(family, linear, merged):
    """In float64, with biases that are not 0 and rows of unlike length; what is not known keeps its own."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40, "pad_token_id": 0}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape, **heads)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    for name, module in model.named_modules():
        if name.endswith("v_proj"):
            module.__class__ = linear
    network = Network(model)
    with torch.no_grad():
        _, prefix = network.prefill([[4, 5, 6], [7, 8]], keep_kv=True)
        visible = torch.tensor([[True] * 4, [True, True, False, True]])

        def step() -> torch.Tensor:
            kv = FixedKVBuffer(prefix, torch.arange(2), columns=3, room=1)
            mask = network.additive(torch.nn.functional.pad(visible, (0, kv.room - 1)))[:, None, None]
            first = network.extend(torch.tensor([[9], [10]]), mask, torch.tensor([[3], [2]]), kv)
            mask[..., 4], kv.cursor = 0, kv.cursor + 1
            return torch.cat([first, network.extend(torch.tensor([[11], [12]]), mask, torch.tensor([[4], [3]]), kv)])

        expected = step()
        with merged_attention(model) as count:
            found = step()
        assert count == merged
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
        assert torch.equal(step(), expected)  # the modules' own are back


def test_where_triton_cannot_build_torchs_kernels_serve_and_that_is_told(capsys):
    assert by_triton(torch.device("cpu")) is by_torch  # it is not installed, or has no driver
    assert "warning: decoding takes a tenth longer than it must" in capsys.readouterr().err


def test_the_model_still_heeds_a_padding_mask():
    model = tiny_model("qwen3")
    expected = model(input_ids=torch.tensor([[4, 5, 6]])).logits
    Network(model)
    padded = {"input_ids": [[9, 9, 4, 5, 6]], "attention_mask": [[0, 0, 1, 1, 1]], "position_ids": [[0, 0, 0, 1, 2]]}
    found = model(**{name: torch.tensor(value) for name, value in padded.items()}).logits[:, 2:]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
