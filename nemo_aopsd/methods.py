"""The configs of methods and ablations, and finding one by its name.

Each file holds only what makes the method; it goes over a base config. Its first line says what it is, its second one
which row of the paper it reproduces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_aopsd.config_files import method_settings
from nemo_aopsd.config_schema import nearest
from nemo_aopsd.errors import UserError

FOLDER = Path(__file__).parents[1] / "examples/configs"
KINDS = ("methods", "ablations")
_HEADER = re.compile(r"# (?P<title>.+)\n# Paper: (?P<row>.+)\n")


@dataclass(frozen=True, slots=True)
class Method:
    """One config. `row` is the paper's row, or `none: ` and why it is there; `settings` are dotted keys and values."""

    name: str
    kind: str
    title: str
    row: str
    settings: dict[str, object]

    def row_of(self, label: str) -> str | None:
        """The name of its row in the paper's table or figure of that label; None if it has none there.

        >>> Method("aopsd", "methods", "", "tab:main_results: AOPSD; fig:exp-dynamics: Full AOPSD", {}).row_of(
        ...     "tab:main_results"
        ... )
        'AOPSD'
        """
        rows = dict(row.split(": ", 1) for row in self.row.split("; "))
        return rows.get(label)


def list_methods(folder: Path = FOLDER) -> Iterator[Method]:
    """All configs of `folder`, by kind and name. Raises UserError where a file has no header or is no config."""
    for name, (kind, path) in _files(folder).items():
        header = _HEADER.match(path.read_text(encoding="utf-8"))
        if not header:
            raise UserError(f"{path}:1: expected two lines, `# what it is` and `# Paper: its row`. Add them.")
        yield Method(name, kind, header["title"], header["row"], method_settings(path))


def find_method(name: str, folder: Path = FOLDER) -> Path:
    """The config of a method or ablation by its name. Raises UserError."""
    files = _files(folder)
    if name not in files:
        raise UserError(f"no method `{name}` in {folder}.{nearest(name, list(files))} `aopsd methods` lists them.")
    return files[name][1]


def _files(folder: Path) -> dict[str, tuple[str, Path]]:
    return {path.stem: (kind, path) for kind in KINDS for path in sorted((folder / kind).glob("*.yaml"))}
