"""Forward KL on the teacher's top k as a NeMo RL loss: its top-k gather, our normalisation and our formula.

For the input type DISTILLATION with `zero_outside_topk` NeMo RL hands over the student's log-probs of the teacher's
tokens, of the softmax over the whole vocabulary, reduced over tensor-parallel shards and gathered over
context-parallel ones, with gradient (distributed/model_utils.py, get_distillation_topk_logprobs_from_logits). What it
hands over of the teacher is normalised over the k tokens, so the batch's own column is read instead. Nothing tells of
the student's other tokens: the form `tail` cannot be made of this without cancellation, and is refused at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from nemo_rl.algorithms.loss.interfaces import LossFunction, LossInputType, LossType
from nemo_rl.algorithms.loss.utils import prepare_loss_input
from torch import Tensor

from nemo_aopsd.config import ObjectiveConfig
from nemo_aopsd.objectives.topk_fkl import TopKForwardKL
from nemo_aopsd.types import TopK


class TopKLossFn(LossFunction):
    """`nemo_aopsd.objectives.topk_fkl.TopKForwardKL`; the config's `loss_fn` block has no part in it."""

    input_type = LossInputType.DISTILLATION
    zero_outside_topk = True  # the student's log-probs are those of its whole distribution
    kl_type = "forward"  # else NeMo RL would form entropies, too

    def __init__(self, config: ObjectiveConfig):
        self.objective = TopKForwardKL(config)
        self.loss_type = LossType.TOKEN_LEVEL if config.aggregation == "token_mean" else LossType.SEQUENCE_LEVEL

    def __call__(
        self,
        student_topk_logprobs: Tensor,  # [B, S-1, K] with gradient; column t - 1 belongs to token t
        data: Mapping[str, Any],  # see `batches.top_k_batch`
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
        **_unread: Tensor | None,
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss and metrics, sums over this micro-batch divided by the counts of the whole batch.

        Tokens that the masks leave out may hold anything.
        """
        mask = (data["token_mask"] * data["sample_mask"].unsqueeze(-1))[:, 1:] > 0
        counted = mask.unsqueeze(-1)
        student = torch.where(counted, student_topk_logprobs, 0.0)
        teacher = torch.where(counted, data["teacher_topk_logits"][:, :-1].to(student), 0.0)
        positions = torch.arange(student.shape[-1], device=student.device).expand_as(student)
        divergence = self.objective.divergence(student, TopK(positions, teacher, teacher.new_zeros(0)))
        loss, metrics = self.objective(
            student[..., 0],
            divergence=divergence,
            mask=mask,
            num_tokens=global_valid_toks,
            num_rows=global_valid_seqs,
        )
        names = [name.removeprefix("train/") for name in metrics]
        values = torch.stack([value.detach().float() for value in metrics.values()]).tolist()
        return loss, dict(zip(names, values, strict=True))


def prepare_without_padding(logits: Tensor, data: Mapping[str, Any], loss_fn: LossFunction, **kwargs: Any) -> Any:
    """NeMo RL's `prepare_loss_input`, given no more logits than the row has tokens.

    A packed row's logits have the padding that tensor-parallel ranks and FP8 want, the row's columns have not, and
    v0.7.0 allows for that only with context-parallel ranks: its backward fails on the different lengths otherwise.
    """
    group = kwargs.get("context_parallel_group")
    if loss_fn.input_type is LossInputType.DISTILLATION and (group is None or group.size() == 1):
        logits = logits[:, : data["teacher_topk_indices"].shape[1]]
    return prepare_loss_input(logits=logits, data=data, loss_fn=loss_fn, **kwargs)
