from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[1]
SHARED = REPO.parent / "shared/data"  # real data beside a checkout


def shared(name: str) -> Path:
    """A file of it; the test is skipped where it is absent."""
    import pytest

    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path


def raw_graph(statements: Mapping[str, str] | Iterable[str], edges: Iterable[Iterable[str]] = ()) -> dict[str, Any]:
    """A graph as files have it: statements by id, or ids alone; two ids of one letter each make an edge, "ab"."""
    given = statements.items() if isinstance(statements, Mapping) else [(node, f"fact {node}") for node in statements]
    return {
        "nodes": [{"id": node, "statement": text} for node, text in given],
        "edges": [list(edge) for edge in edges],
    }
