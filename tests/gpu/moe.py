"""The embedded model as a mixture of experts of Qwen3-MoE's form, for the lanes `moe*` of layouts.py.

    python -m tests.gpu.moe FOLDER

Every expert is the dense model's MLP with noise of its own, so it answers as the dense model does, and the same tests
serve. Without noise it would be the dense model: the chosen experts' shares sum to 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig

DENSE = Path(__file__).parents[2] / "nemo_aopsd/builtin/model"
EXPERTS, CHOSEN = 8, 2


def write_moe(folder: Path, noise: float = 0.05) -> Path:
    """A Hugging Face directory; `noise` is relative to the standard deviation of each matrix."""
    dense = AutoModelForCausalLM.from_pretrained(DENSE, dtype=torch.float32)
    shared = {key: value for key, value in dense.config.to_dict().items() if key not in ("model_type", "architectures")}
    config = Qwen3MoeConfig(
        **shared,
        moe_intermediate_size=dense.config.intermediate_size,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        norm_topk_prob=True,
    )
    torch.manual_seed(0)
    mixture = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = {name: value for name, value in dense.state_dict().items() if ".mlp." not in name}
    assert not mixture.load_state_dict(weights, strict=False).unexpected_keys
    with torch.no_grad():
        for own, other in zip(mixture.model.layers, dense.model.layers, strict=True):
            up = torch.cat([other.mlp.gate_proj.weight, other.mlp.up_proj.weight])
            down = other.mlp.down_proj.weight
            for stack, matrix in ((own.mlp.experts.gate_up_proj, up), (own.mlp.experts.down_proj, down)):
                stack.copy_(matrix + noise * matrix.std() * torch.randn(stack.shape))
            torch.nn.init.normal_(own.mlp.gate.weight, std=1.0)  # clear choices, which rounding seldom turns
    mixture.save_pretrained(folder)
    AutoTokenizer.from_pretrained(DENSE).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    print(write_moe(Path(sys.argv[1])))
