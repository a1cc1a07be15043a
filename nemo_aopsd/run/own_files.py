"""The user's own classes and prompts: a run keeps a copy of each file, and stays with what it was made with."""

from collections.abc import Iterator
from pathlib import Path

from nemo_aopsd.config.extension import WANTED, sources
from nemo_aopsd.config.schema import AOPSDConfig
from nemo_aopsd.console import warn
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_journal
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.prompts import is_family
from nemo_aopsd.run import layout

_SHOWN_BY = ("context.kind", "judge.kind")  # what the teacher reads
PROMPTS = "prompts"  # of the user's own, below layout.EXTENSIONS


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
        if kept.exists() and kept.read_bytes() != path.read_bytes() and was_used(run, key):
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


def was_used(run: Path, key: str) -> bool:
    """Whether the run has results that depend on the part: steps, and of some parts what comes before them."""
    before = [layout.INITIAL_PROGRESS, layout.EVALUATIONS] if key in ("judge.kind", "prompts") else []
    return bool(read_journal(run / layout.METRICS, "step")) or any((run / name).exists() for name in before)


def _extensions(run: Path, aopsd: AOPSDConfig) -> Iterator[tuple[str, Path, Path]]:
    """Key, file, and where the run keeps it."""
    for key, path in sources(aopsd).items():
        yield key, path, run / layout.EXTENSIONS / path.name
    if not is_family(aopsd.prompts):
        for path in sorted(path for path in Path(aopsd.prompts).resolve().iterdir() if path.is_file()):
            yield "prompts", path, run / layout.EXTENSIONS / PROMPTS / path.name


def is_kept(run: Path, key: str, before: str, now: str) -> bool:
    """Whether prompts or a class of the user's own, in another place now, are those that the run keeps."""
    kept, key = run / layout.EXTENSIONS, key.removeprefix("aopsd.")
    if key == "prompts":
        return not is_family(now) and (kept / PROMPTS).is_dir() and holds_all(Path(now), kept / PROMPTS)
    file, copy = Path(now.partition(":")[0]), kept / Path(now.partition(":")[0]).name
    is_alike = key in WANTED and before.partition(":")[2] == now.partition(":")[2] and file.is_file()
    return is_alike and copy.is_file() and file.read_bytes() == copy.read_bytes()


def holds_all(folder: Path, kept: Path) -> bool:
    """Whether each file of `kept` is in `folder`, too, with the same content."""
    pairs = ((folder / path.name, path) for path in kept.iterdir())
    return all(theirs.is_file() and theirs.read_bytes() == ours.read_bytes() for theirs, ours in pairs)


def check_shown(run: Path, aopsd: AOPSDConfig) -> None:
    """Raise UserError if what the run's teacher read cannot be made again: its class has changed since."""
    for key, path in sources(aopsd).items():
        kept = run / layout.EXTENSIONS / path.name
        if key in _SHOWN_BY and kept.is_file() and kept.read_bytes() != path.read_bytes():
            raise UserError(f"{path}: has changed since the run began (aopsd.{key}). Restore it from {kept}.")
