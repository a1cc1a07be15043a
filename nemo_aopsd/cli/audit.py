"""Commands of the NLL-blind audit: `aopsd audit sample|label|judge|report`."""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nemo_aopsd.chat.endpoint import parse_endpoint, read_key
from nemo_aopsd.cli.options import BaseUrl, Commands, Concurrency, KeyVariable, Model, RunPath, interruptible
from nemo_aopsd.errors import UserError
from nemo_aopsd.run import layout
from nemo_aopsd.run.folder import load_run_config

app = Commands(
    name="audit",
    help="Is what the teacher writes at high-gap tokens useful, redundant or leakage? Labels that do not see the NLL.",
    no_args_is_help=True,
)


@app.example(
    "aopsd audit sample runs/mine --count 300",
    "aopsd audit sample runs/mine --count 300 --by-bin",
    "aopsd audit sample runs/mine --count 100 --seed 1",
)
def sample(
    run: RunPath,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Events to draw.")],
    seed: Annotated[int, typer.Option(metavar="S", help="Of the draw.")] = 0,
    by_bin: Annotated[
        bool, typer.Option("--by-bin", help="As many of each NLL bin, so that rare high ones are seen.")
    ] = False,
    edges: Annotated[
        str, typer.Option(metavar="L1,L2,...", help="Bounds between the NLL bins, nats a token.")
    ] = "0.5,1,2,3,4",
) -> None:
    """Draw probe events of RUN into RUN/audit/events.jsonl, which says nothing of their NLL, gap or weight."""
    from nemo_aopsd.analysis.audit import sampling

    _need_run(run)
    typer.echo(sampling.summary(sampling.sample(run, count=count, seed=seed, by_bin=by_bin, edges=_numbers(edges))))
    typer.echo(run / "audit" / "events.jsonl")


@app.example(
    "aopsd audit label runs/mine --name ada",
    "aopsd audit label runs/mine --name ben",
    "aopsd audit label runs/other --name ada",
)
def label(
    run: RunPath,
    name: Annotated[str, typer.Option(metavar="NAME", help="Who labels; a second labeller takes another name.")],
) -> None:
    """Label by hand in the terminal: 1, 2 or 3 and Enter, u for undo, q to stop; the same command goes on any time."""
    from nemo_aopsd.analysis.audit.labels import LabelBook, label_events, labels_path
    from nemo_aopsd.analysis.audit.sampling import load_events

    _need_run(run)
    path, events = labels_path(run, name), load_events(run)
    with LabelBook(path, {"kind": "hand"}) as book:
        try:
            label_events(events, book, Console(), lambda: input("1, 2, 3, u, q > "))
        except (KeyboardInterrupt, EOFError):
            typer.echo()
        typer.echo(f"{len(book.labels)} of {len(events)} labelled in {path}")


@app.example(
    "aopsd audit judge runs/mine --base-url http://localhost:8000/v1 --model Qwen/Qwen3-32B",
    "aopsd audit judge runs/mine --base-url http://localhost:8000/v1 --model Qwen/Qwen3-32B --name qwen",
    "aopsd audit judge runs/mine --base-url http://localhost:8000/v1 --model gpt --api-key-env OPENAI_API_KEY",
)
def judge(
    run: RunPath,
    base_url: BaseUrl,
    model: Model,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the labeller; default: from --model.")] = None,
    api_key_env: KeyVariable = "OPENAI_API_KEY",
    concurrency: Concurrency = 32,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of one answer.")] = 2048,
) -> None:
    """Label by a language model. Killed or stopped, start it again: what was answered is kept."""
    from nemo_aopsd.analysis.audit.judge import judge as label_all

    _need_run(run)
    name = name or re.sub(r"[^\w.-]", "_", model).lstrip(".-")
    endpoint = parse_endpoint(base_url, read_key(api_key_env))
    with interruptible("What was answered is kept; start the same command to go on."):
        counts = label_all(run, endpoint, model, name=name, concurrency=concurrency, max_tokens=max_tokens)
    labelled, before, unread = counts
    typer.echo(f"{labelled} labelled as {name}, {before} before; {unread} answers named no label")


@app.example("aopsd audit report runs/mine", "aopsd audit report runs/demo", "aopsd audit report runs/opsd")
def report(run: RunPath) -> None:
    """Shares of each label by NLL bin, enrichment, agreement; writes report.md, report.json, enrichment.svg."""
    from nemo_aopsd.analysis.audit.report import write_report

    _need_run(run)
    typer.echo(write_report(run))
    typer.echo(run / "audit" / "report.md")


def _need_run(run: Path) -> None:
    """Advice to draw a sample would lead nowhere in a folder that holds neither a run nor an audit of one."""
    if not (run / layout.AUDIT).is_dir():
        load_run_config(run)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"--edges {text}: expected numbers with commas between. Example: 0.5,1,2,3,4.") from error
