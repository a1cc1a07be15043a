"""Commands around data: `aopsd data prepare`, `aopsd dag build|stats|browse`, `aopsd judge eval`.

The command line mounts them with `mount`. Whatever needs a network client, parquet or a model is imported inside.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nemo_aopsd.cli.numbers import finite
from nemo_aopsd.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_aopsd.config.schema import Config
    from nemo_aopsd.data.check import Line
    from nemo_aopsd.evaluation.judge_eval import Judge

data_app = typer.Typer(help="Make problems files.", no_args_is_help=True)
judge_app = typer.Typer(help="Measure the progress judge.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Problems, one JSON object a line.")]
BaseUrl = Annotated[str, typer.Option(metavar="URL", help="OpenAI-compatible server, http://localhost:8000/v1 say.")]
Model = Annotated[str, typer.Option(metavar="NAME", help="Name of the model at the server.")]
KeyVariable = Annotated[
    str,
    typer.Option("--api-key-env", metavar="NAME", help="Environment variable that holds the key, if one is needed."),
]
Concurrency = Annotated[int, typer.Option(min=1, metavar="N", help="Requests at a time.")]


def mount(app: typer.Typer, dag_app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    app.add_typer(data_app, name="data")
    app.add_typer(judge_app, name="judge")
    dag_app.command("build", epilog="Example: " + _BUILD_EXAMPLE)(dag_build)
    dag_app.command("stats", epilog="Example: aopsd dag stats dags.jsonl --out stats.jsonl")(dag_stats)
    dag_app.command("browse", epilog="Example: aopsd dag browse dags.jsonl --out dags.html")(dag_browse)


_BUILD_EXAMPLE = (
    "aopsd dag build problems.jsonl --out dags.jsonl --base-url http://localhost:8000/v1 --model Qwen/Qwen3-32B"
)


def dag_build(
    problems: Annotated[Path, typer.Argument(metavar="PROBLEMS", help="Problems with verified solutions, JSONL.")],
    out: Annotated[Path, typer.Option(metavar="DAGS.jsonl", help="Accepted rows; journal and rejects go beside it.")],
    base_url: BaseUrl,
    model: Model,
    judge_model: Annotated[str | None, typer.Option(metavar="NAME", help="Another model that reviews.")] = None,
    api_key_env: KeyVariable = "OPENAI_API_KEY",
    concurrency: Concurrency = 32,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of one answer.")] = 8192,
    max_total_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cap on prompt and answer tokens of the whole journal.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="T", callback=finite, help="Sampling temperature; the server's own if left out."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", callback=finite, help="Without a byte from the server.")
    ] = 600.0,
    max_retries: Annotated[int, typer.Option(min=0, metavar="N", help="Of one request, with growing pauses.")] = 6,
) -> None:
    """Turn verified solutions into reasoning DAGs, plans and sub-problems. Killed or stopped, start it again.

    Exit code 1 if every problem was rejected.
    """
    from nemo_aopsd.chat.endpoint import parse_endpoint, read_key
    from nemo_aopsd.files import keep_inputs
    from nemo_aopsd.graphs.pipeline.pipeline import Settings, build
    from nemo_aopsd.graphs.pipeline.progress import watching
    from nemo_aopsd.graphs.pipeline.results import beside, files_of, summary_lines

    keep_inputs(files_of(out), [("PROBLEMS", problems)])
    settings = Settings(
        model=model,
        judge_model=judge_model,
        max_tokens=max_tokens,
        temperature=temperature,
        concurrency=concurrency,
        timeout=timeout,
        max_retries=max_retries,
        max_total_tokens=max_total_tokens,
    )
    endpoint = parse_endpoint(base_url, read_key(api_key_env))
    try:
        with watching() as watch:
            summary = build(problems, out, endpoint, settings, watch)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted. What is finished is in the journal; start the same command to go on.", err=True)
        raise typer.Exit(130) from None
    for line in summary_lines(summary):
        typer.echo(line)
    typer.echo(f"{out}; rejects with reasons in {beside(out, 'rejects.jsonl')}")
    if summary["rejected"] == summary["problems"]:
        raise typer.Exit(1)


def dag_stats(
    file: File,
    out: Annotated[Path | None, typer.Option(metavar="STATS.jsonl", help="Also write one line a graph.")] = None,
) -> None:
    """Nodes, depth, width, fan-in and fan-out, transitive edges and answer leaks of the graphs of FILE."""
    from nemo_aopsd.data.stats import measure_file, table
    from nemo_aopsd.files import keep_inputs, write_jsonl

    keep_inputs([out], [("FILE", file)])
    rows, broken = measure_file(file)
    for line in table(rows):
        typer.echo(line)
    warn_of_unread(file, broken)
    if out:
        write_jsonl(out, rows)
        typer.echo(out)


def dag_browse(
    file: File,
    out: Annotated[Path, typer.Option(metavar="PAGE.html", help="One self-contained page.")],
) -> None:
    """Write a page to search and read the graphs of FILE; it needs no network and no server."""
    from nemo_aopsd.files import keep_inputs
    from nemo_aopsd.graphs.browser import write_browser

    keep_inputs([out], [("FILE", file)])
    count, broken = write_browser(file, out)
    warn_of_unread(file, broken)
    typer.echo(f"{out}: {count} graphs")


def warn_of_unread(file: Path, broken: Sequence[Line]) -> None:
    """One line on stderr, if there are any."""
    from nemo_aopsd.data.check import unread_note

    if broken:
        typer.echo(f"warning {unread_note(file, broken)}", err=True)


@data_app.command("prepare", epilog="Example: aopsd data prepare GAIR/LIMO-v2 --out limo.jsonl --against aime25.jsonl")
def data_prepare(
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
    split: Annotated[str, typer.Option(metavar="NAME", help="Split of a data set of the hub.")] = "train",
    revision: Annotated[str | None, typer.Option(metavar="COMMIT", help="Version of a data set of the hub.")] = None,
) -> None:
    """Problems with solutions and gold answers that parse, each once, none of them in an evaluation set."""
    from nemo_aopsd.data.prepare import files_of, parse_mapping, prepare
    from nemo_aopsd.data.source import read_source
    from nemo_aopsd.files import keep_inputs

    keep_inputs(files_of(out), [("SOURCE", Path(source)), *(("--against", path) for path in against or [])])
    rows = read_source(source, split=split, revision=revision)
    report = prepare(rows, parse_mapping(mapping or []), against or [], out)
    for line in report.lines():
        typer.echo(line)


@judge_app.command(
    "eval",
    epilog="Example: aopsd judge eval --cases examples/data/judge_cases.jsonl --problems examples/data/problems.jsonl "
    "--base-url http://localhost:8000/v1 --model Qwen/Qwen3-4B",
)
def judge_eval(
    cases: Annotated[Path, typer.Option(metavar="FILE", help="Labelled attempts, one JSON object a line.")],
    problems: Annotated[Path, typer.Option(metavar="FILE", help="The problems with their DAGs.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings over the file of --config.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="OpenAI-compatible server.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the model at the server.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="CONFIG", help="Judge with the student of a config.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="VERDICTS.jsonl", help="Also write every verdict.")] = None,
    api_key_env: KeyVariable = "OPENAI_API_KEY",
    concurrency: Concurrency = 32,
) -> None:
    """Precision and recall of the progress judge, before and after closure, and how often an injection fools it."""
    from nemo_aopsd.config.load import load_config
    from nemo_aopsd.config.methods import find_recipe
    from nemo_aopsd.evaluation import judge_eval as evaluation
    from nemo_aopsd.files import keep_inputs

    _check_one_judge(base_url, model, config)
    if overrides and not config:
        raise UserError(f"{overrides[0]}: settings go over the file of --config, but none is given. Leave them out.")
    settings = load_config(find_recipe(config), overrides or []) if config else None
    read = [("--cases", cases), ("--problems", problems), ("--config", config)]
    read += [("policy.model_name", Path(settings.policy["model_name"]))] if settings else []
    keep_inputs([out], read)
    loaded = evaluation.load_cases(cases, problems)
    if settings:
        judge = _local_judge(settings)
    else:
        from nemo_aopsd.chat.endpoint import parse_endpoint, read_key

        endpoint = parse_endpoint(base_url, read_key(api_key_env))
        judge = evaluation.remote_judge(endpoint, model, concurrency=concurrency)
    results = evaluation.evaluate(loaded, judge)
    for line in evaluation.summary_lines(evaluation.summarize(results)):
        typer.echo(line)
    if out:
        evaluation.write(results, out)
        typer.echo(out)


def _check_one_judge(base_url: str | None, model: str | None, config: Path | None) -> None:
    if config and (base_url or model):
        raise UserError("--config and a server: one judge at a time. Leave out --config, or --base-url and --model.")
    if not config and not base_url and not model:
        raise UserError("no judge given. Give --base-url and --model of a server, or --config to judge with its model.")
    if not config and not (base_url and model):
        missing = "--model" if base_url else "--base-url"
        raise UserError(f"{missing} is missing. A judge at a server needs both --base-url and --model.")


def _local_judge(config: Config) -> Judge:
    """The judge of a config: its engine's student or teacher, as `aopsd.judge.model` says."""
    from nemo_aopsd import engines
    from nemo_aopsd.evaluation.judge_eval import local_judge

    engine = engines.pick(config).build(config)
    aopsd = config.aopsd
    model = engine.teacher if aopsd.judge.model == "teacher" else engine.student
    return local_judge(
        model,
        engine.tokenizer,
        aopsd.judge,
        prompts=aopsd.prompts,
        thinking=aopsd.thinking.student,
        max_row_tokens=config.max_row_tokens,
        seed=aopsd.seed,
    )
