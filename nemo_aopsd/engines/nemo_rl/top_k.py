"""The top k of logits that are split over tensor-parallel ranks, with what makes log-probs of them."""

from __future__ import annotations

import torch
from nemo_rl.distributed.model_utils import distributed_vocab_topk
from torch import Tensor, distributed

from nemo_aopsd.errors import UserError


def top_k_and_norm(
    vocab_parallel_logits: Tensor,  # [B, S, V_local]
    k: int,
    tp_group: distributed.ProcessGroup,
    *,
    vocab_start_index: int,
    vocab_end_index: int,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Stands in for NeMo RL's `distributed_vocab_topk`, which gives bare logits: values and ids, both [B, S, k].

    The first k - 2 columns are the most likely tokens. Of the values the last but one is the logsumexp over the whole
    vocabulary and the last the entropy in nats (their ids are 0), so that both take NeMo RL's way through packing,
    context-parallel ranks and pipeline stages. Raises UserError if k - 2 exceeds the vocabulary.
    """
    vocabulary = vocab_parallel_logits.shape[-1] * distributed.get_world_size(tp_group)
    if k - 2 > vocabulary:
        raise UserError(f"aopsd.objective.top_k is {k - 2}, the vocabulary {vocabulary}: lower it, 16 is usual")
    bounds = {"vocab_start_index": vocab_start_index, "vocab_end_index": vocab_end_index}
    values, ids = [], []
    for chunk in vocab_parallel_logits.split(chunk_size or vocab_parallel_logits.shape[1], dim=1):
        logits = chunk.float()
        top, top_ids = distributed_vocab_topk(logits, k - 2, tp_group, **bounds)
        values.append(torch.cat([top, torch.stack(_norm_and_entropy(logits, tp_group), dim=-1)], dim=-1))
        ids.append(torch.nn.functional.pad(top_ids, (0, 2)))
    return torch.cat(values, dim=1), torch.cat(ids, dim=1)


def _norm_and_entropy(logits: Tensor, group: distributed.ProcessGroup) -> tuple[Tensor, Tensor]:
    """log Z and H = log Z - E[logit], both [B, S], of float32 logits [B, S, V_local]."""
    highest = logits.amax(-1)
    distributed.all_reduce(highest, distributed.ReduceOp.MAX, group=group)
    shifted = logits - highest.unsqueeze(-1)
    powers = shifted.exp()
    sums = torch.stack([powers.sum(-1), powers.mul_(shifted).sum(-1)])
    distributed.all_reduce(sums, group=group)
    log_sum = sums[0].log()
    return highest + log_sum, log_sum - sums[1] / sums[0]
