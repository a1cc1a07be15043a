"""Problems, one JSON object per line. Every error names file, line and remedy."""

import hashlib
import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import networkx as nx

from nemo_aopsd.console import counted
from nemo_aopsd.data import dag
from nemo_aopsd.errors import UserError, refuse
from nemo_aopsd.files import decode_line, read_jsonl, read_lines


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with its verified answer and what a teacher may be shown. `where` is file and line."""

    id: str
    problem: str
    answer: str
    where: str
    solution: str | None = None
    plan: tuple[str, ...] = ()
    subproblems: tuple[str, ...] = ()
    dag: nx.DiGraph | None = None

    @property
    def graph(self) -> nx.DiGraph:
        """`dag`, for callers that have checked that there is one (context.check_problems). Raises ValueError if not."""
        if self.dag is None:
            raise ValueError(f"{self.where}: problem {self.id!r} has no `dag`")
        return self.dag


NEEDED = ("id", "problem", "answer")
# Each field that a problem may lack is one that a teacher may be shown.
_SHOWN = tuple(field.name for field in fields(Problem) if field.default is not MISSING)

# What other data sets call them.
_ALSO_CALLED = {"problem": ("question", "prompt"), "dag": ("graph",), "answer": ("target",), "solution": ("rationale",)}


def load_problems(path: str | Path, *, bare: bool = False) -> list[Problem]:
    """Every problem of a JSONL file, in order; `bare` without what a teacher may be shown.

    Raises UserError on bad rows and repeated ids; it lists the first ten.
    """
    return [problem for _, problem in load_rows(path, without=_SHOWN if bare else ())]


def load_rows(path: str | Path, without: Collection[str]) -> list[tuple[dict[str, Any], Problem]]:
    """As `load_problems`, each with its record; the fields `without` are left out of both and not checked."""
    rows: dict[str, tuple[dict[str, Any], Problem]] = {}
    faults, is_foreign, has_graph = [], False, False
    for where, line in read_lines(path):
        try:
            record = {name: value for name, value in decode_line(line, where).items() if name not in without}
            has_graph |= record.get("dag") is not None
            if lacking := {field for field, _ in bad_fields(record)} & {*NEEDED}:
                is_foreign |= not lacking <= {_near(name) for name in record.keys() - {*NEEDED}}
            problem = parse_problem(record, where)
            if problem.id in rows:
                raise UserError(f"{where}: id {problem.id!r} was used at {rows[problem.id][1].where}. Make ids unique.")
        except UserError as error:
            faults.append(str(error))
        else:
            rows[problem.id] = record, problem
    file, remedy = shlex.quote(str(path)), ""
    if has_graph:  # `data prepare` would drop it, and `dag check` refuses a file without
        remedy = f"List all: aopsd dag check {file}"
    elif is_foreign:
        remedy = f"Or make a problems file of it: aopsd data prepare {file} --out PROBLEMS.jsonl"
    refuse(faults, "bad rows", remedy)
    if not rows:
        raise UserError(f"{path}: no problem in it. Expected one JSON object a line.")
    return list(rows.values())


def parse_problem(record: dict[str, Any], where: str) -> Problem:
    """A problem of a decoded record; unknown fields are ignored. Raises UserError naming `where` and the fields."""
    if defects := [defect for _, defect in bad_fields(record)]:
        raise UserError(f"{where}: {' '.join(defects)} Correct the row.")
    graph = None
    if record.get("dag") is not None:
        graph = dag.build_graph(record["dag"], f"{where} (id {record['id']!r})")
    return Problem(
        id=record["id"],
        problem=record["problem"],
        answer=answer_text(record),
        where=where,
        solution=record.get("solution"),
        plan=tuple(record.get("plan") or ()),
        subproblems=tuple(record.get("subproblems") or ()),
        dag=graph,
    )


def bad_fields(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each field that is not as it must be, and what is wrong with it. The `dag` is looked at elsewhere.

    >>> list(bad_fields({"id": "p", "problem": "1 + 1?", "answer": 0.5}))
    [('answer', '`answer` must be a non-empty string, got 0.5.')]
    """
    for field, value in zip(NEEDED, (record.get("id"), record.get("problem"), answer_text(record)), strict=True):
        if not isinstance(value, str) or not value.strip():
            has_it = field in record
            found, hint = (f"got {repr(value)[:80]}", "") if has_it else ("but it is missing", misspelt(record, field))
            yield field, f"`{field}` must be a non-empty string, {found}.{hint}"
    if not isinstance(record.get("solution"), str | None):
        yield "solution", f"`solution` must be a string, got {type(record['solution']).__name__}."
    for field in ("plan", "subproblems"):
        value = record.get(field)
        is_list = isinstance(value, list) and all(isinstance(item, str) and item.strip() for item in value)
        if value is not None and not is_list:
            yield field, f"`{field}` must be a list of non-empty strings, got {str(value)[:80]!r}."


