"""`aopsd evaluate`, `aopsd paired-test` and `aopsd export`: what a finished model can do, and the model itself.

Whatever loads numpy, torch or matplotlib is imported inside.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nemo_aopsd import engines
from nemo_aopsd import prompts as prompt_files
from nemo_aopsd.cli.options import Commands, OfCheckpoint, finite, interruptible
from nemo_aopsd.config.checks import check_evaluation
from nemo_aopsd.config.schema import Config
from nemo_aopsd.console import counted, show_page, slow, warn
from nemo_aopsd.data.problems import Problem, load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.benchmarks import check_apart, load_benchmarks
from nemo_aopsd.evaluation.report import asked_line, summary_table
from nemo_aopsd.evaluation.samples import BlockSampler, RowSampler
from nemo_aopsd.files import atomic_directory, atomic_write, json_text, keep_inputs
from nemo_aopsd.models.limits import check_readable, check_thinking
from nemo_aopsd.run import layout
from nemo_aopsd.run.access import lock
from nemo_aopsd.run.folder import refuse_suite
from nemo_aopsd.run.place import keep_apart
from nemo_aopsd.run.preflight import trained_on
from nemo_aopsd.run.target import (
    ASKED,
    Target,
    changes_of,
    find_target,
    kept_checkpoints,
    load,
    with_prompts,
    write_asked,
)

if TYPE_CHECKING:
    from nemo_aopsd.evaluation.session import Session
    from nemo_aopsd.evaluation.summary import Summary

app = Commands()

_GPU_SHARE = 0.9  # of each GPU, for vLLM


@app.example(
    "aopsd evaluate runs/mine",
    "aopsd evaluate models/Qwen3-4B --data aime25 --samples 8 --engine vllm",
    "aopsd evaluate runs/mine --choose-on dev.jsonl --data test.jsonl",
)
def evaluate(
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A run (its newest checkpoint), a checkpoint or a model directory.")
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|ID",
            help="JSONL, or aime24, aime25, hmmt_feb25, brumo25; repeatable. Without it the run's held-out problems.",
        ),
    ] = None,
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
    config: OfCheckpoint = None,
    engine: Annotated[Literal["local", "vllm"], typer.Option(help="vllm: a model directory, on all GPUs.")] = "local",
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
    choose_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|ID", help="Of a run: take the kept checkpoint with the best pass@1 on these problems."
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check all that needs no model, then stop.")] = False,
) -> None:
    """pass@k, avg@N and majority@N on the bare questions; killed or stopped, start it again to go on.

    Sampling defaults are those of `aopsd.evaluation`: 8 samples at temperature 0.6, top-p 0.95, top-k 20, at most
    12,288 tokens; for a run, a checkpoint or an exported model, those of its own config.
    """
    if gpu_memory is not None and engine != "vllm":
        raise UserError("--gpu-memory is an option of --engine vllm only. Leave it out.")
    given = {"num_samples": samples, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    given = {key: value for key, value in (given | {"max_new_tokens": max_new_tokens}).items() if value is not None}
    found = find_target(target, config)
    data = data or [_held_out(target, found.config)]
    benchmarks, dev = load_benchmarks(data), load_benchmarks(choose_on or [])
    read = [("--config", config), *(("--data", Path(source)) for source in (*data, *(choose_on or [])))]
    asked = _Asked(given, prompts, thinking, seed, engine, batch_size, gpu_memory or _GPU_SHARE, read)
    if check:
        found, folder = asked.prepare(found, benchmarks, out)
        each = counted(found.config.aopsd.evaluation.num_samples, "sample")
        counts = ", ".join(f"{len(problems)} of {name}" for name, problems in (benchmarks | dev).items())
        typer.echo(
            f"ok: {found.name}, {each} a problem, problems: {counts}; results would be in {folder}. Not checked: the "
            "weights, whether they fit"
        )
        return
    with interruptible("What is sampled is kept; start the same command to go on."):
        if dev:
            found = _choose(target, asked, dev, benchmarks)
        warn(_trained_on(found, dev | benchmarks))
        found, results, folder = asked.measure(found, benchmarks, out)
    show_page(summary_table(results))
    held_out = found.config.aopsd.evaluation.data_path
    if held_out in data and found.checkpoint and layout.evaluation_files(found.folder.parent):
        typer.echo(f"the run's own evaluations of {held_out} drew other samples, so their pass@k is not the same")
    typer.echo(f"{found.weights}, {asked_line(results['settings'])}; {shlex.quote(str(folder / 'results.md'))}")


def _held_out(path: Path, config: Config) -> str:
    """The held-out problems of a run or of its exported model. Raises UserError if what is evaluated names none."""
    found = config.aopsd.evaluation.data_path
    if found is None or not Path(found).is_file():
        named = "no held-out problems" if found is None else f"{found}, which is not here (looked from {Path.cwd()})"
        raise UserError(f"--data is missing, and {path} names {named}. Add --data FILE, or --data aime25.")
    typer.echo(f"without --data, the held-out problems of its run: {found}", err=True)
    return found


def _trained_on(target: Target, benchmarks: dict[str, list[Problem]]) -> list[str]:
    """Warnings of problems that the run of a checkpoint trains on; a bare model says nothing of its training."""
    if target.checkpoint is None:
        return []
    try:
        problems = load_problems(target.config.data["train"]["data_path"], bare=True)
    except UserError as error:
        return [f"whether {target.name} was trained on these problems is not known: {error}"]
    return [line for name, asked in benchmarks.items() for line in trained_on(problems, asked, name)]


@dataclass(frozen=True)
class _Asked:
    """How a model is asked, by the options of the command."""

    given: dict[str, Any]  # of `aopsd.evaluation`
    prompts: str | None
    thinking: bool | None
    seed: int | None
    engine: str
    batch_size: int
    gpu_memory: float
    read: Sequence[tuple[str, Path | None]]  # files that no result may overwrite

    def prepare(self, target: Target, benchmarks: Collection[str], out: Path | None) -> tuple[Target, Path]:
        """What is evaluated, in its config how, and the folder of its results: all that needs no model."""
        found = with_prompts(target, self.prompts, self.thinking)
        is_ours = target.checkpoint is not None or Path(target.config.policy["model_name"], ASKED).is_file()
        if is_ours and (changed := changes_of(target.config.aopsd, found.config.aopsd)):
            typer.echo(f"{target.name}: asked with {changed}", err=True)
        aopsd = found.config.aopsd
        aopsd = replace(aopsd, evaluation=replace(aopsd.evaluation, **self.given))
        found = replace(found, config=replace(found.config, aopsd=aopsd))
        check_evaluation(aopsd.evaluation)
        for name in ("student", "leaks"):
            prompt_files.read(aopsd.prompts, name)
        if self.engine == "vllm" and found.checkpoint is not None:
            raise UserError(
                f"--engine vllm: {found.checkpoint} is a checkpoint, but vLLM takes a model directory. Make one of it: "
                f"aopsd export {shlex.quote(str(found.checkpoint))} --out FOLDER. Or leave --engine out."
            )
        out = out or found.folder / f"{'+'.join(benchmarks)}_{found.name}_x{aopsd.evaluation.num_samples}"
        self._check_folder(out, benchmarks)
        return found, out

    def _check_folder(self, out: Path, benchmarks: Collection[str]) -> None:
        """Raise UserError if it holds something else than such results, or an input would be written over."""
        from nemo_aopsd.evaluation.session import files_of

        keep_inputs(files_of(out, benchmarks), self.read)
        keep_apart(out, "an evaluation of `aopsd evaluate`")
        if others := {file.name.removesuffix(".settings.json") for file in out.glob("*.settings.json")} - {*benchmarks}:
            left_out = ", ".join(sorted(others))
            warn([f"{out} also has samples of {left_out}; results.md will be without them"])

    def measure(
        self, target: Target, benchmarks: dict[str, list[Problem]], out: Path | None
    ) -> tuple[Target, Summary, Path]:
        """What is evaluated, its results, and the folder that holds them."""
        found, out = self.prepare(target, benchmarks, out)
        session = self._session(found)
        for problems in benchmarks.values():
            warn(check_readable(problems, session.tokenizer, found.config.policy["model_name"]))
        with lock(out, "another --out"):
            return found, session.run(benchmarks, out), out

    def _session(self, target: Target) -> Session:
        """With the model loaded: by vLLM, by the run's own engine from its checkpoint, or a bare one by the local."""
        from nemo_aopsd.evaluation.epochs import sampling_of
        from nemo_aopsd.evaluation.session import Session

        aopsd, size = target.config.aopsd, self.batch_size
        sampling = sampling_of(aopsd.evaluation)
        if self.engine == "vllm":
            model, tokenizer = engines.pick_vllm().open_model(target.config, self.gpu_memory)
            new_sampler, made_with = partial(RowSampler, model, sampling), {"engine": "vllm"}
        else:
            if target.checkpoint is None:
                model, tokenizer = engines.pick(target.config).open_model(target.config)
            else:
                engine = engines.pick(target.config).build(target.config)
                with slow(f"loading {target.name}"):
                    load(target, engine)
                model, tokenizer = engine.student, engine.tokenizer
            new_sampler = partial(BlockSampler, model, sampling, block_size=size)
            made_with = {"engine": aopsd.engine, "block_size": size}
        asked = {"thinking": aopsd.thinking.student}
        warn(check_thinking(asked, tokenizer, target.config.policy["model_name"]))
        return Session(
            name=target.name,
            tokenizer=tokenizer,
            new_sampler=new_sampler,
            config=aopsd.evaluation,
            prompts=aopsd.prompts,
            thinking=aopsd.thinking.student,
            seed=aopsd.seed if self.seed is None else self.seed,
            made_with={"weights": target.weights, **made_with, "longest_row": target.config.max_row_tokens},
        )


