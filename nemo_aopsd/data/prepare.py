"""Prepares training problems: complete, with parsable answers, without duplicates and without evaluation problems.

Texts are compared after normalisation (case, spacing, punctuation, LaTeX layout), those of evaluation problems also by
the runs of words that they share with a row (`overlap`), not by meaning: a reworded problem passes. The result is what
these filters keep, not a published subset.
"""

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from nemo_aopsd.data.check import boxes_another
from nemo_aopsd.data.overlap import LAYOUT, Questions
from nemo_aopsd.data.source import Report, Row
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_write, read_jsonl, write_jsonl
from nemo_aopsd.grading import exact
from nemo_aopsd.grading.normalize import Answer, normalize
from nemo_aopsd.grading.process import POOL, GradingCrash, GradingTimeout
from nemo_aopsd.grading.structure import read_shape

FIELDS = ("id", "problem", "answer", "solution")
_COLUMNS = {name: (name,) for name in FIELDS} | {"problem": ("problem", "question")}  # the first that holds something
ANNOTATION = re.compile(r"<<([^<>]*)=([^<>=]*)>>")  # of GSM8K's calculator: the sum and its value
_WORDS_IN_A_ROW = re.compile(r"(?<![\\A-Za-z])[A-Za-z]+(?:\s+[A-Za-z]+)*")
_INCOMPLETE, _UNPARSABLE = "without problem or answer", "answer does not parse"
_DUPLICATE = "same problem as an earlier row"
_NOTES = {
    "columns_left_out": "columns left out",
    "without_solution": "of them have no solution, so no graph can be made from them",
    "boxes_another_answer": "of them box another value in the solution",
}
_MOST_WORDS = 3  # of an answer in words; nobody repeats a sentence to the letter, as the grader would want it


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
    held_out = [_HeldOut(path) for path in against]
    reasons = [reason for one in held_out for reason in (one.verbatim, one.overlapping)]
    report = Report(out, Counter(dict.fromkeys([_INCOMPLETE, _UNPARSABLE, _DUPLICATE, *reasons], 0)))
    kept: dict[str, dict[str, str]] = {}
    seen: set[str] = set()
    read = list(rows)
    columns = _choose_columns(mapping, read)
    for index, (where, record) in enumerate(read):
        row = {"id": f"{out.stem}-{index:04d}"} | _map(record, columns)
        key = normalise(row.get("problem", ""))
        if reason := _reason(row, key, seen, held_out):
            report.left_out[reason] += 1
        elif row["id"] in kept:
            raise UserError(f"{where}: id {row['id']!r} was used before. Make ids unique, or map another column to id.")
        else:
            kept[row["id"]] = row
            seen.add(key)
    report.read, report.kept = len(read), len(kept)
    if not kept:
        raise UserError("\n".join([*report.lines(), "Nothing is left. Check --map and --against."]))
    _, ids, counts = files_of(out)
    found = {
        "columns_left_out": sorted({str(name) for _, record in read for name in record} - {*chain(*columns.values())}),
        "without_solution": [row["id"] for row in kept.values() if "solution" not in row],
        "boxes_another_answer": [
            row["id"] for row in kept.values() if boxes_another(row.get("solution"), row["answer"])
        ],
    }
    report.notes = [
        f"{len(names):>7}  {_NOTES[name]}: {', '.join(names[:8])}" for name, names in found.items() if names
    ]
    if "dag" in found["columns_left_out"]:
        report.notes.append("The graphs are left out, too: train on SOURCE itself to have them.")
    report.notes.append(f"This subset is defined by {ids} (id and SHA-256 of each question), not by a publication.")
    write_jsonl(out, kept.values())
    write_jsonl(
        ids, ({"id": name, "sha256": sha256(row["problem"].encode()).hexdigest()} for name, row in kept.items())
    )
    numbers = {"read": report.read, "left_out": report.left_out, "kept": report.kept}
    atomic_write(counts, json.dumps(numbers | found, indent=2) + "\n")
    return report


class _HeldOut:
    """An evaluation set, and the reasons by which a row is left out because of it."""

    def __init__(self, path: Path) -> None:
        questions = list(_questions(path))
        self.verbatim, self.overlapping = f"also in {path}", f"also in {path}, with other words around it"
        self._keys, self._questions = set(map(normalise, questions)), Questions(questions)

    def reason(self, key: str, problem: str) -> str | None:
        if key in self._keys:
            return self.verbatim
        return self.overlapping if self._questions.has(problem) else None


def _reason(row: dict[str, str], key: str, seen: set[str], held_out: Iterable[_HeldOut]) -> str | None:
    """Why a row is left out; None if it is kept. `key` is its normalised problem, `seen` are those kept so far."""
    if not key or "answer" not in row:
        return _INCOMPLETE
    if not answer_parses(row["answer"]):
        return _UNPARSABLE
    if key in seen:
        return _DUPLICATE
    return next(filter(None, (one.reason(key, row["problem"]) for one in held_out)), None)


