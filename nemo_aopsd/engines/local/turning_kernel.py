"""One kernel of ours that turns queries and keys of a decoding step and stores keys and values: five of torch's.

Needs Triton, which comes with torch for GPUs, and a C compiler.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def turn_and_store(heads: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, cursor: Tensor) -> Tensor:
    """As `merged_attention.by_torch`; `keys` and `values` must be contiguous. It rounds once."""
    num_rows, num_heads, size = heads.shape
    num_keys = keys.shape[1]
    num_queries = num_heads - 2 * num_keys
    queries = torch.empty(num_rows, num_queries, size, dtype=heads.dtype, device=heads.device)
    given = heads.contiguous(), cos.contiguous(), sin.contiguous(), queries, keys, values, cursor, keys.shape[2]
    half, block = size // 2, triton.next_power_of_2(size // 2)
    launch = _turn_and_store[(num_rows, num_heads)]  # pyright: ignore[reportIndexIssue]
    launch(*given, num_queries, num_keys, half, block, num_warps=1)
    return queries


@triton.jit
def _turn_and_store(  # one program a row and head
    heads,
    cos,
    sin,
    queries,
    keys,
    values,
    cursor,
    num_columns,
    num_queries: tl.constexpr,
    num_keys: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index = tl.arange(0, block)
    inside = index < half
    source = heads + (row * (num_queries + 2 * num_keys) + head) * 2 * half + index
    first, second = tl.load(source, inside).to(tl.float32), tl.load(source + half, inside).to(tl.float32)
    if head < num_queries + num_keys:
        angle = row * 2 * half + index
        cos_first, cos_second = tl.load(cos + angle, inside), tl.load(cos + angle + half, inside)
        sin_first, sin_second = tl.load(sin + angle, inside), tl.load(sin + angle + half, inside)
        turned = first * cos_first - second * sin_first
        second = second * cos_second + first * sin_second
        first = turned
    if head < num_queries:
        target = queries + (row * num_queries + head) * 2 * half + index
    else:
        side = (head - num_queries) % num_keys
        column = ((row * num_keys + side) * num_columns + tl.load(cursor)) * 2 * half + index
        target = keys + column if head < num_queries + num_keys else values + column
    tl.store(target, first, inside)
    tl.store(target + half, second, inside)
