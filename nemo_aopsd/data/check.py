"""Every fault of every reasoning DAG of a JSONL file; unlike loading for training, a bad row does not stop it."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_aopsd.console import counted
from nemo_aopsd.data.dag import Fault
from nemo_aopsd.data.leaks import find_graph_faults
from nemo_aopsd.data.problems import answer_text, bad_fields, misspelt
from nemo_aopsd.errors import UserError, nearest
from nemo_aopsd.files import decode_line, read_lines
from nemo_aopsd.grading import grade


@dataclass(slots=True)
class CheckedRow:
    """One line of the file: where it is, its JSON object (None if it cannot be read), its problem id ("" if it has
    none), and what is wrong with it."""

    where: str
    record: dict[str, Any] | None
    problem_id: str = ""
    faults: list[Fault] = field(default_factory=list)

    @property
    def has_errors(self) -> bool:
        return any(fault.is_error for fault in self.faults)


def check_file(path: str | Path, *, graphs_only: bool = False) -> Iterator[CheckedRow]:
    """Each row, good or bad, in order; raises UserError if the file is missing or has no line.

    A row without an error is one that the loader of training takes. Besides `leaks.find_graph_faults`: broken_line
    (bytes or JSON), missing_id, repeated_id, missing_dag, and bad_problem, bad_answer and so on for other fields,
    unless `graphs_only`. A warning: other_box, of a solution.
    """
    seen: dict[str, str] = {}
    for row in _read_rows(path):
        _check(row, graphs_only)
        if row.problem_id in seen:
            row.faults.insert(0, Fault("repeated_id", f"first used at {seen[row.problem_id]}"))
        if row.problem_id:
            seen.setdefault(row.problem_id, row.where)
        yield row


def rows_with_graphs(path: str | Path) -> tuple[list[tuple[dict[str, Any], CheckedRow]], list[CheckedRow]]:
    """Records that have a `dag`, with their rows, and rows that cannot be read; raises UserError if none has one."""
    need_graphs(path)
    rows = list(check_file(path))
    broken = [row for row in rows if row.record is None]
    found = [(row.record, row) for row in rows if row.record is not None and row.record.get("dag") is not None]
    return found, broken


def need_graphs(path: str | Path) -> None:
    """Raise UserError if no row has a `dag`: this is another file than was meant, and its rows' faults tell nothing."""
    rows = list(_read_rows(path))
    records = [row.record for row in rows if row.record is not None]
    if any(record.get("dag") is not None for record in records):
        return
    if not records:
        first = rows[0].faults[0].detail
        raise UserError(f"{path}: none of its {len(rows)} lines is a JSON object. {rows[0].where}: {first}")
    raise UserError(
        f"{path}: no row has a `dag`, none of {len(rows)}; the first has {', '.join(records[0]) or 'no field'}."
        f"{misspelt(records[0], 'dag')} Check the path, or make graphs: aopsd dag build {shlex.quote(str(path))} "
        "--out DAGS.jsonl --base-url URL --model NAME"
    )


def find_row(path: str | Path, problem_id: str) -> tuple[CheckedRow, Any, list[CheckedRow]]:
    """The first row with that id, its `dag` as the file has it, and the rows that cannot be read.

    No other row is checked. Raises UserError if no readable row has that id.
    """
    rows = list(_read_rows(path))
    broken = [row for row in rows if row.record is None]
    ids = [str(row.record.get("id")) for row in rows if row.record is not None]
    found = [row for row in rows if row.record is not None and str(row.record.get("id")) == problem_id]
    if not found:
        hint = nearest(problem_id, ids) or (f" The first one is `{ids[0]}`." if ids else "")
        unread = f" {unread_note(path, broken)}" if broken else ""
        raise UserError(f"{path}: no problem with id {problem_id!r} among its {len(ids)}.{hint}{unread}")
    row, *others = found
    _check(row)
    row.faults.extend(Fault("repeated_id", f"used again at {other.where}") for other in others)
    return row, (row.record or {}).get("dag"), broken


def fault_lines(row: CheckedRow, without: str = "") -> Iterator[str]:
    """One line a fault, but for those of the kind `without`, in columns: level, file:line, problem id, kind, ids."""
    for fault in row.faults:
        if fault.kind != without:
            level = "error" if fault.is_error else "warning"
            yield f"{level:<8}{row.where}  {row.problem_id or '-'}  {fault.kind:<15}  {fault.detail}"


def unread_note(path: str | Path, broken: Sequence[CheckedRow]) -> str:
    """What to say of rows that cannot be read."""
    first = f"{broken[0].where}: {broken[0].faults[0].detail}"
    return f"{counted(len(broken), 'row')} cannot be read: {first} List all: aopsd dag check {path}"


def _read_rows(path: str | Path) -> Iterator[CheckedRow]:
    """Each non-blank line, not checked yet; raises UserError if the file is missing or has none."""
    where = ""
    for where, text in read_lines(path):
        try:
            row = CheckedRow(where, decode_line(text, where))
        except UserError as error:
            row = CheckedRow(where, None, faults=[Fault("broken_line", str(error).removeprefix(f"{where}: "))])
        yield row
    if not where:
        raise UserError(f"{path}: no graph in it. Expected one JSON object a line.")


def _check(row: CheckedRow, graphs_only: bool = False) -> None:
    """Note the faults of a row that can be read. The graph is compared with an answer that training would take."""
    if row.record is None:
        return
    bad, answer = dict(bad_fields(row.record)), answer_text(row.record)
    row.problem_id = "" if "id" in bad else row.record["id"]
    if graphs_only:
        bad = {name: defect for name, defect in bad.items() if name == "id"}
    row.faults += [Fault("missing_id" if name == "id" else f"bad_{name}", defect) for name, defect in bad.items()]
    if row.record.get("dag") is None:
        row.faults.append(Fault("missing_dag", f"the row has no `dag`.{misspelt(row.record, 'dag')}"))
    else:
        row.faults += find_graph_faults(row.record["dag"], answer if isinstance(answer, str) else None)
    if (
        not graphs_only
        and not {"answer", "solution"} & bad.keys()
        and boxes_another(row.record.get("solution"), answer)
    ):
        row.faults.append(Fault("other_box", f"the solution's last box is not the answer, {answer!r}", is_error=False))


def boxes_another(solution: str | None, answer: str) -> bool:
    """Whether the last box of the solution is another value than the answer; without a box it is not."""
    return solution is not None and grade(solution, answer).reason == "wrong"
