"""`aopsd diagnose ...`: the paper's diagnostics on runs, and one on a config. What draws is imported inside."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from nemo_aopsd import engines
from nemo_aopsd.cli.options import Commands, ConfigPath, Overrides, RunPath, finite, load_chosen
from nemo_aopsd.config.extension import is_own
from nemo_aopsd.config.schema import CHOICES
from nemo_aopsd.console import seed_words, show_page
from nemo_aopsd.errors import UserError, nearest
from nemo_aopsd.evaluation.tables import markdown_table
from nemo_aopsd.files import free_beside, keep_inputs
from nemo_aopsd.run import layout
from nemo_aopsd.run.own_files import check_shown
from nemo_aopsd.run.preflight import check_inputs

if TYPE_CHECKING:
    from nemo_aopsd.analysis.diagnostics.output import Result

app = Commands(
    name="diagnose",
    help=(
        "The paper's diagnostics from the files of a run, written to RUN/diagnostics; `teacher` also loads the run's "
        "model, and `direction` takes a config before any training."
    ),
    no_args_is_help=True,
)

FirstStep = Annotated[int | None, typer.Option(min=1, metavar="N", help="Leave out earlier steps.")]
LastStep = Annotated[int | None, typer.Option(min=1, metavar="N", help="Leave out later steps.")]


@app.example(
    "aopsd diagnose gaps runs/demo",
    "aopsd diagnose gaps runs/demo --last-step 12",
    "aopsd diagnose gaps runs/demo --threshold 1 --threshold 3",
)
def gaps(
    run: RunPath,
    threshold: Annotated[
        list[float] | None,
        typer.Option(metavar="NATS", callback=finite, help="Repeat for several; default 0.5, 1, 2, 4."),
    ] = None,
    first_step: FirstStep = None,
    last_step: LastStep = None,
) -> None:
    """Share of tokens against share of |gap|, by threshold and sign (Figure 1b)."""
    from nemo_aopsd.analysis.diagnostics.gaps import THRESHOLDS, diagnose_gaps
    from nemo_aopsd.analysis.diagnostics.steps import Steps

    _write(run, diagnose_gaps(run, threshold or THRESHOLDS, Steps(first_step, last_step)))


@app.example(
    "aopsd diagnose continuations runs/demo",
    "aopsd diagnose continuations runs/demo --threshold 2",
    "aopsd diagnose continuations runs/demo --patterns german.yaml",
)
def continuations(
    run: RunPath,
    patterns: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="More patterns, YAML as in prompts/*/continuations.yaml.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(metavar="NATS", callback=finite, help="Least |gap| of an event; default: the run's own."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the run's tokenizer is, if not where it was.")
    ] = None,
    first_step: FirstStep = None,
    last_step: LastStep = None,
) -> None:
    """Correction cues and references to the private context in the teacher's continuations, by k (Table 1)."""
    from nemo_aopsd.analysis.diagnostics.continuations import diagnose_continuations, load_decoder
    from nemo_aopsd.analysis.diagnostics.steps import Steps
    from nemo_aopsd.run.reader import load_run

    result = diagnose_continuations(
        run,
        decode=load_decoder(load_run(run).config, tokenizer) if tokenizer else None,
        patterns=patterns or (),
        threshold=threshold,
        steps=Steps(first_step, last_step),
    )
    _write(run, result, [("--patterns", path) for path in patterns or ()])


@app.example(
    "aopsd diagnose progress runs/demo",
    "aopsd diagnose progress runs/demo --first-step 13",
    "aopsd diagnose progress runs/demo --problems problems.jsonl",
)
def progress(
    run: RunPath,
    problems: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The run's problems, if their file is not where it was.")
    ] = None,
    first_step: FirstStep = None,
    last_step: LastStep = None,
) -> None:
    """Progress r against the final answer, by bin of r."""
    from nemo_aopsd.analysis.diagnostics.progress import diagnose_progress
    from nemo_aopsd.analysis.diagnostics.steps import Steps

    _write(run, diagnose_progress(run, problems, Steps(first_step, last_step)), [("--problems", problems)])


