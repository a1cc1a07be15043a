"""The constants of the cost model, from `constants.yaml` and what a fit wrote over it.

A prediction is linear in `theta`: 1 / value of an efficiency, the value of a wait. So a fit is linear least squares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from nemo_aopsd.errors import UserError
from nemo_aopsd.files import decode_text

_FOLDER = Path(__file__).parent
STATUSES = ("assumption", "anchored", "fitted")


@dataclass(frozen=True)
class GPU:
    """Data sheet of one GPU: bytes, FLOP/s, bytes/s. `fp8` is None where it has none."""

    kind: str
    name: str
    memory: float
    host_memory: float  # of a node
    bf16: float
    fp8: float | None
    bandwidth: float
    link: float
    network: float
    host: float
    source: str


@dataclass(frozen=True)
class Constant:
    """An efficiency (share of a data sheet's rate) or a wait in seconds."""

    name: str
    kind: str
    value: float
    status: str
    source: str

    @property
    def theta(self) -> float:
        return 1 / self.value if self.kind == "efficiency" else self.value

    def at(self, theta: float, status: str, source: str) -> Constant:
        """The same constant where the model's parameter is `theta`."""
        value = 1 / theta if self.kind == "efficiency" else theta
        return replace(self, value=value, status=status, source=source)


@dataclass(frozen=True)
class Constants:
    """Those of one engine, by name, and the workload's assumptions."""

    engine: str
    by_name: dict[str, Constant]
    workload: dict[str, float]
    workload_sources: dict[str, str]
    measured_errors: dict[str, tuple[float, float]]  # of the shipped ones, by stage; empty where none is known

    def seconds(self, terms: dict[str, float]) -> float:
        """Of a stage: the sum of work, in seconds at the data sheet's rate or in counts, times theta."""
        return sum(amount * self.by_name[name].theta for name, amount in terms.items())


def gpu_kinds() -> tuple[str, ...]:
    return tuple(_read()["gpus"])


def read_gpu(kind: str) -> GPU:
    """Raises UserError on a kind without a data sheet."""
    known = _read()["gpus"]
    if kind not in known:
        raise UserError(
            f"--gpu {kind}: expected one of {', '.join(known)}; nemo_aopsd/cluster/plan/constants.yaml takes more."
        )
    return GPU(kind=kind, **known[kind])


def read_constants(engine: str, fitted: Path | None = None) -> Constants:
    """Of `engine`; those that the file of a fit has go over the shipped ones. Raises UserError if it does not fit."""
    content = _read()
    by_name = {name: Constant(name, **block) for name, block in content["engines"][engine].items()}
    if fitted:
        by_name |= _read_fit(fitted, engine, by_name)
    workload = content["workload"]
    return Constants(
        engine,
        by_name,
        {name: block["value"] for name, block in workload.items()},
        {name: block["source"] for name, block in workload.items()},
        {} if fitted else {stage: (low, high) for stage, (low, high) in content["measured_errors"][engine].items()},
    )


def write_fit(constants: Constants, names: list[str]) -> str:
    """The content of a file for `--constants`: the named constants of one engine."""
    blocks = {
        name: {key: getattr(constants.by_name[name], key) for key in ("kind", "value", "status", "source")}
        for name in names
    }
    return yaml.safe_dump({"engines": {constants.engine: blocks}}, sort_keys=False, allow_unicode=True, width=110)


def _read_fit(path: Path, engine: str, known: dict[str, Constant]) -> dict[str, Constant]:
    expected = f"constants of aopsd.engine={engine}, as `aopsd plan --fit RUN --out FILE` writes them"
    try:
        content = yaml.safe_load(_read_text(path, expected))
        found = {name: Constant(name, **block) for name, block in content["engines"][engine].items()}
    except yaml.YAMLError as error:
        cause = " ".join(str(error).split())
        raise UserError(f"--constants {path}: broken YAML: {cause}. Expected {expected}. Fit again.") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"--constants {path}: no such constants in it. Expected {expected}. Fit a run of that engine."
        ) from error
    for name, constant in found.items():
        is_number = isinstance(constant.value, int | float) and constant.value > 0
        if name not in known or constant.status not in STATUSES or not is_number or constant.kind != known[name].kind:
            raise UserError(
                f"--constants {path}: `{name}` is no constant of aopsd.engine={engine}, or not positive. Fit again."
            )
    return found


def _read_text(path: Path, expected: str) -> str:
    if path.is_dir():
        raise UserError(f"--constants {path}: a folder. Expected a file of {expected}. Name the file.")
    if not path.is_file():
        raise UserError(f"--constants {path}: no such file (looked from {Path.cwd()}). Check the path.")
    remedy = f"Expected a file of {expected}. Save it as UTF-8, or fit again."
    return decode_text(path.read_bytes(), f"--constants {path}", remedy)


@cache
def _read() -> dict[str, Any]:
    return yaml.safe_load((_FOLDER / "constants.yaml").read_text(encoding="utf-8"))
