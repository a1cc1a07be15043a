"""Where NeMo RL's next version differs from v0.7.0 in what these tests read; the package itself reads neither."""

from __future__ import annotations

from typing import Any


def read(block: Any, key: str) -> Any:
    """A value of a checked config: v0.7.0 has dictionaries where its next version has models."""
    return block[key] if isinstance(block, dict) else getattr(block, key)
