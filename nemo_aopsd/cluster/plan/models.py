"""Architectures: those of `models.yaml` by name, any other from its `config.json`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from nemo_aopsd.cluster.doctor.model_files import is_gguf, read_config
from nemo_aopsd.cluster.doctor.model_size import ModelSize, read_size
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.config_json import parse


def find_size(name: str) -> ModelSize:
    """Of `policy.model_name`: a published one, a folder, or the hub's. Raises UserError where it cannot be counted."""
    for block in _blocks().values():
        if name in block["names"]:
            return read_size(parse(block["config"], name))
    if is_gguf(name):
        return read_size(parse(_gguf_config(Path(name)), name))
    return read_size(read_config(name))


def _gguf_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"policy.model_name={path}: no such file. Check the path.")
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(path.parent, gguf_file=path.name).to_dict()


@cache
def _blocks() -> dict[str, Any]:
    content = yaml.safe_load(Path(__file__).with_name("models.yaml").read_text(encoding="utf-8"))
    return {short: block for short, block in content.items() if not short.startswith("_")}
