"""The findings as a table on a terminal, or as JSON."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nemo_aopsd.cluster.doctor import Diagnosis
from nemo_aopsd.cluster.doctor.memory import SAMPLE, TRAIN, Item, total
from nemo_aopsd.cluster.doctor.result import ERROR, EXIT_CODES, OK, WARN, Check, gigabytes, worst
from nemo_aopsd.console import counted

_STYLES = {OK: "green", WARN: "yellow", ERROR: "bold red"}
_INDENT = 7  # of what stands beside a severity
_PLACES = {"gpu": "one GPU", "host": "host, one node"}


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """`memory` in bytes; `severity` is the worst, `exit_code` what the command ends with."""
    severity = worst(diagnosis.checks)
    return {
        "severity": severity,
        "exit_code": EXIT_CODES[severity],
        "parameters": diagnosis.parameters,
        "checks": [asdict(check) for check in diagnosis.checks],
        "memory": [
            {key: value for key, value in asdict(row).items() if key not in ("size", "remedy")}
            | {"bytes": round(row.size)}
            for row in diagnosis.memory
        ],
    }


def show(diagnosis: Diagnosis, console: Console) -> None:
    """What is wrong first, each remedy once; then what is right, a line a check."""
    for severity in (ERROR, WARN):
        wrong = [check for check in diagnosis.checks if check.severity == severity]
        for remedy in dict.fromkeys(check.remedy for check in wrong):
            for check in wrong:
                if check.remedy == remedy:
                    is_whole = check.found.endswith(".")  # a message that says itself what it expected
                    _line(console, check, check.found if is_whole else f"{check.found}; expected {check.expected}")
            console.print(Padding(Text(f"{remedy}."), (0, 0, 0, _INDENT), expand=False))
            console.print()
    for check in diagnosis.checks:
        if check.severity == OK:
            _line(console, check, check.found)
    if diagnosis.memory:
        console.print()
        console.print(memory_table(diagnosis.memory))
    counts = {severity: sum(check.severity == severity for check in diagnosis.checks) for severity in EXIT_CODES}
    console.print(f"\n{counts[OK]} ok, {counted(counts[WARN], 'warning')}, {counted(counts[ERROR], 'error')}")


def _line(console: Console, check: Check, text: str) -> None:
    """Words are never broken: what is cut cannot be typed or looked for."""
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=_INDENT - 2)
    row.add_column(overflow="fold")
    row.add_row(Text(check.severity, _STYLES[check.severity]), Text(f"{check.name}: {text}"))
    console.print(row)


def memory_table(rows: list[Item]) -> Table:
    """A block a place, with its sums."""
    table = Table("memory", "training", "sampling", "formula", box=None, pad_edge=False)
    for place in dict.fromkeys(row.place for row in rows):
        for row in (row for row in rows if row.place == place):
            cells = [gigabytes(row.size) if turn in row.turns else "" for turn in (TRAIN, SAMPLE)]
            table.add_row(row.name, *cells, escape(row.formula))
        sums = [f"[bold]{gigabytes(total(rows, place, turn))}[/]" for turn in (TRAIN, SAMPLE)]
        table.add_row(f"[bold]{_PLACES[place]}[/]", *sums, "", end_section=True)
    return table
