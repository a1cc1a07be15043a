"""Every fault of every reasoning DAG of a JSONL file; unlike loading for training, a bad row does not stop it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_aopsd.dag import Fault, find_faults
from nemo_aopsd.data import answer_text, decode_line, read_lines
from nemo_aopsd.errors import UserError


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """One line of the file: where it is, its problem id ("" if it has none), and what is wrong with it."""

    where: str
    problem_id: str
    faults: list[Fault]

    @property
    def has_errors(self) -> bool:
        return any(fault.is_error for fault in self.faults)


def check_file(path: str | Path) -> Iterator[CheckedRow]:
    """Each row, good or bad, in order; raises UserError if the file is missing or has no line.

    Besides `dag.find_faults`: broken_line (bytes or JSON), missing_id, repeated_id, missing_dag.
    """
    seen: dict[str, str] = {}
    where = ""
    for where, line in read_lines(path):
        try:
            record = decode_line(line, where)
        except UserError as error:
            yield CheckedRow(where, "", [Fault("broken_line", str(error).removeprefix(f"{where}: "))])
            continue
        problem_id, faults = record.get("id"), []
        if not isinstance(problem_id, str) or not problem_id.strip():
            faults.append(Fault("missing_id", f"expected a non-empty string, got {problem_id!r}"))
            problem_id = ""
        elif problem_id in seen:
            faults.append(Fault("repeated_id", f"first used at {seen[problem_id]}"))
        seen.setdefault(problem_id, where)
        if record.get("dag") is None:
            faults.append(Fault("missing_dag", "the row has no `dag`"))
        else:
            answer = answer_text(record)
            faults += find_faults(record["dag"], answer if isinstance(answer, str) else None)
        yield CheckedRow(where, problem_id, faults)
    if not where:
        raise UserError(f"{path}: no graph in it. Expected one JSON object a line.")


def fault_lines(row: CheckedRow) -> Iterator[str]:
    """One line a fault, in columns: level, file:line, problem id, kind, ids."""
    for fault in row.faults:
        level = "error" if fault.is_error else "warning"
        yield f"{level:<8}{row.where}  {row.problem_id or '-'}  {fault.kind:<15}  {fault.detail}"
