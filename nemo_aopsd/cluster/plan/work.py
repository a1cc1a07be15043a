"""FLOPs and bytes of a model's work, from its sizes alone. Multiply-adds count twice."""

from __future__ import annotations

from nemo_aopsd.cluster.doctor.model_size import ModelSize


def active_parameters(size: ModelSize) -> int:
    """In matrix products of one token, embedding and head apart; of experts the chosen ones only."""
    experts = 3 * size.hidden * size.mlp_width
    return sum(layer.attention + layer.mlp + layer.router + (experts if layer.experts else 0) for layer in size.layers)


def head_parameters(size: ModelSize) -> int:
    return size.hidden * size.vocabulary


def forward_flops(size: ModelSize, tokens: float, context: float, logits: float) -> float:
    """Of one forward over `tokens`, each attending to `context` others on average; `logits` go through the head."""
    attention = 4 * len(size.layers) * size.query_width * context
    return tokens * (2 * active_parameters(size) + attention) + 2 * logits * head_parameters(size)


def weight_bytes_read(size: ModelSize, rows: float, num_bytes: int) -> float:
    """By one decoding step of `rows` rows. An expert is read if a row chooses it; rows choose evenly, it is assumed."""
    dense = sum(layer.attention + layer.mlp + layer.router for layer in size.layers) + head_parameters(size)
    experts = sum(layer.experts * _share_chosen(size, layer.router, rows) for layer in size.layers if layer.experts)
    return num_bytes * (dense + experts)


def _share_chosen(size: ModelSize, router: int, rows: float) -> float:
    return 1 - (1 - size.experts_per_token * size.hidden / router) ** rows
