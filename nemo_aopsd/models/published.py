"""Published architectures by hub name, so that counting a model's parameters needs no network."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from nemo_aopsd.models.config_json import ModelConfig, parse


def find_published(name: str) -> ModelConfig | None:
    """Of the hub's model `name`; None for one that `published.yaml` does not list."""
    for block in _read().values():
        if name in block.get("names", ()):
            return parse(block["config"], name)
    return None


@cache
def _read() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
