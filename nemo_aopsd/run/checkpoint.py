"""Checkpoints: one folder per step, complete or absent. The engine writes its part; ours is `state.json`."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from nemo_aopsd.engine import Engine
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_directory, atomic_write

_NAME = re.compile(r"step_(\d+)")
_HASHED = 1 << 30  # bytes; of a larger file (the optimizer of a large model) only the size is kept


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What a run knows besides its weights. `state.json` holds these keys, and `files`: checksums of the engine's."""

    step: int  # steps done
    next_batch: int  # of the running epoch
    response_tokens: int  # of the steps done
    train_seconds: float  # of the steps done
    teacher_checksum: str
    problems: str  # fingerprint
    held_out: str  # fingerprint, of no problem if there is no evaluation
    curriculum: dict[str, Any]  # Curriculum.state_dict
    surprise: dict[str, list[float]] = field(default_factory=dict)  # of weighting.Surprise; older checkpoints lack it


def save(folder: Path, engine: Engine, state: CheckpointState, keep: int) -> None:
    """Write `folder/step_000012` with a checksum of each file of the engine, and drop all but the newest `keep`."""
    with atomic_directory(folder / f"step_{state.step:06d}") as partial:
        engine.save(partial)
        atomic_write(partial / "state.json", json.dumps(asdict(state) | {"files": _checksums(partial)}, indent=1))
    for old in complete(folder)[:-keep]:
        (old / "state.json").unlink()  # first, so that whoever reads it meanwhile sees that it is gone
        shutil.rmtree(old)


def load_latest(folder: Path, engine: Engine) -> CheckpointState | None:
    """Restore the engine from the newest checkpoint and return its state; None if there is none yet.

    Raises UserError if the checkpoint is damaged or was made with another teacher.
    """
    path = newest(folder)
    return None if path is None else load(path, engine)


def newest(folder: Path) -> Path | None:
    """The newest complete checkpoint of a folder; None if there is none yet."""
    kept = complete(folder)
    return kept[-1] if kept else None


def load(path: Path, engine: Engine) -> CheckpointState:
    """Restore the engine from one checkpoint and return its state. Raises what `load_latest` raises."""
    state = _read_state(path)
    engine.load(path)
    checksum = engine.teacher_checksum()
    if checksum != state.teacher_checksum:
        raise UserError(
            f"{path}: the teacher's weights differ from those that this run was taught by "
            f"(SHA-256 {checksum[:12]}, expected {state.teacher_checksum[:12]}). "
            "Point policy.model_name at the model that the run started from."
        )
    return state


def _read_state(checkpoint: Path) -> CheckpointState:
    try:
        record = json.loads((checkpoint / "state.json").read_bytes())
        state = CheckpointState(
            **{each.name: record[each.name] for each in fields(CheckpointState) if each.name in record}
        )
        expected = record["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(_damaged(checkpoint, "state.json")) from error
    found = _checksums(checkpoint)
    for name in sorted(expected):
        if found.get(name) != expected[name]:
            raise UserError(_damaged(checkpoint, name))
    return state


def _damaged(checkpoint: Path, name: str) -> str:
    return f"{checkpoint / name}: damaged or missing. Delete {checkpoint} to go on from the checkpoint before it."


def _checksums(checkpoint: Path) -> dict[str, str]:
    checksums = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name != "state.json":
            checksums[str(path.relative_to(checkpoint))] = _checksum(path)
    return checksums


def _checksum(path: Path) -> str:
    size = path.stat().st_size
    if size > _HASHED:
        return f"{size} bytes"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def complete(folder: Path) -> list[Path]:
    """All complete checkpoints of a folder, from old to new."""
    found = [
        (match, path.parent)
        for path in folder.glob("step_*/state.json")
        if (match := _NAME.fullmatch(path.parent.name))
    ]
    return [path for _, path in sorted(found, key=lambda each: int(each[0][1]))]
