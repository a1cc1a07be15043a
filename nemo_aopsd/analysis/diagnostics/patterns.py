"""Patterns of correction cues and of references to the private context: data files, by kind and language."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import TypeAdapter, ValidationError

from nemo_aopsd import prompts
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.leaks import compiled, leak_patterns

KINDS = ("correction", "reference")
_FORM = TypeAdapter(dict[Literal["correction", "reference"], dict[str, list[str]]])
_EXPECTED = "Expected `correction:` and `reference:`, each with languages, these with lists of regular expressions."

Compiled = list[re.Pattern[str]]


@dataclass(frozen=True)
class Patterns:
    """Compiled patterns by kind, and the files that they come from."""

    by_kind: Mapping[str, Compiled]
    files: Sequence[str]


def load_patterns(family: str, extra: Sequence[Path] = ()) -> Patterns:
    """continuations.yaml of a prompt family (or else the default family's), its leaks.txt, and the user's own files.

    Raises UserError on a missing file, another form, or a pattern that does not compile or matches the empty text.
    """
    built_in = Path(prompts.__file__).parent
    own = (built_in / family if (built_in / family).is_dir() else Path(family)) / "continuations.yaml"
    files = [own if own.is_file() else built_in / "default/continuations.yaml", *extra]
    found: dict[str, Compiled] = {kind: [] for kind in KINDS}
    for file in files:
        for kind, patterns in _read(file).items():
            found[kind] += patterns
    found["reference"] += leak_patterns(family)
    return Patterns(found, [*(str(file) for file in files), f"leaks.txt of {family}"])


def first_end(text: str, patterns: Compiled) -> int | None:
    """Where the match that ends first ends; None without a match."""
    return min((match.end() for pattern in patterns for match in pattern.finditer(text)), default=None)


def _read(file: Path) -> dict[str, Compiled]:
    if not file.is_file():
        raise UserError(f"{file}: no such file of patterns (looked from {Path.cwd()}). Check the path.")
    try:
        content = _FORM.validate_python(yaml.safe_load(file.read_text(encoding="utf-8")), strict=True)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not readable as YAML: {error}. {_EXPECTED}") from error
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise UserError(f"{file}: `{where}`: {fault['msg']}. {_EXPECTED}") from error
    return {
        kind: [_compile(line, f"{file}: `{kind}.{language}`") for language, lines in block.items() for line in lines]
        for kind, block in content.items()
    }


def _compile(line: str, where: str) -> re.Pattern[str]:
    pattern = compiled(line, where)
    if pattern.search(""):
        raise UserError(f"{where}: {line!r} matches every text, even the empty one. Correct it.")
    return pattern
