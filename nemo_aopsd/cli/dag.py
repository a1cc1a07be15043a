"""`aopsd dag ...`: build, check and show the reasoning graphs of a problems file."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nemo_aopsd.chat.endpoint import parse_endpoint, read_key
from nemo_aopsd.cli.options import (
    BaseUrl,
    Commands,
    Concurrency,
    KeyVariable,
    Model,
    ProblemId,
    ProblemsFile,
    finite,
    interruptible,
    say,
)
from nemo_aopsd.console import counted
from nemo_aopsd.data.check import CheckedRow, check_file, fault_lines, find_row, need_graphs, unread_note
from nemo_aopsd.data.leaks import LEAK_REMEDY
from nemo_aopsd.data.stats import measure_file, table
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import keep_inputs, write_jsonl

app = Commands(name="dag", help="Build, check and show the reasoning DAGs of a problems file.", no_args_is_help=True)
_DRAWN = Path("runs/dags")  # pictures and pages without an --out


@app.example(
    "aopsd dag build problems.jsonl --out dags.jsonl --base-url http://localhost:8000/v1 --model Qwen/Qwen3-32B",
    "aopsd dag build problems.jsonl --out dags.jsonl --base-url http://localhost:8000/v1 --model Qwen/Qwen3-32B "
    "--judge-model Qwen/Qwen3-4B",
    "aopsd dag build problems.jsonl --out dags.jsonl --base-url http://localhost:8000/v1 --model Qwen/Qwen3-32B "
    "--max-total-tokens 1000000",
)
def build(
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
    only_check: Annotated[bool, typer.Option("--check", help="Check all that needs no server, then stop.")] = False,
) -> None:
    """Turn verified solutions into reasoning DAGs, plans and sub-problems. Killed or stopped, start it again.

    Exit code 1 if every problem was rejected.
    """
    from nemo_aopsd.graphs.pipeline import pipeline
    from nemo_aopsd.graphs.pipeline.results import beside, files_of, summary_lines, watching

    keep_inputs(files_of(out), [("PROBLEMS", problems)])
    settings = pipeline.Settings(
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
    if only_check:
        found = counted(len(pipeline.check(problems, out)), "problem")
        typer.echo(f"ok: {found}, settings. Not checked: the server, its model, the key")
        return
    kept = "What is finished is in the journal; start the same command to go on."
    with interruptible(kept), watching() as watch:
        summary = pipeline.build(problems, out, endpoint, settings, watch)
    say(summary_lines(summary))
    typer.echo(f"{out}; rejects with reasons in {beside(out, 'rejects.jsonl')}")
    if summary["rejected"] == summary["problems"]:
        raise typer.Exit(1)


@app.example(
    "aopsd dag check problems.jsonl",
    "aopsd dag check examples/data/problems.jsonl",
    "aopsd dag check proofs.jsonl --graphs-only",
)
def check(
    file: ProblemsFile,
    graphs_only: Annotated[
        bool, typer.Option("--graphs-only", help="Of `id` and `dag` alone: for proofs and other rows without answers.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also each edge that a longer path implies.")] = False,
) -> None:
    """List every fault of every graph; exit code 2 if one of them is an error."""
    need_graphs(file)
    rows = wrong = bare = errors = 0
    kinds: Counter[str] = Counter()
    for row in check_file(file, graphs_only=graphs_only):
        is_bare = {fault.kind for fault in row.faults if fault.is_error} == {"missing_dag"}
        rows, wrong, bare = rows + 1, wrong + (row.has_errors and not is_bare), bare + is_bare
        errors += sum(fault.is_error for fault in row.faults)
        kinds.update(fault.kind for fault in row.faults)
        say(fault_lines(row, without="" if verbose else "transitive_edge"))
    if kinds["states_answer"]:
        typer.echo(f"states_answer: the teacher would be told the answer. {LEAK_REMEDY}.")
    if kinds["transitive_edge"] and not verbose:
        found = counted(kinds["transitive_edge"], "transitive_edge warning")
        typer.echo(f"{found}, harmless: a longer path implies the edge. --verbose lists them")
    usable = "sound as graphs" if graphs_only else "usable"
    found = f"{counted(errors, 'error')}, {counted(kinds.total() - errors, 'warning')}"
    without = f"{bare} only by methods that need no graph, " if bare else ""
    typer.echo(f"{counted(rows, 'row')}: {rows - wrong - bare} {usable}, {without}{wrong} not; {found}")
    if errors:
        raise typer.Exit(2)


@app.example(
    "aopsd dag show problems.jsonl --problem p1 --out p1.svg",
    "aopsd dag show dags.jsonl --problem limo-7",
    "aopsd dag show examples/data/problems.jsonl --problem ex-01-seventh-powers --out graph.svg",
)
def show(
    file: ProblemsFile,
    problem: ProblemId,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Default: in runs/dags/, by the names of FILE and ID.")
    ] = None,
) -> None:
    """Draw the graph of one problem, also one with faults; other rows may be bad."""
    from nemo_aopsd.graphs.picture import draw, drawable

    name = re.sub(r"[^\w.-]", "_", f"{file.stem}.{problem}.svg")
    out = out or _DRAWN / name
    keep_inputs([out], [("FILE", file)])
    row, raw, broken = find_row(file, problem)
    if raw is None:
        raise UserError(f"{row.where}: problem {problem!r} has no `dag` to draw. Choose another problem.")
    draw(drawable(raw, f"{row.where} (id {problem!r})"), out, title=problem)
    for line in fault_lines(row):
        typer.echo(line, err=True)
    _warn_of_unread(file, broken)
    typer.echo(out)


@app.example(
    "aopsd dag stats dags.jsonl",
    "aopsd dag stats dags.jsonl --out stats.jsonl",
    "aopsd dag stats examples/data/problems.jsonl",
)
def stats(
    file: ProblemsFile,
    out: Annotated[Path | None, typer.Option(metavar="STATS.jsonl", help="Also write one line a graph.")] = None,
) -> None:
    """Nodes, depth, width, fan-in and fan-out, transitive edges and answer leaks of the graphs of FILE."""
    keep_inputs([out], [("FILE", file)])
    rows, broken = measure_file(file)
    say(table(rows))
    _warn_of_unread(file, broken)
    if out:
        write_jsonl(out, rows)
        typer.echo(out)


@app.example(
    "aopsd dag browse dags.jsonl --out dags.html",
    "aopsd dag browse problems.jsonl",
    "aopsd dag browse examples/data/problems.jsonl --out dags.html",
)
def browse(
    file: ProblemsFile,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.html", help="One self-contained page; default: in runs/dags/, by FILE's name."),
    ] = None,
) -> None:
    """Write a page to search and read the graphs of FILE; it needs no network and no server."""
    from nemo_aopsd.graphs.browser import write_browser

    out = out or _DRAWN / f"{file.stem}.html"
    keep_inputs([out], [("FILE", file)])
    count, broken = write_browser(file, out)
    _warn_of_unread(file, broken)
    typer.echo(f"{out}: {counted(count, 'graph')}")


def _warn_of_unread(file: Path, broken: Sequence[CheckedRow]) -> None:
    if broken:
        typer.echo(f"warning {unread_note(file, broken)}", err=True)
