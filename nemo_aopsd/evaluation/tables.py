"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_ESCAPED = str.maketrans({"\\": "\\\\", "|": "\\|", "\n": "↵"})


def markdown_table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    r"""A header and rows of cells; what would break the table is escaped.

    >>> print(markdown_table(["|gap|", "n"], [[r"a\b", 7]]))
    | \|gap\| | n |
    | --- | --- |
    | a\\b | 7 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).translate(_ESCAPED) for cell in line) + " |" for line in lines)
