"""Checkpoints: one folder per step, complete or absent. The engine writes its part; ours is `state.json`.

`manifest.json` has the SHA-256 of every other file.
"""

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from nemo_aopsd.console import warn
from nemo_aopsd.engine import Engine
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_directory, atomic_write, read_journal
from nemo_aopsd.run import layout

MANIFEST = "manifest.json"
_THREADS = 8  # that read and hash files at a time
_ONCE_HASHED = 1 << 30  # bytes; of a larger file a checkpoint without manifest knows only the size


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What a run knows besides its weights; the keys of `state.json`."""

    step: int  # steps done
    next_batch: int  # of the running epoch
    response_tokens: int  # of the steps done
    train_seconds: float  # of the steps done
    teacher_checksum: str
    problems: str  # fingerprint
    held_out: str  # fingerprint, of no problem if there is no evaluation
    curriculum: dict[str, Any]  # Curriculum.state_dict
    judge: str = ""  # fingerprint of a judge's own model; older checkpoints lack it
    surprise: dict[str, list[float]] = field(default_factory=dict)  # of weighting.Surprise; older checkpoints lack it


def save(folder: Path, engine: Engine, state: CheckpointState, keep: int) -> None:
    """Write `folder/step_000012` with a checksum of each file, and drop all but the newest `keep`."""
    with atomic_directory(folder / f"step_{state.step:06d}") as partial:
        engine.save(partial)
        atomic_write(partial / "state.json", json.dumps(asdict(state), indent=1))
        atomic_write(partial / MANIFEST, json.dumps(_checksums(partial), indent=1))
    for old in complete(folder)[:-keep]:
        (old / "state.json").unlink()  # first, so that whoever reads it meanwhile sees that it is gone
        shutil.rmtree(old)


def newest(folder: Path) -> Path | None:
    """The newest complete checkpoint of a folder; None if there is none yet."""
    kept = complete(folder)
    return kept[-1] if kept else None


def steps_without(folder: Path, metrics: Path) -> int:
    """Steps of the journal that a resume makes again: those after the newest checkpoint of `folder`."""
    last = max(_complete(folder), default=0)
    return sum(line["step"] > last for line in read_journal(metrics, "step"))


def load(path: Path, engine: Engine) -> CheckpointState:
    """Restore the engine from one checkpoint and return its state.

    Raises UserError if the checkpoint is damaged or was made with another teacher.
    """
    state = _read_state(path)
    engine.load(path)
    checksum = engine.teacher_checksum()
    if checksum != state.teacher_checksum:
        raise UserError(
            f"{path}: the teacher's weights differ from those that this run was taught by "
            f"(SHA-256 {checksum[:12]}, expected {state.teacher_checksum[:12]}). "
            "Point policy.model_name at the model of the run's start, and set aopsd.teacher.weights as it had it."
        )
    return state


def _read_state(checkpoint: Path) -> CheckpointState:
    record = _read(checkpoint, "state.json")
    if (checkpoint / MANIFEST).exists() or "files" not in record:
        _compare(checkpoint, _read(checkpoint, MANIFEST), _checksums(checkpoint))
    else:
        warn([f"{checkpoint}: has no {MANIFEST}, as of an earlier version: state.json itself is taken as it is."])
        expected = record["files"] | {"state.json": None}
        _compare(checkpoint, expected, _checksums(checkpoint, _ONCE_HASHED) | {"state.json": None})
    try:
        return CheckpointState(
            **{each.name: record[each.name] for each in fields(CheckpointState) if each.name in record}
        )
    except TypeError as error:
        raise UserError(_damaged(checkpoint, "state.json")) from error


def _read(checkpoint: Path, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads((checkpoint / name).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(_damaged(checkpoint, name)) from error


def _compare(checkpoint: Path, expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Raise UserError naming the first file that is not as it was written."""
    for name in sorted(expected.keys() | {"state.json"}):
        if found.get(name) != expected.get(name):
            raise UserError(_damaged(checkpoint, name))


def _damaged(checkpoint: Path, name: str) -> str:
    return f"{checkpoint / name}: damaged or missing. Delete {checkpoint} to go on from the checkpoint before it."


def _checksums(checkpoint: Path, longest: int | None = None) -> dict[str, str]:
    """SHA-256 by name of all files but the manifest; of one above `longest` bytes its size."""
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.name != MANIFEST]
    with ThreadPoolExecutor(_THREADS) as pool:  # hashing lets other threads run
        found = list(pool.map(lambda path: _checksum(path, longest), files))
    return dict(zip((path.relative_to(checkpoint).as_posix() for path in files), found, strict=True))


def _checksum(path: Path, longest: int | None) -> str:
    size = path.stat().st_size
    if longest is not None and size > longest:
        return f"{size} bytes"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def complete(folder: Path) -> list[Path]:
    """All complete checkpoints of a folder, from old to new."""
    return list(_complete(folder).values())


def _complete(folder: Path) -> dict[int, Path]:
    found = layout.numbered(folder, "step_")
    return {step: path for step, path in found.items() if (path / "state.json").exists()}
