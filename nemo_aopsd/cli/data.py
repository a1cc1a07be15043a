"""`aopsd data prepare`: a problems file from a file or a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nemo_aopsd.cli.options import say

app = typer.Typer(name="data", help="Make problems files.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Make problems files."""


@app.command(epilog="Example: aopsd data prepare GAIR/LIMO-v2 --out limo.jsonl --against aime25.jsonl")
def prepare(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A .jsonl or .parquet file, or a data set of the hub.")
    ],
    out: Annotated[Path, typer.Option(metavar="PROBLEMS.jsonl", help="Kept rows; the id list goes beside it.")],
    mapping: Annotated[
        list[str] | None, typer.Option("--map", metavar="FIELD=COLUMN", help="problem=question, say; repeatable.")
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option(metavar="EVAL.jsonl", help="Drop problems that occur there; repeatable.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="Split of a data set of the hub.")] = "train",
    revision: Annotated[str | None, typer.Option(metavar="COMMIT", help="Version of a data set of the hub.")] = None,
) -> None:
    """Problems with solutions and gold answers that parse, each once, none of them in an evaluation set."""
    from nemo_aopsd.data import prepare as preparing
    from nemo_aopsd.data.source import read_source
    from nemo_aopsd.files import keep_inputs

    against = against or []
    keep_inputs(preparing.files_of(out), [("SOURCE", Path(source)), *(("--against", path) for path in against)])
    rows = read_source(source, split=split, revision=revision)
    say(preparing.prepare(rows, preparing.parse_mapping(mapping or []), against, out).lines())
