"""Runs our losses on several CPU processes through NeMo RL's Megatron code: `python -m tests.nemo_rl.loss_on_ranks`.

From the sharding of a batch to the sum of gradients all is NeMo RL's and Megatron's own: process groups, the packing
with its padding and zig-zag order, micro-batches, post-processors, the schedule and its scaling of the loss. The model
is not: see `parallel_cases`. A process of its own, which has Megatron's imports behind it when it forks the ranks.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.multiprocessing as mp
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.enums import ModelType
from megatron.core.transformer.transformer_config import TransformerConfig
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.megatron import train
from nemo_rl.models.megatron.data import get_microbatch_iterator, process_global_batch

from nemo_aopsd.engines.nemo_rl.batches import scoring_batch, top_k_batch, training_batch
from nemo_aopsd.engines.nemo_rl.top_k import top_k_and_norm
from nemo_aopsd.engines.nemo_rl.top_k_loss import prepare
from tests.nemo_rl.parallel_cases import (
    ALL_ROWS,
    LAYOUTS,
    LOSSES,
    PAD,
    PAD_TO,
    TOP_K,
    K,
    Rows,
    loss_fn,
    rows_for,
    student,
    teacher,
    texts,
    train_rows,
)


def _on_cpu(name: str) -> Any:
    """torch's function of that name, without the GPU that NeMo RL asks for."""
    original = getattr(torch, name)

    def function(*args: Any, pin_memory: bool = False, device: Any = None, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return function


def _without_gpu() -> ExitStack:
    """Puts what NeMo RL v0.7.0 and Megatron put on a GPU by name on the CPU; nothing else of theirs is replaced."""
    stack = ExitStack()
    stack.enter_context(patch.object(torch.Tensor, "cuda", lambda self, *args, **kwargs: self))
    stack.enter_context(patch.object(BatchedDataDict, "to", lambda self, device: self))
    stack.enter_context(patch.object(torch.cuda, "current_device", lambda: "cpu"))
    stack.enter_context(patch.object(torch.cuda, "current_stream", lambda: None))
    for name in ("tensor", "zeros"):
        stack.enter_context(patch.object(torch, name, _on_cpu(name)))
    return stack


class Tables(torch.nn.Module):
    """This rank's columns of a table of logits, as a language model in Megatron's schedule.

    With pipeline stages the last one has it. The first hands the ids on, and a gradient of zero comes back to it.
    """

    model_type = ModelType.encoder_or_decoder
    share_embeddings_and_output_weights = False

    def __init__(self, logits: torch.Tensor):
        super().__init__()
        self.pre_process = parallel_state.is_pipeline_first_stage()
        self.post_process = parallel_state.is_pipeline_last_stage()
        shards = logits.chunk(parallel_state.get_tensor_model_parallel_world_size(), dim=1)
        shard = shards[parallel_state.get_tensor_model_parallel_rank()].clone()
        self.logits = torch.nn.Parameter(shard if self.post_process else torch.ones(1))
        self.config = TransformerConfig(
            num_layers=2,
            hidden_size=1,
            num_attention_heads=1,
            pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
            pipeline_dtype=torch.float32,
            batch_p2p_comm=False,  # gloo has no batches of them
            calculate_per_token_loss=True,  # as models/megatron/setup.py has it
        )

    def set_input_tensor(self, tensor: Any) -> None:
        self.received = tensor[0] if isinstance(tensor, list) else tensor

    def forward(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        if not self.post_process:
            return (input_ids.T.unsqueeze(-1) * self.logits).contiguous()  # [S, B, 1]
        if self.pre_process:
            return self.logits[input_ids]
        ids = self.received.detach().long().squeeze(-1).T
        return (self.logits[ids] + 0 * self.received.transpose(0, 1)).contiguous()


def _data_parallel(model: Tables) -> DistributedDataParallel:
    """Megatron's wrapper, which sums the gradients of all data- and context-parallel ranks."""
    settings = DistributedDataParallelConfig(average_in_collective=False)  # as models/megatron/setup.py has it
    model.config.finalize_model_grads_func = finalize_model_grads
    wrapped = DistributedDataParallel(model.config, settings, model)
    wrapped.zero_grad_buffer()
    return wrapped


def _shares(batch: BatchedDataDict, rows: Rows) -> list[BatchedDataDict]:
    """A data-parallel rank each, as `Policy.train` and its scoring make them."""
    copies = parallel_state.get_data_parallel_world_size()
    if rows.tokens is None:
        return batch.shard_by_batch_size(copies, batch_size=None)
    packing = {
        "algorithm": "modified_first_fit_decreasing",
        "input_key": "input_ids",
        "input_lengths_key": "input_lengths",
        "sequence_length_pad_multiple": PAD_TO,
        "max_tokens_per_microbatch": rows.tokens,
    }
    return batch.shard_by_batch_size(copies, batch_size=None, sequence_packing_args=packing)[0]


def _run(
    model: Tables, batch: BatchedDataDict, rows: Rows, config: dict[str, Any], processor: Any, **counts: Any
) -> Any:
    """The micro-batches' results, in order, and their number."""
    iterator, number, size, _, width = get_microbatch_iterator(batch, config, rows.micro_batch, straggler_timer=None)
    run = partial(train.megatron_forward_backward, model, iterator, number, width, size)
    return run(processor(number), forward_only=not counts, **counts), number


def _trained(loss: str, rows: Rows, config: dict[str, Any]) -> dict[str, Any]:
    """One optimizer step as far as the gradient: the steps of `MegatronPolicyWorkerImpl.train`."""
    make = top_k_batch if loss in TOP_K else training_batch
    whole = make(train_rows(), pad_id=PAD, divisible_by=PAD_TO, rows_multiple=4)
    share = _shares(whole, rows)[parallel_state.get_data_parallel_rank()]
    model, function = _data_parallel(Tables(student())), loss_fn(loss)
    group = parallel_state.get_data_parallel_group()
    found = process_global_batch(share, function, group, batch_idx=0, batch_size=share.size)
    counts = {name: found[name] for name in ("global_valid_seqs", "global_valid_toks")}
    processor = partial(train.LossPostProcessor, function, config)
    with patch.object(train, "prepare_loss_input", prepare):  # as in our worker
        metrics, number = _run(model, found["batch"], rows, config, processor, **counts)
    return {"metrics": metrics, "number": number, "gradient": model.module.logits.main_grad.clone()}


def _scored(rows: Rows, config: dict[str, Any]) -> dict[str, Any]:
    """The teacher's log-probs and top k, of its own rows: by data-parallel rank, then by micro-batch."""
    _, responses, longer = texts()
    whole = scoring_batch(longer, responses, pad_id=PAD, divisible_by=PAD_TO, rows_multiple=4)
    share = _shares(whole, rows)[parallel_state.get_data_parallel_rank()]
    batch = share.get_batch(0, share.size)
    results, _ = _run(Tables(teacher()), batch, rows, config, lambda number: train.LogprobsPostProcessor(config))
    with patch.object(train, "distributed_vocab_topk", top_k_and_norm):
        top_k = partial(train.TopkLogitsPostProcessor, config, K + 2)
        tops, _ = _run(Tables(teacher()), batch, rows, config, lambda number: top_k())
    if not results:
        return {}  # not the last pipeline stage
    joined = {name: torch.cat([result[name] for result in results]) for name in results[0]}
    joined |= {name: torch.cat([top[name] for top in tops]) for name in tops[0]}
    return joined | {"input_ids": batch["input_ids"]}


def _on_rank(rank: int, world: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    results = {}
    with _without_gpu():
        for layout in LAYOUTS[world]:
            tensor, context, stages, _ = layout
            parallel_state.initialize_model_parallel(tensor, stages, context_parallel_size=context)
            place = {
                "is_last": parallel_state.is_pipeline_last_stage(),
                "tensor": parallel_state.get_tensor_model_parallel_rank(),
                "context": parallel_state.get_context_parallel_rank(),
                "data": parallel_state.get_data_parallel_rank(),
            }
            for loss in LOSSES:
                for name in rows_for(layout, loss):
                    rows = ALL_ROWS[name]
                    results[layout, loss, name] = place | _trained(loss, rows, rows.config(tensor, context, stages))
            for name in rows_for(layout, "pg"):
                rows = ALL_ROWS[name]
                results[layout, "scores", name] = place | _scored(rows, rows.config(tensor, context, stages))
            parallel_state.destroy_model_parallel()
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(_on_rank, (int(sys.argv[1]), sys.argv[2]), nprocs=int(sys.argv[1]), start_method="fork")
