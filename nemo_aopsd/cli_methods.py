"""`aopsd methods`: the configs of methods and ablations, and finding one by its name.

Each file holds only what makes the method; it goes over a base config. Its first line says what it is, its second one
which row of the paper it reproduces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

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


def mount(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("methods", epilog="Example: aopsd train examples/configs/aopsd_tiny_cpu.yaml --method opsd")(methods)


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list instead of tables.")] = False,
) -> None:
    """Methods and ablations by name, and the row of the paper that each reproduces: for --method, and for suites."""
    found = list(list_methods())
    if as_json:
        typer.echo(json.dumps([asdict(method) for method in found], ensure_ascii=False, indent=1))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for kind in KINDS:
        table = Table(title=kind, title_justify="left", box=box.SIMPLE_HEAD)
        for column in ("name", "what", "row of the paper"):
            table.add_column(column, overflow="fold", no_wrap=column == "name")
        for method in found:
            if method.kind == kind:
                table.add_row(method.name, method.title, method.row)
        console.print(table, highlight=False, markup=False)


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
