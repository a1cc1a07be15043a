"""The step of fixed shape against the eager one, without a GPU: a "graph" that runs the network again in place."""

from __future__ import annotations

import pytest
import torch

from nemo_aopsd.engines.local import attention
from nemo_aopsd.engines.local.decoding_step import EagerStep, GraphStep
from nemo_aopsd.engines.local.model import LocalModel
from nemo_aopsd.errors import UserError
from nemo_aopsd.types import Sampling
from tests.local_models import END, tiny_model, tiny_settings

PROMPTS = [[4 + row] * (1 + 7 * row) for row in range(9)] * 2  # 18 rows of 1 to 57 tokens, two of each


class Replayed:
    """In a CUDA graph's place: the same work on the same tensors, which must hold all that a step reads."""

    made = 0

    def __init__(self, step: GraphStep):
        self.step = step
        Replayed.made += 1

    def replay(self) -> None:
        length = self.step.kv.length
        self.step.hidden.copy_(self.step._extend())
        self.step.kv.length = length  # a graph leaves Python alone


def generate(monkeypatch, step_class, sampling, size):
    monkeypatch.setattr(GraphStep, "_capture", lambda step: Replayed(step))
    monkeypatch.setattr(LocalModel, "_step_class", step_class)
    model = LocalModel(tiny_model("qwen3"), tiny_settings(generation_batch_size=size), frozenset([END]))
    return model.generate(PROMPTS, sampling, seed=5)


@pytest.mark.parametrize(
    "sampling", [{}, {"top_k": 10, "top_p": 0.9}, {"temperature": 0}], ids=["all", "cut", "greedy"]
)
@pytest.mark.parametrize("size", [1, 8, 18])
def test_a_step_of_fixed_shape_writes_the_same_text(monkeypatch, sampling, size):
    """600 tokens: the buffer grows twice, and rows end at any time."""
    sampling = Sampling(max_new_tokens=600, **sampling)
    expected = generate(monkeypatch, EagerStep, sampling, size)
    Replayed.made = 0
    assert generate(monkeypatch, GraphStep, sampling, size) == expected
    lengths = [len(generation.tokens) for generation in expected]
    assert min(lengths) < 64 and max(lengths) > 512
    assert Replayed.made < max(lengths) / 4 * len(PROMPTS) / size  # captured where the buffer changes, not at each step


def test_a_graph_step_hides_what_is_not_written_yet():
    mask = torch.zeros(2, 1, 1, 8)
    step = GraphStep(None, type("KV", (), {"length": 3})(), mask)
    assert (step.mask[..., :3] == 0).all() and (step.mask[..., 3:] == torch.finfo(torch.float32).min).all()


def test_a_step_that_cannot_be_captured_is_refused_with_the_remedy(monkeypatch):
    class Graph:
        def capture_begin(self, **_):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    class Stream:
        def wait_stream(self, _):
            pass

    class Within:
        def __init__(self, _):
            pass

        def __enter__(self):
            pass

        def __exit__(self, *_):
            return False

    network = type(
        "N", (), {"first_graph": type("F", (), {"pool": lambda self: 1})(), "causal_lm": tiny_model("llama")}
    )
    step = GraphStep(network(), type("KV", (), {"length": 0})(), torch.zeros(1, 1, 1, 4))
    for name, value in (("CUDAGraph", Graph), ("Stream", Stream), ("stream", Within), ("current_stream", Stream)):
        monkeypatch.setattr(torch.cuda, name, value)
    with pytest.raises(UserError, match=r"LlamaForCausalLM: .* not permitted .* Set policy.enforce_eager=true"):
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