def boxed(steps: str, answer: str) -> str:
    """The solution of a row of GSM8K: its steps without the calculator's annotations, and the answer in a box."""
    return f"{ANNOTATION.sub('', steps).strip()}\nThe answer is \\boxed{{{answer}}}."


def files_of(out: Path) -> list[Path]:
    """Every file that `prepare` writes: `limo.jsonl`, `limo.ids.jsonl`, `limo.report.json`."""
    return [out, out.with_name(f"{out.stem}.ids.jsonl"), out.with_name(f"{out.stem}.report.json")]


def normalise(text: str) -> str:
    r"""What two copies of a problem share.

    >>> normalise(r"Find \(x\),  if $\dfrac{x}{2} = 3$.") == normalise(r"find $x$ if \frac x2=3")
    True
    """
    text = LAYOUT.sub(" ", unicodedata.normalize("NFKC", text)).casefold()
    text = re.sub(r"\\[dt]frac", "frac", text).replace("\u2212", "-")
    return re.sub(r"[^\w+\-*/^=<>]|_", "", text)


def answer_parses(answer: str) -> bool:
    r"""Is it something that the grader can compare?

    That is a number, up to three words, a time of day, whatever math-verify reads, or a list, tuple or union of these.

    >>> answer_parses("\\text{no solution}"), answer_parses("no solution exists here"), answer_parses("???")
    (True, False, False)
    """
    given = normalize(answer)
    text = given.text
    phrases = [phrase.split() for phrase in _WORDS_IN_A_ROW.findall(text)]
    # Single letters are no words but variables or points.
    if not text or any(sum(len(word) > 1 for word in phrase) > _MOST_WORDS for phrase in phrases):
        return False
    return _comparable(given)


def _comparable(given: Answer) -> bool:
    text = given.text
    decided = (
        exact.rational(text) is not None,
        exact.integer(text) is not None,  # more digits than a number may have
        exact.is_words(given),
        exact.same_clock(given, given) is not None,
    )
    try:
        if any(decided) or POOL.ask("reads", text, ""):
            return True
    except (GradingCrash, GradingTimeout):  # sympy raises all kinds; whatever it is, math-verify does not read it
        pass
    items = read_shape(text).items
    return len(items) > 1 and all(_comparable(Answer(item)) for item in items)


def _questions(path: Path) -> Iterator[str]:
    where = ""
    for where, record in read_jsonl(path):
        text = _first(record, _COLUMNS["problem"])
        if not text:
            raise UserError(f"{where}: no `problem` (or `question`). An evaluation set needs one in each row.")
        yield text
    if not where:
        raise UserError(f"--against {path}: no row in it, so it would drop nothing. Check the file.")


def _choose_columns(mapping: dict[str, str], rows: list[Row]) -> dict[str, tuple[str, ...]]:
    """Columns of each field in the order of preference: the user's, or those of its name. Rows may differ in theirs.

    Raises UserError for a column, or a problem or answer, that no row has.
    """
    found = list(dict.fromkeys(str(column) for _, record in rows for column in record))
    if not rows:
        return _COLUMNS
    where = rows[0][0]
    if missing := [column for column in mapping.values() if column not in found]:
        raise UserError(
            f"{where} and on: no column {', '.join(missing)} among {', '.join(found)} of {len(rows)} rows. Fix --map."
        )
    columns = _COLUMNS | {name: (column,) for name, column in mapping.items()}
    for name in ("problem", "answer"):
        if not set(columns[name]) & set(found):
            chats = [column for column in found if column in ("messages", "conversations")]
            remedy = f"Say which with --map {name}=COLUMN."
            if chats:
                remedy = f"Chats (`{chats[0]}`) are not read: write question and answer into columns of their own."
            raise UserError(
                f"{where} and on: no column for `{name}` in {len(rows)} rows; there are {', '.join(found)}. {remedy}"
            )
    return columns


def _map(record: dict[str, Any], columns: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """The fields of a row that hold something."""
    found = {name: _first(record, candidates) for name, candidates in columns.items()}
    steps, mark, answer = found["answer"].rpartition("####")
    answer = answer.strip()
    if mark and "\n" not in answer:  # GSM8K's form: a worked solution, then the answer; else it is a heading
        found["answer"] = answer
        found["solution"] = found["solution"] or (boxed(steps, answer) if steps.strip() else "")
    return {name: text for name, text in found.items() if text}


def _first(record: dict[str, Any], columns: Iterable[str]) -> str:
    """The value of the first column that holds a text or a number; blank if none does."""
    for column in columns:
        value = record.get(column)
        is_number = type(value) is int or (isinstance(value, float) and math.isfinite(value))
        text = str(value) if is_number else value
        if isinstance(text, str) and text.strip():
            return text
    return ""
