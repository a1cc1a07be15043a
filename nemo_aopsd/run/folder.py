"""The run folder: checks that it is free, that a config may resume in it, and that no other process writes to it.

It also moves a run out of the way, and keeps results of different kinds apart.
"""

import json
import os
import re
import shlex
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from nemo_aopsd.config.extension import WANTED, own_names, sources
from nemo_aopsd.config.load import flatten, load_config, to_yaml
from nemo_aopsd.config.schema import AOPSDConfig, Config
from nemo_aopsd.console import counted, warn
from nemo_aopsd.data.problems import fingerprint, load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import free_beside, naming, open_locked, read_journal, read_json
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.prompts import is_family
from nemo_aopsd.run import checkpoint, layout

# What may differ when a run goes on: how long it is, what is kept, how work is cut into batches, and whether a row that
# is too long ends it: where one has, no step before had one, so `drop` from the start would have made the same steps.
_MAY_CHANGE = (
    *("aopsd.max_num_epochs", "aopsd.max_num_steps", "aopsd.max_response_tokens", "aopsd.max_train_seconds"),
    *("checkpointing.enabled", "checkpointing.save_period", "checkpointing.keep_top_k"),
    *("policy.generation_batch_size", "policy.logprob_batch_size", "policy.train_micro_batch_size"),
    *(f"policy.dynamic_batching.{key}" for key in ("enabled", "train_mb_tokens", "logprob_mb_tokens")),
    *("policy.enforce_eager", "aopsd.keep_optimizer_on_gpu", "aopsd.context.on_overlong"),
)
_PROBLEMS = {"data.train.data_path": "problems", "aopsd.evaluation.data_path": "held_out"}  # as a checkpoint calls them
_SHOWN_BY = ("context.kind", "judge.kind")  # what the teacher reads
_PROMPTS = "prompts"  # of the user's own, below layout.EXTENSIONS
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
    "a suite of `aopsd compare`": lambda folder: (folder / "suite.json").is_file(),
    "an evaluation of `aopsd evaluate`": lambda folder: any(folder.glob("*.settings.json")),
    "a checkpoint": lambda folder: (folder / "state.json").is_file(),
    "a model": lambda folder: (folder / "config.json").is_file(),
}


def check_extensions(
    run: Path, aopsd: AOPSDConfig, otherwise: str = "start a new run in another logger.log_dir"
) -> None:
    """Raise UserError if a file of the user's own, that a run keeps, is not the one that this run began with.

    It may have changed as long as nothing was made with it.
    """
    seen: dict[Path, Path] = {}
    for key, path, kept in _extensions(run, aopsd):
        if seen.setdefault(kept, path) != path:
            raise UserError(
                f"aopsd.{key}: {path} and {seen[kept]} have the same name, and a run keeps both. Rename one."
            )
        if kept.exists() and kept.read_bytes() != path.read_bytes() and _was_used(run, key):
            raise UserError(
                f"{path}: has changed since the run began (aopsd.{key}). Restore it from {kept}, or {otherwise}."
            )


def keep_extensions(run: Path, aopsd: AOPSDConfig) -> None:
    """Copy the files of the user's own classes and prompts into the run, their SHA-256 into its manifest."""
    manifest = Manifest(run)
    for kept, path in {kept: path for _, path, kept in _extensions(run, aopsd)}.items():
        if kept.exists():
            if kept.read_bytes() == path.read_bytes():
                continue
            warn([f"{path}: has changed since the run began. Nothing was made with it yet, so the run takes it"])
        kept.parent.mkdir(parents=True, exist_ok=True)
        manifest.replace(kept, path.read_bytes())


def _was_used(run: Path, key: str) -> bool:
    """Whether the run has results that depend on the part: steps, and of some parts what comes before them."""
    before = [layout.INITIAL_PROGRESS, layout.EVALUATIONS] if key in ("judge.kind", "prompts") else []
    return bool(read_journal(run / layout.METRICS, "step")) or any((run / name).exists() for name in before)


def _extensions(run: Path, aopsd: AOPSDConfig) -> Iterator[tuple[str, Path, Path]]:
    """Key, file, and where the run keeps it."""
    for key, path in sources(aopsd).items():
        yield key, path, run / layout.EXTENSIONS / path.name
    if not is_family(aopsd.prompts):
        for path in sorted(path for path in Path(aopsd.prompts).resolve().iterdir() if path.is_file()):
            yield "prompts", path, run / layout.EXTENSIONS / _PROMPTS / path.name


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
def lock(run: Path, elsewhere: str = "another logger.log_dir") -> Iterator[None]:
    """Keep a second process out of the folder; the system lifts the lock however this one ends."""
    try:
        with held(run / ".lock"):
            yield
    except BlockingIOError as error:
        holder = Path(error.filename).read_text().strip() or "unknown"
        raise UserError(
            f"{run}: process {holder} is writing a run there. Wait for it, or choose {elsewhere}."
        ) from None


