"""Attention without copies of keys and values for grouped query heads, and of rows that stand in one line."""

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "aopsd_grouped_sdpa"


def grouped_sdpa(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs
) -> tuple[Tensor, None]:
    """Scaled dot-product attention of `query` [R, heads, Q, D] on [R, key heads, C, D]; returns [R, Q, heads, D].

    With a mask, transformers repeats each key head for the query heads that share it, in every layer (5.24 not for
    single queries). The heads of a group are queries of one key head as well, so here they stand in line instead.
    """
    if attention_mask is not None and attention_mask.dtype == torch.long:  # `line_mask`
        lengths = attention_mask.flatten().tolist()
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


def line_mask(lengths: list[int]) -> Tensor:
    """What says as `attention_mask` that rows of these lengths stand in line, each causal by itself, [1, 1, 1, R]."""
    return torch.tensor(lengths)[None, None, None]


AttentionInterface.register(NAME, grouped_sdpa)
AttentionMaskInterface.register(NAME, sdpa_mask)  # or the model would take no notice of a padding mask
