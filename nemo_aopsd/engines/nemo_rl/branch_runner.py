"""Branches as batches of vLLM 0.20's own forward, on the blocks of its prefix cache, without a request a branch.

A request takes the host about a millisecond: it hashes its whole prompt, is scheduled and put out. Here a row is hashed
once, the blocks that the cache has of it are held during the call, and all branches are one ragged batch, as vLLM's
draft proposers form theirs (v1/spec_decode/llm_base_proposer.py). A branch shares the row's whole blocks. What is left
of the row before it, less than a block, it reads again, with tokens of its own, into scratch blocks of its own.

This half is in the scheduler's process, the other one, branch_forward.py, in each of vLLM's workers, whose blocks
have the same numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
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
    shared: NDArray[np.int64]  # [B], how many of them are of the row
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
                grows = bool(batch.new.any())
                method, sizes = ("grow_branches", batch.new) if grows else ("score_branches", batch.wanted)
                parts = llm.collective_rpc(method, args=(batch,))[0].split(sizes.tolist())  # of any of the workers
                # Log-probs get a storage each, since Ray sends whole storages.
                results |= zip(share, (part.tolist() if grows else part.clone() for part in parts), strict=True)
    return [results.get(key) for key in range(len(asks))]


class _Cache:
    """vLLM's prefix cache. Nothing evicts the blocks that are held or taken before the end of a `with`."""

    def __init__(self, core: Any, salt: str):
        self.core, self.salt = core, salt
        self.pool = core.scheduler.kv_cache_manager.block_pool
        self.taken = list[list[Any]]()

    def __enter__(self) -> Self:
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
        shared=starts // size,
        wanted=np.array([ask.num_wanted for ask in asks]),
        targets=np.array([token for ask in asks if not ask.new for token in ask.tokens], dtype=np.int64),
        new=np.array([ask.new for ask in asks]),
    )
