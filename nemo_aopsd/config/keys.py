"""Which keys a config may have, and of which type: NeMo RL's blocks are open but for slips, `aopsd:` is strict.

Checked a layer at a time (one file, or one override), so that an error names the line that caused it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_aopsd.config.schema import AOPSDConfig
from nemo_aopsd.errors import UserError, nearest

# Top-level blocks of NeMo RL's recipes; ours is `aopsd`.
NEMO_RL_BLOCKS = (
    *("policy", "data", "logger", "checkpointing", "cluster", "env", "loss_fn"),
    *("grpo", "distillation", "teacher", "sft", "dpo", "rm", "generation", "tokenizer", "eval"),
)


# Keys of NeMo RL's that look like one of ours beside them.
_ALIKE = ("policy.logprob_chunk_size", "policy.train_global_batch_size")

Origins = dict[str, str]  # dotted key -> where it was written: `file:line`, or the override


@dataclass(frozen=True, slots=True)
class Layer:
    """One config file or one override."""

    tree: DictConfig
    origins: Origins


def config_schema() -> DictConfig:
    """The `aopsd:` block with its types and defaults. OmegaConf 2.3 takes a frozen dataclass for read-only defaults."""
    return _writable(OmegaConf.structured(AOPSDConfig))


def _writable(block: DictConfig) -> DictConfig:
    block._set_flag("readonly", None)
    for key in block:
        child = block._get_node(key)
        if isinstance(child, DictConfig):
            _writable(child)
    return block


def locate(key: object, origins: Origins, path: Path) -> str:
    """Where a dotted key, or else the nearest block around it, was written; the file if that is unknown.

    >>> locate("a.b[0].c", {"a": "x.yaml:1", "a.b": "x.yaml:2"}, Path("x.yaml"))
    'x.yaml:2'
    """
    name = str(key)
    while name not in origins and re.search(r"[.\[]", name):
        name = re.split(r"[.\[][^.\[]*$", name)[0]
    return origins.get(name, str(path))


def check_keys(layer: Layer, path: Path) -> None:
    """Refuse, in one layer, top-level blocks that nobody knows, and keys and types that `aopsd:` does not have."""
    for key in layer.tree:
        if key not in NEMO_RL_BLOCKS and key != "aopsd":
            where = locate(key, layer.origins, path)
            known = ("aopsd", *NEMO_RL_BLOCKS)
            raise UserError(f"{where}: unknown block `{key}`.{nearest(str(key), known)} Known: {', '.join(known)}.")
        block = layer.tree._get_node(key)
        if not isinstance(block, DictConfig) or block._is_none():
            where = locate(key, layer.origins, path)
            raise UserError(f"{where}: `{key}` must be a block of `key: value` lines, not a value.")
    schema = config_schema()
    block = layer.tree._get_node("aopsd")
    if block is None:
        return
    _check_block(block, schema, "aopsd", layer.origins, path)
    try:
        OmegaConf.merge(schema, block)
    except OmegaConfBaseException as error:
        raise type_error(error, schema, layer.origins, path) from error


def check_spelling(layer: Layer, base: DictConfig, known: Collection[str], path: Path) -> None:
    """Refuse a key of NeMo RL's blocks that is neither in `base`, the layers below, nor `known`, but nearly.

    `known` are dotted keys. Raises UserError: read by nobody, a slip of the pen would be without effect.
    """
    added, below = OmegaConf.to_container(layer.tree), OmegaConf.to_container(base)
    for block in NEMO_RL_BLOCKS:
        for dotted, meant in _slips(added.get(block), below.get(block), block, known):
            where = locate(dotted, layer.origins, path)
            remedy = "" if meant in known else f" If not, add it by an override: +{dotted}=VALUE."
            raise UserError(f"{where}: unknown key `{dotted}`. Did you mean `{meant}`?{remedy}")


def _slips(added: Any, below: Any, name: str, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Dotted keys with what they nearly are."""
    if not isinstance(added, dict):
        return
    below = below if isinstance(below, dict) else {}
    ours = [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == name]
    for key, value in added.items():
        dotted = f"{name}.{key}"
        if key in below or key in ours or dotted in _ALIKE:
            yield from _slips(value, below.get(key), dotted, known)
        elif meant := _nearly(str(key), ours, 0.8) or _nearly(str(key), map(str, below), 0.9):
            yield dotted, f"{name}.{meant}"


def _nearly(key: str, names: Iterable[str], cutoff: float) -> str | None:
    """The name, of about the same length, that `key` nearly is."""
    alike = [name for name in names if abs(len(name) - len(key)) <= 2]
    return next(iter(get_close_matches(key, alike, n=1, cutoff=cutoff)), None)


def _check_block(block: Any, schema: DictConfig, name: str, origins: Origins, path: Path) -> None:
    if not isinstance(block, DictConfig) or block._is_none():
        raise UserError(f"{locate(name, origins, path)}: `{name}` must be a block of keys: {', '.join(schema)}.")
    for key in block:
        dotted = f"{name}.{key}"
        if str(key) not in schema:
            raise UserError(
                f"{locate(dotted, origins, path)}: unknown key `{dotted}`.{_nearest_setting(str(key), name, schema)} "
                f"Keys of `{name}`: {', '.join(schema)}."
            )
        if isinstance(schema._get_node(key), DictConfig):
            _check_block(block._get_node(key), schema[key], dotted, origins, path)


def type_error(error: OmegaConfBaseException, schema: DictConfig, origins: Origins, path: Path) -> UserError:
    parent, _, leaf = str(error.full_key).rpartition(".")
    block = OmegaConf.get_type(OmegaConf.select(schema, parent) if parent else schema)
    expected = block.__dataclass_fields__[leaf].type
    key = f"aopsd.{error.full_key}"
    return UserError(f"{locate(key, origins, path)}: `{key}` must be of type {expected}: {first_line(error)}.")


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys to leaves; an empty block is a leaf.

    >>> flatten({"a": {"b": 1, "c": {}}})
    {'a.b': 1, 'a.c': {}}
    """
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        nested = isinstance(value, dict) and value
        leaves |= flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return leaves


def _nearest_setting(key: str, block: str, schema: DictConfig) -> str:
    """The nearest key of the same block, or else the block that has this key."""
    siblings = get_close_matches(key, list(schema), n=1, cutoff=0.7)
    if siblings:
        return f" Did you mean `{block}.{siblings[0]}`?"
    settings = flatten(OmegaConf.to_container(config_schema()))
    by_leaf = {setting.rpartition(".")[2]: f"aopsd.{setting}" for setting in settings}
    return next((f" Did you mean `{by_leaf[leaf]}`?" for leaf in get_close_matches(key, list(by_leaf), n=1)), "")


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
