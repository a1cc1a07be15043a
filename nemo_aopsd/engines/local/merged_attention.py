"""Attention of one new token a row in up to thirteen kernels fewer a layer, for decoding is bound by their number.

One product makes queries, keys and values, and one kernel of ours turns and stores them, or five of torch's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from nemo_aopsd.console import warn
from nemo_aopsd.engines.local.kv import FixedKVBuffer

# They turn halves of a head against each other, and the last two norm queries and keys first.
KINDS = ("LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention")


@contextmanager
def merged_attention(causal_lm: torch.nn.Module) -> Iterator[int]:
    """Within, attention layers of KINDS read single tokens with a mask; yields how many layers that is.

    Not those with quantised weights, which have a product of their own. It copies the weights of queries, keys and
    values, which must not change within.
    """
    layers: list[Any] = [module for module in causal_lm.modules() if type(module).__name__ in KINDS]
    modules = [layer for layer in layers if {type(part) for part in _linears(layer)} == {torch.nn.Linear}]
    for module in modules:
        module.forward = MergedAttention(module)
    try:
        yield len(modules)
    finally:
        for module in modules:
            del module.forward  # the class's own is back


class MergedAttention:
    """In place of the forward of an attention module of KINDS."""

    def __init__(self, module: Any):
        self.module = module
        linears = _linears(module)
        self.weight = torch.cat([part.weight for part in linears])
        self.bias = None if linears[0].bias is None else torch.cat([part.bias for part in linears])
        self.num_queries, self.num_keys = (part.out_features // module.head_dim for part in linears[:2])

    def __call__(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor,
        cache: FixedKVBuffer | None = None,
        past_key_values: Any = None,  # its name in earlier releases of transformers 5
        **_: Any,
    ) -> tuple[Tensor, None]:
        """`hidden_states` [R, 1, H], cosines and sines [R, 1, D] each, additive mask [R, 1, 1, columns]."""
        module, num_rows, num_queries, num_keys = self.module, len(hidden_states), self.num_queries, self.num_keys
        heads = linear(hidden_states[:, 0], self.weight, self.bias).view(num_rows, -1, module.head_dim)
        if hasattr(module, "q_norm"):
            queries, keys, values = heads.split([num_queries, num_keys, num_keys], dim=1)
            heads = torch.cat([module.q_norm(queries), module.k_norm(keys), values], dim=1)
        kv: FixedKVBuffer = past_key_values if cache is None else cache
        keys, values = kv.sides(module.layer_idx)
        turn_and_store = by_triton(heads.device) if heads.is_cuda else by_torch
        queries = turn_and_store(heads, *position_embeddings, keys, values, kv.cursor)
        in_line = queries.view(num_rows, num_keys, num_queries // num_keys, -1)  # as in `grouped_sdpa`
        output = scaled_dot_product_attention(in_line, keys, values, attn_mask=attention_mask, scale=module.scaling)
        return module.o_proj(output.reshape(num_rows, 1, -1)), None


def _linears(layer: Any) -> tuple[Any, Any, Any]:
    return layer.q_proj, layer.k_proj, layer.v_proj


@cache
def by_triton(device: torch.device) -> Any:
    """One kernel in place of `by_torch`, or that one where Triton or its C compiler is missing, which is told."""
    try:
        from nemo_aopsd.engines.local.turning_kernel import turn_and_store

        heads, angles, side = (torch.zeros(1, size, 8, device=device) for size in (3, 1, 1))
        turn_and_store(heads, angles, angles, side[None], side[None], torch.zeros(1, dtype=torch.long, device=device))
    except Exception as error:  # what Triton, its compiler and its driver raise has no common kind
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warn([f"decoding takes a tenth longer than it must, for Triton cannot build a kernel here: {reason}"])
        return by_torch
    return turn_and_store


def by_torch(heads: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, cursor: Tensor) -> Tensor:
    """Turned queries [R, Hq, D] of `heads` [R, Hq + 2 Hk, D]: queries, keys, values.

    Turned keys and plain values go into column `cursor` [1] of `keys` and `values` [R, Hk, columns, D]. `cos` and `sin`
    [R, 1, D].
    """
    num_keys = keys.shape[1]
    turned = _turned(heads[:, :-num_keys], cos, sin)
    keys.index_copy_(2, cursor, turned[:, -num_keys:, None])
    values.index_copy_(2, cursor, heads[:, -num_keys:, None])
    return turned[:, :-num_keys]


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`heads` [R, heads, D] at the positions of `cos` and `sin` [R, 1, D], in three kernels."""
    half = heads.shape[-1] // 2
    turned = heads * cos
    turned[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return turned
