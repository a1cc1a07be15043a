"""`aopsd diagnose ...`: the paper's diagnostics on run folders. Everything that draws is imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nemo_aopsd.diagnostics.output import Result

diagnose_app = typer.Typer(
    help="The paper's diagnostics from the files of a run; figures and tables go to RUN/diagnostics.",
    no_args_is_help=True,
)

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, finished or not.")]
FirstStep = Annotated[int | None, typer.Option(min=1, metavar="N", help="Leave out earlier steps.")]
LastStep = Annotated[int | None, typer.Option(min=1, metavar="N", help="Leave out later steps.")]


def mount(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    app.add_typer(diagnose_app, name="diagnose")


@diagnose_app.command(epilog="Example: aopsd diagnose gaps runs/demo --last-step 12")
def gaps(
    run: RunPath,
    threshold: Annotated[
        list[float] | None, typer.Option(metavar="NATS", help="Repeat for several; default 0.5, 1, 2, 4.")
    ] = None,
    first_step: FirstStep = None,
    last_step: LastStep = None,
) -> None:
    """Share of tokens against share of |gap|, by threshold and sign (Figure 1b)."""
    from nemo_aopsd.diagnostics.gaps import THRESHOLDS, diagnose_gaps
    from nemo_aopsd.diagnostics.records_of import Steps

    _write(run, diagnose_gaps(run, threshold or THRESHOLDS, Steps(first_step, last_step)))


@diagnose_app.command(epilog="Example: aopsd diagnose continuations runs/demo --patterns german.yaml")
def continuations(
    run: RunPath,
    patterns: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="More patterns, YAML as in prompts/*/continuations.yaml.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(metavar="NATS", help="Least |gap| of an event; default: the run's own.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the run's tokenizer is, if not where it was.")
    ] = None,
    first_step: FirstStep = None,
    last_step: LastStep = None,
) -> None:
    """Correction cues and references to the private context in the teacher's continuations, by k (Table 1)."""
    from nemo_aopsd.diagnostics.continuations import diagnose_continuations, load_decoder
    from nemo_aopsd.diagnostics.records_of import Steps, open_run

    result = diagnose_continuations(
        run,
        decode=load_decoder(open_run(run), tokenizer) if tokenizer else None,
        patterns=patterns or (),
        threshold=threshold,
        steps=Steps(first_step, last_step),
    )
    _write(run, result)


@diagnose_app.command(epilog="Example: aopsd diagnose progress runs/demo --problems problems.jsonl")
def progress(
    run: RunPath,
    problems: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The run's problems, if their file is not where it was.")
    ] = None,
    first_step: FirstStep = None,
    last_step: LastStep = None,
) -> None:
    """Progress r against the final answer, and how often the judge's verdict could not be read."""
    from nemo_aopsd.diagnostics.progress import diagnose_progress
    from nemo_aopsd.diagnostics.records_of import Steps

    _write(run, diagnose_progress(run, problems, Steps(first_step, last_step)))


@diagnose_app.command(epilog="Example: aopsd diagnose leaks runs/demo")
def leaks(run: RunPath) -> None:
    """Outputs to the bare question that mention the private context, by checkpoint."""
    from nemo_aopsd.diagnostics.leak_rates import diagnose_leaks

    _write(run, diagnose_leaks(run))


def _write(run: Path, result: Result) -> None:
    from nemo_aopsd.diagnostics.output import markdown, write

    page, *others = write(run / "diagnostics", result)
    typer.echo(markdown(result))
    typer.echo(f"{page}, {', '.join(path.name for path in others)}")
