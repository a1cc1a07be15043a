"""`python -m examples.wordproblems`: problems with exact reasoning DAGs, and demonstrations for a warm start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from examples.wordproblems.files import write_files


def main(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the files; older ones are replaced.")],
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same bytes.")] = 0,
    train: Annotated[int, typer.Option(min=1, metavar="N", help="Problems to train on.")] = 2000,
    held_out: Annotated[int, typer.Option(min=1, metavar="N", help="Problems to compare methods on.")] = 400,
    warmstart: Annotated[int, typer.Option(min=1, metavar="N", help="Demonstrations.")] = 6000,
    dev: Annotated[int, typer.Option(min=1, metavar="N", help="Problems to watch the warm start on.")] = 200,
) -> None:
    """Arithmetic word problems in plain English; no two files share a computation. See docs/wordproblems.md."""
    sizes = {"train": train, "heldout": held_out, "warmstart": warmstart, "dev": dev}
    for path, rows in write_files(out, seed, sizes):
        typer.echo(f"{path}: {rows} rows")


if __name__ == "__main__":
    typer.run(main)
