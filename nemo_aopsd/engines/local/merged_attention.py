"""Attention of one new token a row in ten kernels fewer a layer, for decoding is bound by their number.

One product makes queries, keys and values, one rotation turns them, and one copy puts keys and values into the buffer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

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
    angles = Angles()
    for module in modules:
        module.forward = MergedAttention(module, angles)
    try:
        yield len(modules)
    finally:
        for module in modules:
            del module.forward  # the class's own is back


class Angles:
    """Cosines and sines of all heads, values' among them, which do not turn; made once a step for all layers."""

    def __init__(self) -> None:
        self.of: Tensor | None = None
        self.all: tuple[Tensor, Tensor] | None = None

    def __call__(self, cos: Tensor, sin: Tensor, num_turned: int, num_still: int) -> tuple[Tensor, Tensor]:
        """From [R, 1, D] each to [R, heads, D] each."""
        if self.all is None or self.of is not cos:
            still = cos.new_ones(len(cos), num_still, cos.shape[-1])
            all_cos = torch.cat([cos.expand(-1, num_turned, -1), still], dim=1)
            all_sin = torch.cat([sin.expand(-1, num_turned, -1), torch.zeros_like(still)], dim=1)
            self.of, self.all = cos, (all_cos, all_sin)
        return self.all


class MergedAttention:
    """In place of the forward of an attention module of KINDS."""

    def __init__(self, module: Any, angles: Angles):
        self.module, self.angles = module, angles
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
        heads = _turned(heads, *self.angles(*position_embeddings, num_queries + num_keys, num_keys))
        queries, both = heads.split([num_queries, 2 * num_keys], dim=1)
        keys, values = (past_key_values if cache is None else cache).update_both(both[:, :, None], module.layer_idx)
        in_line = queries.view(num_rows, num_keys, num_queries // num_keys, -1)  # as in `grouped_sdpa`
        output = scaled_dot_product_attention(in_line, keys, values, attn_mask=attention_mask, scale=module.scaling)
        return module.o_proj(output.reshape(num_rows, 1, -1)), None


def _linears(layer: Any) -> tuple[Any, Any, Any]:
    return layer.q_proj, layer.k_proj, layer.v_proj


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`heads` [R, heads, D] by the angles of `cos` and `sin`, of the same shape, in three kernels."""
    half = heads.shape[-1] // 2
    turned = heads * cos
    turned[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return turned
