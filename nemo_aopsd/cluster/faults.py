"""A setting with which the cluster engine could not work, and its message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nemo_aopsd.cluster.tree import Tree


@dataclass(frozen=True)
class Fault:
    """A setting that cannot stay. `key` is dotted, or names an environment variable. Texts have no final full stop."""

    key: str
    found: Any
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key} is {shown(self.found)}; expected {self.expected}. {self.remedy}."


Rule = Callable[[Tree], Iterator[Fault]]


def must_be(tree: Tree, key: str, value: Any, why: str, otherwise: str = "") -> Fault:
    """A fault with one right value; `otherwise` is another way out."""
    wanted = shown(value)
    return Fault(key, tree[key], f"{wanted}: {why}", f"Set {key}={wanted}" + (f", or {otherwise}" if otherwise else ""))


def shown(value: Any) -> str:
    """As YAML has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
