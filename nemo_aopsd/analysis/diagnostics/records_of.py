"""The rollouts of a run folder, one at a time, each with the fields that a diagnostic needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_aopsd.analysis.report.fields import Kind, check_fields
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_jsonl
from nemo_aopsd.run.folder import load_run_config

Record = dict[str, Any]
IDENTITY: dict[str, Kind] = {"problem_id": str, "epoch": int, "step": int}


@dataclass(frozen=True)
class Steps:
    """Which steps of a run to read, both ends included; None leaves an end open."""

    first: int | None = None
    last: int | None = None

    def __contains__(self, step: int) -> bool:
        return (self.first is None or step >= self.first) and (self.last is None or step <= self.last)

    def __str__(self) -> str:
        return f"{'start' if self.first is None else self.first} to {'end' if self.last is None else self.last}"


ALL_STEPS = Steps()


def open_run(run: Path) -> Config:
    """The config of a run. Raises UserError if the folder is not there or holds no run."""
    if not run.is_dir():
        raise UserError(f"{run}: no such run folder (looked from {Path.cwd()}). Name the folder that training wrote.")
    return load_run_config(run)


def read_rollouts(run: Path, fields: Mapping[str, Kind], steps: Steps = ALL_STEPS) -> Iterator[tuple[str, Record]]:
    """`(where, record)` of each saved rollout, in order of steps.

    Raises UserError if there is none in `steps`, or if one lacks a field of `fields`.
    """
    files = sorted((run / "rollouts").glob("step_[0-9]*.jsonl"))
    if not files:
        raise UserError(
            f"{run / 'rollouts'}: no step_*.jsonl, so no rollout to read. Let the run finish its first step."
        )
    chosen = [file for file in files if int(file.stem.removeprefix("step_")) in steps]
    found = False
    for file in chosen:
        for where, record in read_jsonl(file):
            check_fields(record, {**IDENTITY, **fields}, where)
            found = True
            yield where, record
    if not found:
        have = f"{files[0].stem} to {files[-1].stem}"
        raise UserError(f"{run / 'rollouts'}: no rollout of steps {steps} (there are {have}). Choose other steps.")


def gaps_of(record: Record, where: str) -> np.ndarray | None:
    """g_t = log q - log p, [T], in nats (eq:opsd-gap); None for a rollout without: dropped, or not for its objective.

    Raises UserError if the two lists and the response differ in length or a number is not finite.
    """
    if record["dropped"]:
        return None
    columns = {field: record[field] for field in ("teacher_logprobs", "student_logprobs")}
    if columns["teacher_logprobs"] is None:
        return None
    wanted = len(record["response"])
    for field, values in columns.items():
        if not isinstance(values, list) or len(values) != wanted:
            found = len(values) if isinstance(values, list) else repr(values)[:40]
            raise UserError(
                f"{where}: `{field}` must hold {wanted} numbers, one a token, got {found}. Restore the file."
            )
    try:
        gaps = np.array(columns["teacher_logprobs"], dtype=float) - np.array(columns["student_logprobs"], dtype=float)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: a log-prob is no number: {error}. Restore the file.") from error
    if not np.isfinite(gaps).all():
        raise UserError(f"{where}: a gap is not a finite number. Restore the file.")
    return gaps
