"""`aopsd methods` and `aopsd compare`: methods by name, and a suite of them run and put into one table."""

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from nemo_aopsd import engines
from nemo_aopsd.cli.options import AsJson, Commands, interruptible, say, say_json
from nemo_aopsd.config.keys import typed
from nemo_aopsd.config.shipped import FOLDER, KINDS, Method, find_method, find_recipe, list_methods
from nemo_aopsd.console import counted
from nemo_aopsd.run.access import check_writable, lock
from nemo_aopsd.run.place import keep_apart

app = Commands()


@app.example("aopsd methods", "aopsd methods opsd", "aopsd methods --json")
def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="All about this one; else a line each.")] = None,
    as_json: AsJson = False,
) -> None:
    """Methods and ablations, for --method and suites; with NAME its settings and the row of the paper that it is."""
    if name is not None:
        find_method(name)
    found = [method for method in list_methods() if name in (None, method.name)]
    if as_json:
        say_json([asdict(method) for method in found])
    elif name is not None:
        _show_method(found[0])
    else:
        list_briefly(found, Console())


def _show_method(method: Method) -> None:
    say([f"{method.name}: {method.title}", f"paper: {method.row}", ""])
    say(f"{key}={typed(value)}" for key, value in method.settings.items())
    say(["", f"aopsd train demo --method {method.name} logger.log_dir=runs/{method.name}"])


def list_briefly(found: list[Method], console: Console) -> None:
    """A line a method: where a terminal is too narrow for what it is, that ends in dots."""
    if not console.is_terminal:
        console.width = 200
    for kind in KINDS:
        table = Table(kind, "what", box=box.SIMPLE_HEAD, pad_edge=False)
        for column in table.columns:
            column.no_wrap = True
        table.columns[0].min_width = max(len(method.name) for method in found)
        for method in found:
            if method.kind == kind:
                table.add_row(method.name, method.title)
        console.print(table, highlight=False, markup=False)
    console.print("All about one: aopsd methods NAME", highlight=False)


@app.example(
    "aopsd compare embedded --seeds 5 --jobs 8",
    "aopsd compare mine.yaml --dry-run",
    "aopsd compare mine.yaml --only opsd/seed_0",
)
def compare(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="YAML file, or `embedded`, which is shipped.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Each member with the seeds 0 to N - 1.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time; they share the CPU's cores.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Default: runs/compare/ and SUITE's name.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="MEMBER[/seed_N]", help="Just this; its table is shown and not written. Repeatable."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="MEMBER", help="Compare the others with it; default: the suite's `reference`.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, then stop.")] = False,
) -> None:
    """Train every member with every seed, and write one table; started again, it goes on where it stopped.

    A member that fails is shown with its log and does not stop the others; the exit code is then 1.
    """
    from nemo_aopsd.analysis.suite.comparison import Comparison
    from nemo_aopsd.analysis.suite.spec import load_suite

    read = load_suite(find_recipe(suite, FOLDER / "suites"), find_method)
    out = out or Path("runs/compare") / suite.stem
    work = Comparison(
        read, out, seeds, only or [], jobs, Console(), lambda config: engines.pick(config).check(config), against
    )
    work.keep_inputs()
    keep_apart(out, "a suite of `aopsd compare`")
    check_writable(out, "another --out")
    if dry_run:
        work.show()
        return
    # Elements of a job array share the folder; each run has a lock of its own.
    chosen, alone = len(work.chosen), nullcontext() if only else lock(out, "another --out")
    with alone, interruptible("To go on: the same command again."):
        failures = work.train()
        if only:
            work.show_chosen()
        else:
            typer.echo(work.report(failures))
    for failure in failures:
        typer.echo(f"failed: {failure.run.label}: {failure.reason}\n        log: {failure.run.log}", err=True)
    if failures:
        typer.echo(f"{len(failures)} of {counted(chosen, 'run')} failed; the same command tries them again", err=True)
        raise typer.Exit(1)
