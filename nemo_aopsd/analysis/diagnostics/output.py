"""The files that a diagnostic writes: NAME.svg, NAME.json and NAME.md in `RUN/diagnostics/`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_aopsd.analysis.diagnostics.intervals import METHOD, Estimate
from nemo_aopsd.evaluation.tables import markdown_table
from nemo_aopsd.files import atomic_write, json_text

Cell = str | int | float | bool | None | Estimate


@dataclass(frozen=True, kw_only=True)
class Result:
    """One diagnostic of a run. `samples` says what the numbers rest on, `notes` what they are not.

    `tables` by title: rows of one shape, whose keys are the column heads.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    samples: Mapping[str, int]
    tables: Mapping[str, Sequence[Mapping[str, Cell]]]
    figure: str  # an SVG document
    notes: Sequence[str] = field(default_factory=list)


def write(folder: Path, result: Result) -> list[Path]:
    """Write the three files into `folder` and return their paths, Markdown first."""
    document = {
        "diagnostic": result.name,
        "settings": dict(result.settings),
        "samples": dict(result.samples),
        "intervals": METHOD,
        "tables": {title: [_plain(row) for row in rows] for title, rows in result.tables.items()},
        "notes": list(result.notes),
    }
    contents = {".md": markdown(result), ".json": json_text(document), ".svg": result.figure}
    for suffix, content in contents.items():
        atomic_write(folder / f"{result.name}{suffix}", content)
    return [folder / f"{result.name}{suffix}" for suffix in contents]


def markdown(result: Result) -> str:
    """The result as a Markdown page that shows the figure beside it."""
    samples = ", ".join(f"{name}: {count:,}" for name, count in result.samples.items())
    settings = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    parts = [f"# {result.title}", f"Samples: {samples}.", f"Settings: {settings}.", METHOD]
    parts.append(f"![{result.title}]({result.name}.svg)")
    for title, rows in result.tables.items():
        cells = [list(map(_text, row.values())) for row in rows]
        parts += [f"## {title}", markdown_table(list(rows[0]), cells) if rows else "(no row)"]
    parts.append("\n".join(f"- {note}" for note in result.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def intervals_of(estimates: Sequence[Estimate]) -> list[tuple[Any, Any]] | None:
    """The ends of each estimate, for `figures.with_errors`; None if one has no interval."""
    ends = [(one.low, one.high) for one in estimates]
    return None if any(low is None for low, _ in ends) else ends


def _text(cell: Cell) -> str:
    if isinstance(cell, Estimate):
        return estimate_text(cell)
    if cell is None:
        return "undefined"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def estimate_text(cell: Estimate) -> str:
    """The value and its interval, a share as in the paper: 51.78 % (50.00 to 60.00)."""
    if cell.value is None:
        return "undefined"
    scale, digits, unit = (100, 2, " %") if cell.is_share else (1, 3, "")
    value = f"{scale * cell.value:.{digits}f}{unit}"
    if cell.low is None or cell.high is None:
        return value
    return f"{value} ({scale * cell.low:.{digits}f} to {scale * cell.high:.{digits}f})"


def _plain(row: Mapping[str, Cell]) -> dict[str, Any]:
    return {key: asdict(cell) if isinstance(cell, Estimate) else cell for key, cell in row.items()}
