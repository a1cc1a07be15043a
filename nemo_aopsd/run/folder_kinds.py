"""Which kind of results a folder holds, so that a command does not mix its files with others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from nemo_aopsd.errors import UserError
from nemo_aopsd.run import layout

_BESIDE_CONFIG = (layout.METRICS, "checkpoints", layout.ROLLOUTS, layout.EVALUATIONS, layout.INITIAL_PROGRESS)


def keep_apart(out: Path, own: str) -> None:
    """Raise UserError if `out` holds results of another kind than `own`, a key of `KINDS`."""
    for kind, holds in KINDS.items():
        if kind != own and holds(out):
            raise UserError(f"{out}: holds {kind}. Choose another folder.")


def _holds_run(folder: Path) -> bool:
    return (folder / layout.CONFIG).is_file() and any((folder / name).exists() for name in _BESIDE_CONFIG)


KINDS: Mapping[str, Callable[[Path], bool]] = MappingProxyType(
    {
        "a run of `aopsd train`": _holds_run,
        "a suite of `aopsd compare`": lambda folder: (folder / "suite.json").is_file(),
        "an evaluation of `aopsd evaluate`": lambda folder: any(folder.glob("*.settings.json")),
        "a checkpoint": lambda folder: (folder / "state.json").is_file(),
        "a model": lambda folder: (folder / "config.json").is_file(),
    }
)
