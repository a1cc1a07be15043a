"""Forwards of branch_runner.py's batches in a vLLM worker, by its model runner's own model and attention."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nemo_aopsd.engines.nemo_rl.branch_runner import Batch
from nemo_aopsd.engines.nemo_rl.vllm_patches import CHUNK, score_chunk

GROUP = 8  # neighbours that read what all of them share once. With 1, each reads all of its own


@torch.inference_mode()
def grow(runner: Any, batch: Batch) -> Tensor:
    """New tokens, each the most likely one, branch by branch. The host waits at the end only."""
    hidden = _forward(runner, _up(runner, batch.tokens), batch)[_up(runner, np.cumsum(batch.lengths) - 1)]
    ends = batch.starts + batch.lengths
    grown = torch.zeros(len(ends), int(batch.new.max()), dtype=torch.int32, device=hidden.device)
    for step in range(grown.shape[1]):
        alive = np.flatnonzero(batch.new > step)
        lines = _up(runner, alive)
        if step:
            newest = batch._replace(
                starts=ends[alive] + step - 1,
                lengths=np.ones_like(alive),
                blocks=batch.blocks[alive],
                shared=batch.shared[alive],
            )
            hidden = _forward(runner, grown[lines, step - 1], newest)
        grown[lines, step] = torch.cat([_logits(runner, rows).argmax(-1) for rows in hidden.split(CHUNK)]).int()
    return grown.cpu()[torch.arange(grown.shape[1]) < torch.tensor(batch.new)[:, None]]


@torch.inference_mode()
def score(runner: Any, batch: Batch) -> Tensor:
    """Log-probs `[sum of wanted]` float32 of `batch.targets`."""
    hidden = _forward(runner, _up(runner, batch.tokens), batch)
    pairs = _up(runner, np.stack([_before(np.cumsum(batch.lengths), batch.wanted), batch.targets]))
    chunks = [score_chunk(_logits(runner, hidden[rows]), targets, 0)[0] for rows, targets in pairs.split(CHUNK, dim=1)]
    return torch.cat(chunks)[:, 0].cpu()


def _logits(runner: Any, hidden: Tensor) -> Tensor:
    return runner.model.compute_logits(hidden)


def _before(ends: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each end the so many whole numbers before it, ascending."""
    return np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)


