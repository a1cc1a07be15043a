"""`aopsd methods`, and the option `--method` of the commands that take a config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.methods import KINDS, find_method, find_recipe, list_methods
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError

MethodName = Annotated[
    str | None, typer.Option("--method", metavar="NAME", help="A method over the file; `aopsd methods` lists them.")
]


def load_chosen(config: Path, overrides: Sequence[str] | None, method: str | None) -> Config:
    """The config file or shipped config, the named method over it, and the overrides over both. Raises UserError."""
    return load_config(find_recipe(config), overrides or [], method and find_method(method))


def load_if_named(config: Path | None, overrides: Sequence[str] | None, method: str | None) -> Config | None:
    """As `load_chosen`, where the file may be left out. Raises UserError also for a method that goes over none."""
    if method and not config:
        raise UserError("--method: goes over a CONFIG, and there is none. Leave it out, or name the file.")
    return load_chosen(config, overrides, method) if config else None


def mount(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("methods", epilog="Example: aopsd train demo --method opsd logger.log_dir=runs/opsd")(methods)


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
