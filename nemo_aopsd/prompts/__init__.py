"""Prompt wording lives in the `.txt` files of this folder, one folder per family; code only fills the placeholders."""

import re
from functools import lru_cache
from pathlib import Path

from nemo_aopsd.errors import UserError, nearest

_FOLDER = Path(__file__).parent


def fill(family: str, name: str, **values: str) -> str:
    """The template `name` of a family with its `{gaps}` replaced in one pass.

    Only the gaps that `values` names are replaced, and replaced text is never read again, so braces, `\\boxed{}`
    and backslashes in a problem survive byte for byte. Raises UserError if the template lacks a gap.
    """
    template = read(family, name)
    missing = [gap for gap in values if f"{{{gap}}}" not in template]
    if missing:
        raise UserError(f"{_path(family, name)}: the gaps {missing} are not in the template. Add {{{missing[0]}}}.")
    return re.sub("|".join(rf"\{{{gap}\}}" for gap in values), lambda match: values[match[0][1:-1]], template)


def read(family: str, name: str) -> str:
    """The bare text of a file of a family, less its last line break. Raises UserError if there is no such file."""
    return _text(_path(family, name).absolute())


@lru_cache
def _text(path: Path) -> str:
    if not path.is_file():
        wanted = f"`aopsd.prompts` must be {' or '.join(_families())}, or a folder that holds it"
        raise UserError(f"{path}: no such prompt. {wanted}.{nearest(path.parent.name, _families())}")
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from error


def is_family(name: str) -> bool:
    """Whether the package ships it; else it is a folder of the user's."""
    return name in _families()


@lru_cache
def _families() -> list[str]:
    return sorted(entry.name for entry in _FOLDER.iterdir() if entry.is_dir() and entry.name[0] != "_")


def _path(family: str, name: str) -> Path:
    return (_FOLDER / family if is_family(family) else Path(family)) / f"{name}.txt"
