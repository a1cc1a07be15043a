"""`aopsd judge eval`: how good the progress judge is."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from nemo_aopsd import engines
from nemo_aopsd.chat.endpoint import parse_endpoint, read_key
from nemo_aopsd.cli.options import Commands, Concurrency, KeyVariable, Overrides, load_if_named, say
from nemo_aopsd.config.extension import is_own, made
from nemo_aopsd.config.schema import CHOICES, Config
from nemo_aopsd.config.shipped import find_recipe
from nemo_aopsd.console import seed_words, warn
from nemo_aopsd.errors import UserError, nearest
from nemo_aopsd.files import atomic_write, keep_inputs
from nemo_aopsd.models.limits import check_readable

if TYPE_CHECKING:
    from nemo_aopsd.evaluation.judge_eval import Case, Judge, Result

_MADE = 200  # of the attempts that the command makes itself, where nothing else is asked

app = Commands(name="judge", help="Measure the progress judge.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure the progress judge."""


@app.example(
    "aopsd judge eval --problems gsm8k.jsonl --config mine.yaml",
    "aopsd judge eval --cases cases.jsonl --problems problems.jsonl "
    "--base-url http://localhost:8000/v1 --model Qwen/Qwen3-4B",
    "aopsd judge eval --cases cases.jsonl --problems problems.jsonl --config mine.yaml --calibrate mine2.yaml",
    name="eval",
)
def evaluate(
    problems: Annotated[Path, typer.Option(metavar="FILE", help="The problems with their DAGs.")],
    overrides: Overrides = None,
    cases: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Labelled attempts, one JSON object a line; else beginnings of the problems' solutions.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help=f"Judge N attempts, drawn by the seed; {_MADE} if they are made, else all."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of what is drawn and sampled; aopsd.seed, or 0.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="OpenAI-compatible server.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the model at the server.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="CONFIG", help="Judge with the student of a config.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help=f"aopsd.judge.kind: {', '.join(CHOICES['judge.kind'])}, or FILE.py:CLASS. With --config all three and "
            "the config's own are measured, unless one is named.",
        ),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="OUT.yaml", help="Fit the threshold of log_odds on half of the problems, and write it."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="VERDICTS.jsonl", help="Also write every verdict.")] = None,
    api_key_env: KeyVariable = "OPENAI_API_KEY",
    concurrency: Concurrency = 32,
) -> None:
    """Precision and recall of the progress judge, before and after closure, and how often an injection fools it."""
    from nemo_aopsd.evaluation import judge_eval as evaluation

    if bool(config) == bool(base_url or model) or bool(base_url) != bool(model):
        raise UserError("expected one judge: --base-url and --model of a server, or --config to judge with its model.")
    overrides = overrides or []
    if overrides and not config:
        raise UserError(f"{overrides[0]}: settings change the config of --config, but none is given. Leave them out.")
    _check_kind(kind, calibrate is not None, config is not None)
    settings = load_if_named(config, [*overrides, *([f"aopsd.judge.kind={kind}"] if kind else [])], None)
    if settings and seed is not None:
        settings = replace(settings, aopsd=replace(settings.aopsd, seed=seed))
    seed = settings.aopsd.seed if settings else seed or 0
    read = [("--cases", cases), ("--problems", problems), ("--config", config)]
    read += [("policy.model_name", Path(settings.policy["model_name"]))] if settings else []
    keep_inputs([out], read)
    keep_inputs([calibrate], [*read, ("--out", out)], "--calibrate")
    if settings and is_own(settings.aopsd.judge.kind):
        made("judge.kind", settings.aopsd.judge.kind, settings.aopsd)  # a wrong name is told before a model is loaded
    loaded = _chosen(cases, problems, limit, seed)
    if settings:
        kinds = (kind,) if kind else dict.fromkeys((*CHOICES["judge.kind"], settings.aopsd.judge.kind))
        results = _measure_all(settings, loaded, kinds)
    else:
        endpoint, way = parse_endpoint(base_url or "", read_key(api_key_env)), kind or "list"
        judge = evaluation.remote_judge(endpoint, model or "", way, concurrency=concurrency)
        results = {way: _measure(loaded, judge, way)}
    if out:
        evaluation.write(results, out, seed)
        typer.echo(out)
    if calibrate and config and settings:
        _write_threshold(calibrate, results["log_odds"], config, settings, overrides, seed)


