"""The findings as a table on a terminal, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nemo_aopsd.cluster.doctor.memory import SAMPLE, TRAIN, Item, total
from nemo_aopsd.cluster.doctor.result import ERROR, EXIT_CODES, OK, WARN, gigabytes, worst

if TYPE_CHECKING:
    from nemo_aopsd.cluster.doctor import Diagnosis

_STYLES = {OK: "green", WARN: "yellow", ERROR: "bold red"}
_PLACES = {"gpu": "one GPU", "host": "host, one node"}


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """`memory` in bytes; `severity` is the worst, `exit_code` what the command ends with."""
    severity = worst(diagnosis.checks)
    return {
        "severity": severity,
        "exit_code": EXIT_CODES[severity],
        "parameters": diagnosis.parameters,
        "checks": [asdict(check) for check in diagnosis.checks],
        "memory": [_item_as_json(row) for row in diagnosis.memory],
    }


def _item_as_json(row: Item) -> dict[str, Any]:
    fields = asdict(row)
    size = fields.pop("size")
    return fields | {"bytes": round(size)}


def show(diagnosis: Diagnosis, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("check", "", "found", "expected"):
        table.add_column(column, overflow="fold")  # a setting that is cut cannot be typed
    for check in diagnosis.checks:
        style = _STYLES[check.severity]
        table.add_row(escape(check.name), f"[{style}]{check.severity}[/]", escape(check.found), escape(check.expected))
    console.print(table)
    if diagnosis.memory:
        console.print()
        console.print(_memory_table(diagnosis.memory))
    for severity in (WARN, ERROR):
        for remedy in dict.fromkeys(check.remedy for check in diagnosis.checks if check.severity == severity):
            names = ", ".join(check.name for check in diagnosis.checks if check.remedy == remedy)
            console.print(f"\n[{_STYLES[severity]}]{severity}[/] {escape(names)}: {escape(remedy)}.")
    counts = {severity: sum(check.severity == severity for check in diagnosis.checks) for severity in EXIT_CODES}
    console.print(f"\n{counts[OK]} ok, {counts[WARN]} warnings, {counts[ERROR]} errors")


def _memory_table(rows: list[Item]) -> Table:
    """A block a place, with its sums."""
    table = Table("memory", "training", "sampling", "formula", box=None, pad_edge=False)
    for place in dict.fromkeys(row.place for row in rows):
        for row in (row for row in rows if row.place == place):
            cells = [gigabytes(row.size) if turn in row.turns else "" for turn in (TRAIN, SAMPLE)]
            table.add_row(row.name, *cells, escape(row.formula))
        sums = [f"[bold]{gigabytes(total(rows, place, turn))}[/]" for turn in (TRAIN, SAMPLE)]
        table.add_row(f"[bold]{_PLACES[place]}[/]", *sums, "", end_section=True)
    return table
