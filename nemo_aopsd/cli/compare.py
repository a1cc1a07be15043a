"""`aopsd compare`: a suite of methods, run and put into one table. Everything that draws is imported inside."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nemo_aopsd.config.methods import FOLDER, find_method, find_recipe
from nemo_aopsd.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from nemo_aopsd.analysis.suite.folder import Run
    from nemo_aopsd.analysis.suite.processes import Failure
    from nemo_aopsd.analysis.suite.spec import Suite
    from nemo_aopsd.config.schema import Config

_EXAMPLE = "aopsd compare embedded --seeds 5 --jobs 8"


def mount(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("compare", epilog=f"Example: {_EXAMPLE}")(compare)


def compare(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="YAML file, or `embedded`, which is shipped.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Each member with the seeds 0 to N - 1.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time; they share the CPU's cores.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Default: runs/compare/ and SUITE's name.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="MEMBER[/seed_N]", help="Just this, without a table; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, then stop.")] = False,
) -> None:
    """Train every member with every seed, and write one table; started again, it goes on where it stopped.

    A member that fails is shown with its log and does not stop the others; the exit code is then 1.
    """
    from rich.console import Console

    from nemo_aopsd.analysis.suite.folder import Run
    from nemo_aopsd.analysis.suite.spec import load_suite
    from nemo_aopsd.run import folder as run_folder
    from nemo_aopsd.run.folder_kinds import keep_apart

    read = load_suite(find_recipe(suite, FOLDER / "suites"), find_method)
    out = out or Path("runs/compare") / suite.stem
    _keep_inputs(read, out)
    keep_apart(out, "a suite of `aopsd compare`")
    runs = [Run(member.name, seed, out) for seed in range(seeds) for member in read.members]
    chosen = _choose(runs, only or [])
    console = Console()
    if dry_run:
        _show_plan(read, runs, chosen, jobs, console)
        return
    # Elements of a job array share the folder; each run has a lock of its own.
    with nullcontext() if only else run_folder.lock(out, "another --out"):
        bases = _prepare(read, out, console)
        try:
            failures = _work(chosen, runs, bases, jobs, console)
        except KeyboardInterrupt:
            typer.echo("\ninterrupted. To go on: the same command again.", err=True)
            raise typer.Exit(130) from None
        if not only:
            _report(read, runs, seeds, failures)
    for failure in failures:
        typer.echo(f"failed: {failure.run.label}: {failure.reason}\n        log: {failure.run.log}", err=True)
    if failures:
        typer.echo(f"{len(failures)} of {len(chosen)} runs failed; the same command tries them again", err=True)
        raise typer.Exit(1)


def _keep_inputs(suite: Suite, out: Path) -> None:
    from nemo_aopsd.analysis.suite.folder import Run
    from nemo_aopsd.files import keep_inputs

    names = ("shared.yaml", "suite.json", "results.md", "results.csv", "results.svg")
    written = [out / name for name in names] + [Run(member.name, 0, out).config_file for member in suite.members]
    own = [(f"the config of member `{member.name}`", member.file) for member in suite.members]
    keep_inputs(written, [("SUITE", suite.path), ("SUITE's config", suite.config), *own])


def _choose(runs: Sequence[Run], only: Sequence[str]) -> list[Run]:
    for name in only:
        if not any(name in (run.member, run.label) for run in runs):
            raise UserError(f"--only {name}: no such member or run. The first is {runs[0].label}.")
    return [run for run in runs if not only or run.member in only or run.label in only]


def _prepare(suite: Suite, out: Path, console: Console) -> set[str]:
    """Write and check the members' configs; returns the members that take no step."""
    from nemo_aopsd.analysis.suite.folder import check_unchanged, preparing, remember, write_configs

    with tempfile.TemporaryDirectory() as scratch:  # what is refused must not be left behind
        configs, problems = _check(suite, Path(scratch))
    with preparing(out):
        for line in check_unchanged(out, configs, problems):
            console.print(line, highlight=False, soft_wrap=True)
        write_configs(suite, out)
        remember(out, configs, problems)
    return {name for name, config in configs.items() if config.aopsd.max_num_steps == 0}


