"""Objectives on the teacher's top k as a NeMo RL loss: its top-k gather, our normalisation and our formulas.

For the input type DISTILLATION with `zero_outside_topk` NeMo RL hands over the student's log-probs of the teacher's
tokens, of the softmax over the whole vocabulary, reduced over tensor-parallel shards and gathered over
context-parallel ones, with gradient (distributed/model_utils.py, get_distillation_topk_logprobs_from_logits). What it
hands over of the teacher is normalised over the k tokens, so the batch's own column is read instead. Nothing tells of
the student's other tokens: for the objectives that read them `prepare` adds a column, which goes the same way.
"""

from collections.abc import Mapping
from typing import Any, cast
from unittest.mock import patch

import torch
from nemo_rl.algorithms.loss.interfaces import LossFunction, LossInputType, LossType
from nemo_rl.algorithms.loss.utils import prepare_loss_input
from nemo_rl.distributed import model_utils
from torch import Tensor

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.engines.nemo_rl.top_k import GatherWithRest
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.objectives.distillation import Distillation
from nemo_aopsd.method.objectives.divergences import forward_kl_on_top_k


class TopKLossFn(LossFunction):
    """A `Distillation` on the teacher's top k (`TOP_K_KEYS` of config/schema.py). It reads no `loss_fn` block."""

    input_type = LossInputType.DISTILLATION
    zero_outside_topk = True  # the student's log-probs are those of its whole distribution
    kl_type = "forward"  # else NeMo RL would form entropies, too

    def __init__(self, config: ObjectiveConfig):
        objective = build_objective(config)
        assert isinstance(objective, Distillation), "config/rules.py lets no other objective on a top k pass"
        self.objective: Distillation = objective
        self.reads_rest = self.objective.top_k_form == "tail"
        self.loss_type = LossType.TOKEN_LEVEL if config.aggregation == "token_mean" else LossType.SEQUENCE_LEVEL

    def __call__(
        self,
        student_topk_logprobs: Tensor,  # [B, S-1, K (+ 1)] with gradient; column t - 1 belongs to token t
        data: Mapping[str, Any],  # see `batches.top_k_batch`
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
        **_unread: Tensor | None,
    ) -> tuple[Tensor, dict[str, float]]:
        """As `AOPSDLossFn`. Tokens that the masks leave out may hold anything."""
        mask = (data["token_mask"] * data["sample_mask"].unsqueeze(-1))[:, 1:] > 0
        counted = mask.unsqueeze(-1)
        student = torch.where(counted, student_topk_logprobs, 0.0)
        teacher = torch.where(counted, data["teacher_topk_logits"][:, :-1].to(student), 0.0)
        k = teacher.shape[-1]
        rest = student[..., k] if self.reads_rest else None
        form, token_clip = self.objective.top_k_form, self.objective.token_clip
        divergence = forward_kl_on_top_k(student[..., :k], rest, teacher, form, token_clip)
        loss, metrics = self.objective(
            student[..., 0],
            divergence=divergence,
            mask=mask,
            num_tokens=cast(float, global_valid_toks),  # tensors that divide just as well, without waiting for a GPU
            num_rows=cast(float, global_valid_seqs),
        )
        names = [name.removeprefix("train/") for name in metrics]
        values = torch.stack([value.detach().float() for value in metrics.values()]).tolist()
        return loss, dict(zip(names, values, strict=True))


def prepare(logits: Tensor, data: Mapping[str, Any], loss_fn: LossFunction, **kwargs: Any) -> Any:
    """NeMo RL's `prepare_loss_input`, with logits cut to the row's tokens, and with the rest if the loss reads it.

    The logits of a packed row include the padding that tensor-parallel ranks and FP8 need; its columns do not. v0.7.0
    handles this with context-parallel ranks only. Without them its backward fails, because the lengths differ.
    """
    group = kwargs.get("context_parallel_group")
    if loss_fn.input_type is LossInputType.DISTILLATION and (group is None or group.size() == 1):
        logits = logits[:, : data["teacher_topk_indices"].shape[1]]
    if not getattr(loss_fn, "reads_rest", False):
        return prepare_loss_input(logits=logits, data=data, loss_fn=loss_fn, **kwargs)
    with patch.object(model_utils, "ChunkedDistributedGatherLogprob", GatherWithRest):
        return prepare_loss_input(logits=logits, data=data, loss_fn=loss_fn, **kwargs)
