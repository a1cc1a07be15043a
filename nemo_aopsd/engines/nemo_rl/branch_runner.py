"""Branches as batches of vLLM 0.20's own forward, on the blocks of its prefix cache, without a request a branch.

A request takes the host about a millisecond: it hashes its whole prompt, is scheduled and put out. Here a row is hashed
once, the blocks that the cache has of it are held during the call, and all branches are one ragged batch, as vLLM's
draft proposers form theirs (v1/spec_decode/llm_base_proposer.py). A branch shares the row's whole blocks. What is left
of the row before it, less than a block, it reads again, with tokens of its own, into scratch blocks of its own.

`run` belongs into the scheduler's process; `grow`, `score` and `why_not` into each of vLLM's workers, whose blocks have
the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from nemo_aopsd.engines.nemo_rl.vllm_patches import CHUNK, score_chunk

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from nemo_aopsd.types import Tokens


class Ask(NamedTuple):
    """A branch: `tokens` behind the first `shared` tokens of a row. `new` more are wanted; if 0, its own are scored."""

    row: int
    shared: int
    tokens: Tokens
    new: int = 0

    @property
    def num_wanted(self) -> int:
        """How many of the positions that are read first, the last ones, predict a token that is wanted."""
        return 1 if self.new else len(self.tokens)

    @property
    def end(self) -> int:
        """Behind the positions that are read first. A token to be scored is read only if another one follows it."""
        return self.shared + len(self.tokens) - (not self.new)

    @property
    def last(self) -> int:
        """Behind all positions that are read."""
        return self.end + max(self.new - 1, 0)

    def start(self, size: int) -> int:
        """The first position that is read. A block of `size` tokens begins there; those before it are the row's."""
        return min(self.shared, self.end - self.num_wanted) // size * size

    def num_scratch(self, size: int) -> int:
        return -(-(self.last - self.start(size)) // size)


class Batch(NamedTuple):
    """B branches, one behind the other. Arrays, since they go to other processes."""

    tokens: NDArray[np.int32]  # [N], all that are read first
    starts: NDArray[np.int64]  # [B], position of each one's first token
    lengths: NDArray[np.int64]  # [B]
    blocks: NDArray[np.int32]  # [B, M], of the row, then its own; 0 behind them
    wanted: NDArray[np.int64]  # [B], `Ask.num_wanted`
    targets: NDArray[np.int64]  # [sum of wanted], tokens to score; empty if they grow
    new: NDArray[np.int64]  # [B]


def run(
    llm: Any, rows: list[Tokens], asks: list[Ask], salt: str, read: Callable[[list[Tokens]], Any]
) -> list[list[int] | Tensor | None]:
    """Of each of `asks`, which all grow or are all scored: its new tokens (not cut at an end), or its log-probs.

    `read` makes a request of each beginning of a row that the cache lacks. None where that did not help, where a branch
    fits into no batch, and where nothing is asked.
    """
    core = llm.llm_engine.engine_core.engine_core
    size = core.scheduler.block_size
    results: dict[int, list[int] | Tensor] = {}
    for wave in _waves(asks, core.scheduler):
        needed: dict[int, int] = {}
        for ask in wave.values():
            needed[ask.row] = max(needed.get(ask.row, 0), ask.start(size))
        beginnings = {row: rows[row][:length] for row, length in needed.items()}
        with _Cache(core, salt) as cache:
            held = cache.hold(beginnings)
            if missing := {row: tokens for row, tokens in beginnings.items() if row not in held}:
                read([*missing.values()])
                held |= cache.hold(missing)
            possible = {key: ask for key, ask in wave.items() if ask.row in held}
            shares = list(_shares(possible, core.scheduler, cache.pool.get_num_free_blocks()))
            scratch = cache.take(max((sum(asks[key].num_scratch(size) for key in each) for each in shares), default=0))
            for share in shares:
                batch = _batch(rows, [asks[key] for key in share], held, scratch, size)
                method = "grow_branches" if batch.new.any() else "score_branches"
                found = llm.collective_rpc(method, args=(batch,))[0]  # of any of the workers
                results |= zip(share, _by_branch(batch, found), strict=True)
    return [results.get(key) for key in range(len(asks))]


class _Cache:
    """vLLM's prefix cache. Nothing evicts the blocks that are held or taken before the end of a `with`."""

    def __init__(self, core: Any, salt: str):
        self.core, self.salt = core, salt
        self.pool = core.scheduler.kv_cache_manager.block_pool
        self.taken = list[list[Any]]()

    def __enter__(self) -> _Cache:
        return self

    def __exit__(self, *_: object) -> None:
        for blocks in self.taken:  # each list by itself: the pool would take back twice what is twice in one
            self.pool.free_blocks(reversed(blocks))  # the end of a row is evicted first, as vLLM has it

    def hold(self, beginnings: Mapping[int, Tokens]) -> dict[int, NDArray[np.int32]]:
        """Numbers of the blocks of those rows that the cache has whole."""
        found = {row: self._find(tokens) for row, tokens in beginnings.items()}
        whole = {row: blocks for row, blocks in found.items() if blocks is not None}
        for blocks in whole.values():
            self.pool.touch(blocks)
            self.taken.append(blocks)
        return {row: _numbers(blocks) for row, blocks in whole.items()}

    def take(self, count: int) -> NDArray[np.int32]:
        """Numbers of `count` blocks to write to."""
        self.taken.append(self.pool.get_new_blocks(count))
        return _numbers(self.taken[-1])

    def _find(self, tokens: Tokens) -> list[Any] | None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        hasher = self.core.request_block_hasher
        request = Request("", tokens, SamplingParams(max_tokens=1), None, cache_salt=self.salt, block_hasher=hasher)
        found = [self.pool.get_cached_block(name, [0]) for name in request.block_hashes]
        return None if None in found else [block for (block,) in found]


def _numbers(blocks: list[Any]) -> NDArray[np.int32]:
    return np.array([block.block_id for block in blocks], dtype=np.int32)


def _waves(asks: list[Ask], scheduler: Any) -> Iterator[dict[int, Ask]]:
    """`asks` by place, whole rows, as many as the cache has blocks for at once, but at least one row."""
    size, room = scheduler.block_size, scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    by_row: dict[int, dict[int, Ask]] = {}
    for place, ask in enumerate(asks):
        if ask.tokens or ask.new:
            by_row.setdefault(ask.row, {})[place] = ask
    wave, used = dict[int, Ask](), 0
    for own in by_row.values():
        needed = max(ask.start(size) for ask in own.values()) // size
        needed += sum(ask.num_scratch(size) for ask in own.values())
        if wave and used + needed > room:
            yield wave
            wave, used = {}, 0
        wave, used = wave | own, used + needed
    if wave:
        yield wave


def _shares(asks: Mapping[int, Ask], scheduler: Any, num_blocks: int) -> Iterator[list[int]]:
    """Keys of `asks` by batch, in order, so that branches of a row stay together. None of what fits into no batch."""
    limits, size = scheduler.scheduler_config, scheduler.block_size
    share, num_tokens, num_scratch = list[int](), 0, 0
    for key, ask in asks.items():
        tokens, scratch = ask.end - ask.start(size), ask.num_scratch(size)
        if tokens > limits.max_num_batched_tokens or scratch > num_blocks or ask.last >= scheduler.max_model_len:
            continue
        is_full = len(share) == limits.max_num_seqs  # so long is the buffer of FlashAttention's schedule
        is_full |= num_tokens + tokens > limits.max_num_batched_tokens or num_scratch + scratch > num_blocks
        if is_full:
            yield share
            share, num_tokens, num_scratch = [], 0, 0
        share.append(key)
        num_tokens, num_scratch = num_tokens + tokens, num_scratch + scratch
    if share:
        yield share


def _batch(rows: list[Tokens], asks: list[Ask], of_row: Mapping[int, NDArray], scratch: NDArray, size: int) -> Batch:
    blocks = np.zeros((len(asks), max(-(-ask.last // size) for ask in asks)), dtype=np.int32)
    tokens, used = list[int](), 0
    for line, ask in zip(blocks, asks, strict=True):
        start, more = ask.start(size), ask.num_scratch(size)
        first = start // size
        line[:first] = of_row[ask.row][:first]
        line[first : first + more] = scratch[used : used + more]
        used += more
        tokens += (rows[ask.row][start : ask.shared] + ask.tokens)[: ask.end - start]
    starts = np.array([ask.start(size) for ask in asks])
    return Batch(
        tokens=np.array(tokens, dtype=np.int32),
        starts=starts,
        lengths=np.array([ask.end for ask in asks]) - starts,
        blocks=blocks,
        wanted=np.array([ask.num_wanted for ask in asks]),
        targets=np.array([token for ask in asks if not ask.new for token in ask.tokens], dtype=np.int64),
        new=np.array([ask.new for ask in asks]),
    )


def _by_branch(batch: Batch, found: Tensor) -> list[list[int] | Tensor]:
    """What `grow` or `score` found, by branch; log-probs with a storage each, since Ray sends whole storages."""
    if batch.new.any():
        return [part.tolist() for part in found.split(batch.new.tolist())]
    return [part.clone() for part in found.split(batch.wanted.tolist())]


@torch.inference_mode()
def grow(runner: Any, batch: Batch) -> Tensor:
    """New tokens, each the most likely one, branch by branch. The host waits at the end only."""
    ends = batch.starts + batch.lengths
    hidden = _forward(runner, _up(runner, batch.tokens), batch.starts, batch.lengths, batch.blocks)
    hidden = hidden[_up(runner, np.cumsum(batch.lengths) - 1)]
    grown = torch.zeros(len(ends), int(batch.new.max()), dtype=torch.int32, device=hidden.device)
    for step in range(grown.shape[1]):
        alive = np.flatnonzero(batch.new > step)
        lines = _up(runner, alive)
        if step:
            once = np.ones_like(alive)
            hidden = _forward(runner, grown[lines, step - 1], ends[alive] + step - 1, once, batch.blocks[alive])
        grown[lines, step] = torch.cat([_logits(runner, rows).argmax(-1) for rows in hidden.split(CHUNK)]).int()
    return grown.cpu()[torch.arange(grown.shape[1]) < torch.tensor(batch.new)[:, None]]


@torch.inference_mode()
def score(runner: Any, batch: Batch) -> Tensor:
    """Log-probs `[sum of wanted]` float32 of `batch.targets`."""
    hidden = _forward(runner, _up(runner, batch.tokens), batch.starts, batch.lengths, batch.blocks)
    pairs = _up(runner, np.stack([_before(np.cumsum(batch.lengths), batch.wanted), batch.targets]))
    chunks = [score_chunk(_logits(runner, hidden[rows]), targets, 0)[0] for rows, targets in pairs.split(CHUNK, dim=1)]
    return torch.cat(chunks)[:, 0].cpu()


def _logits(runner: Any, hidden: Tensor) -> Tensor:
    return runner.model.compute_logits(hidden)


def _before(ends: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each end the so many whole numbers before it, ascending."""
    return np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)


def _forward(
    runner: Any, tokens: Tensor, starts: NDArray[np.int64], lengths: NDArray[np.int64], blocks: NDArray[np.int32]
) -> Tensor:
    """Hidden states `[N, H]` of `tokens`, whose keys and values are in the cache then. See `Batch`.

    As `GPUModelRunner.execute_model` does it without CUDA graphs, so that nothing is padded.
    """
    from vllm.forward_context import set_forward_context
    from vllm.v1.attention.backend import CommonAttentionMetadata

    ends = starts + lengths
    positions = _before(ends, lengths)
    (size,) = {group.kv_cache_spec.block_size for group in runner.attn_groups[0]}
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
    metadata: dict[str, Any] = {}
    for group in runner.attn_groups[0]:
        built = group.get_metadata_builder().build(common_prefix_len=0, common_attn_metadata=common)
        metadata |= dict.fromkeys(group.layer_names, built)
    with set_forward_context(
        metadata, runner.vllm_config, num_tokens=len(positions), slot_mapping=dict.fromkeys(metadata, placed)
    ):
        return runner._model_forward(input_ids=tokens, positions=where)


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
