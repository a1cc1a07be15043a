"""Checkpoints: a folder a step, complete or absent. The engine's part is its own; ours is `state.json`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from nemo_aopsd.engine import Engine
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_directory, atomic_write


def save(folder: Path, step: int, engine: Engine, state: dict[str, Any], keep: int) -> None:
    """Write `folder/step_000012` and drop all but the newest `keep`."""
    with atomic_directory(folder / f"step_{step:06d}") as partial:
        engine.save(partial)
        atomic_write(partial / "state.json", json.dumps(state, indent=1))
    for old in _complete(folder)[:-keep]:
        shutil.rmtree(old)


def load_latest(folder: Path, engine: Engine) -> dict[str, Any] | None:
    """Restore the engine from the newest checkpoint and return its state; None if there is none yet."""
    complete = _complete(folder)
    if not complete:
        return None
    state = json.loads((complete[-1] / "state.json").read_text())
    engine.load(complete[-1])
    checksum = engine.teacher_checksum()
    if checksum != state["teacher_checksum"]:
        raise UserError(
            f"{complete[-1]}: the teacher's weights differ from those that this run was taught by "
            f"(SHA-256 {checksum[:12]}, expected {state['teacher_checksum'][:12]}). "
            "Point policy.model_name at the model that the run started from."
        )
    return state


def _complete(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("step_*/state.json"))
