"""`aopsd judge eval`: how good the progress judge is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nemo_aopsd.cli.options import Concurrency, KeyVariable, Overrides, load_if_named, say
from nemo_aopsd.errors import UserError

if TYPE_CHECKING:
    from nemo_aopsd.config.schema import Config
    from nemo_aopsd.evaluation.judge_eval import Judge

app = typer.Typer(name="judge", help="Measure the progress judge.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure the progress judge."""


@app.command(
    "eval",
    epilog="Example: aopsd judge eval --cases examples/data/judge_cases.jsonl --problems examples/data/problems.jsonl "
    "--base-url http://localhost:8000/v1 --model Qwen/Qwen3-4B",
)
def evaluate(
    cases: Annotated[Path, typer.Option(metavar="FILE", help="Labelled attempts, one JSON object a line.")],
    problems: Annotated[Path, typer.Option(metavar="FILE", help="The problems with their DAGs.")],
    overrides: Overrides = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="OpenAI-compatible server.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the model at the server.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="CONFIG", help="Judge with the student of a config.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="VERDICTS.jsonl", help="Also write every verdict.")] = None,
    api_key_env: KeyVariable = "OPENAI_API_KEY",
    concurrency: Concurrency = 32,
) -> None:
    """Precision and recall of the progress judge, before and after closure, and how often an injection fools it."""
    from nemo_aopsd.chat.endpoint import parse_endpoint, read_key
    from nemo_aopsd.evaluation import judge_eval as evaluation
    from nemo_aopsd.files import keep_inputs

    if bool(config) == bool(base_url or model) or bool(base_url) != bool(model):
        raise UserError("expected one judge: --base-url and --model of a server, or --config to judge with its model.")
    if overrides and not config:
        raise UserError(f"{overrides[0]}: settings go over the file of --config, but none is given. Leave them out.")
    settings = load_if_named(config, overrides, None)
    read = [("--cases", cases), ("--problems", problems), ("--config", config)]
    read += [("policy.model_name", Path(settings.policy["model_name"]))] if settings else []
    keep_inputs([out], read)
    loaded = evaluation.load_cases(cases, problems)
    if settings:
        judge = _local_judge(settings)
    else:
        endpoint = parse_endpoint(base_url or "", read_key(api_key_env))
        judge = evaluation.remote_judge(endpoint, model or "", concurrency=concurrency)
    results = evaluation.evaluate(loaded, judge)
    say(evaluation.summary_lines(evaluation.summarize(results)))
    if out:
        evaluation.write(results, out)
        typer.echo(out)


def _local_judge(config: Config) -> Judge:
    """The judge of a config: its engine's student or teacher, as `aopsd.judge.model` says."""
    from nemo_aopsd import engines
    from nemo_aopsd.evaluation.judge_eval import local_judge

    engine, aopsd = engines.pick(config).build(config), config.aopsd
    return local_judge(
        engine.teacher if aopsd.judge.model == "teacher" else engine.student,
        engine.tokenizer,
        aopsd.judge,
        prompts=aopsd.prompts,
        thinking=aopsd.thinking.student,
        max_row_tokens=config.max_row_tokens,
        seed=aopsd.seed,
    )