def _choose(run: Path, asked: _Asked, dev: dict[str, list[Problem]], test: dict[str, list[Problem]]) -> Target:
    """The kept checkpoint of a run with the best pass@1 on `dev`; of equal ones the earliest."""
    check_apart(dev, test)
    rates: dict[str, float] = {}
    kept = [find_target(path) for path in kept_checkpoints(run)]
    for each in kept:
        _, results, folder = asked.measure(each, dev, None)
        rates[each.name] = results["macro"]["pass_at_k"]["1"]
        typer.echo(f"{each.name}: pass@1 {100 * rates[each.name]:.1f} % on {', '.join(dev)}; {folder / 'results.md'}")
    best = max(kept, key=lambda each: rates[each.name])
    typer.echo(f"chosen: {best.name}, of {len(kept)} kept")
    return best


@app.example(
    "aopsd paired-test runs/opsd runs/mine",
    "aopsd paired-test runs/opsd runs/mine runs/grpo --out tests.json",
    "aopsd paired-test runs/mine/eval/epoch_000.json runs/mine",
    name="paired-test",
)
def paired_test(
    first: Annotated[
        Path, typer.Argument(metavar="FIRST", help="A run, a folder of `aopsd evaluate`, or an epoch's JSON.")
    ],
    others: Annotated[list[Path], typer.Argument(metavar="OTHER...", help="Each is compared with FIRST.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Also write the numbers.")] = None,
) -> None:
    """Differences of pass@k on the same problems: paired intervals and tests, and who solved what.

    Of a run it takes the newest evaluation that training has made.
    """
    from nemo_aopsd.evaluation import compare as paired

    read = [(name, _results_at(path)) for name, path in (("FIRST", first), *(("OTHER", other) for other in others))]
    keep_inputs([out], [(name, path / layout.RESULTS if path.is_dir() else path) for name, path in read])
    base, *rest = (paired.load_evaluation(path) for _, path in read)
    for other, (_, file) in zip(others, read[1:], strict=True):
        if file.samefile(read[0][1]):
            told = f"{other}: is the same evaluation as FIRST, {file}, so each difference would be 0"
            raise UserError(f"{told}. Name another run, or another epoch: RUN/eval/epoch_000.json.")
    cautions = [_caution(path, file) for path, (_, file) in zip([first, *others], read, strict=True)]
    comparisons = [
        paired.compare(base, other) | {"cautions": [*dict.fromkeys(filter(None, (cautions[0], caution)))]}
        for other, caution in zip(rest, cautions[1:], strict=True)
    ]
    for said in dict.fromkeys(filter(None, cautions)):
        typer.echo(f"caution: {said}")
    for comparison in comparisons:
        typer.echo(f"first {comparison['first']}, second {comparison['second']}\n")
        show_page(paired.markdown(comparison))
    typer.echo("Intervals are over problems: they hold for these trainings, one seed each. Over seeds: aopsd compare")
    if out:
        atomic_write(out, json_text(comparisons))
        typer.echo(out)


