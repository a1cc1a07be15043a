"""GSM8K with reasoning graphs, made from its calculator annotations, without a server.

A line of a solution that computes (`48/2 = <<48/2=24>>24`) is a checkpoint; an edge says that a line uses what an
earlier one computed. The last such line is left out, since it gives the answer. Two limits: a line that computes
without an annotation is no checkpoint, and a number that both the question states and an earlier line computes is
taken for the computed one, so some graphs have an edge too many.

The form of the data is that of Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems" (arXiv:2110.14168).
"""

import re
from collections.abc import Iterable
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_aopsd.console import counted
from nemo_aopsd.data.leaks import find_graph_faults
from nemo_aopsd.data.prepare import ANNOTATION, boxed, normalise
from nemo_aopsd.data.problems import NEEDED
from nemo_aopsd.data.source import Report, Row
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import derive_seed, write_jsonl

_NOTHING_COMPUTED = "without calculator annotations"
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")


def convert(
    rows: Iterable[Row], out: Path, *, min_checkpoints: int = 2, held_out: int = 0, seed: int = 0, bare: bool = False
) -> Report:
    """Write the rows of GSM8K (`question`, `answer`) to `out` as problems with graphs; counts by reason come back.

    `held_out` rows, drawn by `seed`, go to `dev_path(out)` instead; others that ask the same are left out. `bare` keeps
    every row and makes no graph: for evaluation. Raises UserError for a row that is none of GSM8K, if fewer rows are
    left than shall be held out, and if none shall be but an earlier call's `dev_path(out)` would be trained on.
    """
    if not held_out and not bare and dev_path(out).exists():
        raise UserError(
            f"{dev_path(out)}: held out by an earlier call; without --held-out its problems would be in {out}, too. "
            "Give --held-out N again or another --out, or delete the held-out file."
        )
    report, kept = Report(out), []
    for where, record in rows:
        if bare and record.keys() >= {*NEEDED}:
            raise UserError(f"{where}: a problem already. Evaluate on this file as it is: aopsd evaluate --data FILE")
        row = _row(f"{out.stem}-{report.read:04d}", where, record)
        report.read += 1
        reason = None if bare else _add_graph(row, record["answer"], min_checkpoints)
        if reason:
            report.left_out[reason] += 1
        else:
            kept.append(row)
    drawn = _draw(kept, held_out, seed)
    rest = [row for row in kept if normalise(row["problem"]) not in drawn]
    if repeats := len(kept) - len(rest) - len(drawn):
        report.left_out["asks what is held out"] = repeats
    report.kept = len(rest)
    if not rest or len(drawn) < held_out:
        usable = len(rest) + len(drawn)
        lines = "\n".join([*list(report.lines())[:-1], f"{usable:>7}  are left"])
        remedies = ["lower --held-out"] if kept else []
        if min_checkpoints > 1 and report.left_out[_too_few(min_checkpoints)]:
            remedies.append("try --min-checkpoints 1 (the last calculation is the answer and does not count)")
        if report.left_out[_NOTHING_COMPUTED]:
            remedies.append("make problems without graphs of these (aopsd data prepare)")
        remedy = " or ".join([*remedies, "give other rows"])
        wanted = f"more than the {held_out} to hold out" if held_out else "at least one"
        raise UserError(
            f"{out}: of {counted(report.read, 'row')} {usable} can be used, expected {wanted}. "
            f"{remedy[0].upper()}{remedy[1:]}.\n{lines}"
        )
    write_jsonl(out, rest)
    if held_out:
        ids = {row["id"] for row in drawn.values()}
        write_jsonl(dev_path(out), (row for row in kept if row["id"] in ids))
        report.notes = [f"{held_out:>7}  held out in {dev_path(out)}, drawn with --seed {seed}"]
    return report


def _draw(rows: Iterable[dict[str, Any]], number: int, seed: int) -> dict[str, dict[str, Any]]:
    """Rows to hold out by their question; of rows that ask the same, one.

    They are drawn by their text, so that a rule that drops other rows in a later version draws the same problems.
    """
    first: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: derive_seed(seed, row["problem"], row["solution"])):
        first.setdefault(normalise(row["problem"]), row)
    return dict(islice(first.items(), number))


def dev_path(out: Path) -> Path:
    """`gsm8k.jsonl` -> `gsm8k.dev.jsonl`."""
    return out.with_name(f"{out.stem}.dev.jsonl")


def _row(row_id: str, where: str, record: dict[str, Any]) -> dict[str, Any]:
    question, worked = record.get("question"), record.get("answer")
    if {"problem", "answer", "dag"} <= record.keys():
        raise UserError(
            f"{where}: a problem with its graph already. Train on this file as it is: data.train.data_path=FILE; "
            "`aopsd dag check FILE` checks the graphs."
        )
    if not isinstance(question, str) or not isinstance(worked, str) or "####" not in worked:
        raise UserError(
            f"{where}: no row of GSM8K: expected `question` and an `answer` that ends in `#### NUMBER`. "
            "Other data goes through: aopsd data prepare"
        )
    steps, _, answer = worked.rpartition("####")
    answer = answer.strip().replace(",", "")
    return {"id": row_id, "problem": question.strip(), "answer": answer, "solution": boxed(steps, answer)}


def _add_graph(row: dict[str, Any], worked: str, min_checkpoints: int) -> str | None:
    """Put the graph into `row`, or say why there is none."""
    computing = [line.strip() for line in worked.rpartition("####")[0].splitlines() if ANNOTATION.search(line)]
    if not computing:
        return _NOTHING_COMPUTED
    if Fraction(row["answer"]) not in _values(computing[-1]):
        return "the last sum is not the answer"
    computing.pop()
    if len(computing) < min_checkpoints:
        return _too_few(min_checkpoints)
    graph = _graph(computing)
    if any(fault.is_error for fault in find_graph_faults(graph, row["answer"])):
        return "a checkpoint gives the answer away"
    row["dag"] = graph
    return None


def _too_few(min_checkpoints: int) -> str:
    return f"fewer than {counted(min_checkpoints, 'checkpoint')} before the answer"


def _graph(computing: list[str]) -> dict[str, Any]:
    nodes = [{"id": str(index), "statement": ANNOTATION.sub("", line)} for index, line in enumerate(computing, 1)]
    edges, made_by = [], {}
    for index, line in enumerate(computing, 1):
        used = {Fraction(number) for sum_, _ in ANNOTATION.findall(line) for number in _NUMBER.findall(sum_)}
        edges += [[str(source), str(index)] for source in sorted({made_by[value] for value in used & made_by.keys()})]
        made_by |= dict.fromkeys(_values(line), index)  # the latest line that computed it
    return {"nodes": nodes, "edges": edges}


def _values(line: str) -> set[Fraction]:
    """What the annotations of a line compute; a thousand may be written with a comma."""
    values = [value.replace(",", "").strip(" $%") for _, value in ANNOTATION.findall(line)]
    return {Fraction(value) for value in values if re.fullmatch(rf"-?(?:{_NUMBER.pattern})", value)}
