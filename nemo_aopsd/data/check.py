"""Every fault of every reasoning DAG of a JSONL file; unlike loading for training, a bad row does not stop it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_aopsd.data.dag import Fault
from nemo_aopsd.data.leaks import find_graph_faults
from nemo_aopsd.data.problems import answer_text, bad_fields
from nemo_aopsd.errors import UserError, nearest
from nemo_aopsd.files import decode_line, read_lines


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """One line of the file: where it is, its problem id ("" if it has none), and what is wrong with it."""

    where: str
    problem_id: str
    faults: list[Fault]

    @property
    def has_errors(self) -> bool:
        return any(fault.is_error for fault in self.faults)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file: its JSON object, or None and why it cannot be read."""

    where: str
    record: dict[str, Any] | None
    why: str = ""


def check_file(path: str | Path) -> Iterator[CheckedRow]:
    """Each row, good or bad, in order; raises UserError if the file is missing or has no line.

    A row without an error is one that the loader of training takes. Besides `graph_faults`: broken_line (bytes or
    JSON), missing_id, repeated_id, missing_dag, and bad_problem, bad_answer and so on for other fields.
    """
    for _, row in _checked_lines(path):
        yield row


def rows_with_graphs(path: str | Path) -> tuple[list[tuple[dict[str, Any], CheckedRow]], list[Line]]:
    """Records that have a `dag`, with their rows as `check_file` sees them, and the lines that cannot be read.

    Raises UserError if no record has one.
    """
    rows, broken = [], []
    for line, row in _checked_lines(path):
        if line.record is None:
            broken.append(line)
        elif line.record.get("dag") is not None:
            rows.append((line.record, row))
    if not rows:
        unread = f" {unread_note(path, broken)}" if broken else ""
        raise UserError(f"{path}: no row has a `dag`. Make graphs with: aopsd dag build {path} --out ...{unread}")
    return rows, broken


def _checked_lines(path: str | Path) -> Iterator[tuple[Line, CheckedRow]]:
    """Each line with its row as `check_file` sees it."""
    seen: dict[str, str] = {}
    for line in decoded_lines(path):
        if line.record is None:
            yield line, CheckedRow(line.where, "", [Fault("broken_line", line.why)])
            continue
        row = _check_row(line.where, line.record)
        if row.problem_id in seen:
            row.faults.insert(0, Fault("repeated_id", f"first used at {seen[row.problem_id]}"))
        if row.problem_id:
            seen.setdefault(row.problem_id, row.where)
        yield line, row


def find_row(path: str | Path, problem_id: str) -> tuple[CheckedRow, Any, list[Line]]:
    """The first row with that id as `check_file` sees it, its `dag` as the file has it, and the lines that cannot be
    read. No other row is looked into. Raises UserError if no readable row has that id."""
    lines = list(decoded_lines(path))
    broken = [line for line in lines if line.record is None]
    readable = [(line.where, line.record) for line in lines if line.record is not None]
    found = [(where, record) for where, record in readable if str(record.get("id")) == problem_id]
    if not found:
        ids = [str(record.get("id")) for _, record in readable]
        raise UserError(_not_found(path, problem_id, ids, broken))
    row = _check_row(*found[0])
    row.faults.extend(Fault("repeated_id", f"used again at {where}") for where, _ in found[1:])
    return row, found[0][1].get("dag"), broken


def decoded_lines(path: str | Path) -> Iterator[Line]:
    """Each non-blank line, readable or not; raises UserError if the file is missing or has none."""
    where = ""
    for where, text in read_lines(path):
        try:
            line = Line(where, decode_line(text, where))
        except UserError as error:
            line = Line(where, None, str(error).removeprefix(f"{where}: "))
        yield line
    if not where:
        raise UserError(f"{path}: no graph in it. Expected one JSON object a line.")


def graph_faults(record: dict[str, Any]) -> list[Fault]:
    """Every fault of the record's `dag`, held against its answer if that is one that training would take."""
    answer = answer_text(record)
    return find_graph_faults(record["dag"], answer if isinstance(answer, str) else None)


def fault_lines(row: CheckedRow) -> Iterator[str]:
    """One line a fault, in columns: level, file:line, problem id, kind, ids."""
    for fault in row.faults:
        level = "error" if fault.is_error else "warning"
        yield f"{level:<8}{row.where}  {row.problem_id or '-'}  {fault.kind:<15}  {fault.detail}"


def unread_note(path: str | Path, broken: list[Line]) -> str:
    """What to say of lines that were passed over."""
    rows = "1 row cannot" if len(broken) == 1 else f"{len(broken)} rows cannot"
    return f"{rows} be read: {broken[0].where}: {broken[0].why} List all: aopsd dag check {path}"


def _check_row(where: str, record: dict[str, Any]) -> CheckedRow:
    bad = dict(bad_fields(record))
    faults = [Fault("missing_id" if field == "id" else f"bad_{field}", defect) for field, defect in bad.items()]
    faults += [Fault("missing_dag", "the row has no `dag`")] if record.get("dag") is None else graph_faults(record)
    return CheckedRow(where, "" if "id" in bad else record["id"], faults)


def _not_found(path: str | Path, problem_id: str, ids: list[str], broken: list[Line]) -> str:
    message = f"{path}: no problem with id {problem_id!r} among its {len(ids)}."
    hint = nearest(problem_id, ids) or (f" The first one is `{ids[0]}`." if ids else "")
    return message + hint + (f" {unread_note(path, broken)}" if broken else "")
