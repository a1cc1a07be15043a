"""`aopsd demo`, `aopsd train` and `aopsd preview`. Whatever loads torch is imported inside the commands."""

import json
import os
import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nemo_aopsd import engines
from nemo_aopsd.cli.options import (
    Commands,
    ConfigIfAny,
    ConfigPath,
    MethodName,
    Overrides,
    ProblemId,
    interruptible,
    load_chosen,
)
from nemo_aopsd.cluster.mounts import paths_here
from nemo_aopsd.config.label import family_label
from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.schema import Config
from nemo_aopsd.config.shipped import find_recipe
from nemo_aopsd.console import counted, warn
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.errors import UserError, nearest, tell_all
from nemo_aopsd.files import keep_inputs, read_journal
from nemo_aopsd.run import layout
from nemo_aopsd.run.checkpoint import steps_without
from nemo_aopsd.run.folder import path_override, places, require_run, settings_text, to_go_on, write_config
from nemo_aopsd.run.own_files import check_extensions, keep_extensions
from nemo_aopsd.run.place import check_place, keep_apart, lock_all, move_aside
from nemo_aopsd.run.preflight import check_inputs, first_attempts, look, summarize
from nemo_aopsd.run.preview import show
from nemo_aopsd.run.resume import after_failure, check_resumable, telling_what_is_lost
from nemo_aopsd.run.row_lengths import check_texts

app = Commands()


@app.example("aopsd demo", "aopsd demo --out runs/demo aopsd.seed=1", "aopsd demo aopsd.max_num_epochs=1")
def demo(
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(metavar="RUN", help="Its folder; a run in it becomes RUN.1.")] = Path(
        "runs/demo"
    ),
) -> None:
    """The whole algorithm on a tiny built-in model and its problems, in minutes; exit code 1 if it shows no gain."""
    overrides = overrides or []
    config = load_config(find_recipe(Path("demo")), [path_override("logger.log_dir", out), *overrides])
    if config.aopsd.evaluation.data_path is None:
        raise UserError("aopsd.evaluation.data_path is null, but the demo compares before and after. Leave it set.")
    run = _run(config)
    _keep_inputs(config, run)
    keep_apart(run, "a run of `aopsd train`")
    # So small a model gains nothing from more threads, and on a busy machine they wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with lock_all(run, _checkpoints(config)):
        if aside := move_aside(run):
            typer.echo(f"the run that was in {run} is now in {aside}")
        typer.echo(_begins(config))
        found = look(config, overrides, lambda: engines.pick(config).check(config), measures=False)
        inputs = found.passed()
        warn(found.warnings)
        typed = shlex.join(["aopsd", "demo", "--out", str(out), *overrides])
        _train(config, *inputs, resume=False, typed=typed)
    _say_what_it_showed(run, config.aopsd.seed)


@app.example(
    "aopsd train demo logger.log_dir=runs/mine aopsd.seed=1",
    "aopsd train mine.yaml --method opsd --check",
    "aopsd train --resume runs/mine aopsd.max_num_steps=200",
)
def train(
    config: ConfigIfAny = None,
    overrides: Overrides = None,
    method: MethodName = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with the run in this folder, whose config is the default.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check all that needs no model, then stop.")] = False,
    mounts: Annotated[
        str | None,
        typer.Option(
            metavar="/HERE:/THERE,...", help="With --check, for a job elsewhere: its container has these folders only."
        ),
    ] = None,
) -> None:
    """Train the student of CONFIG; everything that the run learns and measures goes into logger.log_dir."""
    overrides, place = overrides or [], list[str]()
    named = [] if config is None else [str(config)]
    if resume and (config is None or ("=" in str(config) and not config.exists())):
        overrides, named = [*named, *overrides], []
        config, place = require_run(resume), places(resume)
    elif resume:
        place = [path_override("logger.log_dir", resume)]
    if config is None:
        raise UserError("CONFIG is missing. Name a YAML file, or demo; or go on with a run: aopsd train --resume RUN.")
    with telling_what_is_lost(resume):
        settings = there = load_chosen(config, [*place, *overrides], method, resumes=True)
    run = _run(settings)
    if resume and os.path.realpath(run) != os.path.realpath(resume):
        raise UserError(f"--resume {resume}: goes on in that folder; got logger.log_dir={run}. Leave one of them out.")
    if mounts is not None:
        if not check:
            raise UserError("--mounts goes with --check: a run reads its own paths. Leave it out, or add --check.")
        there = load_chosen(config, [*place, *overrides, *paths_here(settings, mounts)], method)
        there = replace(there, origins=settings.origins)  # what the user wrote, not the paths that stand for it
    if resume:
        require_run(resume)
    elif not check:
        check_place(settings)
    if not check:
        typer.echo(_begins(settings))
    with lock_all(run, _checkpoints(settings)) if resume or not check else nullcontext():
        with telling_what_is_lost(resume):
            found = look(
                there,
                overrides,
                lambda: engines.pick(there).check(there, elsewhere=mounts is not None),
                (lambda: check_resumable(resume, settings)) if resume else None,
                measures=check,
            )
            problems, held_out = found.passed()
        settings = there
        warn(found.warnings)
        if check:
            done = len(read_journal(run / layout.METRICS, "step")) if resume else 0
            elsewhere = mounts is not None
            typer.echo(summarize(settings, found, elsewhere=elsewhere, method=method, steps_done=done))
            return
        if not resume and (told := first_attempts(settings.aopsd, len(problems), method)):
            typer.echo(told)
        chosen = [] if method is None else ["--method", method]
        resumed = [] if resume is None else ["--resume", str(resume)]
        typed = shlex.join(["aopsd", "train", *named, *chosen, *overrides, *resumed])
        _train(settings, problems, held_out, resume=resume is not None, typed=typed)
    typer.echo(f"done, seed {settings.aopsd.seed}{_outcome(run)}. Next: aopsd report {shlex.quote(str(run))}")


