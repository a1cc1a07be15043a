"""The mixture of experts of the GPU lanes is the dense model where its experts are equal, and close to it otherwise."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.gpu.moe import DENSE, EXPERTS, write_moe


def test_equal_experts_are_the_dense_model(tmp_path):
    ids = torch.arange(4, 44)[None]
    with torch.no_grad():
        dense = AutoModelForCausalLM.from_pretrained(DENSE, dtype=torch.float32)(ids).logits
        mixture = AutoModelForCausalLM.from_pretrained(write_moe(tmp_path / "equal", noise=0.0), dtype=torch.float32)
        noisy = AutoModelForCausalLM.from_pretrained(write_moe(tmp_path / "noisy"), dtype=torch.float32)
        assert mixture.config.num_experts == EXPERTS
        assert mixture(ids).logits.numpy() == pytest.approx(dense.numpy(), abs=1e-4)
        difference = (noisy(ids).logits - dense).abs().mean()
        assert 1e-3 < difference < 0.2 * dense.std()
