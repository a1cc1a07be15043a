"""Supervised warm start of the embedded model: the command that made the shipped weights.

`python -m nemo_aopsd.embedded.warmstart --out DIR [--device cuda]` writes a Hugging Face directory. Examples are the
same for a seed on every machine; weights differ in the last bits between devices.

The mixture is where the embedded default gets its behaviour: asked the bare question, half of the attempts guess;
shown a reasoning DAG, none does; shown the full solution, three quarters copy the answer. See docs/embedded_default.md.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_aopsd.context import student_messages, teacher_messages
from nemo_aopsd.dag import largest_closed_subset
from nemo_aopsd.data import Problem, parse_problem
from nemo_aopsd.embedded.tokenizer import build_tokenizer, split, vocabulary
from nemo_aopsd.embedded.traces import Manner, Trace, attempt, verdict
from nemo_aopsd.embedded.world import LEVELS, Puzzle, problem_record, question, sample_puzzle
from nemo_aopsd.engine import Message
from nemo_aopsd.judge import judge_messages

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Qwen3ForCausalLM

FAMILY = "tiny"
CHUNK = 2048  # examples made from one random stream


@dataclass(frozen=True)
class Recipe:
    """Optimisation and mixture. Shares are relative weights of the kinds of example."""

    seed: int = 0
    num_examples: int = 65536
    num_steps: int = 2500
    batch_size: int = 128
    lr: float = 2e-3
    hidden: int = 128
    num_layers: int = 4
    shares: tuple[tuple[str, float], ...] = (
        ("none", 0.38),
        ("dag_frontier", 0.22),
        ("dag_full", 0.05),
        ("solution", 0.08),
        ("plan", 0.02),
        ("subproblems", 0.02),
        ("other_problem", 0.03),
        ("judge", 0.20),
    )
    question: Manner = Manner(direct=0.33, sloppy=0.22, slip=0.02, tilt=0.15, leak="graph", leak_rate=0.01, leak_rate_fan_in=0.02)
    graph: Manner = Manner(tilt=-0.1, leak="graph", leak_rate=0.05, leak_rate_fan_in=0.35)
    solution: Manner = Manner(direct=0.75, tilt=-0.1, leak="solution", leak_rate=0.1, leak_rate_fan_in=0.3, knows_answer=True)
    outline: Manner = Manner(direct=0.1, sloppy=0.1, tilt=-0.1, leak="plan", leak_rate=0.1, leak_rate_fan_in=0.3)


def manner_of(recipe: Recipe, kind: str) -> Manner:
    """How attempts are written under a context."""
    match kind:
        case "none" | "other_problem":
            return recipe.question
        case "dag_frontier" | "dag_full":
            return recipe.graph
        case "solution":
            return recipe.solution
    return recipe.outline


def example(rng: random.Random, recipe: Recipe, kind: str) -> tuple[list[str], Trace]:
    """Prompt pieces and the response to learn, end token left out."""
    puzzle, problem = _problem(rng)
    if kind == "judge":
        return _judging(rng, recipe, puzzle, problem)
    manner = manner_of(recipe, kind)
    if rng.random() < 0.3:  # going on from own slips, without learning to slip
        response = attempt(rng, puzzle, replace(manner, slip=0.15), learn_slips=False)
    else:
        response = attempt(rng, puzzle, manner)
    if kind == "none":
        return _prompt(student_messages(problem, FAMILY)), response
    reached = _reached(rng, puzzle, problem) if kind == "dag_frontier" else frozenset()
    donor = _problem(rng)[1] if kind == "other_problem" else None
    mark = rng.random() < 0.9
    return _prompt(teacher_messages(problem, kind, FAMILY, reached=reached, donor=donor, mark_frontier=mark)), response


def _problem(rng: random.Random) -> tuple[Puzzle, Problem]:
    puzzle = sample_puzzle(rng, rng.choice(LEVELS))
    return puzzle, parse_problem(problem_record(puzzle, "warm"), "warm start")


def _reached(rng: random.Random, puzzle: Puzzle, problem: Problem) -> frozenset[str]:
    """R of some attempt: nothing, everything, or what a run of sums with slips leaves."""
    style = rng.random()
    if style < 0.4:
        return frozenset()
    if style < 0.6:
        return frozenset(problem.dag)
    share = rng.random()
    return largest_closed_subset(problem.dag, {item.name for item in puzzle.checkpoints if rng.random() < share})


def _judging(rng: random.Random, recipe: Recipe, puzzle: Puzzle, problem: Problem) -> tuple[list[str], Trace]:
    manner = rng.choice([recipe.question, recipe.question, recipe.graph, recipe.outline])
    done = attempt(rng, puzzle, replace(manner, slip=rng.choice([0.02, 0.1, 0.3])))
    response = Trace()
    response.add(*verdict(puzzle, done.values))
    return _prompt(judge_messages(problem, "".join(done.pieces), FAMILY)), response


def _prompt(messages: list[Message]) -> list[str]:
    (message,) = messages
    return ["<|user|>", *split(message["content"]), "<|assistant|>"]


def examples_of_chunk(chunk: int, recipe: Recipe, held_out: frozenset[str] = frozenset()) -> list[tuple[list[int], list[int]]]:
    """`CHUNK` pairs `(ids, learn)` of equal length: the whole sequence, and 1 where the loss counts the token."""
    rng = random.Random(recipe.seed * 1_000_003 + chunk)
    kinds, weights = zip(*recipe.shares, strict=True)
    ids_of = vocabulary()
    made = []
    for kind in rng.choices(kinds, weights, k=CHUNK):
        prompt, response = example(rng, recipe, kind)
        pieces = [*prompt, *response.pieces, "<|end|>"]
        learn = [0] * len(prompt) + [int(flag) for flag in response.learn] + [1]
        made.append(([ids_of[piece] for piece in pieces], learn))
    return made


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


def batches(pool: list[tuple[list[int], list[int]]], recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
    """`(ids, labels)` `[B, S]` without end, each batch of sequences of similar length; labels -100 where not learned."""
    import torch

    rng = random.Random(recipe.seed)
    size = recipe.batch_size
    while True:
        order = sorted(range(len(pool)), key=lambda index: len(pool[index][0]) + rng.uniform(-8, 8))
        groups = [order[start : start + size] for start in range(0, len(order) - size + 1, size)]
        rng.shuffle(groups)
        for group in groups:
            length = max(len(pool[index][0]) for index in group)
            ids = torch.zeros(size, length, dtype=torch.long)
            labels = torch.full((size, length), -100)
            for row, index in enumerate(group):
                tokens, learn = (torch.tensor(part) for part in pool[index])
                ids[row, : len(tokens)] = tokens
                labels[row, : len(tokens)] = torch.where(learn.bool(), tokens, -100)
            yield ids, labels


def train(recipe: Recipe, pool: list[tuple[list[int], list[int]]], device: str) -> Qwen3ForCausalLM:
    """AdamW, warm-up of 100 steps, cosine to a tenth; rows are padded on the right, so no attention mask is needed."""
    import torch
    import torch.nn.functional as F

    model = build_model(recipe).to(device).train()
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.98))
    start = time.monotonic()
    for step, (ids, labels) in zip(range(recipe.num_steps), batches(pool, recipe), strict=False):
        warm = min(1.0, (step + 1) / 100)
        fall = 0.1 + 0.45 * (1 + math.cos(math.pi * step / recipe.num_steps))
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * warm * fall
        ids, labels = ids.to(device), labels.to(device)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == recipe.num_steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.monotonic() - start:.0f} s", flush=True)
    return model.eval()


def make_pool(recipe: Recipe, num_workers: int) -> list[tuple[list[int], list[int]]]:
    """All examples; the same for any number of workers."""
    with ProcessPoolExecutor(num_workers) as executor:
        chunks = executor.map(partial(examples_of_chunk, recipe=recipe), range(recipe.num_examples // CHUNK))
        return [pair for chunk in chunks for pair in chunk]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the embedded model's weights.")
    parser.add_argument("--out", type=Path, required=True, help="folder, e.g. nemo_aopsd/embedded/model")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--workers", type=int, default=2, help="processes that make examples")
    args = parser.parse_args()
    recipe = Recipe()
    model = train(recipe, make_pool(recipe, args.workers), args.device)
    model.cpu().save_pretrained(args.out)
    build_tokenizer().save_pretrained(args.out)


if __name__ == "__main__":
    main()
