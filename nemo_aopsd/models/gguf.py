"""GGUF files: what one says of its model, without the weights, and how those of a folder are named."""

from pathlib import Path

from nemo_aopsd.console import slow
from nemo_aopsd.errors import UserError, first_line
from nemo_aopsd.models.config_json import ModelConfig, parse
from nemo_aopsd.models.tokenizer import NO_GGUF, UNREADABLE, where_from


def read_gguf(path: Path, remedy: str = "") -> ModelConfig:
    """Of the file's metadata, as the local engine will read them. Raises UserError with the remedy if it is cut."""
    from transformers import AutoConfig

    try:
        with slow(f"reading {path}"):
            return parse(AutoConfig.from_pretrained(**where_from(path)).to_dict(), str(path))
    except UNREADABLE as error:
        raise UserError(f"{path}: {NO_GGUF}: {first_line(error)}{remedy}") from error


def named_gguf(folder: Path) -> str:
    """What to name in place of a folder that holds GGUF files; empty if there is none."""
    files = sorted(folder.glob("*.gguf"))
    return f"Name the file: {' or '.join(map(str, files))}." if files else ""
