"""`aopsd data`: a problems file from a file or a data set."""

from pathlib import Path
from typing import Annotated

import typer

from nemo_aopsd.cli.options import Commands, say
from nemo_aopsd.console import slow
from nemo_aopsd.data import gsm8k as gsm8k_data
from nemo_aopsd.data import prepare as preparing
from nemo_aopsd.data.source import read_source
from nemo_aopsd.files import keep_inputs

Split = Annotated[str | None, typer.Option(metavar="NAME", help="Split of a data set of the hub; default: train.")]
Revision = Annotated[str | None, typer.Option(metavar="COMMIT", help="Version of a data set of the hub.")]

app = Commands(name="data", help="Make problems files.", no_args_is_help=True)


@app.example(
    "aopsd data prepare solved.parquet --out problems.jsonl",
    "aopsd data prepare GAIR/LIMO-v2 --out limo.jsonl --against aime25.jsonl",
    "aopsd data prepare rows.jsonl --out problems.jsonl --map problem=question",
)
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
    split: Split = None,
    revision: Revision = None,
) -> None:
    """Problems with solutions and gold answers that parse, each once, none of them in an evaluation set."""
    against = against or []
    keep_inputs(preparing.files_of(out), [("SOURCE", Path(source)), *(("--against", path) for path in against)])
    rows = read_source(source, split=split, revision=revision)
    with slow(f"reading {source}"):
        report = preparing.prepare(rows, preparing.parse_mapping(mapping or []), against, out)
    say(report.lines())


@app.example(
    "aopsd data gsm8k train.jsonl --out gsm8k.jsonl --held-out 200",
    "aopsd data gsm8k test.jsonl --out test.problems.jsonl --bare",
    "aopsd data gsm8k train.jsonl --out hard.jsonl --min-checkpoints 4",
)
def gsm8k(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="GSM8K's train.jsonl or test.jsonl, a parquet file, or a hub id.")
    ],
    out: Annotated[Path, typer.Option(metavar="PROBLEMS.jsonl", help="Problems with graphs.")],
    held_out: Annotated[
        int, typer.Option(min=0, metavar="N", help="Put N rows into PROBLEMS.dev.jsonl, to evaluate on.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Which rows those are.")] = 0,
    min_checkpoints: Annotated[int, typer.Option(min=1, help="Leave out problems with fewer.")] = 2,
    bare: Annotated[bool, typer.Option("--bare", help="Keep every row and make no graphs: for a test set.")] = False,
    split: Split = None,
    revision: Revision = None,
) -> None:
    """GSM8K with reasoning graphs from its calculator annotations, in ten seconds and without a server."""
    keep_inputs([out, *([gsm8k_data.dev_path(out)] if held_out else [])], [("SOURCE", Path(source))])
    rows = read_source(source, split=split, revision=revision)
    report = gsm8k_data.convert(rows, out, min_checkpoints=min_checkpoints, held_out=held_out, seed=seed, bare=bare)
    say(report.lines())
