"""A run folder is known by its config: written when the run begins, read wherever the folder is now."""

import json
import os
import shlex
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from nemo_aopsd.config.load import load_config, to_yaml
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.prompts import is_family
from nemo_aopsd.run import layout
from nemo_aopsd.run.access import lock
from nemo_aopsd.run.own_files import PROMPTS, holds_all

SUITE = "suite.json"  # what `aopsd compare` remembers a comparison by


def require_run(run: Path) -> Path:
    """The config file of a run. Raises UserError if there is none."""
    path = run / layout.CONFIG
    if not run.is_dir():
        found = "is a file" if run.is_file() else f"no such run folder (looked from {Path.cwd()})"
        raise UserError(f"{run}: {found}. Name the folder that training wrote.")
    refuse_suite(run)
    if not path.is_file():
        if (run / ".lock").exists():  # of a process that is starting here, or of one that was killed doing so
            with lock(run):
                pass
        raise UserError(
            f"{run}: no run in it (no config.yaml). Check the path of the run folder. A run that was killed in its "
            "first seconds has left nothing to go on with: start it again, without --resume."
        )
    return path


def refuse_suite(folder: Path) -> None:
    """Raise UserError if the folder is that of a comparison or of a member of one, whose runs are below it."""
    suite = folder if is_suite(folder) else folder.absolute().parent
    below, what = ("*/seed_*", "a comparison") if suite == folder else ("seed_*", "a member of a comparison")
    found = sorted(str(path.parent) for path in folder.glob(f"{below}/{layout.CONFIG}"))
    if is_suite(suite) and (found or suite == folder):
        runs = f"Its runs are {found[0]} and so on: name one." if found else "None of its runs has begun."
        page = suite / "results.md"
        results = f"The results are in {page}. " if page.is_file() else ""
        raise UserError(f"{folder}: {what}, no run. {results}{runs}")


def is_suite(folder: Path) -> bool:
    return (folder / SUITE).is_file()


def load_run_config(run: Path) -> Config:
    """The config of an existing run, its paths where the folder is now. Raises UserError if there is none.

    Prompts of the user's own are those that the run keeps, unless they still are where they were, unchanged.
    """
    copies = run / layout.EXTENSIONS
    config = load_config(require_run(run), places(run), copies=copies)
    prompts, kept = config.aopsd.prompts, copies / PROMPTS
    if is_family(prompts) or not kept.is_dir() or holds_all(Path(prompts), kept):
        return config
    return replace(config, aopsd=replace(config.aopsd, prompts=str(kept)))


def places(run: Path) -> list[str]:
    """Overrides of the run's own config that say where its folder is now. Raises UserError if there is none."""
    config = load_config(require_run(run), copies=run / layout.EXTENSIONS)
    checkpoints, before = Path(config.checkpointing["checkpoint_dir"]), Path(config.logger["log_dir"])
    moved = {"logger.log_dir": run}
    if not is_outside(checkpoints, before):
        moved["checkpointing.checkpoint_dir"] = run / os.path.relpath(checkpoints, before)
    return [path_override(key, place) for key, place in moved.items()]


def is_outside(checkpoints: Path, run: Path) -> bool:
    return os.path.relpath(checkpoints, run).startswith(os.pardir)


def settings_text(config: Config) -> str:
    """The settings as a run notes them: checkpoints outside it by their whole path, wherever the next command runs."""
    folder = Path(config.checkpointing["checkpoint_dir"])
    if is_outside(folder, Path(config.logger["log_dir"])):
        folder = folder.absolute()
    return to_yaml(
        replace(config, raw=config.raw | {"checkpointing": config.checkpointing | {"checkpoint_dir": str(folder)}})
    )


def write_config(run: Path, settings: str, command: str) -> None:
    """The settings below the command that made the run and, if it goes on, below those that resumed it."""
    path, manifest = run / layout.CONFIG, Manifest(run)
    commands = [*commands_of(run), command.replace("\n", "\\n")]
    opening = "".join(f"{'# resumed: ' if index else '# '}{line}\n" for index, line in enumerate(commands))
    (manifest.replace if path.exists() else manifest.begin)(path, opening + settings)


def commands_of(run: Path) -> list[str]:
    """The command that made the run, then those that resumed it; none where the config file does not open with it."""
    path = run / layout.CONFIG
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    comments = [line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("# "), lines)]
    if not comments or not comments[0].startswith("aopsd "):
        return []
    return [comments[0], *(line.removeprefix("resumed: ") for line in comments[1:])]


def path_override(key: str, path: Path) -> str:
    """`key=path` so that any character of the path survives."""
    return f"{key}={json.dumps(str(path), ensure_ascii=False)}"


def to_go_on(run: Path, *overrides: str) -> str:
    """The command, for a shell."""
    return shlex.join(["aopsd", "train", "--resume", str(run), *overrides])