@app.example(
    "aopsd preview demo --problem train-030-level5",
    "aopsd preview demo --problem train-030-level5 aopsd.context.kind=dag_full",
    "aopsd preview mine.yaml --problem p1 --method opsd",
)
def preview(config: ConfigPath, problem: ProblemId, overrides: Overrides = None, method: MethodName = None) -> None:
    """One problem through one step, without learning: both prompts, a response, its gaps and probes."""
    settings = load_chosen(config, overrides, method)
    _, (problems, _) = tell_all(lambda: engines.pick(settings).check(settings), lambda: check_inputs(settings))
    by_id = {each.id: each for each in problems}
    if problem not in by_id:
        hint = nearest(problem, list(by_id)) or f" The first one is `{problems[0].id}`."
        file = settings.data["train"]["data_path"]
        raise UserError(f"{file}: no problem with id {problem!r} among its {len(problems)}.{hint}")
    show(by_id[problem], problems, engines.pick(settings).build(settings), settings, Console())


def _keep_inputs(config: Config, run: Path) -> None:
    """Nothing that the demo reads may lie in the folder whose run it moves aside."""
    read = {
        "policy.model_name": config.policy["model_name"],
        "data.train.data_path": config.data["train"]["data_path"],
        "aopsd.evaluation.data_path": config.aopsd.evaluation.data_path,
    }
    keep_inputs([run], [(key, Path(path)) for key, path in read.items() if path], is_folder=True)


def _say_what_it_showed(run: Path, seed: int) -> None:
    """Write the report, and end with exit code 1 unless pass@1 has risen beyond chance."""
    from nemo_aopsd.analysis.report import write_report

    page = write_report(run)
    rates, low, _ = _gain(run)
    typer.echo(f"demo {'ok' if low > 0 else 'ran, no gain shown'}: {rates}, seed {seed}, report {page}")
    if low <= 0:
        raise typer.Exit(1)


def _outcome(run: Path) -> str:
    """What pass@1 has become; empty for a run without an evaluation before and after."""
    if len(layout.evaluation_files(run)) < 2:
        return ""
    from nemo_aopsd.evaluation.epochs import told_interval

    rates, low, high = _gain(run)
    return f": {rates}, {told_interval(low, high)}"


def _gain(run: Path) -> tuple[str, float, float]:
    """pass@1 of the first and the last evaluation, and the 95 % interval of the change."""
    from nemo_aopsd.evaluation.epochs import paired_interval

    files = list(layout.evaluation_files(run).values())
    before, after = (json.loads(file.read_text(encoding="utf-8")) for file in (files[0], files[-1]))
    rates = f"pass@1 {before['pass_at_k']['1']:.3f} -> {after['pass_at_k']['1']:.3f} (n={after['num_problems']})"
    return rates, *paired_interval(before, after)


def _begins(config: Config) -> str:
    """The first line of a run: checks and the libraries take seconds, or a minute on a busy machine."""
    model = config.policy["model_name"]
    return f"{_run(config)}: {family_label(config.aopsd)}, seed {config.aopsd.seed}; checks, then loads {model}"


def _train(
    config: Config, problems: list[Problem], held_out: list[Problem] | None, *, resume: bool, typed: str
) -> None:
    """Build the engine and train. The run notes what was `typed`."""
    from nemo_aopsd.run.trainer import train as train_problems

    engine = engines.pick(config).build(config)
    warn(check_texts(config, problems, held_out, engine.tokenizer))
    run = _run(config)
    check_extensions(run, config.aopsd)
    write_config(run, settings_text(config), typed)
    keep_extensions(run, config.aopsd)
    with interruptible(f"To go on: {to_go_on(run)}", lambda: _lost(config)):
        try:
            train_problems(config, problems, held_out, engine, run, resume=resume)
        except UserError as error:
            told = f"{_lost(config)}{after_failure(run, config.aopsd)}"
            raise UserError(f"{error}\n{told}") from error


def _lost(config: Config) -> str:
    """What a resume will do again."""
    number = steps_without(_checkpoints(config), _run(config) / layout.METRICS)
    settings = config.checkpointing
    why = f"save_period={settings['save_period']}" if settings["enabled"] else "enabled=false"
    has = "has" if number == 1 else "have"
    told = f"{counted(number, 'step')} {has} no checkpoint (checkpointing.{why}) and will be made again. "
    return told if number else ""


def _run(config: Config) -> Path:
    return Path(config.logger["log_dir"])


def _checkpoints(config: Config) -> Path:
    return Path(config.checkpointing["checkpoint_dir"])
