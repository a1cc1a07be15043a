"""The numbers of a model that sizes of the config must fit, from its `config.json` on disk; nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_aopsd.models.hub_cache import find_cached
from nemo_aopsd.models.limits import longest_row, with_text_model

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class Architecture:
    """`where` is the file; a number is None where the file does not say it in a way that is known here."""

    where: str
    layers: int | None  # None also where Megatron cuts the pipeline by a pattern of its own
    heads: int | None
    key_value_heads: int | None
    linear_heads: dict[str, int]  # of gated delta layers: "key heads", "value heads"; empty without such layers
    mlp_width: int | None  # of a dense model
    vocabulary: int | None
    experts: int | None  # 0 for a dense model
    longest_row: int | None  # tokens


class UnreadableModel(Exception):
    """There is a config.json, and it is no JSON object."""


def find_architecture(name: str, overrides: Mapping[str, Any] | None = None) -> Architecture | None:
    """Of a model directory or a hub name in the local cache; None for any other name, which NeMo RL will look up.

    `overrides` are NeMo RL's `policy.hf_config_overrides`. Raises UnreadableModel.
    """
    path = _find_config(name)
    if path is None:
        return None
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise UnreadableModel(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise UnreadableModel(f"{path}: a {type(content).__name__}")
    return _read(with_text_model(content) | dict(overrides or {}), str(path))


def _find_config(name: str) -> Path | None:
    path = Path(name) / "config.json"
    if path.is_file() or Path(name).is_dir():
        return path if path.is_file() else None
    return find_cached(name, "config.json")


def _read(content: dict[str, Any], where: str) -> Architecture:
    def number(*keys: str) -> int | None:
        return next((content[key] for key in keys if type(content.get(key)) is int), None)

    is_dense = not any("expert" in key for key in content)
    heads = number("num_attention_heads")
    linear = {f"{kind} heads": number(f"linear_num_{kind}_heads") for kind in ("key", "value")}
    return Architecture(
        where=where,
        layers=None if content.get("hybrid_override_pattern") else number("num_hidden_layers"),
        heads=heads,
        key_value_heads=number("num_key_value_heads") or heads,
        linear_heads={name: heads for name, heads in linear.items() if heads},
        mlp_width=number("intermediate_size") if is_dense else None,
        vocabulary=number("vocab_size"),
        experts=0 if is_dense else number(*_EXPERTS),
        longest_row=longest_row(content),
    )
