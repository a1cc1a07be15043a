"""Attention without copies of keys and values for grouped query heads, and of rows that stand in one line."""

import inspect
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "aopsd_grouped_sdpa"
# Releases of torch that lack the word take grouped query heads without it.
_GROUPED = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


def grouped_sdpa(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs
) -> tuple[Tensor, None]:
    """Scaled dot-product attention of `query` [R, heads, Q, D] on [R, key heads, C, D]; returns [R, Q, heads, D].

    With a mask, transformers repeats each key head for the query heads that share it, in every layer (5.24 not for
    single queries). The heads of a group are queries of one key head as well, so here they stand in line instead.
    """
    if attention_mask is not None and attention_mask.dtype == torch.long:  # `line_mask`
        lengths: list[int] = attention_mask.flatten().tolist()
        if query.is_cuda:
            return _attend_in_line(query, key, value, lengths, kwargs.get("scaling")), None
        rows = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
        outputs = [sdpa_attention_forward(module, q, k, v, None, **kwargs)[0] for q, k, v in rows]
        return torch.cat(outputs, dim=1), None
    num_rows, num_heads, num_queries, head_size = query.shape
    num_key_heads = key.shape[1]
    if attention_mask is None or num_heads == num_key_heads or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    group = num_heads // num_key_heads
    in_line = query.reshape(num_rows, num_key_heads, group * num_queries, head_size)
    if num_queries > 1:
        attention_mask = attention_mask.repeat(1, 1, group, 1)
    output = torch.nn.functional.scaled_dot_product_attention(
        in_line, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling")
    )
    return output.reshape(num_rows, num_heads, num_queries, -1).transpose(1, 2).contiguous(), None


def _attend_in_line(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scale: float | None) -> Tensor:
    """One kernel for all rows, in 16 bits: of [1, heads, all tokens, D] each, [1, all tokens, heads, D]."""
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    ends = ends.to(query.device, non_blocking=True)  # or each layer would wait for the device
    longest, options = max(lengths), {"scale": scale, "window_size": (-1, 0), **_GROUPED}  # (-1, 0) is causal
    q, k, v = (side[0].transpose(0, 1) for side in (query, key, value))
    return torch.as_tensor(varlen_attn(q, k, v, ends, ends, longest, longest, **options))[None]


def line_mask(lengths: list[int]) -> Tensor:
    """What says as `attention_mask` that rows of these lengths stand in line, each causal by itself, [1, 1, 1, R]."""
    return torch.tensor(lengths)[None, None, None]


AttentionInterface.register(NAME, grouped_sdpa)
AttentionMaskInterface.register(NAME, sdpa_mask)  # or the model would take no notice of a padding mask
