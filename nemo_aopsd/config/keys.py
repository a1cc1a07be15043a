"""Dotted keys, the places where they were written, and typos in NeMo RL's blocks.

Checked a layer at a time (one file, or one override), so that an error names the line that caused it. The `aopsd:`
block is checked as a whole in `checks.py`.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nemo_aopsd.config.nemo_rl_keys import BLOCKS, LOCAL_KEYS, NEMO_RL_BLOCKS
from nemo_aopsd.config.schema import AOPSDConfig, Config, keys_of

# Keys of NeMo RL's that look like one of ours beside them.
ALIKE = (
    *("policy.logprob_chunk_size", "policy.train_global_batch_size", "policy.quant_sequence_length"),
    *("policy.generation.model_name", "policy.generation.val_temperature", "logger.swanlab"),
)

VALIDATION = ["data", "validation"]  # of NeMo RL's own scripts
HELD_OUT = " Held-out problems are aopsd.evaluation.data_path=FILE."

MOST = 3  # keys in one hint

Fault = tuple[str, str]  # dotted key, what is wrong with it
Origins = dict[str, str]  # dotted key -> where it was written: `file:line`, or the override
Tree = dict[str, Any]  # nested blocks, interpolation as it is written


@dataclass(frozen=True, slots=True)
class Layer:
    """One config file or one override. Files are read once: nobody changes a layer."""

    tree: Tree
    origins: Origins


def locate(key: object, origins: Origins, path: Path) -> str:
    """Where a dotted key, or else the nearest block around it, was written; the file if that is unknown.

    >>> locate("a.b[0].c", {"a": "x.yaml:1", "a.b": "x.yaml:2"}, Path("x.yaml"))
    'x.yaml:2'
    """
    name = str(key)
    while name not in origins and re.search(r"[.\[]", name):
        name = re.split(r"[.\[][^.\[]*$", name)[0]
    return origins.get(name, str(path))


def beside(key: str, value: str, place: str) -> str:
    """A hint for a path that is none from here, but is one from the folder of the config file that names it.

    `place` is `FILE:LINE`. What follows a colon in `value` is a class.
    """
    path, colon, name = value.partition(":")
    near = Path(place.rpartition(":")[0]).parent / path
    if Path(path).exists() or not near.exists():
        return ""
    return (
        f" There is one beside the config, but a path is taken from the current folder: set {key}={near}{colon}{name}"
    )


def where(config: Config, key: str) -> str:
    """What sets a key of a loaded config: `mine.yaml:2`, `override`, or `config` if that is unknown."""
    return locate(key, config.origins, Path("config")).split(" `")[0]


def find_bad_blocks(layer: Layer) -> Iterator[Fault]:
    """Top-level keys of one layer that are neither `aopsd` nor a block of NeMo RL's."""
    known = ("aopsd", *NEMO_RL_BLOCKS)
    for key, value in layer.tree.items():
        if key not in known:
            hint = likely(str(key), (known, 1), (every_key(), MOST))
            yield key, f"unknown block `{key}`.{hint} Known: {', '.join(known)}."
        elif not isinstance(value, dict) and key in ("aopsd", *BLOCKS):
            yield key, f"`{key}` must be a block of `key: value` lines, not a value."


def every_key() -> list[str]:
    """All keys that we read, and the blocks of ours, dotted."""
    return [*(f"aopsd.{name}" for name, _ in keys_of(AOPSDConfig)), *LOCAL_KEYS]


def likely(name: str, *scopes: tuple[Collection[str], int]) -> str:
    """A hint: the keys that `name` may mean, of the first scope with some; empty where there are none or too many.

    A scope is dotted keys and how many of them a hint may have. `name` begins the last part of such a key, ends it as
    a word, or is nearly it. A wrong hint is worse than none.

    >>> likely("decay", (["teacher.weights", "teacher.ema_decay"], MOST)), likely("delta", (["data"], MOST))
    (' Did you mean `teacher.ema_decay`?', '')
    """
    for known, most in scopes:
        leaves = {key: key.rpartition(".")[2] for key in known}
        near = get_close_matches(name, set(leaves.values()), n=1, cutoff=0.75)
        found = (
            [key for key, leaf in leaves.items() if leaf == name or (len(name) > 2 and leaf.startswith(name))]
            or [key for key, leaf in leaves.items() if len(name) > 2 and leaf.endswith(f"_{name}")]
            or [key for key, leaf in leaves.items() if leaf in near]
        )
        if 0 < len(found) <= most:
            *others, last = (f"`{key}`" for key in found)
            return f" Did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
    return ""


def find_slips(layer: Layer, base: Tree, known: Collection[str]) -> Iterator[Fault]:
    """Keys of NeMo RL's blocks that are nearly one of `base`, the layers below, or of `known`.

    `known` are dotted keys. Nobody reads such a key, so that a typo would be without effect.
    """
    for block in NEMO_RL_BLOCKS:
        for dotted, meant in _slips(layer.tree.get(block), base.get(block), block, known):
            remedy = "" if meant in known else f" If not, add it by an override: +{dotted}=VALUE."
            yield dotted, f"unknown key `{dotted}`. Did you mean `{meant}`?{remedy}"


def _slips(added: Any, below: Any, name: str, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Dotted keys with what they nearly are."""
    if not isinstance(added, dict):
        return
    below = below if isinstance(below, dict) else {}
    ours = [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == name]
    for key, value in added.items():
        dotted = f"{name}.{key}"
        if key in below or key in ours or dotted in ALIKE:
            yield from _slips(value, below.get(key), dotted, known)
        elif meant := _nearly(str(key), ours, 0.8) or _nearly(str(key), map(str, below), 0.9):
            yield dotted, f"{name}.{meant}"


def _nearly(key: str, names: Iterable[str], cutoff: float) -> str | None:
    """The name, of about the same length, that `key` nearly is."""
    alike = [name for name in names if abs(len(name) - len(key)) <= 2]
    return next(iter(get_close_matches(key, alike, n=1, cutoff=cutoff)), None)


def select(tree: Tree, key: str, absent: Any = None) -> Any:
    """The value of a dotted key; `absent` where there is none.

    >>> select({"a": {"b": 1}}, "a.b"), select({"a": {"b": 1}}, "a.c")
    (1, None)
    """
    value: Any = tree
    for part in key.split("."):
        value = value.get(part, absent) if isinstance(value, dict) else absent
    return value


def flatten(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Dotted keys to leaves; an empty block is a leaf.

    >>> flatten({"a": {"b": 1, "c": {}}})
    {'a.b': 1, 'a.c': {}}
    """
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        nested = isinstance(value, dict) and value
        leaves |= flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return leaves


def typed(value: object) -> str:
    """A value as YAML or an override has it: null, true, 1e-06; of blocks and lists, which YAML takes as JSON."""
    if value is None or isinstance(value, bool | dict | list):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:g}" if isinstance(value, float) else str(value)