@app.example(
    "aopsd diagnose teacher runs/demo",
    "aopsd diagnose teacher runs/demo --samples 8",
    "aopsd diagnose teacher runs/demo --data held_out.jsonl",
)
def teacher(
    run: RunPath,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Problems with contexts; default: aopsd.evaluation.data_path.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Responses a problem; default: aopsd.evaluation.num_samples.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of one answer; default: aopsd.evaluation.max_new_tokens.")
    ] = None,
) -> None:
    """Does the context help the teacher (Figure 1a)? Needs the run's model; can be interrupted."""
    from nemo_aopsd.analysis.diagnostics.teacher import evaluate_teacher, plan_teacher, utility
    from nemo_aopsd.run.reader import load_run

    config = load_run(run).config
    check_shown(run, config.aopsd)
    if max_new_tokens:
        evaluation = replace(config.aopsd.evaluation, max_new_tokens=max_new_tokens)
        config = replace(config, aopsd=replace(config.aopsd, evaluation=evaluation))
    plan = plan_teacher(run, config, data, samples)
    engine = engines.pick(config).build(config)
    kinds = dict.fromkeys(("none", config.aopsd.context.kind))
    found = {kind: evaluate_teacher(plan, kind, config, engine) for kind in kinds}
    rows = [
        [kind, f"{one['num_correct']} of {one['num_responses']}", one["num_problems"]] for kind, one in found.items()
    ]
    show_page(markdown_table(["context", "right", "problems"], rows) + "\n")
    if len(found) > 1:
        show_page(utility(*found.values()) + "\n")
    left_out = f"{plan.num_left_out} problems lack what the context shows and were left out"
    typer.echo(f"{left_out}; {seed_words(config.aopsd.seed)}; samples in {plan.folder}")


@app.example(
    "aopsd diagnose direction demo",
    "aopsd diagnose direction mine.yaml --answers 16 --out runs/direction",
    "aopsd diagnose direction mine.yaml --context dag_full --context solution",
)
def direction(
    config: ConfigPath,
    overrides: Overrides = None,
    problems: Annotated[
        int, typer.Option(min=1, metavar="N", help="Of the training problems, drawn by the seed.")
    ] = 128,
    answers: Annotated[int, typer.Option(min=2, metavar="N", help="Fresh answers a problem.")] = 8,
    context: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Repeat for several; default: aopsd.context.kind.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="direction.md, its numbers, and all answers.")] = Path(
        "runs/direction"
    ),
) -> None:
    """Before any training: does the update of each context and weighting point towards correctness?"""
    from nemo_aopsd.analysis.diagnostics.direction import diagnose_direction
    from nemo_aopsd.analysis.diagnostics.direction_page import FILES, keeper, show, write_direction

    for kind in context or ():
        if kind not in CHOICES["context.kind"] and not is_own(kind):
            known = CHOICES["context.kind"]
            raise UserError(f"--context {kind}: no such context. Choose from {', '.join(known)}.{nearest(kind, known)}")
    settings = load_chosen(config, overrides, None)
    if settings.aopsd.engine != "local":
        raise UserError("aopsd.engine is nemo_rl; only the local engine forms gradients. Set aopsd.engine=local.")
    train = Path(settings.data["train"]["data_path"])
    keep_inputs([out / name for name in FILES], [("CONFIG", config), ("data.train.data_path", train)])
    engine = engines.pick(settings)
    engine.check(settings)
    kinds = context or [settings.aopsd.context.kind]
    aopsd = replace(settings.aopsd, objective=replace(settings.aopsd.objective, name="pg", reward="none"))
    for kind in kinds:
        shown = replace(aopsd.context, kind=kind)
        found, _ = check_inputs(replace(settings, aopsd=replace(aopsd, context=shown)))
    if len(found) < problems:
        typer.echo(f"all {len(found)} problems of {train}: --problems asks for {problems}")
    chosen = random.Random(settings.aopsd.seed).sample(found, min(problems, len(found)))
    if aside := _move_aside(out, FILES):
        typer.echo(f"what was in {out} is now in {aside}")
    result = diagnose_direction(settings, chosen, engine.build(settings), kinds, answers, keeper(out))
    page, *_ = write_direction(out, result, settings)
    show(result, settings, Console())
    typer.echo(", ".join([str(page), *FILES[1:]]))


def _move_aside(out: Path, files: Sequence[str]) -> Path | None:
    """Rename a folder that has only `files` of an earlier call. Raises UserError if it has others beside them."""
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if not names & set(files):
        return None
    if others := sorted(names - set(files)):
        raise UserError(f"{out}: has an earlier direction, and {others[0]} beside it. Give another --out.")
    return out.rename(free_beside(out))


def _write(run: Path, result: Result, read: Sequence[tuple[str, Path | None]] = ()) -> None:
    from nemo_aopsd.analysis.diagnostics.output import markdown, write

    folder = run / layout.DIAGNOSTICS
    keep_inputs([folder / f"{result.name}{suffix}" for suffix in (".md", ".json", ".svg")], read, "RUN")
    page, *others = write(folder, result)
    show_page(markdown(result))
    typer.echo(f"{page}, {', '.join(path.name for path in others)}")