def _forward(runner: Any, tokens: Tensor, batch: Batch) -> Tensor:
    """Hidden states `[N, H]` of `tokens`, which stand for the batch's own; their keys and values are in the cache then.

    As `GPUModelRunner.execute_model` does it without CUDA graphs, so that nothing is padded.
    """
    from vllm.forward_context import set_forward_context
    from vllm.v1.attention.backend import CommonAttentionMetadata

    (size,) = {group.kv_cache_spec.block_size for group in runner.attn_groups[0]}
    lengths, blocks, ends = batch.lengths, batch.blocks, batch.starts + batch.lengths
    positions = _before(ends, lengths)
    slots = blocks[np.repeat(np.arange(len(blocks)), lengths), positions // size] * np.int64(size) + positions % size
    firsts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    where, placed, ends_on_cpu = _up(runner, positions), _up(runner, slots), torch.tensor(ends, dtype=torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=_up(runner, firsts),
        query_start_loc_cpu=torch.tensor(firsts),
        seq_lens=_up(runner, ends.astype(np.int32)),
        num_reqs=len(ends),
        num_actual_tokens=len(positions),
        max_query_len=int(lengths.max()),
        max_seq_len=int(ends.max()),
        block_table_tensor=_up(runner, blocks),
        slot_mapping=placed,
        positions=where,
        seq_lens_cpu_upper_bound=ends_on_cpu,
        _seq_lens_cpu=ends_on_cpu,
    )
    together = _together(runner, firsts, ends, batch, size)
    metadata: dict[str, Any] = {}
    for group in runner.attn_groups[0]:
        built = group.get_metadata_builder().build(common_prefix_len=0, common_attn_metadata=common)
        metadata |= dict.fromkeys(group.layer_names, replace(built, **together))
    with set_forward_context(
        metadata, runner.vllm_config, num_tokens=len(positions), slot_mapping=dict.fromkeys(metadata, placed)
    ):
        return runner._model_forward(input_ids=tokens, positions=where)


def _together(
    runner: Any, firsts: NDArray[np.int32], ends: NDArray[np.int64], batch: Batch, size: int
) -> dict[str, Any]:
    """What of FlashAttention's metadata makes neighbours in a row read the blocks that all of them share once.

    Reading keys and values is most of what a step of `grow` takes. vLLM's `cascade_attention` (v1/attention/backends/
    flash_attn.py) is of one prefix that all share. Here it gets a prefix a group, whose branches are its queries.
    """
    blocks, shared = batch.blocks, batch.shared
    heads = _groups(blocks, shared)
    names = [name for group in runner.attn_groups[0] for name in group.layer_names]
    layers = [runner.compilation_config.static_forward_context[name].impl for name in names]
    if len(heads) == len(blocks) or any(i.alibi_slopes is not None or i.sliding_window != (-1, -1) for i in layers):
        return {}
    of_branch = np.repeat(shared[heads], np.diff(heads, append=len(blocks)))
    own_ends = ends - of_branch * size
    places = of_branch[:, None] + np.arange(-(-own_ends.max() // size))
    own = np.take_along_axis(blocks, np.minimum(places, blocks.shape[1] - 1), axis=1)
    most = int(shared[heads].max())
    return {
        "use_cascade": True,
        "common_prefix_len": most * size,
        "max_seq_len": most * size + int(own_ends.max()),
        "cu_prefix_query_lens": _up(runner, np.append(firsts[heads], firsts[-1:])),
        "prefix_kv_lens": _up(runner, (shared[heads] * size).astype(np.int32)),
        "suffix_kv_lens": _up(runner, own_ends.astype(np.int32)),
        "block_table": _Tables(_up(runner, blocks[heads, :most]), _up(runner, own)),
        "scheduler_metadata": None,
        "max_num_splits": 0,
    }


class _Tables:
    """Two block tables where `cascade_attention` takes them out of one: `[:1]`, the prefix's, and `[:, n:]`."""

    def __init__(self, prefix: Tensor, own: Tensor):
        self.prefix, self.own = prefix, own

    def __getitem__(self, index: Any) -> Tensor:
        return self.own if isinstance(index, tuple) else self.prefix


def _groups(blocks: NDArray[np.int32], shared: NDArray[np.int64]) -> list[int]:
    """The first branch of each group: up to GROUP neighbours that have all blocks that it has of its row."""
    heads = [0]
    for branch in range(1, len(blocks)):
        head = heads[-1]
        last = shared[head] - 1
        together = branch - head < GROUP and 0 <= last < shared[branch] and shared.min() > 0
        if not (together and blocks[branch, last] == blocks[head, last]):
            heads.append(branch)
    return heads


def _up(runner: Any, array: NDArray) -> Tensor:
    """On the runner's device, without waiting for what that still does."""
    tensor = torch.tensor(array)
    return (tensor.pin_memory() if runner.pin_memory else tensor).to(runner.device, non_blocking=True)


def why_not(runner: Any) -> str | None:
    """What this vLLM worker has that `grow` and `score` were not written for; None if nothing."""
    parallel, cache, specs = runner.parallel_config, runner.cache_config, runner.kv_cache_config.kv_cache_groups
    backends = sorted({group.backend.get_name() for groups in runner.attn_groups for group in groups})
    tables = runner.input_batch.block_table.block_tables
    reasons = {
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "data parallelism within vLLM": parallel.data_parallel_size > 1,
        "context parallelism": parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size > 1,
        "sequence parallelism": runner.compilation_config.pass_config.enable_sp,
        "no prefix caching": not cache.enable_prefix_caching,
        "a cache of another type than the model's": runner.kv_cache_dtype != runner.dtype,
        "a cache that is shared between layers": cache.kv_sharing_fast_prefill,
        "several kinds of cache": [type(spec.kv_cache_spec).__name__ for spec in specs] != ["FullAttentionSpec"],
        "blocks that attention splits": any(table.blocks_per_kv_block > 1 for table in tables),
        f"attention by {', '.join(backends)}": backends != ["FLASH_ATTN"],
        "speculative decoding": runner.speculative_config is not None,
        "LoRA": runner.lora_config is not None,
        "a transfer of the cache": runner.vllm_config.kv_transfer_config is not None,
        "inputs that are no tokens": runner.supports_mm_inputs or runner.enable_prompt_embeds or runner.uses_mrope,
    }
    return next((reason for reason, has in reasons.items() if has), None)
