"""`aopsd report`: the page of a run."""

from pathlib import Path
from typing import Annotated

import typer

from nemo_aopsd.cli.options import Commands, RunPath
from nemo_aopsd.console import slow
from nemo_aopsd.errors import UserError
from nemo_aopsd.run.folder import load_run_config

app = Commands()


@app.example(
    "aopsd report runs/mine",
    "aopsd report runs/mine --with runs/opsd",
    "aopsd report runs/mine --with runs/opsd --with evaluations/aime24_base_x8",
)
def report(
    run: RunPath,
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="FOLDER", help="Compare with a run, or with an evaluation of a model."),
    ] = None,
) -> None:
    """Write RUN/report.html from the files of a run, finished or not."""
    load_run_config(run)
    if itself := [other for other in others or [] if other.resolve() == run.resolve()]:
        raise UserError(f"--with {itself[0]}: is RUN itself. Leave it out, or name another folder.")
    from nemo_aopsd.analysis.report import write_report

    with slow(f"reading {run} and drawing"):
        page = write_report(run, others or [])
    typer.echo(page)
