"""How often the grader agrees with labelled cases, and its verdicts on a file of responses."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_jsonl
from nemo_aopsd.grading import Grade, grade, grade_answer, grade_anywhere
from nemo_aopsd.grading.extract import joined_answer, tagged_answer

_THREADS = 2  # a hostile answer holds one of them up
_PERCENT_BEHIND = re.compile(r"\}\$?\s*(?:\\?%|percent\b)[^{}]*$")  # its box, in a whole solution
_SHOWN = 100  # characters of an answer in a line


@dataclass(frozen=True, slots=True)
class Case:
    """One labelled output. `expected` is None where the label is a convention that no grader can be held to."""

    name: str
    gold: str
    output: str
    expected: bool | None
    bare: bool  # the output is an answer and not a response


def load_cases(path: Path) -> list[Case]:
    """Rows with `gold`, `output` and `expected`; a row's `adjudicated` goes before its `expected`, null sets it aside.

    Raises UserError if the file is broken.
    """
    cases = []
    for row, where in _rows(path, ("gold", "output", "expected")):
        expected = row.get("adjudicated", row["expected"])
        if expected is not None and not isinstance(expected, bool):
            raise UserError(f"{where}: expected is {expected!r}, not true, false or null. Correct the line.")
        is_bare = row.get("output_kind") == "bare_answer"
        cases.append(Case(str(row.get("id", where)), row["gold"], row["output"], expected, is_bare))
    return cases


def grade_cases(cases: list[Case], *, boxed: bool = False) -> list[Grade]:
    """Grades in the order of the cases. With `boxed`, an output without a box is wrong, as in training."""
    return _map(lambda case: _grade_case(case, boxed), cases)


def report(cases: list[Case], grades: list[Grade]) -> Iterator[str]:
    """One line a disagreement, the counts, and `N of M agree` as the last."""
    judged = [(case, given) for case, given in zip(cases, grades, strict=True) if case.expected is not None]
    differing = [(case, given) for case, given in judged if given.correct != case.expected]
    for case, given in differing:
        yield (
            f"{case.name}: expected {'correct' if case.expected else 'wrong'}, graded {named(given)}: "
            f"gold {case.gold[-_SHOWN:]!r}, output {case.output[-_SHOWN:]!r}"
        )
    for case, given in zip(cases, grades, strict=True):
        if case.expected is None:
            yield f"{case.name}: set aside as a convention, graded {named(given)}"
    wrongly = sum(given.correct for _, given in differing)
    yield f"{wrongly} called correct and {len(differing) - wrongly} not called correct against their label"
    yield counts_line(grades)
    if aside := len(cases) - len(judged):
        yield f"{aside} set aside as conventions"
    yield f"{len(judged) - len(differing)} of {len(judged)} agree"


def grade_file(path: Path) -> list[tuple[dict[str, Any], Grade]]:
    """Rows with `id`, `answer` and `output`, each with its grade. Raises UserError if the file is broken."""
    rows = [row for row, _ in _rows(path, ("id", "answer", "output"), ", or give labelled cases with --cases")]
    return list(zip(rows, _map(lambda row: grade(row["output"], row["answer"]), rows), strict=True))


def counts_line(grades: Iterable[Grade]) -> str:
    """How many grades of each kind, ungradable ones by their cause."""
    counts = Counter(named(given) for given in grades)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "no responses"


def _grade_case(case: Case, boxed: bool) -> Grade:
    gold = joined_answer(case.gold) or tagged_answer(case.gold) or case.gold
    if gold != case.gold and _PERCENT_BEHIND.search(case.gold):
        gold += "\\%"
    if case.bare:
        return grade_answer(case.output, gold)
    return (grade if boxed else grade_anywhere)(case.output, gold)


def _map(work: Callable[[Any], Grade], items: list[Any]) -> list[Grade]:
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(work, items))


def named(given: Grade) -> str:
    """The kind of a grade; of an ungradable answer also the cause."""
    return f"{given.reason} ({given.cause})" if given.cause else given.reason


def _rows(path: Path, keys: tuple[str, ...], otherwise: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    texts = [key for key in keys if key not in ("id", "expected")]
    is_empty = True
    for where, row in read_jsonl(path):
        is_empty = False
        if not row.keys() >= set(keys):
            expected, found = ", ".join(keys), ", ".join(row) or "nothing"
            raise UserError(f"{where}: expected an object with {expected}, found {found}. Correct the line{otherwise}.")
        row |= {key: str(row[key]) for key in texts if isinstance(row[key], int | float)}
        for key in texts:
            if not isinstance(row[key], str) or (key != "output" and not row[key].strip()):
                raise UserError(f"{where}: {key} is {row[key]!r}, not a text. Correct the line.")
        yield row, where
    if is_empty:
        raise UserError(f"{path}: no rows. Expected one JSON object a line with {', '.join(keys)}.")
