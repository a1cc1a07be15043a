"""A page to search and read the graphs of a file: one HTML file, no network, nothing executed but its own script.

All text of the data is placed by the page's script as text and never as markup, so a statement cannot do anything;
the drawings are our own, with all text escaped. Graphs with faults are shown with their faults; lines that cannot be
read are counted. Solutions are left out, for they can be long.
"""

from pathlib import Path
from typing import Any

from jinja2 import Environment

from nemo_aopsd.data.check import CheckedRow, rows_with_graphs
from nemo_aopsd.data.dag import to_raw
from nemo_aopsd.files import atomic_write
from nemo_aopsd.graphs.picture import CANNOT_BE_DRAWN, draw_svg, drawable, is_readable

_TEMPLATE = Path(__file__).parent / "page.html"


def write_browser(problems: Path, page: Path) -> tuple[int, list[CheckedRow]]:
    """Write the page; return its number of graphs, and the lines that cannot be read. Raises UserError if the file
    holds no graph."""
    rows, broken = rows_with_graphs(problems)
    graphs = [_entry(record, row) for record, row in rows]
    environment = Environment(autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    atomic_write(page, template.render(title=problems.name, count=len(graphs), unread=len(broken), data=graphs))
    return len(graphs), broken


def _entry(record: dict[str, Any], row: CheckedRow) -> dict[str, Any]:
    """What the page needs of a row. `drawing` is absent if there is nothing to draw, or too much; then it is a list."""
    entry = {
        "id": row.problem_id or row.where,
        "usable": not row.has_errors,
        "problem": str(record.get("problem", "")),
        "answer": str(record.get("answer", "")),
        "plan": _steps(record.get("plan")),
        "subproblems": _steps(record.get("subproblems")),
        "faults": [f"{fault.kind}: {fault.detail}" for fault in row.faults],
    }
    if any(fault.kind in CANNOT_BE_DRAWN for fault in row.faults):
        return entry | {"nodes": [], "edges": []}
    graph = drawable(record["dag"], row.where)
    return entry | to_raw(graph) | ({"drawing": draw_svg(graph)} if is_readable(graph) else {})


def _steps(value: Any) -> list[str]:
    """A list's entries as texts; anything else, which training would refuse, as one entry."""
    return [str(step) for step in (value if isinstance(value, list) else [value] if value else [])]
