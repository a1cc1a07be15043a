"""Rotary embeddings of all rows of a pack at once.

megatron-core turns a pack row by row, unless `apply_rope_fusion` is on: twice in every layer it launches 13 small
kernels a row, 12 more in the backward pass, and waits for the GPU (models/common/embeddings/rope_utils.py). Here each
token finds its own frequencies, and the same operations turn the whole pack. The result and its gradient are the same
to the bit (tests/nemo_rl/test_packed_rope.py).
"""

from typing import Any

import torch
from megatron.core.models.common.embeddings import rope_utils
from torch import Tensor

_by_row = rope_utils._apply_rotary_pos_emb_thd


def use() -> None:
    """From now on, in this process."""
    rope_utils._apply_rotary_pos_emb_thd = rotate_pack


def rotate_pack(
    t: Tensor,  # [tokens of the pack, heads, width]
    cu_seqlens: Tensor,  # [rows + 1], where each row begins, and where the last one ends
    freqs: Tensor,  # [tokens of the longest row, 1, 1, width]
    cp_group: Any = None,
    **options: Any,
) -> Tensor:
    """`t`, turned. In place of megatron-core's function of the same arguments.

    That one takes what this does not: context parallelism, whose rows are in two halves each, and frequencies that are
    already those of the pack (a pack of one row is such a case).
    """
    if cp_group is None or cp_group.size() > 1 or len(freqs) == len(t):
        return _by_row(t, cu_seqlens, freqs, cp_group=cp_group, **options)
    fills = cu_seqlens[-1] == len(t)
    torch._assert_async(fills)  # as the split by row does, but without a wait  # pyright: ignore[reportPrivateImportUsage]
    tokens = torch.arange(len(t), device=t.device, dtype=cu_seqlens.dtype)
    starts = cu_seqlens[torch.searchsorted(cu_seqlens, tokens, right=True) - 1]
    return rope_utils._apply_rotary_pos_emb_bshd(t.unsqueeze(1), freqs[tokens - starts], **options).squeeze(1)
