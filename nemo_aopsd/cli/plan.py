"""`aopsd plan`: what a run will take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nemo_aopsd.cli.options import AsJson, ConfigIfAny, MethodName, Overrides, load_if_named
from nemo_aopsd.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from nemo_aopsd.cluster.plan.measured import Measured
    from nemo_aopsd.config.schema import Config

DEFAULT_GPU = "h100"


app = typer.Typer()


@app.command(epilog="Example: aopsd plan examples/configs/aopsd_qwen3_4b_megatron.yaml --gpus 8 --gpu h100")
def plan(
    config: ConfigIfAny = None,
    overrides: Overrides = None,
    method: MethodName = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", min=1, help="Instead of the config's number.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="h100, h200, a100, b200 or cpu; h100 by default, but not for a RUN of the local engine.",
        ),
    ] = None,
    lengths: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Take row lengths and triggers from a run.")
    ] = None,
    constants: Annotated[Path | None, typer.Option(metavar="FILE", help="Constants that --fit wrote.")] = None,
    as_json: AsJson = False,
    fit: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Fit the constants to a measured run; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where --fit writes them.")] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Predicted and measured seconds of a run.")
    ] = None,
) -> None:
    """Seconds, GPU-hours and memory of a run before it runs, by stage, from a cost model.

    What it is worth depends on its constants: it says how much of the answer rests on assumptions.
    """
    from rich.console import Console

    console = Console()
    settings = load_if_named(config, overrides, method)
    if sum(map(bool, (settings, fit, against))) != 1:
        raise UserError("aopsd plan: expected one of CONFIG, --fit RUN and --against RUN. See aopsd plan --help.")
    if out and not fit:
        raise UserError("--out: only --fit writes a file. Leave it out, or add --fit RUN.")
    if settings:
        _plan(settings, (gpu or DEFAULT_GPU, gpus, constants, lengths), as_json, console)
    elif fit:
        _keep_inputs(out, fit, constants)
        _fit(fit, gpu, gpus, constants, out, console)
    elif against:
        _compare(against, gpu, gpus, constants, console)


def _keep_inputs(out: Path | None, runs: list[Path], constants: Path | None) -> None:
    from nemo_aopsd.files import keep_inputs

    files = [run / name for run in runs for name in ("config.yaml", "metrics.jsonl")]
    files += [path for run in runs for path in run.glob("rollouts/*")]
    keep_inputs([out], [("--constants", constants), *(("--fit", path) for path in files)])


def _plan(config: Config, machine: tuple, as_json: bool, console: Console) -> None:
    from nemo_aopsd.cluster.plan import make_plan, show

    made = make_plan(config, *machine)
    if as_json:
        typer.echo(json.dumps(show.as_json(made), ensure_ascii=False, indent=1))
        return
    show.show(made, console)


def _fit(
    runs: list[Path], gpu: str | None, gpus: int | None, constants: Path | None, out: Path | None, console: Console
) -> None:
    from dataclasses import replace

    from nemo_aopsd.cluster.plan import of_run, show
    from nemo_aopsd.cluster.plan.compare import compare
    from nemo_aopsd.cluster.plan.constants import write_fit
    from nemo_aopsd.cluster.plan.fitting import fit, with_fit
    from nemo_aopsd.cluster.plan.measured import read_run
    from nemo_aopsd.files import atomic_write

    measured = [read_run(run) for run in runs]
    planned = [(run, of_run(run, _gpu_of(run, gpu), gpus, constants)) for run in measured]
    fitted = fit(planned)
    show.show_fit(fitted, console)
    after = with_fit(planned[0][1].constants, fitted)
    for run, made in planned:
        console.print(f"\n{run.folder}, with the fitted constants (the runs they were fitted to, so no validation):")
        show.show_assumed_data(made, console)
        show.show_comparison(compare(run, replace(made, constants=after)), console)
    if out:
        atomic_write(out, write_fit(after, [each.after.name for each in fitted]))
        console.print(f"\nwrote {out}: aopsd plan CONFIG --constants {out}", highlight=False, soft_wrap=True)


def _gpu_of(run: Measured, gpu: str | None) -> str:
    """What the run was on. A run of the local engine may have been on anything, so it has to be said."""
    if gpu is None and run.config.aopsd.engine == "local":
        from nemo_aopsd.cluster.plan.constants import gpu_kinds

        kinds = ", ".join(gpu_kinds())
        raise UserError(f"{run.folder}: a run of aopsd.engine=local, which tells no device. Add --gpu: one of {kinds}.")
    return gpu or DEFAULT_GPU


def _compare(run: Path, gpu: str | None, gpus: int | None, constants: Path | None, console: Console) -> None:
    from nemo_aopsd.cluster.plan import of_run, show
    from nemo_aopsd.cluster.plan.compare import compare
    from nemo_aopsd.cluster.plan.measured import read_run

    measured = read_run(run)
    made = of_run(measured, _gpu_of(measured, gpu), gpus, constants)
    machine = f"{made.setup.layout.gpus} x {made.setup.gpu.name}"
    console.print(f"{run}: median seconds of {len(measured.steps)} steps behind the first, lengths its own; {machine}")
    show.show_assumed_data(made, console)
    show.show_comparison(compare(measured, made), console)
    console.print(f"{made.shares_by_status().get('assumption', 0.0):.0%} of the prediction rests on assumptions")
