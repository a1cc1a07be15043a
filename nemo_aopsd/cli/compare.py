"""`aopsd methods` and `aopsd compare`: methods by name, and a suite of them run and put into one table."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nemo_aopsd import engines
from nemo_aopsd.cli.options import AsJson, interruptible
from nemo_aopsd.config.shipped import FOLDER, KINDS, find_method, find_recipe, list_methods

app = typer.Typer()


@app.command(epilog="Example: aopsd train demo --method opsd logger.log_dir=runs/opsd")
def methods(as_json: AsJson = False) -> None:
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


@app.command(epilog="Example: aopsd compare embedded --seeds 5 --jobs 8")
def compare(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="YAML file, or `embedded`, which is shipped.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Each member with the seeds 0 to N - 1.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time; they share the CPU's cores.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Default: runs/compare/ and SUITE's name.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="MEMBER[/seed_N]", help="Just this, without a table; repeatable.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="MEMBER", help="Compare the others with it; default: the suite's `reference`.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, then stop.")] = False,
) -> None:
    """Train every member with every seed, and write one table; started again, it goes on where it stopped.

    A member that fails is shown with its log and does not stop the others; the exit code is then 1.
    """
    from rich.console import Console

    from nemo_aopsd.analysis.suite.comparison import Comparison
    from nemo_aopsd.analysis.suite.spec import load_suite
    from nemo_aopsd.run import folder as run_folder

    read = load_suite(find_recipe(suite, FOLDER / "suites"), find_method)
    out = out or Path("runs/compare") / suite.stem
    work = Comparison(
        read, out, seeds, only or [], jobs, Console(), lambda config: engines.pick(config).check(config), against
    )
    work.keep_inputs()
    run_folder.keep_apart(out, "a suite of `aopsd compare`")
    run_folder.check_writable(out, "another --out")
    if dry_run:
        work.show()
        return
    # Elements of a job array share the folder; each run has a lock of its own.
    chosen, lock = len(work.chosen), nullcontext() if only else run_folder.lock(out, "another --out")
    with lock, interruptible("To go on: the same command again."):
        failures = work.train()
        if not only:
            typer.echo(work.report(failures))
    for failure in failures:
        typer.echo(f"failed: {failure.run.label}: {failure.reason}\n        log: {failure.run.log}", err=True)
    if failures:
        typer.echo(f"{len(failures)} of {chosen} runs failed; the same command tries them again", err=True)
        raise typer.Exit(1)
