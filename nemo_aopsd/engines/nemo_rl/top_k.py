"""The top k of logits that are split over tensor-parallel ranks, with what turns them into log-probs."""

from typing import cast

import torch
from nemo_rl.distributed.model_utils import (
    ChunkedDistributedGatherLogprob,
    distributed_vocab_topk,
    group_all_reduce_sum_with_grad,
)
from torch import Tensor, distributed
from torch.utils.checkpoint import checkpoint

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
        found = f"the vocabulary has {vocabulary} tokens; expected at least the {k - 2} that are compared"
        raise UserError(f"{found}. Lower aopsd.objective.top_k, or aopsd.objective.support for fkl and dash.")
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
    shifted.masked_fill_(powers == 0, 0.0)  # a word of probability 0 adds nothing; 0 * -inf would be NaN
    sums = torch.stack([powers.sum(-1), powers.mul_(shifted).sum(-1)])
    distributed.all_reduce(sums, group=group)
    log_sum = sums[0].log()
    return highest + log_sum, log_sum - sums[1] / sums[0]


class GatherWithRest:
    """Stands in for NeMo RL's `ChunkedDistributedGatherLogprob`, and adds a column: log(1 - the others' sum)."""

    @staticmethod
    def apply(
        vocab_parallel_logits: Tensor,  # [B, S, V_local], with gradient
        ids: Tensor,  # [B, S, K], of the whole vocabulary
        vocab_start_index: int,
        vocab_end_index: int,
        chunk_size: int,
        tp_group: distributed.ProcessGroup,
        inference_only: bool = False,
    ) -> Tensor:
        """Log-probs [B, S, K + 1] float32 of `ids`, and of all other tokens together."""
        bounds = vocab_start_index, vocab_end_index
        of_ids = ChunkedDistributedGatherLogprob.apply(
            vocab_parallel_logits, ids, *bounds, chunk_size, tp_group, inference_only
        )
        chunks = zip(vocab_parallel_logits.split(chunk_size, dim=1), ids.split(chunk_size, dim=1), strict=True)
        options = {"vocab_start_index": vocab_start_index, "group": tp_group, "use_reentrant": False}
        rest = [cast(Tensor, checkpoint(_logprob_of_rest, *chunk, **options)) for chunk in chunks]
        return torch.cat([of_ids, torch.cat(rest, dim=1).unsqueeze(-1)], dim=-1)


def _logprob_of_rest(logits: Tensor, ids: Tensor, vocab_start_index: int, group: distributed.ProcessGroup) -> Tensor:
    """log of the probability of all tokens but `ids`, [B, S]; summed, as one minus that of `ids` would cancel.

    Finite, and meaningless, where `ids` are the whole vocabulary.
    """
    num_local = logits.shape[-1]
    local = ids - vocab_start_index
    local = torch.where((local >= 0) & (local < num_local), local, num_local)  # others' ids fall into a spare column
    excluded = torch.zeros(*logits.shape[:-1], num_local + 1, dtype=torch.bool, device=logits.device)
    excluded = excluded.scatter(-1, local, True)[..., :-1]
    logits = logits.float()
    return _logsumexp(logits.masked_fill(excluded, -torch.inf), group) - _logsumexp(logits, group)


def _logsumexp(logits: Tensor, group: distributed.ProcessGroup) -> Tensor:
    """[B, S] of logits [B, S, V_local], with gradient; 0 where all are -inf."""
    highest = logits.detach().amax(-1)
    distributed.all_reduce(highest, distributed.ReduceOp.MAX, group=group)
    highest = torch.where(highest == -torch.inf, 0.0, highest)
    total = group_all_reduce_sum_with_grad((logits - highest.unsqueeze(-1)).exp().sum(-1), group)
    return highest + torch.where(total == 0, 1.0, total).log()
