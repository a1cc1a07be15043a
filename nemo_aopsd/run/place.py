"""A place for new results: free, of one kind, and held for as long as they are written; an earlier run moves aside."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from nemo_aopsd.config.schema import Config
from nemo_aopsd.console import counted
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import free_beside
from nemo_aopsd.run import layout
from nemo_aopsd.run.access import check_writable, lock
from nemo_aopsd.run.folder import commands_of, is_outside, is_suite, load_run_config, to_go_on

_FILES = (
    *(layout.MANIFEST, layout.METRICS, layout.COMPETENCE, layout.INITIAL_PROGRESS, layout.REPORT),
    layout.CONFIG,  # last: what is left of an interrupted move is still a run
)
_FOLDERS = {
    layout.ROLLOUTS: re.compile(r"\.?step_\d+\.jsonl(\.partial)?"),
    layout.EVALUATIONS: re.compile(r"\.?epoch_\d+(\.settings)?\.jsonl?(\.partial)?"),
    layout.CHECKPOINTS: re.compile(r"\.?step_\d+(\.partial)?"),
    **dict.fromkeys((layout.DIAGNOSTICS, layout.EXTENSIONS, layout.AUDIT), re.compile(".+")),
}
_BESIDE_CONFIG = (layout.METRICS, layout.CHECKPOINTS, layout.ROLLOUTS, layout.EVALUATIONS, layout.INITIAL_PROGRESS)
_KINDS: dict[str, Callable[[Path], bool]] = {  # what a folder may hold, and whether it does
    "a run of `aopsd train`": lambda folder: (
        (folder / layout.CONFIG).is_file() and any((folder / name).exists() for name in _BESIDE_CONFIG)
    ),
    "a suite of `aopsd compare`": is_suite,
    "an evaluation of `aopsd evaluate`": lambda folder: any(folder.glob("*.settings.json")),
    "a checkpoint": lambda folder: (folder / "state.json").is_file(),
    "a model": lambda folder: (folder / "config.json").is_file(),
}


def keep_apart(out: Path, own: str) -> None:
    """Raise UserError if `out` holds results of another kind than `own`, a key of `_KINDS`."""
    for kind, holds in _KINDS.items():
        if kind != own and holds(out):
            raise UserError(f"{out}: holds {kind}. Choose another folder.")


def check_place(config: Config) -> list[str]:
    """A warning if a new run of `config` goes beside other files.

    Raises UserError unless there is a place for it and its checkpoints.
    """
    run = Path(config.logger["log_dir"])
    keep_apart(run, "a run of `aopsd train`")
    check_free(run, Path(config.checkpointing["checkpoint_dir"]))
    if not (others := _others(run)):
        return []
    which = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
    return [f"{run} is not empty ({counted(len(others), 'name')}: {which}); the files of the run go beside them"]


def check_free(run: Path, checkpoints: Path) -> None:
    """Raise UserError if `run` holds (some of) a run, `checkpoints` those of another, or it cannot be written."""
    if (run / layout.CONFIG).exists():
        if not commands_of(run):
            raise UserError(f"{run} holds a {layout.CONFIG} that no run has written. Choose another logger.log_dir.")
        raise UserError(f"{run} already holds a run. Go on with `{to_go_on(run)}`, or choose another logger.log_dir.")
    left = [name for name in _FILES if (run / name).exists()]
    left += [f"{folder}/{name}" for folder in _FOLDERS for name in _ours(run / folder, folder)[:1]]
    if left:
        raise UserError(f"{run} holds parts of a run without its config.yaml: {', '.join(left)}. Move them away.")
    if _ours(checkpoints, layout.CHECKPOINTS):
        raise UserError(f"{checkpoints} holds another run's checkpoints. Choose another checkpointing.checkpoint_dir.")
    check_writable(run)


@contextmanager
def lock_all(run: Path, checkpoints: Path) -> Iterator[None]:
    """As `lock`, of the folder of its checkpoints, too, where that lies outside: two runs would mix theirs."""
    outside = is_outside(checkpoints, run)
    with lock(run), lock(checkpoints, "another checkpointing.checkpoint_dir") if outside else nullcontext():
        yield


def move_aside(run: Path) -> Path | None:
    """Move what a run and the commands on it wrote into a new folder beside it; None where there is no run."""
    if not (run / layout.CONFIG).is_file():
        return None
    load_run_config(run)
    run = run.absolute()
    aside = free_beside(run)
    aside.mkdir()
    for name in (*_FOLDERS, *_FILES):
        if (run / name).exists():
            (run / name).rename(aside / name)
    return aside


def _others(folder: Path) -> list[str]:
    """Names in `folder` but logs: what a user may have there by mistake."""
    paths = folder.iterdir() if folder.is_dir() else []
    return sorted(path.name for path in paths if path.name[0] != "." and path.suffix not in (".log", ".out"))


def _ours(folder: Path, kind: str) -> list[str]:
    """Names in `folder` that a run writes there; nothing through a link."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if _FOLDERS[kind].fullmatch(path.name))
