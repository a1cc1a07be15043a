"""The `aopsd` command, and the only place that picks an engine.

A UserError, or an operating-system error on a file, becomes one message and exit code 2; anything else is a bug and
keeps its traceback. Modules that load torch or matplotlib are imported inside the commands that need them.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from nemo_aopsd import engines
from nemo_aopsd.cli import audit as cli_audit
from nemo_aopsd.cli import compare as cli_compare
from nemo_aopsd.cli import data as cli_data
from nemo_aopsd.cli import diagnose as cli_diagnose
from nemo_aopsd.cli import doctor as cli_doctor
from nemo_aopsd.cli import evaluate as cli_evaluate
from nemo_aopsd.cli import grade as cli_grade
from nemo_aopsd.cli import methods as cli_methods
from nemo_aopsd.cli import plan as cli_plan
from nemo_aopsd.cli.methods import MethodName, load_chosen
from nemo_aopsd.config.load import load_config, to_yaml
from nemo_aopsd.config.methods import FOLDER
from nemo_aopsd.config.schema import Config
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.errors import UserError
from nemo_aopsd.run import folder as run_folder
from nemo_aopsd.run.folder_kinds import keep_apart
from nemo_aopsd.run.preflight import check_inputs, summarize

DEMO_CONFIG = FOLDER / "demo.yaml"

app = typer.Typer(
    help="AOPSD: adaptive on-policy self-distillation. A run is a YAML file; its results are a folder.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
dag_app = typer.Typer(help="Check and draw the reasoning DAGs of a problems file.", no_args_is_help=True)
app.add_typer(dag_app, name="dag")
cli_data.mount(app, dag_app)
cli_grade.mount(app)
cli_diagnose.mount(app)
cli_audit.mount(app)
cli_evaluate.mount(app)
cli_compare.mount(app)
cli_methods.mount(app)
cli_doctor.mount(app)
cli_plan.mount(app)

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file, or `demo`, which is shipped.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings over the file; +KEY=VALUE adds a key.")
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
ProblemId = Annotated[str, typer.Option("--problem", metavar="ID", help="`id` of a problem of the file.")]


def run() -> None:
    """Run the command line; exit code 2 and one message for what a user can mend."""
    try:
        app()
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        where = error.filename or "a file of the run"
        remedy = "Free some space, then go on with --resume." if error.errno == errno.ENOSPC else "Check the path."
        _fail(f"{where}: {error.strerror or error}. {remedy}")


@app.command(epilog="Example: aopsd train demo logger.log_dir=runs/mine aopsd.seed=1")
def train(
    config: ConfigPath,
    overrides: Overrides = None,
    method: MethodName = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with the run in this folder.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check all that needs no model, then stop.")] = False,
) -> None:
    """Train the student of CONFIG; everything that the run learns and measures goes into logger.log_dir."""
    overrides = overrides or []
    place = [run_folder.path_override("logger.log_dir", resume)] if resume else []
    settings = load_chosen(config, [*overrides, *place], method)
    if resume:
        run_folder.check_resumable(resume, settings)
    else:
        keep_apart(_run(settings), "a run of `aopsd train`")
        run_folder.check_free(_run(settings), _checkpoints(settings))
    problems, held_out = _check(settings)
    if check:
        typer.echo(summarize(settings, problems, held_out))
        return
    with run_folder.lock(_run(settings)):
        chosen = ["--method", method] if method else []
        command = shlex.join(["aopsd", "train", str(config), *chosen, *overrides])
        _train(settings, problems, held_out, resume=resume is not None, typed=command, again=command)
    typer.echo(f"done. Next: aopsd report {shlex.quote(str(_run(settings)))}")


@app.command(epilog="Example: aopsd preview demo --problem train-365-level4")
def preview(config: ConfigPath, problem: ProblemId, overrides: Overrides = None, method: MethodName = None) -> None:
    """One problem through one step, without learning: both prompts, a response, its gaps and probes."""
    settings = load_chosen(config, overrides, method)
    problems, _ = _check(settings)
    chosen = _find(problems, problem, settings.data["train"]["data_path"])
    from rich.console import Console

    from nemo_aopsd.run.preview import show

    show(chosen, problems, engines.pick(settings).build(settings), settings, Console())


@app.command(epilog="Example: aopsd report runs/aopsd --with runs/opsd --with evaluations/aime24_base_x8")
def report(
    run: RunPath,
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="FOLDER", help="Also in the tables: a run, or an evaluation of a model."),
    ] = None,
) -> None:
    """Write RUN/report.html from the files of a run, finished or not."""
    run_folder.load_run_config(run)
    from nemo_aopsd.analysis.report import write_report

    typer.echo(write_report(run, others or []))


@dag_app.command("check", epilog="Example: aopsd dag check problems.jsonl")
def dag_check(file: Annotated[Path, typer.Argument(metavar="FILE", help="Problems, one JSON object a line.")]) -> None:
    """List every fault of every graph; exit code 2 if one of them is an error."""
    from nemo_aopsd.data.check import check_file, fault_lines

    rows = wrong = errors = warnings = 0
    for row in check_file(file):
        rows += 1
        wrong += row.has_errors
        errors += sum(fault.is_error for fault in row.faults)
        warnings += sum(not fault.is_error for fault in row.faults)
        for line in fault_lines(row):
            typer.echo(line)
    typer.echo(f"{rows} rows: {rows - wrong} usable, {wrong} not; {errors} errors, {warnings} warnings")
    if errors:
        raise typer.Exit(2)


@dag_app.command("show", epilog="Example: aopsd dag show problems.jsonl --problem p1 --out p1.svg")
def dag_show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Problems, one JSON object a line.")],
    problem: ProblemId,
    out: Annotated[Path, typer.Option(metavar="FILE.svg", help="Where the drawing goes; .png and .pdf work too.")],
) -> None:
    """Draw the graph of one problem, also one with faults; other rows may be bad."""
    from nemo_aopsd.data.check import fault_lines, find_row
    from nemo_aopsd.files import keep_inputs

    keep_inputs([out], [("FILE", file)])
    row, raw, broken = find_row(file, problem)
    if raw is None:
        raise UserError(f"{row.where}: problem {problem!r} has no `dag` to draw. Choose another problem.")
    from nemo_aopsd.graphs.faulty import drawable
    from nemo_aopsd.graphs.picture import draw

    draw(drawable(raw, f"{row.where} (id {problem!r})"), out, title=problem, faults=row.faults)
    for line in fault_lines(row):
        typer.echo(line, err=True)
    cli_data.warn_of_unread(file, broken)
    typer.echo(out)


@app.command(epilog="Example: aopsd demo --out runs/demo aopsd.seed=1")
def demo(
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(metavar="RUN", help="Run folder; a run in it is replaced.")] = Path("runs/demo"),
) -> None:
    """The whole algorithm on a tiny built-in model and its problems, in minutes; exit code 1 if it shows no gain."""
    config = load_config(DEMO_CONFIG, [run_folder.path_override("logger.log_dir", out), *(overrides or [])])
    if config.aopsd.evaluation.data_path is None:
        raise UserError("aopsd.evaluation.data_path is null, but the demo compares before and after. Leave it set.")
    run = _run(config)
    _keep_inputs(config, run)
    # So small a model gains nothing from more threads, and on a busy machine they wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with run_folder.lock(run):
        run_folder.remove_run(run)
        run_folder.check_free(run, _checkpoints(config))
        typed = shlex.join(["aopsd", "demo", "--out", str(out), *(overrides or [])])
        again = shlex.join(["aopsd", "train", "demo", *(overrides or [])])
        _train(config, *_check(config), resume=False, typed=typed, again=again)
    from nemo_aopsd.analysis.report import write_report
    from nemo_aopsd.evaluation.epochs import paired_interval

    page = write_report(run)
    before, after = _first_and_last_evaluation(run)
    low, _ = paired_interval(before, after)
    rates = f"pass@1 {before['pass_at_k']['1']:.3f} -> {after['pass_at_k']['1']:.3f} (n={after['num_problems']})"
    if low <= 0:
        typer.echo(f"demo ran, no gain shown: {rates}, report {page}")
        raise typer.Exit(1)
    typer.echo(f"demo ok: {rates}, report {page}")


def _keep_inputs(config: Config, run: Path) -> None:
    """Nothing that the demo reads may lie in the folder whose run it replaces."""
    from nemo_aopsd.files import keep_inputs

    read = {
        "policy.model_name": config.policy["model_name"],
        "data.train.data_path": config.data["train"]["data_path"],
        "aopsd.evaluation.data_path": config.aopsd.evaluation.data_path,
    }
    keep_inputs([run], [(key, Path(path)) for key, path in read.items()])


def _check(config: Config) -> tuple[list[Problem], list[Problem] | None]:
    engines.pick(config).check(config)
    return check_inputs(config)


def _train(
    config: Config, problems: list[Problem], held_out: list[Problem] | None, *, resume: bool, typed: str, again: str
) -> None:
    """Build the engine and train. The run notes what was `typed`; on Ctrl-C the user is told to type it `again`."""
    from nemo_aopsd.files import atomic_write
    from nemo_aopsd.models.readable import check_readable
    from nemo_aopsd.run.row_lengths import check_lengths
    from nemo_aopsd.run.trainer import train as train_problems

    engine = engines.pick(config).build(config)
    warnings = check_lengths(config, problems, held_out, engine.tokenizer)
    for warning in (*warnings, *check_readable(problems, engine.tokenizer, config.policy["model_name"])):
        typer.echo(f"warning: {warning}", err=True)
    run = _run(config)
    comment = typed.replace("\n", "\\n")
    atomic_write(run / "config.yaml", f"# {comment}\n{to_yaml(config)}")
    try:
        train_problems(config, problems, held_out, engine, run, resume=resume)
    except KeyboardInterrupt:
        typer.echo(f"\ninterrupted. To go on: {again} --resume {shlex.quote(str(run))}", err=True)
        raise typer.Exit(130) from None


def _run(config: Config) -> Path:
    return Path(config.logger["log_dir"])


def _checkpoints(config: Config) -> Path:
    return Path(config.checkpointing["checkpoint_dir"])


def _find(problems: list[Problem], problem_id: str, file: str | Path) -> Problem:
    from nemo_aopsd.errors import nearest

    for problem in problems:
        if problem.id == problem_id:
            return problem
    hint = nearest(problem_id, [problem.id for problem in problems]) or f" The first one is `{problems[0].id}`."
    raise UserError(f"{file}: no problem with id {problem_id!r} among its {len(problems)}.{hint}")


def _first_and_last_evaluation(run: Path) -> tuple[dict, dict]:
    paths = sorted(path for path in (run / "eval").iterdir() if re.fullmatch(r"epoch_\d+\.json", path.name))
    return json.loads(paths[0].read_text(encoding="utf-8")), json.loads(paths[-1].read_text(encoding="utf-8"))


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
