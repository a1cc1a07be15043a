"""Supervised warm start of the embedded model: the command that made the shipped weights.

`python -m examples.builtin.warmstart --out DIR [--device cuda]` writes a Hugging Face directory. The examples are
the same on every machine; the weights differ in their last bits from device to device.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from examples.builtin.mixture import CHUNK, NUM_EXAMPLES, PLAIN_SHARE, Example, examples_of_chunk
from examples.builtin.tokenizer import save_tokenizer, vocabulary

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Qwen3ForCausalLM


@dataclass(frozen=True)
class Recipe:
    """Model size and optimisation."""

    seed: int = 0
    num_steps: int = 3000
    batch_size: int = 128
    lr: float = 3e-3
    hidden: int = 128
    num_layers: int = 3


def make_pool(num_workers: int) -> list[Example]:
    """All examples; the same for any number of workers."""
    with ProcessPoolExecutor(num_workers) as executor:
        chunks = executor.map(examples_of_chunk, range(NUM_EXAMPLES // CHUNK))
        return [example for chunk in chunks for example in chunk]


def build_model(recipe: Recipe) -> Qwen3ForCausalLM:
    """An untrained model; head size 32, one logit for each entry of the vocabulary."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(recipe.seed)
    ids = vocabulary()
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(ids),
            hidden_size=recipe.hidden,
            intermediate_size=3 * recipe.hidden,
            num_hidden_layers=recipe.num_layers,
            num_attention_heads=recipe.hidden // 32,
            num_key_value_heads=recipe.hidden // 64,
            head_dim=32,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            initializer_range=0.02,
            bos_token_id=None,
            eos_token_id=ids["<|end|>"],
            pad_token_id=ids["<|pad|>"],
        )
    )


def batches(pool: list[Example], recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
    """`(ids, labels)` `[B, S]` for `num_steps` steps; labels are -100 where nothing is learned.

    The first half of the steps uses the first half of the pool (`PLAIN_SHARE`). Rows are of mixed length on purpose:
    the loss is a mean over tokens, so batches of short rows would weigh guesses more than worked attempts.
    """
    import torch

    rng = random.Random(recipe.seed)
    size = recipe.batch_size
    border = int(PLAIN_SHARE * len(pool))
    step = 0
    while True:
        plain = step < PLAIN_SHARE * recipe.num_steps
        part = range(border) if plain else range(border, len(pool))
        order = rng.sample(part, len(part))
        groups = [order[start : start + size] for start in range(0, len(order) - size + 1, size)]
        if plain:
            groups = groups[: int(PLAIN_SHARE * recipe.num_steps) + 1 - step]
        step += len(groups)
        for group in groups:
            length = max(len(pool[index][0]) for index in group)
            ids = torch.zeros(size, length, dtype=torch.long)
            labels = torch.full((size, length), -100)
            for row, index in enumerate(group):
                tokens, learn = (torch.tensor(part) for part in pool[index])
                ids[row, : len(tokens)] = tokens
                labels[row, : len(tokens)] = torch.where(learn.bool(), tokens, -100)
            yield ids, labels


def train(recipe: Recipe, pool: list[Example], device: str, start: Path | None = None) -> Qwen3ForCausalLM:
    """AdamW, warm-up of 100 steps, cosine to a tenth; rows are padded on the right, so no attention mask is needed.

    From the weights in the folder `start`, or untrained ones.
    """
    import torch
    import torch.nn.functional as F
    from transformers import Qwen3ForCausalLM

    torch.set_float32_matmul_precision("high")  # TF32 on a GPU that has it; the shipped weights were made so
    model = (Qwen3ForCausalLM.from_pretrained(start) if start else build_model(recipe)).train()
    torch.nn.Module.to(model, device)  # in place
    optimizer = torch.optim.AdamW(_parameter_groups(model), lr=recipe.lr, betas=(0.9, 0.98))
    began = time.monotonic()
    for step, (ids, labels) in zip(range(recipe.num_steps), batches(pool, recipe), strict=False):
        warm = min(1.0, (step + 1) / 100)
        fall = 0.1 + 0.45 * (1 + math.cos(math.pi * step / recipe.num_steps))
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * warm * fall
        logits = model(input_ids=ids.to(device), use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten().to(device), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == recipe.num_steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.monotonic() - began:.0f} s", flush=True)
    return model.eval()


def _parameter_groups(model: Qwen3ForCausalLM) -> list[dict]:
    parameters = list(model.parameters())
    matrices = [each for each in parameters if each.ndim > 1]
    vectors = [each for each in parameters if each.ndim == 1]
    return [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the embedded model's weights.")
    parser.add_argument("--out", type=Path, required=True, help="folder, e.g. nemo_aopsd/builtin/model")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--workers", type=int, default=2, help="processes that make examples")
    args = parser.parse_args()
    model = train(Recipe(), make_pool(args.workers), args.device)
    model.cpu().save_pretrained(args.out)
    save_tokenizer(args.out)


if __name__ == "__main__":
    main()
