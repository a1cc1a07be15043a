"""The files that a diagnostic writes: NAME.svg, NAME.json and NAME.md in `RUN/diagnostics/`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.diagnostics.intervals import METHOD, Estimate
from nemo_aopsd.evaluation.tables import markdown_table
from nemo_aopsd.files import atomic_write

Cell = str | int | float | bool | None | Estimate


@dataclass(frozen=True)
class Table:
    """Rows of one shape; the keys of the first row are the column heads."""

    title: str
    rows: Sequence[Mapping[str, Cell]]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One diagnostic of one or more runs. `samples` says what the numbers rest on, `notes` what they are not."""

    name: str
    title: str
    settings: Mapping[str, Any]
    samples: Mapping[str, int]
    tables: Sequence[Table]
    figure: str  # an SVG document
    notes: Sequence[str] = field(default_factory=list)


def write(folder: Path, result: Result) -> list[Path]:
    """Write the three files into `folder` and return their paths, Markdown first."""
    document = {
        "diagnostic": result.name,
        "settings": dict(result.settings),
        "samples": dict(result.samples),
        "intervals": METHOD,
        "tables": {table.title: [_plain(row) for row in table.rows] for table in result.tables},
        "notes": list(result.notes),
    }
    contents = {
        ".md": markdown(result),
        ".json": json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n",
        ".svg": result.figure,
    }
    paths = [folder / f"{result.name}{suffix}" for suffix in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        atomic_write(path, content)
    return paths


def markdown(result: Result) -> str:
    """The result as a Markdown page that shows the figure beside it."""
    samples = ", ".join(f"{name}: {count:,}" for name, count in result.samples.items())
    settings = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    parts = [f"# {result.title}", f"Samples: {samples}.", f"Settings: {settings}.", METHOD]
    parts.append(f"![{result.title}]({result.name}.svg)")
    for table in result.tables:
        parts += [f"## {table.title}", _markdown_table(table.rows)]
    parts.append("\n".join(f"- {note}" for note in result.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def percent(value: float) -> str:
    """Two digits behind the point, as in the paper.

    >>> percent(0.51776)
    '51.78 %'
    """
    return f"{100 * value:.2f} %"


@contextmanager
def drawing(width: float, height: float) -> Iterator[tuple[Figure, Any]]:
    """A figure in the project's style, on white: these files are looked at by themselves."""
    with svg.style(), matplotlib.rc_context({"savefig.facecolor": "white"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def error_bars(estimates: Sequence[Estimate]) -> list[list[float]] | None:
    """Lengths below and above each value, for matplotlib; None if one has no interval."""
    ends = [(one.value, one.low, one.high) for one in estimates]
    known = [(at, low, high) for at, low, high in ends if at is not None and low is not None and high is not None]
    if len(known) < len(ends):
        return None
    return [[max(0.0, at - low) for at, low, _ in known], [max(0.0, high - at) for at, _, high in known]]


def _markdown_table(rows: Sequence[Mapping[str, Cell]]) -> str:
    if not rows:
        return "(no row)"
    heads = list(rows[0])
    return markdown_table(heads, [[_text(row[head]) for head in heads] for row in rows])


def _text(cell: Cell) -> str:
    if isinstance(cell, Estimate):
        return estimate_text(cell)
    if cell is None:
        return "undefined"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return str(cell)


def estimate_text(cell: Estimate) -> str:
    """The value and its interval; shares in percent."""
    if cell.value is None:
        return "undefined"
    if cell.low is None or cell.high is None:
        return percent(cell.value) if cell.is_share else f"{cell.value:.3f}"
    if cell.is_share:
        return f"{percent(cell.value)} ({100 * cell.low:.2f} to {100 * cell.high:.2f})"
    return f"{cell.value:.3f} ({cell.low:.3f} to {cell.high:.3f})"


def _plain(row: Mapping[str, Cell]) -> dict[str, Any]:
    return {key: asdict(cell) if isinstance(cell, Estimate) else cell for key, cell in row.items()}
