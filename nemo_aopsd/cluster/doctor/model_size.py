"""Parameters of a model from its `config.json`: dense Llama-like decoders, and mixtures of experts.

Counts are exact for the families below (tests hold them to published counts and to transformers' own models).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nemo_aopsd.errors import UserError

DENSE = ("llama", "mistral", "qwen2", "qwen3")
EXPERTS = ("qwen3_moe",)


@dataclass(frozen=True)
class Layer:
    """Parameters of one decoder layer."""

    attention: int
    mlp: int  # 0 where experts take its place
    router: int
    experts: int  # all of them
    norms: int

    @property
    def shared(self) -> int:
        """What every expert-parallel rank has: all but the experts."""
        return self.attention + self.mlp + self.router + self.norms


@dataclass(frozen=True)
class ModelSize:
    """Numbers of parameters, and the widths that memory depends on."""

    layers: tuple[Layer, ...]
    embedding: int
    head: int  # 0 where it is the embedding
    final_norm: int
    hidden: int
    vocabulary: int
    query_width: int  # heads x width of a head
    key_heads: int
    head_width: int
    mlp_width: int  # at work on one token, the chosen experts' together
    experts_per_token: int  # 0 for a dense model

    @property
    def total(self) -> int:
        body = sum(layer.shared + layer.experts for layer in self.layers)
        return body + self.embedding + self.head + self.final_norm

    @property
    def is_moe(self) -> bool:
        return any(layer.experts for layer in self.layers)

    def kv_bytes(self, num_bytes: int = 2) -> int:
        """Keys and values of one token in all layers."""
        return 2 * len(self.layers) * self.key_heads * self.head_width * num_bytes


def read_size(config: dict[str, Any]) -> ModelSize:
    """From the content of `config.json`. Raises UserError on a family whose layers are not known here."""
    family = config.get("model_type")
    if family not in (*DENSE, *EXPERTS):
        raise UserError(f"model_type {family!r}: parameters are counted for {', '.join((*DENSE, *EXPERTS))} only.")
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    key_heads = config.get("num_key_value_heads") or heads
    layers = tuple(
        _layer(config, index, heads * width, key_heads * width) for index in range(config["num_hidden_layers"])
    )
    embedding = config["vocab_size"] * hidden
    chosen = config["num_experts_per_tok"] if family in EXPERTS else 0
    return ModelSize(
        layers=layers,
        embedding=embedding,
        head=0 if config.get("tie_word_embeddings", False) else embedding,
        final_norm=hidden,
        hidden=hidden,
        vocabulary=config["vocab_size"],
        query_width=heads * width,
        key_heads=key_heads,
        head_width=width,
        mlp_width=chosen * config["moe_intermediate_size"] if chosen else config["intermediate_size"],
        experts_per_token=chosen,
    )


def _layer(config: dict[str, Any], index: int, query: int, key: int) -> Layer:
    family, hidden = config["model_type"], config["hidden_size"]
    attention = 2 * hidden * query + 2 * hidden * key
    if family == "qwen2" or config.get("attention_bias"):
        attention += query + 2 * key
    if config.get("attention_bias") and family != "qwen2":
        attention += hidden  # of the output projection
    if family in ("qwen3", "qwen3_moe"):
        attention += 2 * (config.get("head_dim") or hidden // config["num_attention_heads"])
    if _has_experts(config, index):
        number = config["num_experts"]
        experts = number * 3 * hidden * config["moe_intermediate_size"]
        return Layer(attention, 0, number * hidden, experts, 2 * hidden)
    mlp = 3 * hidden * config["intermediate_size"]
    if config.get("mlp_bias"):
        mlp += 2 * config["intermediate_size"] + hidden
    return Layer(attention, mlp, 0, 0, 2 * hidden)


def _has_experts(config: dict[str, Any], index: int) -> bool:
    if config["model_type"] not in EXPERTS or index in (config.get("mlp_only_layers") or ()):
        return False
    return (index + 1) % (config.get("decoder_sparse_step") or 1) == 0