@contextmanager
def lock_all(run: Path, checkpoints: Path) -> Iterator[None]:
    """As `lock`, of the folder of its checkpoints, too, where that lies outside: two runs would mix theirs."""
    outside = _is_outside(checkpoints, run)
    with lock(run), lock(checkpoints, "another checkpointing.checkpoint_dir") if outside else nullcontext():
        yield


@contextmanager
def held(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock file for the time of the block; it notes this process.

    Nothing stays of it, nor of folders that were made for it and are empty: a command that is refused leaves no trace.
    Raises BlockingIOError with the path, unless it is to `wait`, if another process holds it.
    """
    made = [folder for folder in path.absolute().parents if not folder.exists()]
    file = open_locked(path, wait=wait)
    try:
        os.ftruncate(file, 0)
        with naming(path):
            job = f" (Slurm job {os.environ['SLURM_JOB_ID']})" if "SLURM_JOB_ID" in os.environ else ""
            os.write(file, f"{os.getpid()} on {socket.gethostname()}{job}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)
        for folder in made:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def existing_parent(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def why_unwritable(path: Path) -> str:
    """What hinders that a folder is made in `path`, or in the nearest folder above it that exists; empty if nothing.

    It makes one and removes it: permissions alone do not tell, of a disk that is read-only for one.
    """
    try:
        with tempfile.TemporaryDirectory(dir=existing_parent(path), prefix=".aopsd-"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def check_writable(run: Path, elsewhere: str = "another logger.log_dir") -> None:
    """Raise UserError unless a folder can be made there."""
    if why := why_unwritable(run):
        raise UserError(f"{existing_parent(run)}: not a folder that can be written ({why}). Choose {elsewhere}.")


def check_resumable(run: Path, config: Config) -> None:
    """Raise UserError unless `run` holds an undamaged run of this very config, but for a few keys that may change."""
    require_run(run)
    warn(Manifest(run).check(layout.trusted_files(run)))
    own, checkpoints = load_run_config(run), Path(config.checkpointing["checkpoint_dir"])
    before, now = flatten(own.raw), flatten(config.raw)
    for leaves in (before, now):  # the same place, from wherever it is named
        folder = leaves.pop("logger.log_dir")
        leaves["checkpointing.checkpoint_dir"] = os.path.relpath(leaves["checkpointing.checkpoint_dir"], folder)
    changed = [
        key for key in sorted(before | now) if key not in _MAY_CHANGE and not _is_same(before.get(key), now.get(key))
    ]
    changed = [key for key in changed if not _is_kept(run, key, str(before.get(key)), str(now.get(key)))]
    changed = [key for key in changed if not _has_the_problems_of(checkpoints, key, str(now.get(key)))]
    if changed == ["checkpointing.checkpoint_dir"] and _is_checkpoint_of(run, checkpoints):
        changed = []  # they were moved
    if changed:
        listed = "\n".join(f"  {key}: {before.get(key)!r} -> {now.get(key)!r}" for key in changed)
        raise UserError(
            f"{run / layout.CONFIG}: the run was started with other settings:\n{listed}\n"
            f"Go on with its own ones, `{to_go_on(run)}`, or start a new run in another logger.log_dir."
        )
    _check_budget(run, config)
    if is_family(config.aopsd.prompts) or Path(config.aopsd.prompts).is_dir():
        check_extensions(run, config.aopsd)
    if own.checkpointing["enabled"] and not checkpoint.newest(checkpoints) and _has_saved(run, own):
        raise UserError(
            f"{checkpoints}: has no checkpoint (looked from {Path.cwd()}), but the run in {run} has made one. To go on "
            "without it would undo its steps. Name the folder that holds it: checkpointing.checkpoint_dir=FOLDER; or "
            "start a new run in another logger.log_dir."
        )


def _is_kept(run: Path, key: str, before: str, now: str) -> bool:
    """Whether prompts or a class of the user's own, in another place now, are those that the run keeps."""
    kept, key = run / layout.EXTENSIONS, key.removeprefix("aopsd.")
    if key == "prompts":
        return not is_family(now) and (kept / _PROMPTS).is_dir() and _holds_all(Path(now), kept / _PROMPTS)
    file, copy = Path(now.partition(":")[0]), kept / Path(now.partition(":")[0]).name
    is_alike = key in WANTED and before.partition(":")[2] == now.partition(":")[2] and file.is_file()
    return is_alike and copy.is_file() and file.read_bytes() == copy.read_bytes()


def _has_the_problems_of(checkpoints: Path, key: str, file: str) -> bool:
    """Whether the file, which had another name, holds the problems that the newest checkpoint was trained on."""
    trained_on = _newest_state(checkpoints).get(_PROBLEMS[key]) if key in _PROBLEMS else None
    return trained_on is not None and Path(file).is_file() and trained_on == fingerprint(load_problems(file))


def _is_checkpoint_of(run: Path, checkpoints: Path) -> bool:
    """Whether the newest one there is the run's: both tell how many seconds it had trained up to that step."""
    state, rows = _newest_state(checkpoints), read_journal(run / layout.METRICS, "step")
    return any(row["step"] == state.get("step") and row.get("time/total") == state.get("train_seconds") for row in rows)


def _newest_state(checkpoints: Path) -> dict[str, Any]:
    newest = checkpoint.newest(checkpoints)
    return read_json(newest / "state.json", remedy=f"Delete {newest}.") if newest else {}


def _has_saved(run: Path, config: Config) -> bool:
    """Whether a checkpoint was made for sure: one is before each evaluation but the first, and each period."""
    last = max((row["step"] for row in read_journal(run / layout.METRICS, "step")), default=0)
    return last > config.checkpointing["save_period"] or any(layout.evaluation_files(run))


def _is_same(before: Any, now: Any) -> bool:
    """Equal, or two names of one file or folder; a class's file is named before a colon."""
    if before == now or not (isinstance(before, str) and isinstance(now, str)):
        return before == now
    (old, _, its_class), (new, _, class_now) = before.partition(":"), now.partition(":")
    with suppress(OSError, ValueError):  # no file; or what no file can be called
        return its_class == class_now and os.path.samefile(old, new)
    return False


@contextmanager
def telling_what_is_lost(run: Path | None) -> Iterator[None]:
    """Where the resume of `run` is refused, the message also tells where what it lacks can be found."""
    try:
        yield
    except UserError as error:
        found = _lost(run) if run and (run / layout.CONFIG).is_file() else ""
        raise UserError("\n".join(filter(None, [str(error), found]))) from error


def _lost(run: Path) -> str:
    """How to go on with paths from another folder, or else without parts of the user's own that are gone or changed."""
    own = load_config(require_run(run), copies=run / layout.EXTENSIONS)
    before = flatten(own.raw)
    at, log_dir = Path(os.path.abspath(run)), Path(before["logger.log_dir"])
    if not log_dir.is_absolute() and at.parts[-len(log_dir.parts) :] == log_dir.parts:  # it was not moved
        begun = at.parents[len(log_dir.parts) - 1]
        paths = [str(before.get(key)) for key in (*_PROBLEMS, "policy.model_name")]
        if any(not Path(path).exists() and (begun / path).exists() for path in paths):
            return (
                f"The run was started in another folder. To go on: cd {shlex.quote(str(begun))} && {to_go_on(log_dir)}"
            )
    now = {"aopsd.prompts": load_run_config(run).aopsd.prompts}
    for key, name in own_names(own.aopsd).items():
        file, _, its_class = name.partition(":")
        copy = run / layout.EXTENSIONS / Path(file).name
        if copy.is_file() and not (Path(file).is_file() and Path(file).read_bytes() == copy.read_bytes()):
            now[f"aopsd.{key}"] = f"{copy}:{its_class}"
    copies = [f"{key}={value}" for key, value in now.items() if value != before[key]]
    return f"The run keeps what it began with. To go on with that: {to_go_on(run, *copies)}" if copies else ""


def to_go_on(run: Path, *overrides: str) -> str:
    """The command, for a shell."""
    return shlex.join(["aopsd", "train", "--resume", str(run), *overrides])


def after_failure(run: Path, aopsd: AOPSDConfig) -> str:
    """How to go on once what has ended the run is mended; a class that steps were made with must stay as it is."""
    used = [f"aopsd.{key}" for key in own_names(aopsd) if _was_used(run, key)]
    kept = f"This run has used {', '.join(used)}: a changed class needs a new one, in another logger.log_dir. "
    return f"{kept if used else ''}To go on: {to_go_on(run)}"


def _check_budget(run: Path, config: Config) -> None:
    """Raise UserError if the run has gone beyond what `config` allows: with it, the run would seem to be shorter.

    The step that reaches a limit is the last one. So the last step that was made must have begun below every limit.
    """
    done = read_journal(run / layout.METRICS, "step", "epoch")
    if not done:
        return
    last, before = done[-1], done[-2] if len(done) > 1 else {}
    for key, begun_at, reached in (
        ("max_num_steps", last["step"] - 1, last["step"]),
        ("max_num_epochs", last["epoch"], last["epoch"] + 1),
        ("max_response_tokens", before.get("rollout/total_tokens", 0), last.get("rollout/total_tokens")),
        ("max_train_seconds", before.get("time/total", 0), last.get("time/total")),
    ):
        limit = getattr(config.aopsd, key)
        if limit is not None and limit <= begun_at:
            raise UserError(
                f"{run}: the run is at step {last['step']}, in epoch {last['epoch'] + 1}; aopsd.{key}={limit} is less "
                f"than it has used. Set aopsd.{key}={reached} or more to go on."
            )


def load_run_config(run: Path) -> Config:
    """The config of an existing run, its paths where the folder is now. Raises UserError if there is none.

    Prompts of the user's own are those that the run keeps, unless they still are where they were, unchanged.
    """
    copies = run / layout.EXTENSIONS
    config = load_config(require_run(run), places(run), copies=copies)
    prompts, kept = config.aopsd.prompts, copies / _PROMPTS
    if is_family(prompts) or not kept.is_dir() or _holds_all(Path(prompts), kept):
        return config
    return replace(config, aopsd=replace(config.aopsd, prompts=str(kept)))


def _holds_all(folder: Path, kept: Path) -> bool:
    """Whether each file of `kept` is in `folder`, too, with the same content."""
    pairs = ((folder / path.name, path) for path in kept.iterdir())
    return all(theirs.is_file() and theirs.read_bytes() == ours.read_bytes() for theirs, ours in pairs)


def check_shown(run: Path, aopsd: AOPSDConfig) -> None:
    """Raise UserError if what the run's teacher read cannot be made again: its class has changed since."""
    for key, path in sources(aopsd).items():
        kept = run / layout.EXTENSIONS / path.name
        if key in _SHOWN_BY and kept.is_file() and kept.read_bytes() != path.read_bytes():
            raise UserError(f"{path}: has changed since the run began (aopsd.{key}). Restore it from {kept}.")


def places(run: Path) -> list[str]:
    """Overrides of the run's own config that say where its folder is now. Raises UserError if there is none."""
    config = load_config(require_run(run), copies=run / layout.EXTENSIONS)
    checkpoints, before = Path(config.checkpointing["checkpoint_dir"]), Path(config.logger["log_dir"])
    moved = {"logger.log_dir": run}
    if not _is_outside(checkpoints, before):
        moved["checkpointing.checkpoint_dir"] = run / os.path.relpath(checkpoints, before)
    return [path_override(key, place) for key, place in moved.items()]


def _is_outside(checkpoints: Path, run: Path) -> bool:
    return os.path.relpath(checkpoints, run).startswith(os.pardir)


def settings_text(config: Config) -> str:
    """The settings as a run notes them: checkpoints outside it by their whole path, wherever the next command runs."""
    folder = Path(config.checkpointing["checkpoint_dir"])
    if _is_outside(folder, Path(config.logger["log_dir"])):
        folder = folder.absolute()
    return to_yaml(
        replace(config, raw=config.raw | {"checkpointing": config.checkpointing | {"checkpoint_dir": str(folder)}})
    )


def require_run(run: Path) -> Path:
    """The config file of a run. Raises UserError if there is none."""
    path = run / layout.CONFIG
    if not run.is_dir():
        found = "is a file" if run.is_file() else f"no such run folder (looked from {Path.cwd()})"
        raise UserError(f"{run}: {found}. Name the folder that training wrote.")
    if not path.is_file():
        refuse_suite(run)
        if (run / ".lock").exists():  # of a process that is starting here, or of one that was killed doing so
            with lock(run):
                pass
        raise UserError(
            f"{run}: no run in it (no config.yaml). Check the path of the run folder. A run that was killed in its "
            "first seconds has left nothing to go on with: start it again, without --resume."
        )
    return path


def refuse_suite(folder: Path) -> None:
    """Raise UserError if the folder is that of a comparison, whose runs are below it."""
    if _KINDS["a suite of `aopsd compare`"](folder):
        found = sorted(str(path.parent) for path in folder.glob(f"*/seed_*/{layout.CONFIG}"))
        runs = f"Its runs are {found[0]} and so on: name one." if found else "None of its runs has begun."
        raise UserError(f"{folder}: a comparison, no run. Its results are in {folder / 'results.md'}. {runs}")


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
