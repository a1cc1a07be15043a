"""Replaces names in a module of NeMo RL for a while. Imports nothing of ours, so that any worker can import it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def in_place_of_nemo_rls(module: ModuleType, **ours: Any) -> Iterator[None]:
    """`module` looks these up by name at each call, and has no argument for them."""
    originals = {name: getattr(module, name) for name in ours}
    vars(module).update(ours)
    try:
        yield
    finally:
        vars(module).update(originals)
