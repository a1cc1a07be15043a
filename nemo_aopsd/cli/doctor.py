"""`aopsd doctor`: whether this machine, and a config on it, can work."""

from __future__ import annotations

import typer
from rich.console import Console

from nemo_aopsd import engines
from nemo_aopsd.cli.options import AsJson, Commands, ConfigIfAny, MethodName, Overrides, load_if_named, say_json
from nemo_aopsd.cluster.doctor import attempt, diagnose, look_around, show
from nemo_aopsd.cluster.doctor.result import EXIT_CODES, worst

app = Commands()


@app.example(
    "aopsd doctor",
    "aopsd doctor mine.yaml",
    "aopsd doctor examples/configs/aopsd_qwen3_4b_megatron.yaml --json",
)
def doctor(
    config: ConfigIfAny = None, overrides: Overrides = None, method: MethodName = None, as_json: AsJson = False
) -> None:
    """Versions, GPUs, driver, worker environments, folders, ports; with CONFIG its problems, model, tokenizer, memory.

    Exit code: 0 if all is well, 1 with warnings, 2 with errors. Changes nothing.
    """
    settings = load_if_named(config, overrides, method)
    around = look_around()
    diagnosis = diagnose(settings, around)
    if settings:  # the engine's own check, as `aopsd train --check` makes it

        def check() -> str:
            engines.pick(settings).check(settings, elsewhere="nemo-rl" not in around.versions)
            return "all accepted"

        expected = f"settings that aopsd.engine={settings.aopsd.engine} can work with"
        diagnosis.checks.append(attempt("settings", expected, "Change what is listed", check))
    if as_json:
        say_json(show.as_json(diagnosis))
    else:
        show.show(diagnosis, Console())
    raise typer.Exit(EXIT_CODES[worst(diagnosis.checks)])
