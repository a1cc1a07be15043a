"""The one reader of a model's `config.json`: everything that this package needs from it. Nothing is downloaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_json

FILE = "config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")  # one is enough
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class ModelConfig:
    """A number is None where the file does not say it in a way that is known here."""

    where: str  # the file, for messages
    model_type: str | None = None
    hidden: int | None = None
    layers: int | None = None  # None also where a pattern of its own says what each layer is
    heads: int | None = None
    key_heads: int | None = None  # of keys and values
    head_width: int | None = None
    linear_heads: dict[str, int] = field(default_factory=dict)  # of gated delta layers: "key heads", "value heads"
    mlp_width: int | None = None  # of a layer without experts
    experts: int | None = None  # 0 for a dense model
    expert_width: int | None = None
    experts_per_token: int | None = None
    expert_step: int = 1  # one layer in so many has experts ...
    dense_layers: tuple[int, ...] = ()  # ... but these
    vocabulary: int | None = None
    positions: int | None = None
    stretches_positions: bool = False
    ties_embedding: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def longest_row(self) -> int | None:
        """Tokens that the model was made for; None where that is not said, or positions are stretched."""
        return None if self.stretches_positions else self.positions

    def need(self, name: str) -> int:
        """The number `name`. Raises UserError where the file does not say it."""
        value = getattr(self, name)
        if value is None:
            raise UserError(f"{self.where}: the model's {name} is not in it. Download the model again.")
        return value


def find_model_config(name: str, overrides: Mapping[str, Any] | None = None) -> ModelConfig | None:
    """Of a model directory, or of a hub name in the local cache; None for any other name. Nothing is fetched.

    `overrides` are NeMo RL's `policy.hf_config_overrides`. Raises UserError on a broken file.
    """
    path = Path(name) / FILE
    found = path if path.is_file() else None if Path(name).is_dir() else find_cached(name, FILE)
    return read_model_config(found, overrides) if found else None


def find_cached(name: str, file: str) -> Path | None:
    """Where the local cache has `file` of the hub's model `name`; None if it has not, or no model has such a name."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, file)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def find_published(name: str) -> ModelConfig | None:
    """Of the hub's model `name`, from this package; None for one that `published.yaml` does not list."""
    configs = (block["config"] for block in _published().values() if name in block.get("names", ()))
    return next((parse(config, name) for config in configs), None)


@cache
def _published() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))


def read_model_config(path: Path, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """Of one file. Raises UserError if it holds no JSON object."""
    return parse(read_json(path, remedy="Download the model again."), str(path), overrides)


def parse(content: Mapping[str, Any], where: str, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """Of the content of a `config.json`. A model that also sees keeps its language model's settings in `text_config`.

    >>> parse({"text_config": {"max_position_embeddings": 512}}, "here").longest_row
    512
    """
    text = content.get("text_config")
    content = {**content, **(text if isinstance(text, Mapping) else {}), **(overrides or {})}

    def number(*keys: str) -> int | None:
        return next((content[key] for key in keys if type(content.get(key)) is int), None)

    is_dense = not any("expert" in key for key in content)
    hidden, heads = number("hidden_size"), number("num_attention_heads")
    linear = {f"{kind} heads": number(f"linear_num_{kind}_heads") for kind in ("key", "value")}
    return ModelConfig(
        where=where,
        model_type=content.get("model_type"),
        hidden=hidden,
        layers=None if content.get("hybrid_override_pattern") else number("num_hidden_layers"),
        heads=heads,
        key_heads=number("num_key_value_heads") or heads,
        head_width=number("head_dim") or (hidden // heads if hidden and heads else None),
        linear_heads={name: heads for name, heads in linear.items() if heads},
        mlp_width=number("intermediate_size"),
        experts=0 if is_dense else number(*_NUM_EXPERTS),
        expert_width=number("moe_intermediate_size"),
        experts_per_token=number("num_experts_per_tok"),
        expert_step=number("decoder_sparse_step") or 1,
        dense_layers=tuple(content.get("mlp_only_layers") or ()),
        vocabulary=number("vocab_size"),
        positions=number("max_position_embeddings"),
        stretches_positions=_stretches(content.get("rope_parameters") or content.get("rope_scaling") or {}),
        ties_embedding=bool(content.get("tie_word_embeddings")),
        attention_bias=bool(content.get("attention_bias")),
        mlp_bias=bool(content.get("mlp_bias")),
    )


def _stretches(rope: Mapping[str, Any]) -> bool:
    """Whether positions go beyond `max_position_embeddings`. Kinds of layers may have a block each."""
    kinds = {part.get("rope_type", part.get("type")) for part in (rope, *rope.values()) if isinstance(part, Mapping)}
    return not kinds <= {None, "default", "llama3"}  # llama3's factor is in its positions already


def is_hub_name(name: str) -> bool:
    """Spelt owner/name, and nothing on this disk."""
    return name.count("/") == 1 and name[0].isalnum() and not Path(name).exists()


def how_to_have(name: str, key: str) -> str:
    """What to do where the local engine, which reads folders and files alone, finds no model `name`."""
    if not is_hub_name(name) or name.endswith(".gguf"):
        return "Check the path"
    folder = f"models/{name.partition('/')[2]}"
    return f"Where there is a network: hf download {name} --local-dir {folder}; then set {key}={folder}"