def _write_threshold(
    path: Path, results: Sequence[Result], config: Path, settings: Config, overrides: Sequence[str], seed: int
) -> None:
    """Fit it on half of the problems, say what it does on the others, and write a config on top of `config`."""
    from nemo_aopsd.evaluation import judge_eval as evaluation

    threshold, others = evaluation.calibrate(results, seed)
    typer.echo(f"log_odds, threshold {threshold:g}, fitted on half of the problems; on the others:")
    summary = evaluation.summarize(others)
    say([*evaluation.summary_lines(summary), evaluation.baseline_line(summary)])
    if doubts := list(evaluation.worthless(summary)):
        warn([*doubts, f"{path} is written all the same: to train with it would be to train with chance"])
    parent = os.path.relpath(os.path.realpath(find_recipe(config)), os.path.realpath(path.parent))
    block: dict[str, object] = {"kind": "log_odds", "threshold": threshold}
    if settings.aopsd.judge.model == "student":
        block["model"] = "teacher"  # the frozen one: a student that learns leaves the threshold behind
    atomic_write(path, yaml.safe_dump({"defaults": parent, "aopsd": {"judge": block}}, sort_keys=False))
    words = " ".join(f"aopsd.judge.{k}={v}" for k, v in (block | {"threshold": f"{threshold:g}"}).items())
    typer.echo(f"{path}: {parent} with {words}")
    if overrides:
        typer.echo(f"Not in it are these settings; `aopsd train` needs them again: {shlex.join(overrides)}")


def _check_kind(kind: str | None, calibrates: bool, has_config: bool) -> None:
    """Raise UserError on a way of asking that there is not, or that cannot be had of a server or be calibrated."""
    ours = CHOICES["judge.kind"]
    if kind and kind not in ours and not is_own(kind):
        wanted = f"{', '.join(ours)}, or a judge of your own as FILE.py:CLASS"
        raise UserError(f"--kind {kind}: expected {wanted}.{nearest(kind, ours)}")
    if calibrates and kind not in (None, "log_odds"):
        raise UserError(
            f"--calibrate fits the threshold of log_odds; --kind {kind} has none. Leave --kind out, or give log_odds."
        )
    if not has_config and kind and is_own(kind):
        raise UserError(f"--kind {kind}: a judge of your own is given a model of this machine. Give --config.")
    if not has_config and (calibrates or kind == "log_odds"):
        found = "--calibrate" if calibrates else "--kind log_odds"
        raise UserError(f"{found} needs a model's log-probs, which a server does not give. Give --config instead.")


def _chosen(cases: Path | None, problems: Path, limit: int | None, seed: int) -> list[Case]:
    """The attempts to judge. Says how many of how many, and how they were made if there is no file of them."""
    from nemo_aopsd.evaluation.judge_eval import load_cases
    from nemo_aopsd.evaluation.made_cases import draw, make_cases

    made = None if cases else make_cases(problems, seed)
    every = made.cases if made else load_cases(cases or problems, problems)
    chosen = draw(every, limit or (_MADE if made else None), seed)
    say(made.lines() if made else ())
    typer.echo(f"{len(chosen):,} of {len(every):,} attempts, {seed_words(seed, '--seed', 'attempts and retries')}")
    return chosen


def _measure_all(config: Config, cases: Sequence[Case], kinds: Iterable[str]) -> dict[str, Sequence[Result]]:
    """With the judge of a config: its engine's student or teacher, as `aopsd.judge.model` says."""
    from nemo_aopsd.evaluation.judge_eval import local_judge

    engine, aopsd, results = engines.pick(config).build(config), config.aopsd, {}
    asked = list({case.problem.id: case.problem for case in cases}.values())
    warn(check_readable(asked, engine.tokenizer, config.policy["model_name"]))
    for kind in kinds:
        chosen = replace(config, aopsd=replace(aopsd, judge=replace(aopsd.judge, kind=kind)))
        name = f"{kind}, threshold {aopsd.judge.threshold:g}" if kind == "log_odds" else kind
        results[kind] = _measure(cases, local_judge(engine, chosen), name)
    return results


def _measure(cases: Sequence[Case], judge: Judge, name: str) -> Sequence[Result]:
    from nemo_aopsd.evaluation import judge_eval as evaluation

    start = time.monotonic()
    results = evaluation.evaluate(cases, judge)
    typer.echo(f"{name}: {time.monotonic() - start:.1f} s")
    say(evaluation.summary_lines(evaluation.summarize(results)))
    return results
