"""`aopsd plan`: what a run will take."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from nemo_aopsd.cli.options import AsJson, Commands, ConfigPath, MethodName, Overrides, load_chosen, say_json
from nemo_aopsd.cluster.plan import make_local_plan, make_plan, show

app = Commands()


@app.example(
    "aopsd plan mine.yaml",
    "aopsd plan examples/configs/aopsd_qwen3_4b_megatron.yaml --gpu h200",
    "aopsd plan mine.yaml --response 3000 aopsd.probes.length=16",
)
def plan(
    config: ConfigPath,
    overrides: Overrides = None,
    method: MethodName = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="h100 or h200. Not given: h100 on NeMo RL; with the local engine a machine without a GPU.",
        ),
    ] = None,
    response: Annotated[
        int | None, typer.Option(metavar="TOKENS", min=1, help="Mean response; else 60 % of the longest allowed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Work and memory of a run before it runs; on a cluster also seconds by stage and GPU-hours.

    It states seconds only where steps of that kind were measured, with the errors that it had there.
    """
    settings = load_chosen(config, overrides, method)
    if settings.aopsd.engine == "local":
        local = make_local_plan(settings, gpu, response)
        if as_json:
            say_json(show.local_as_json(local))
        else:
            show.show_local(local, Console())
        return
    made = make_plan(settings, gpu or "h100", response)
    if as_json:
        say_json(show.as_json(made))
    else:
        show.show(made, Console())
