"""Numbers and tables in Markdown."""

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


def percent(share: float) -> str:
    """A share with one digit: 51.8 %."""
    return f"{100 * share:.1f} %"


def has_width(low: float, high: float) -> bool:
    """Whether an interval says something: of values that are all alike every resample has the same mean, but for
    rounding.
    """
    return high - low >= 1e-9


def ends(low: float, high: float, sign: str = "") -> str:
    """An interval of shares, in percent: [25.0, 50.0]; `sign` is "+" for differences: [-1.0, +50.0]."""
    if not has_width(low, high):
        return "[no interval: all alike]"
    return f"[{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"
