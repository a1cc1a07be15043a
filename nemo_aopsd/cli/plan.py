"""`aopsd plan`: what a run will take."""

from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from nemo_aopsd import engines
from nemo_aopsd.cli.options import AsJson, Commands, ConfigPath, MethodName, Overrides, load_chosen, say_json
from nemo_aopsd.cluster.plan import make_local_plan, make_plan, show
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError

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
        numbers, show_page = show.local_as_json(local), partial(show.show_local, local)
    else:
        made = make_plan(settings, gpu or "h100", response)
        numbers, show_page = show.as_json(made), partial(show.show, made)
    refused = _refused(settings)
    if as_json:
        say_json(numbers | {"refused": refused})
        return
    show_page(Console(highlight=False))
    if refused:
        typer.echo(f"refused: the engine does not take this config: {refused}")


def _refused(config: Config) -> str | None:
    """Why the engine would not take the config, in one line; None if it would, as far as can be told from here."""
    try:
        engines.pick(config).check(config, elsewhere=True)
    except UserError as error:
        return " ".join(line.removeprefix("- ") for line in str(error).splitlines())
    return None