def misspelt(record: dict[str, Any], field: str) -> str:
    """A hint for a record that lacks `field`: the unknown field that is nearly it; empty if there is none.

    >>> misspelt({"id": "p", "soluton": "..."}, "solution")
    ' Its field `soluton` is not read: did you mean `solution`?'
    """
    unknown = [name for name in record if name not in (*NEEDED, *_SHOWN)]
    meant = [field, *_ALSO_CALLED.get(field, ())]
    found = next((name for name in unknown if get_close_matches(_last_word(name), meant, cutoff=0.75)), None)
    return f" Its field `{found}` is not read: did you mean `{field}`?" if found else ""


def unread_fields(path: str | Path) -> list[str]:
    """A warning for each unknown field that is nearly one that we read: of how many rows, and which one may be meant.

    Other unknown fields are columns that people keep, and so are `final_answer` and `answers` beside `answer`.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for where, record in read_jsonl(path):
        for name in record.keys() - {*NEEDED, *_SHOWN}:
            field = _near(name)
            if field and (record.get(field) is None or _last_word(name).rstrip("s") != field.rstrip("s")):
                found.setdefault((name, field), []).append(where)
    return [
        f"{places[0]}: {counted(len(places), 'row')} of the file: the field `{name}` is not read. "
        f"Did you mean `{field}`? Rename it, if so"
        for (name, field), places in sorted(found.items())
    ]


@lru_cache(maxsize=1024)  # rows have the same columns
def _near(name: str) -> str | None:
    """The field that the last word of `name` nearly is, but for `id`: data sets have many of these."""
    return next(iter(get_close_matches(_last_word(name), (*NEEDED[1:], *_SHOWN), n=1, cutoff=0.75)), None)


def _last_word(name: str) -> str:
    """`dag` of `reasoning_dag` and `reasoningDag`: what comes before tells which one."""
    return re.split(r"[^A-Za-z]|(?<=[a-z])(?=[A-Z])", name)[-1].lower()


def row_at(where: str) -> dict[str, Any]:
    """The record at `FILE:LINE`, read again for an error's hint; empty where there is no such file any more."""
    file = where.rpartition(":")[0]
    rows = read_jsonl(file) if Path(file).is_file() else ()
    return next((record for place, record in rows if place == where), {})


def answer_text(record: dict[str, Any]) -> Any:
    """The `answer` of a record, a whole number as text; anything else as it is.

    >>> answer_text({"answer": 0}), answer_text({"answer": "1/2"}), answer_text({})
    ('0', '1/2', None)
    """
    answer = record.get("answer")
    return str(answer) if isinstance(answer, int) and not isinstance(answer, bool) else answer


def fingerprint(problems: Iterable[Problem]) -> str:
    """SHA-256 over everything in `problems` that training reads, in order."""
    digest = hashlib.sha256()
    for item in problems:
        graph = None if item.dag is None else [list(item.dag.nodes.data("statement")), list(item.dag.edges)]
        shown = [item.id, item.problem, item.answer, item.solution, item.plan, item.subproblems, graph]
        digest.update(json.dumps(shown).encode())
    return digest.hexdigest()
