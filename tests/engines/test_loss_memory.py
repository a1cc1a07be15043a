"""Comparing whole distributions takes no more memory than the sampled path: the sizes of Qwen3 divided by eight.

Live bytes are counted tensor by tensor, so the numbers are the same on every machine. At 16k tokens, and on a GPU:
benchmarks/loss_memory.py.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.loss_memory import COMPARED, GOAL, SAMPLED, LiveBytes, make_network, measure
from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.engines.local import network as network_module

V, MAX_LOGITS = 151_936 // 8, network_module.MAX_LOGITS // 8
TOKENS = 450  # three chunks of the sampled path, nine of a comparison

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="counts float32 tensors on a CPU")


def peak(config: ObjectiveConfig, tokens: int = TOKENS) -> int:
    return measure(config, make_network(V), make_network(V), tokens)


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_module, "MAX_LOGITS", MAX_LOGITS)
        yield


@pytest.fixture(scope="module")
def sampled(small_chunks) -> int:
    return peak(SAMPLED)


def test_live_bytes_by_hand():
    """Views and in-place work count nothing, and what is gone no longer counts."""
    with LiveBytes() as memory:
        a = torch.zeros(1000)
        b = a + 1
        c = a.view(10, 100)[3:]
        a.mul_(2)
        del b
        d = torch.zeros(500)
    assert (memory.live, memory.peak) == (6000, 8000)
    assert len(c) == 7 and len(d) == 500


def test_the_sampled_path_holds_a_chunk_of_logits_and_not_a_response_of_them(sampled):
    assert 4 * MAX_LOGITS <= sampled <= 4 * (4 * MAX_LOGITS) < 4 * (TOKENS * V * 3)
    assert sampled == pytest.approx(3 * 4 * MAX_LOGITS, rel=0.05)  # what `aopsd doctor` counts


@pytest.mark.parametrize(
    "config", COMPARED, ids=lambda config: f"{config.name}-{config.token_clip}-{config.top_k_form}"
)
def test_peak_memory_is_within_1_3_of_the_sampled_path(sampled, config):
    assert peak(config) <= GOAL * sampled


def test_it_grows_with_the_response_by_hidden_states_and_not_by_logits():
    small, large = (peak(ObjectiveConfig(name="fkl"), tokens) for tokens in (TOKENS, 2 * TOKENS))
    assert large - small < TOKENS * V * 4 / 20
