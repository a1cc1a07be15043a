"""`aopsd doctor`: whether this machine, and a config on it, can work."""

import typer
from rich.console import Console

from nemo_aopsd import engines
from nemo_aopsd.cli.options import AsJson, Commands, ConfigIfAny, MethodName, Overrides, load_if_named, say_json
from nemo_aopsd.cluster.doctor import diagnose, look_around, of_train, show
from nemo_aopsd.cluster.doctor.result import EXIT_CODES, worst
from nemo_aopsd.run.preflight import look

app = Commands()


@app.example(
    "aopsd doctor", "aopsd doctor mine.yaml", "aopsd doctor examples/configs/aopsd_qwen3_4b_megatron.yaml --json"
)
def doctor(
    config: ConfigIfAny = None, overrides: Overrides = None, method: MethodName = None, as_json: AsJson = False
) -> None:
    """Versions, GPUs, driver, worker environments, folders, ports; with CONFIG its problems, model, tokenizer, memory.

    Exit code: 0 if all is well, 1 with warnings, 2 with errors. Changes nothing.
    """
    settings = load_if_named(config, overrides, method)
    diagnosis = diagnose(settings, look_around())
    if settings:
        found = look(settings, overrides or [], lambda: engines.pick(settings).check(settings))
        diagnosis.checks += of_train(settings, found)
    if as_json:
        say_json(show.as_json(diagnosis))
    else:
        show.show(diagnosis, Console())
    raise typer.Exit(EXIT_CODES[worst(diagnosis.checks)])
