"""The `aopsd` command: its parts, and `PANELS`: the order in which a user needs them.

A UserError, or an operating-system error on a file, becomes one message and exit code 2; anything else is a bug and
keeps its traceback. Modules that load torch or matplotlib are imported inside the commands that need them.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nemo_aopsd.cli import audit, compare, dag, data, diagnose, doctor, evaluate, grade, judge, plan, report, train
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import explain

PANELS = {
    "Look at it": ("demo", "preview", "methods"),
    "Problems of your own": ("data", "dag", "judge", "grade"),
    "Train": ("doctor", "plan", "train", "export"),
    "Measure and compare": ("evaluate", "report", "paired-test", "compare", "diagnose", "audit"),
}


class _InOrder(TyperGroup):
    """Commands in the order of `PANELS`; Ctrl-C where a command has nothing to say of it."""

    def invoke(self, ctx: typer.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would exit in silence
            typer.echo("\ninterrupted.", err=True)
            raise typer.Exit(130) from None

    def list_commands(self, ctx: typer.Context) -> list[str]:
        for panel, names in PANELS.items():
            for name in names:
                vars(self.commands[name])["rich_help_panel"] = panel
        return [name for names in PANELS.values() for name in names]


app = typer.Typer(
    cls=_InOrder,
    help="AOPSD: adaptive on-policy self-distillation. A run is a YAML file; its results are a folder.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (train, evaluate, compare, report, diagnose, audit, data, dag, judge, grade, doctor, plan):
    app.add_typer(group.app)


def _print_version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(f"aopsd {version('nemo_aopsd')}")
        except PackageNotFoundError:  # on PYTHONPATH, as in NeMo RL's container
            typer.echo(f"aopsd of {Path(__file__).parents[2]}, which is not installed")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, then stop.")
]


@app.callback()
def options(show_version: Version = False) -> None:
    """Options of `aopsd` itself."""


def run() -> None:
    try:
        app()
    except (UserError, OSError) as error:
        print(f"error: {explain(error) if isinstance(error, OSError) else error}", file=sys.stderr)
        sys.exit(2)