def _check(suite: Suite, out: Path) -> tuple[dict[str, Config], dict[str, str]]:
    """Config by member and fingerprint by file of problems, once all that needs no model is known to be right."""
    from nemo_aopsd import engines
    from nemo_aopsd.analysis.suite.folder import load_configs, write_configs
    from nemo_aopsd.analysis.suite.spec import check_alike
    from nemo_aopsd.data.problems import fingerprint
    from nemo_aopsd.run.preflight import check_inputs

    write_configs(suite, out)
    configs = load_configs(suite, out)
    check_alike(configs)
    for name, config in configs.items():
        try:
            engines.pick(config).check(config)
            problems, held_out = check_inputs(config)
        except UserError as error:
            raise UserError(f"{suite.path}: member `{name}`: {error}") from error
    files = {config.data["train"]["data_path"]: problems, config.aopsd.evaluation.data_path: held_out}
    return configs, {file: fingerprint(rows) for file, rows in files.items()}


def _work(chosen: Sequence[Run], runs: Sequence[Run], bases: set[str], jobs: int, console: Console) -> list[Failure]:
    from nemo_aopsd.analysis.suite.processes import Pool
    from nemo_aopsd.analysis.suite.progress import watching

    base_of = {run.seed: run for run in runs if run.member in bases}
    todo = [run for run in chosen if not run.is_finished]
    todo.sort(key=lambda run: run.member not in bases)
    with watching(len(chosen), len(chosen) - len(todo), console) as watch:
        return Pool(jobs, _threads(jobs), lambda run: base_of.get(run.seed)).work(todo, watch)


def _threads(jobs: int) -> int:
    """Of one process: what the user has set, or an even share of the cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // jobs)


def _report(suite: Suite, runs: Sequence[Run], seeds: int, failures: Sequence[Failure]) -> None:
    from nemo_aopsd.analysis.suite.figure import suite_figure
    from nemo_aopsd.analysis.suite.results import measure, rows_of
    from nemo_aopsd.analysis.suite.table import csv_text, markdown
    from nemo_aopsd.files import atomic_write

    out = runs[0].out
    finished = [run for run in runs if run.is_finished]
    names = [member.name for member in suite.members]
    rows = rows_of({name: [measure(run) for run in finished if run.member == name] for name in names}, suite.reference)
    command = shlex.join(["aopsd", "compare", str(suite.path), "--seeds", str(seeds), "--out", str(out)])
    if rows:
        atomic_write(out / "results.svg", suite_figure(rows, suite.reference))
        atomic_write(out / "results.csv", csv_text(rows, suite.reference))
    atomic_write(out / "results.md", markdown(suite.path.stem, command, rows, suite.reference, failures))
    typer.echo(out / "results.md")


def _show_plan(suite: Suite, runs: Sequence[Run], chosen: Sequence[Run], jobs: int, console: Console) -> None:
    """A line a member; changes and wrong settings are refused as in earnest. Writes nothing."""
    from rich import box
    from rich.table import Table

    from nemo_aopsd.analysis.suite.folder import check_unchanged
    from nemo_aopsd.config.label import describe_run

    with tempfile.TemporaryDirectory() as scratch:
        configs, problems = _check(suite, Path(scratch))
    for line in check_unchanged(runs[0].out, configs, problems):
        console.print(line, highlight=False, soft_wrap=True)
    table = Table("member", "method", "to run", "to go on", "finished", box=box.SIMPLE_HEAD)
    for member in suite.members:
        own = [run for run in chosen if run.member == member.name]
        finished = sum(run.is_finished for run in own)
        begun = sum(run.is_begun and not run.is_finished for run in own)
        counts = (len(own) - begun - finished, begun, finished)
        table.add_row(member.name, describe_run(configs[member.name].aopsd), *map(str, counts))
    console.print(table)
    todo = [run for run in chosen if not run.is_finished]
    console.print(f"{len(todo)} runs, {jobs} at a time, {_threads(jobs)} threads each, into {runs[0].out}")
