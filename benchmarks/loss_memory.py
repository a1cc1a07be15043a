"""Peak memory of one update by objective, over that of the sampled-token path: at most 1.3 is asked.

    python -m benchmarks.loss_memory [--tokens 16384] [--vocabulary 151936] [--hidden 8] [--layers 1]

One row of `--tokens` response tokens through the real loss of the local engine, forward and backward, on a Qwen3 with
random weights. On a GPU: bfloat16, the allocator's peak above what was there before, weights and teacher included in
neither. On a CPU: float32, the live bytes of every tensor that is made, counted one by one; the default body is narrow,
so that next to nothing but the loss is counted, which is the worst case for the ratio.
"""

from __future__ import annotations

import argparse
import time
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config, Qwen3ForCausalLM

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.engines.local.loss import micro_batch_loss
from nemo_aopsd.engines.local.network import Network
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.types import TopK, TrainRow

GOAL = 1.3
SAMPLED = ObjectiveConfig(name="pg")
COMPARED = [
    ObjectiveConfig(name="fkl"),
    ObjectiveConfig(name="fkl", token_clip=0.05),
    ObjectiveConfig(name="rkl"),
    ObjectiveConfig(name="jsd"),
    ObjectiveConfig(name="dash", token_clip=0.05),
    ObjectiveConfig(name="minillm"),
    ObjectiveConfig(name="eopd"),
    *(ObjectiveConfig(name="topk_fkl", top_k_form=form) for form in ("none", "renorm", "teacher_renorm", "tail")),
]
PROMPT = list(range(10))


class LiveBytes(TorchDispatchMode):
    """The most bytes that tensors made inside have held at once; what an operator needs within itself is not seen."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor) and id(leaf.untyped_storage()) not in inputs:
                self._note(leaf.untyped_storage())
        return found

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._known and self._known[key]() is storage:
            return

        def forget(_: weakref.ref) -> None:
            self.live -= size

        self._known[key] = weakref.ref(storage, forget)
        self.live += size
        self.peak = max(self.peak, self.live)


def make_network(vocabulary: int, hidden: int = 8, layers: int = 1) -> Network:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 128),
        num_key_value_heads=1,
        head_dim=min(hidden, 128),
        max_position_embeddings=65536,
        tie_word_embeddings=True,
    )
    model: Any = Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    return Network(model.to("cuda", torch.bfloat16) if torch.cuda.is_available() else model)


def make_row(tokens: int, k: int = 16) -> TrainRow:
    draw = torch.rand(tokens)
    top = TopK(torch.arange(k).repeat(tokens, 1).int(), torch.full((tokens, k), -3.0), draw + 1)
    mask = torch.ones(tokens, dtype=torch.bool)
    columns = {"teacher_prompt": PROMPT * 3, "top_k": top, "advantages": draw}
    return TrainRow(PROMPT, [5] * tokens, -draw, -draw, draw, mask, **columns)


def measure(config: ObjectiveConfig, student: Network, teacher: Network, tokens: int) -> int:
    """Peak bytes of forward and backward."""
    objective, row = build_objective(config), make_row(tokens)

    def update() -> None:
        loss, _ = micro_batch_loss(student, teacher, [row], objective, float(tokens), 1.0)
        loss.backward()

    student.causal_lm.zero_grad(set_to_none=True)
    if student.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        update()
        return torch.cuda.max_memory_allocated() - before
    with LiveBytes() as memory:
        update()
    return memory.peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 16384), ("vocabulary", 151_936), ("hidden", 8), ("layers", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    student, teacher = (make_network(args.vocabulary, args.hidden, args.layers) for _ in range(2))
    teacher.causal_lm.requires_grad_(False)
    print(f"{args.tokens} tokens, vocabulary {args.vocabulary}, {args.layers} layers x {args.hidden}, {student.device}")
    sampled, worst = 0, 0.0
    for config in (SAMPLED, *COMPARED):
        start = time.monotonic()
        found = measure(config, student, teacher, args.tokens)
        sampled = sampled or found
        worst = max(worst, found / sampled)
        name = f"{config.name} clipped" if config.token_clip else config.name
        form = config.top_k_form if config.name == "topk_fkl" else ""
        seconds = time.monotonic() - start
        print(f"{name:<12} {form:<15} {found / 2**20:8.0f} MiB  x{found / sampled:.2f}  {seconds:.1f} s", flush=True)
    print(f"worst x{worst:.2f}, asked at most x{GOAL}: {'met' if worst <= GOAL else 'MISSED'}")


if __name__ == "__main__":
    main()