@app.example(
    "aopsd export runs/mine --out models/mine",
    "aopsd export runs/mine/checkpoints/step_000012 --out models/step_12",
    "aopsd export copied/step_000012 --config mine.yaml --out models/mine",
)
def export(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A run (its newest checkpoint) or a checkpoint.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder.")],
    config: OfCheckpoint = None,
) -> None:
    """Write the student of a checkpoint as a Hugging Face model directory, with tokenizer and how it is asked."""
    keep_inputs([out], [("TARGET", target), ("--config", config)], is_folder=True)
    found = find_target(target, config)
    if found.checkpoint is None:
        raise UserError(f"{target}: is a model directory already. Give a run or a checkpoint.")
    if out.exists():
        raise UserError(f"--out {out}: exists. Choose a new folder.")
    with atomic_directory(out) as partial:
        engine = engines.pick(found.config).build(found.config)
        with slow(f"loading {found.name} and writing it"):
            load(found, engine)
            engine.export(partial)
        write_asked(found.config.aopsd, partial)
    typer.echo(out)
    data = [] if found.config.aopsd.evaluation.data_path else ["--data", "FILE"]
    typer.echo(f"to ask it as its run does: {shlex.join(['aopsd', 'evaluate', str(out), *data])}")


def _results_at(path: Path) -> Path:
    """`path`, or the newest evaluation of training if it is a run."""
    if not (path / layout.CONFIG).is_file() or (path / layout.RESULTS).is_file():
        refuse_suite(path)
        return path
    epochs = list(layout.evaluation_files(path).values())
    if not epochs:
        raise UserError(
            f"{path}: this run has no finished evaluation of its own. Set aopsd.evaluation.data_path, or name one that "
            f"`aopsd evaluate {shlex.quote(str(path))} --data FILE` made: {path / layout.EVALUATIONS}/..."
        )
    return epochs[-1]


def _caution(path: Path, file: Path) -> str:
    """What to say first of the evaluation `file` that stands for `path`, if that is a run."""
    from nemo_aopsd.run.reader import load_run

    if file == path:  # it was named itself
        return ""
    try:
        run = load_run(path)
        return run.caution(run.evaluations[-1].step, str(path))
    except UserError as error:  # of settings or steps, which the numbers below do not need
        return f"whether {path} is finished is not known: {error}"
