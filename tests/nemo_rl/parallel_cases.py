"""What `loss_on_ranks` runs and `test_loss_parallel` expects: layouts, losses, and one batch with its models.

A model is a table, of which it gives a row a token, so that no token sees another one. Every token id of the rows
occurs once in the whole batch. So row t of the table's gradient is the gradient by the logits at the one position that
holds t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.engines.nemo_rl.loss import AOPSDLossFn
from nemo_aopsd.engines.nemo_rl.own_loss import OwnLossFn
from nemo_aopsd.engines.nemo_rl.top_k_loss import TopKLossFn
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.types import TopK, TrainRow

PAD, VOCABULARY, K, PAD_TO = 0, 200, 5, 8
PROMPT_LENGTHS, LENGTHS = (4, 7, 1, 30), (5, 90, 37, 12)
TEACHER_EXTRA = 3  # tokens by which the teacher's prompts are longer; no student's row holds them

# Tensor, context, pipeline and data parallel sizes, by the number of processes.
LAYOUTS = {
    1: ((1, 1, 1, 1),),
    2: ((2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)),
    4: ((2, 2, 1, 1), (1, 2, 2, 1), (1, 2, 1, 2), (1, 4, 1, 1)),
}


@dataclass(frozen=True)
class Rows:
    """How the rows are laid out: `micro_batch` rows as they are, or packs of at most `tokens`."""

    micro_batch: int = 1
    tokens: int | None = None
    megatron: dict[str, Any] = field(default_factory=dict)  # what else shapes NeMo RL's padding
    fuse: bool = False
    chunk: int | None = None

    def config(self, tensor: int, context: int, stages: int) -> dict[str, Any]:
        sizes = {"tensor_model_parallel_size": tensor, "context_parallel_size": context}
        others = {"pipeline_model_parallel_size": stages, "sequence_parallel": tensor > 1}
        return {
            "sequence_packing": {"enabled": self.tokens is not None, "fuse_loss": self.fuse},
            "dynamic_batching": {"enabled": False},
            "make_sequence_length_divisible_by": PAD_TO,
            "logprob_chunk_size": self.chunk,
            "megatron_cfg": sizes | others | self.megatron,
        }


UNPACKED = {f"rows of {number}": Rows(number) for number in (1, 2, 4)}
PACKED = {
    "one pack": Rows(tokens=240),
    "two packs": Rows(tokens=112),
    "two packs in chunks": Rows(tokens=112, chunk=16),
    "fused": Rows(tokens=112, fuse=True),
    "fused in chunks": Rows(tokens=240, fuse=True, chunk=16),
    "packs padded for FP8": Rows(tokens=112, megatron={"fp8_cfg": {"enabled": True, "fp8_recipe": "blockwise"}}),
}
ALL_ROWS = UNPACKED | PACKED

PG = ObjectiveConfig(advantage_clip=0.5)
BLOCKS = {
    "pg": {},
    "pg, importance sampling": {"use_importance_sampling_correction": True},
    "pg, mean of responses": {"token_level_loss": False},
}
TOP_K = {
    "topk_fkl": ObjectiveConfig(name="topk_fkl", top_k=K),
    "topk_fkl, tail": ObjectiveConfig(name="topk_fkl", top_k=K, top_k_form="tail", aggregation="seq_mean"),
    "fkl": ObjectiveConfig(name="fkl", support=K, token_clip=0.05),
    "dash": ObjectiveConfig(name="dash", support=K, token_clip=0.05),
}
PARTS = Path(__file__).parents[2] / "examples/my_parts.py"
OWN = {
    "own": ObjectiveConfig(name=f"{PARTS}:HalfSquaredGap"),
    "own, mean of responses": ObjectiveConfig(name=f"{PARTS}:HalfSquaredGap", aggregation="seq_mean"),
}
LOSSES = (*BLOCKS, *TOP_K, *OWN)


def rows_for(layout: tuple[int, int, int, int], loss: str) -> list[str]:
    """The names of `ALL_ROWS` that NeMo RL has for this layout and loss and our checks let pass."""
    _, context, stages, copies = layout
    unpacked = [name for name, rows in UNPACKED.items() if context == 1 and rows.micro_batch <= 4 // copies]
    can_fuse = stages == 1 and loss not in TOP_K
    return [*unpacked, *(name for name, rows in PACKED.items() if can_fuse or not rows.fuse)]


def loss_fn(loss: str) -> AOPSDLossFn | TopKLossFn | OwnLossFn:
    if loss in TOP_K:
        return TopKLossFn(TOP_K[loss])
    if loss in OWN:
        return OwnLossFn(build_objective(OWN[loss]))
    return AOPSDLossFn(ClippedPGLossConfig(reference_policy_kl_penalty=0, **BLOCKS[loss]), PG)


# ---- the models and the batch


def table(seed: int) -> torch.Tensor:
    """[V, V] float32 logits of the next token. Those after padding are NaN, as padding may be."""
    logits = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    logits[PAD] = math.nan
    return logits


def student() -> torch.Tensor:
    return table(2) + 0.15 * table(5)  # has learnt since the rollouts, so the ratio is not 1


def teacher() -> torch.Tensor:
    return table(2) + 0.5 * table(3)


def logprobs(logits: torch.Tensor, prompt: list[int], response: list[int]) -> torch.Tensor:
    """[T, V] float64 of a model, in front of each response token; without NeMo RL."""
    return logits.double()[[prompt[-1], *response[:-1]]].log_softmax(-1)


def texts() -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Prompts, responses and the teacher's prompts. No id occurs twice, but for the end of both prompts."""
    ids = iter((torch.randperm(VOCABULARY - 1, generator=torch.Generator().manual_seed(0)) + 1).tolist())
    draw = lambda n: [next(ids) for _ in range(n)]  # noqa: E731
    prompts, responses = [draw(n) for n in PROMPT_LENGTHS], [draw(n) for n in LENGTHS]
    return prompts, responses, [draw(TEACHER_EXTRA) + prompt[-1:] for prompt in prompts]


def train_rows() -> list[TrainRow]:
    prompts, responses, longer = texts()
    generator = torch.Generator().manual_seed(1)
    rows = []
    for prompt, response, teacher_prompt in zip(prompts, responses, longer, strict=True):
        own = torch.arange(len(response)), torch.tensor(response)
        old, sampler = (logprobs(table(2) * scale, prompt, response)[own].float() for scale in (1, 1.02))
        of_teacher = logprobs(teacher(), teacher_prompt, response)
        values, ids = of_teacher.topk(K)
        entropy = -(of_teacher.exp() * of_teacher).sum(-1)
        mask = torch.rand(len(response), generator=generator) < 0.8
        weights = torch.rand(len(response), generator=generator)
        top_k = TopK(ids.int(), values.float(), entropy.float())
        rows.append(
            TrainRow(prompt, response, old, of_teacher[own].float(), weights, mask, sampler, teacher_prompt, top_k)
        )
    return rows
