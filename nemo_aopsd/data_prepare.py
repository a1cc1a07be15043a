"""Problems for training: complete, gold answers that parse, each once, and none of them in an evaluation set.

Texts are compared after normalisation (case, spacing, punctuation, LaTeX layout), not by meaning: a reworded problem
passes. The subset that comes out is the subset of these filters; it is nobody's published one.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_aopsd.data import read_jsonl
from nemo_aopsd.data_source import Row
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_write, write_jsonl
from nemo_aopsd.grading import grade

FIELDS = ("id", "problem", "answer", "solution")
_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|text|textbf|mathrm|mathbf|operatorname|q?quad|[lc]?dots|[bB]igg?[lr]?)(?![a-zA-Z])"
    r"|\\[,;:! ]"
)
_TIMEOUT = 5  # seconds for reading one answer


@dataclass(slots=True)
class Report:
    """How many rows each filter saw the last of, in the order of the filters."""

    out: Path
    read: int = 0
    incomplete: int = 0
    unparsable_answer: int = 0
    duplicate: int = 0
    overlap: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    without_solution: int = 0
    boxes_another_answer: list[str] = field(default_factory=list)  # ids of kept rows

    def lines(self) -> Iterator[str]:
        yield f"{self.read:>7}  rows read"
        yield f"{-self.incomplete:>7}  without problem or answer"
        yield f"{-self.unparsable_answer:>7}  answer does not parse"
        yield f"{-self.duplicate:>7}  same problem as an earlier row"
        for name, count in self.overlap.items():
            yield f"{-count:>7}  also in {name}"
        yield f"{self.kept:>7}  kept in {self.out}"
        if self.without_solution:
            yield f"{self.without_solution:>7}  of them have no solution: no graph can be made from these"
        if self.boxes_another_answer:
            first = ", ".join(self.boxes_another_answer[:5])
            yield f"{len(self.boxes_another_answer):>7}  of them box another value in the solution: {first}"
        yield f"This subset is defined by {ids_path(self.out)} (id and SHA-256 of each question), not by a publication."


def parse_mapping(pairs: Iterable[str]) -> dict[str, str]:
    """`["problem=question"]` as `{"problem": "question"}`. Raises UserError on anything else."""
    mapping = {}
    for pair in pairs:
        name, equals, column = pair.partition("=")
        if name not in FIELDS or not equals or not column:
            raise UserError(f"--map {pair}: expected FIELD=COLUMN with FIELD one of {', '.join(FIELDS)}.")
        mapping[name] = column
    return mapping


def prepare(rows: Iterable[Row], mapping: dict[str, str], against: Iterable[Path], out: Path) -> Report:
    """Write the kept rows to `out`, its id list and counts beside it. Raises UserError if nothing is left."""
    held_out = {str(path): {normalise(text) for text in _questions(path)} for path in against}
    report = Report(out, overlap=dict.fromkeys(held_out, 0))
    kept: dict[str, dict[str, str]] = {}
    seen: set[str] = set()
    for index, (where, record) in enumerate(rows):
        if index == 0:
            mapping = _complete_mapping(mapping, record, where)
        report.read += 1
        row = _map(record, mapping, f"{out.stem}-{index:04d}")
        key = normalise(row.get("problem", ""))
        if not key or "answer" not in row:
            report.incomplete += 1
        elif not answer_parses(row["answer"]):
            report.unparsable_answer += 1
        elif key in seen:
            report.duplicate += 1
        elif found := next((name for name, questions in held_out.items() if key in questions), None):
            report.overlap[found] += 1
        else:
            if row["id"] in kept:
                raise UserError(
                    f"{where}: id {row['id']!r} was used before. Mend the ids, or map another column to id."
                )
            kept[row["id"]] = row
            seen.add(key)
            _note_solution(row, report)
    report.kept = len(kept)
    if not kept:
        raise UserError("\n".join([*list(report.lines())[:-2], "Nothing is left. Check --map and --against."]))
    write_jsonl(out, kept.values())
    write_jsonl(ids_path(out), ({"id": row["id"], "sha256": question_digest(row["problem"])} for row in kept.values()))
    counts = {name: getattr(report, name) for name in report.__slots__ if name != "out"}
    atomic_write(out.with_name(f"{out.stem}.report.json"), json.dumps(counts, indent=2) + "\n")
    return report


def ids_path(out: Path) -> Path:
    """`limo.jsonl` -> `limo.ids.jsonl`."""
    return out.with_name(f"{out.stem}.ids.jsonl")


def question_digest(problem: str) -> str:
    """SHA-256 of the question's UTF-8 bytes, as they are."""
    return hashlib.sha256(problem.encode("utf-8")).hexdigest()


def normalise(text: str) -> str:
    r"""What two copies of a problem share.

    >>> normalise(r"Find \(x\),  if $\dfrac{x}{2} = 3$.") == normalise(r"find $x$ if \frac x2=3")
    True
    """
    text = _LAYOUT.sub(" ", unicodedata.normalize("NFKC", text)).casefold()
    text = re.sub(r"\\[dt]frac", "frac", text).replace("\u2212", "-")
    return re.sub(r"[^\w+\-*/^=<>]|_", "", text)


def answer_parses(answer: str) -> bool:
    """True for an integer, and for whatever math-verify can read as mathematics. Main thread only."""
    bare = answer.strip().strip("$").strip()
    if re.fullmatch(r"[+-]?\d+", bare):
        return True
    from math_verify import LatexExtractionConfig, parse
    from math_verify.errors import TimeoutException  # a BaseException

    try:
        config = [LatexExtractionConfig(boxed_match_priority=0)]
        found = parse(f"\\boxed{{{bare}}}", config, parsing_timeout=_TIMEOUT, raise_on_error=True)
    except (Exception, TimeoutException):  # sympy raises all kinds; whatever it is, the answer does not parse
        return False
    return any(not isinstance(item, str) for item in found)


def _questions(path: Path) -> Iterator[str]:
    for where, record in read_jsonl(path):
        text = record.get("problem", record.get("question"))
        if not isinstance(text, str):
            raise UserError(f"{where}: no `problem` (or `question`). An evaluation set needs one in each row.")
        yield text


def _complete_mapping(mapping: dict[str, str], record: dict[str, Any], where: str) -> dict[str, str]:
    """Fields that the user did not map are columns of their own names; `question` serves for `problem`."""
    missing = [column for column in mapping.values() if column not in record]
    if missing:
        raise UserError(f"{where}: no column {', '.join(missing)} among {', '.join(map(str, record))}. Mend --map.")
    mapping = {name: name for name in FIELDS if name in record} | mapping
    if "problem" not in mapping and "question" in record:
        mapping["problem"] = "question"
    for name in ("problem", "answer"):
        if name not in mapping:
            raise UserError(
                f"{where}: no column for `{name}`; there are {', '.join(map(str, record))}. "
                f"Say which with --map {name}=COLUMN."
            )
    return mapping


def _map(record: dict[str, Any], mapping: dict[str, str], default_id: str) -> dict[str, str]:
    values = {name: record.get(column) for name, column in mapping.items()}
    texts = {name: str(value) if isinstance(value, int | float) else value for name, value in values.items()}
    return {"id": default_id} | {
        name: text for name in FIELDS if isinstance(text := texts.get(name), str) and text.strip()
    }


def _note_solution(row: dict[str, str], report: Report) -> None:
    if "solution" not in row:
        report.without_solution += 1
    elif grade(row["solution"], row["answer"]).reason == "wrong":
        report.boxes_another_answer.append(row["id"])
