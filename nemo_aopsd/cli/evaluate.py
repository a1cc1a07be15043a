"""Commands around finished models: `aopsd evaluate`, `aopsd paired-test` and `aopsd export`.

The command line mounts them with `mount`; whatever loads numpy, torch or matplotlib is imported inside.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nemo_aopsd.cli.numbers import finite
from nemo_aopsd.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from nemo_aopsd.config.schema import EvaluationConfig
    from nemo_aopsd.engine import Tokenizer
    from nemo_aopsd.evaluation.samples import Sampler
    from nemo_aopsd.run.target import Target
    from nemo_aopsd.types import Sampling

_EVALUATE_EXAMPLE = "aopsd evaluate models/Qwen3-4B --data aime25 --data mine.jsonl --samples 8 --engine vllm"
_GPU_SHARE = 0.9  # of each GPU, for vLLM


def mount(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    app.command("evaluate", epilog=f"Example: {_EVALUATE_EXAMPLE}")(evaluate)
    app.command("paired-test", epilog="Example: aopsd paired-test evaluations/before evaluations/after")(paired_test)
    app.command("export", epilog="Example: aopsd export runs/mine --out models/mine")(export)


def evaluate(
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A run (its newest checkpoint), a checkpoint or a model directory.")
    ],
    data: Annotated[
        list[str], typer.Option(metavar="FILE|ID", help="JSONL, or aime24, aime25, hmmt_feb25, brumo25; repeatable.")
    ],
    samples: Annotated[int | None, typer.Option(min=1, metavar="N", help="Responses a problem.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, metavar="T", callback=finite, help="0 is greedy.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, metavar="P", help="1 is off.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, metavar="K", help="0 is off.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, metavar="N", help="Longest response.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same seed gives the same samples.")] = None,
    prompts: Annotated[str | None, typer.Option(metavar="NAME", help="Family of prompts, or a folder of one.")] = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="`enable_thinking` of the chat template.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="YAML", help="Config of a checkpoint outside its run.")] = None,
    engine: Annotated[str, typer.Option(metavar="local|vllm", help="vllm: a model directory, on all GPUs.")] = "local",
    batch_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="Responses sampled at a time, and at most lost by a kill.")
    ] = 64,
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            min=0.05, max=0.98, metavar="SHARE", help=f"vllm: of each GPU, {_GPU_SHARE}; less if others use it too."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where results go; the same goes on.")] = None,
) -> None:
    """pass@k, avg@N and majority@N on the bare questions; killed or stopped, start it again to go on.

    Sampling defaults are those of `aopsd.evaluation`: 8 samples at temperature 0.6, top-p 0.95, top-k 20, at most
    12,288 tokens; for a run or a checkpoint, those of its own config.
    """
    from nemo_aopsd.evaluation.benchmarks import load_benchmarks
    from nemo_aopsd.evaluation.report import asked_line, summary_lines
    from nemo_aopsd.run import folder as run_folder
    from nemo_aopsd.run.target import find_target, with_prompts

    if engine not in ("local", "vllm"):
        raise UserError(f"--engine {engine}: expected local or vllm.")
    if gpu_memory is not None and engine != "vllm":
        raise UserError("--gpu-memory: only --engine vllm takes a share of a GPU. Leave it out.")
    found = with_prompts(find_target(target, config), prompts, thinking)
    benchmarks = load_benchmarks(data)
    options = {
        "num_samples": samples,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "max_new_tokens": max_new_tokens,
    }
    chosen = replace(
        found.config.aopsd.evaluation, **{key: value for key, value in options.items() if value is not None}
    )
    if chosen.top_p == 0:
        raise UserError("--top-p 0: keeps no token. Choose a number above 0; 1 is off.")
    seed = found.config.aopsd.seed if seed is None else seed
    read = [("--config", config), *(("--data", Path(source)) for source in data)]
    _place(out, found, benchmarks, chosen, read)  # what is wrong with it is said before a model is loaded
    try:
        restored, found = _restore(found) if found.checkpoint and engine == "local" else (None, found)
        out = _place(out, found, benchmarks, chosen, read)
        with run_folder.lock(out, "another --out"):
            session = _session(found, restored, chosen, engine, batch_size, gpu_memory or _GPU_SHARE, seed)
            results = session.run(benchmarks, out)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted. What is sampled is kept; start the same command to go on.", err=True)
        raise typer.Exit(130) from None
    for line in summary_lines(results):
        typer.echo(line)
    typer.echo(f"{found.weights}, {asked_line(results['settings'])}; {shlex.quote(str(out / 'results.md'))}")


def paired_test(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="Folder of `aopsd evaluate`, or an epoch's JSON.")],
    others: Annotated[list[Path], typer.Argument(metavar="OTHER...", help="Each is compared with FIRST.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Also write the numbers.")] = None,
) -> None:
    """Differences of pass@k on the same problems: paired intervals and tests, and who solved what."""
    import json

    from nemo_aopsd.evaluation import compare as paired
    from nemo_aopsd.files import atomic_write, keep_inputs

    read = [("FIRST", first), *(("OTHER", other) for other in others)]
    files = [(name, path / "results.json" if path.is_dir() else path) for name, path in read]
    keep_inputs([out], files)
    base = paired.load_evaluation(first)
    comparisons = [paired.compare(base, paired.load_evaluation(other)) for other in others]
    for comparison in comparisons:
        typer.echo(f"first {comparison['first']}, second {comparison['second']}\n")
        typer.echo("\n".join(paired.lines_of(comparison)) + "\n")
    if out:
        atomic_write(out, json.dumps(comparisons, ensure_ascii=False, indent=1) + "\n")
        typer.echo(out)


def export(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A run (its newest checkpoint) or a checkpoint.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder.")],
    config: Annotated[Path | None, typer.Option(metavar="YAML", help="Config of a checkpoint outside its run.")] = None,
) -> None:
    """Write the student of a checkpoint as a Hugging Face model directory, its tokenizer included."""
    from nemo_aopsd.files import atomic_directory, keep_inputs
    from nemo_aopsd.run.target import find_target, options_of

    keep_inputs([out], [("TARGET", target), ("--config", config)])
    found = find_target(target, config)
    if found.checkpoint is None:
        raise UserError(f"{target}: is a model directory as it stands. Give a run or a checkpoint.")
    if out.exists():
        raise UserError(f"--out {out}: exists. Choose a new folder.")
    with atomic_directory(out) as partial:
        _restore(found)[0].export(partial)
    typer.echo(out)
    if options := options_of(found.config.aopsd):
        words = ["aopsd", "evaluate", str(out), "--data", found.config.aopsd.evaluation.data_path or "FILE", *options]
        typer.echo(f"to ask it as its run does: {shlex.join(words)}")


def _place(
    out: Path | None,
    target: Target,
    benchmarks: Collection[str],
    config: EvaluationConfig,
    read: Sequence[tuple[str, Path | None]],
) -> Path:
    """The folder of the results. Raises UserError if it holds something else or would be written over an input."""
    from nemo_aopsd.files import keep_inputs
    from nemo_aopsd.run.folder_kinds import keep_apart

    out = out or target.folder / f"{'+'.join(benchmarks)}_{target.name}_x{config.num_samples}"
    keep_inputs(_files_of(out, benchmarks), read)
    keep_apart(out, "an evaluation of `aopsd evaluate`")
    return out


def _files_of(out: Path, benchmarks: Iterable[str]) -> list[Path]:
    """Every file that `evaluate` writes."""
    own = [f"{name}{suffix}" for name in benchmarks for suffix in (".jsonl", ".settings.json")]
    return [out / name for name in (*own, "results.json", "results.svg", "results.md", "calls.jsonl")]


def _session(
    target: Target,
    restored: Any,
    config: EvaluationConfig,
    engine: str,
    batch_size: int,
    gpu_memory: float,
    seed: int,
) -> Any:
    from nemo_aopsd.evaluation.epochs import sampling_of
    from nemo_aopsd.evaluation.session import Session

    sampling, made_with = sampling_of(config), {"weights": target.weights}
    if engine == "vllm":
        tokenizer, new_sampler = _vllm(target, sampling, gpu_memory)
        made_with |= {"engine": "vllm"}
    else:
        tokenizer, new_sampler = _engine(target, restored, sampling, batch_size)
        made_with |= {"engine": target.config.aopsd.engine, "block_size": batch_size}
    made_with |= {"longest_row": target.config.max_row_tokens}
    aopsd = target.config.aopsd
    return Session(
        name=target.name,
        tokenizer=tokenizer,
        new_sampler=new_sampler,
        config=config,
        prompts=aopsd.prompts,
        thinking=aopsd.thinking.student,
        seed=seed,
        made_with=made_with,
    )


def _engine(
    target: Target, restored: Any, sampling: Sampling, batch_size: int
) -> tuple[Tokenizer, Callable[[int], Sampler]]:
    """The run's own engine, restored from a checkpoint, or the local engine on a bare model."""
    from nemo_aopsd import engines
    from nemo_aopsd.evaluation.samples import BlockSampler

    if restored is None:
        model, tokenizer = engines.pick(target.config).open_model(target.config)
    else:
        model, tokenizer = restored.student, restored.tokenizer
    return tokenizer, lambda seed: BlockSampler(model, sampling, seed, batch_size)


def _restore(target: Target) -> tuple[Any, Target]:
    """The run's engine and what it was restored from: a newer target if training has replaced this one."""
    from nemo_aopsd import engines
    from nemo_aopsd.run.target import load

    engine = engines.pick(target.config).build(target.config)
    return engine, load(target, engine)


def _vllm(target: Target, sampling: Sampling, gpu_memory: float) -> tuple[Tokenizer, Callable[[int], Sampler]]:
    from nemo_aopsd import engines
    from nemo_aopsd.evaluation.samples import RowSampler

    if target.checkpoint is not None:
        raise UserError(
            f"--engine vllm: {target.checkpoint} is a checkpoint, but vLLM takes a model directory. "
            f"Make one of it: aopsd export {shlex.quote(str(target.checkpoint))} --out FOLDER. Or leave --engine out."
        )
    model, tokenizer = engines.pick_vllm().open_model(target.config, gpu_memory)
    return tokenizer, lambda seed: RowSampler(model, sampling, seed)
