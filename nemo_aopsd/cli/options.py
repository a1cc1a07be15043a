"""What several commands share: options and arguments, the config that they name, and Ctrl-C or SIGTERM."""

import json
import math
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.schema import Config
from nemo_aopsd.config.shipped import find_method, find_recipe
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import is_full
from nemo_aopsd.run import layout
from nemo_aopsd.run.folder import commands_of, to_go_on

F = TypeVar("F", bound=Callable[..., None])

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file, or `demo`, which is shipped.")]
ConfigIfAny = Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="YAML file, or `demo`.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings over the file; +KEY=VALUE adds a key.")
]
MethodName = Annotated[
    str | None, typer.Option("--method", metavar="NAME", help="A method over the file; `aopsd methods` lists them.")
]
OfCheckpoint = Annotated[
    Path | None, typer.Option("--config", metavar="YAML", help="Config of a checkpoint outside its run.")
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, finished or not.")]
ProblemsFile = Annotated[Path, typer.Argument(metavar="FILE", help="Problems, one JSON object a line.")]
ProblemId = Annotated[str, typer.Option("--problem", metavar="ID", help="`id` of a problem of the file.")]
BaseUrl = Annotated[str, typer.Option(metavar="URL", help="OpenAI-compatible server, http://localhost:8000/v1 say.")]
Model = Annotated[str, typer.Option(metavar="NAME", help="Name of the model at the server.")]
KeyVariable = Annotated[
    str,
    typer.Option("--api-key-env", metavar="NAME", help="Environment variable that holds the key, if one is needed."),
]
Concurrency = Annotated[int, typer.Option(min=1, metavar="N", help="Requests at a time.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of tables.")]


class _Once(TyperCommand):
    """Refuses an option that is given twice but takes one value: of several, the parser takes the last in silence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = [*args]  # the parser uses `args` up
        rest = super().parse_args(ctx, args)
        _, _, order = self.make_parser(ctx).parse_args(args=given)
        for option in order:
            if not isinstance(option, TyperOption) or option.multiple or order.count(option) == 1:
                continue
            if not option.is_flag or option.secondary_opts:  # a flag without an opposite says the same twice
                name, times = "/".join([*option.opts, *option.secondary_opts]), order.count(option)
                raise UserError(f"{name}: takes one value, but is given {times} times. Leave all but one out.")
        return rest


class Commands(typer.Typer):
    """Commands with examples at the end of their help."""

    def example(self, *lines: str, name: str | None = None) -> Callable[[F], F]:
        """As `command`, with an example a line."""
        epilog = "\n\n".join(["Examples:", *lines])  # typer joins what one line break parts
        return self.command(name, cls=_Once, epilog=epilog)


def load_chosen(config: Path, overrides: Sequence[str] | None, method: str | None, *, resumes: bool = False) -> Config:
    """The config file or shipped config, the named method over it, and the overrides over both.

    `resumes`: the command can go on with a run, for the advice where its folder is named. Raises UserError.
    """
    path = find_recipe(config)
    if (path / layout.CONFIG).is_file():
        is_run = bool(commands_of(path))  # else it may be that of a comparison's member
        found = "the folder of a run" if is_run else "a folder"
        told = f"{path}: is {found}; expected a YAML file, such as its {path / layout.CONFIG}."
        raise UserError(told + (f" To go on with the run: {to_go_on(path)}" if resumes and is_run else ""))
    return load_config(path, overrides or [], find_method(method) if method is not None else None)


def load_if_named(config: Path | None, overrides: Sequence[str] | None, method: str | None) -> Config | None:
    """As `load_chosen`, where the file may be left out. Raises UserError also for a method without a file."""
    if method is not None and not config:
        raise UserError("--method changes a CONFIG, but none is given. Leave it out, or name the file.")
    return load_chosen(config, overrides, method) if config else None


def finite(option: typer.CallbackParam, given: float | list[float] | None) -> float | list[float] | None:
    """Callback of an option, repeatable or not: typer takes nan and inf where there is no bound. Raises UserError."""
    for value in given if isinstance(given, list | tuple) else [given]:
        if value is not None and not math.isfinite(value):
            raise UserError(f"{option.opts[0]} {value}: expected a finite number. Choose another.")
    return given


def say(lines: Iterable[object]) -> None:
    for line in lines:
        typer.echo(line)


def say_json(value: object) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, indent=1))


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as `timeout` and Slurm send it: like Ctrl-C, so that whatever cleans up after that does so here."""


def _terminate(*_: object) -> NoReturn:
    raise _Terminated


@contextmanager
def interruptible(remedy: str, lost: Callable[[], str] = str) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, say what is `lost` and how to go on, and exit with 130 or 143.

    On a full disk, say how to go on.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt as error:
        was_ended = isinstance(error, _Terminated)
        typer.echo(f"\n{'ended by SIGTERM' if was_ended else 'interrupted'}. {lost()}{remedy}", err=True)
        raise typer.Exit(128 + (signal.SIGTERM if was_ended else signal.SIGINT)) from None
    except OSError as error:
        if not is_full(error):
            raise
        raise UserError(f"{error.filename or 'output'}: {error.strerror}. Free some space. {remedy}") from error
    finally:
        signal.signal(signal.SIGTERM, before)
