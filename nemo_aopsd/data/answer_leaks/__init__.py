r"""Does a statement give the final answer away, also in another form of the same value?

`dag.words_answer` compares texts; this compares values as well: `0.5` against `\frac{1}{2}`, `2^3 \cdot 13` against
104. Whoever judges a graph (build, check, stats, browse, the start of training) asks here, so that all say the same.
`reader` reads the values; `statement` decides which of them count, for a coincidence inside the route is no leak:

- anywhere: what a claim names ("the answer is", a box);
- in a last checkpoint: the value that it ends in (`x = 5`, `x = 5 cm since ...`), one whose name follows (`5 = x`), the
  values of a list that it ends in (`x = 1 or x = 2`), and any value too peculiar for a coincidence;
- in an inner checkpoint: the value that it ends in, if it is peculiar (no integer below 100).

Not covered: a value that has to be worked out from words, numbers in words, and decimals rounded to
fewer than two places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import networkx as nx

from nemo_aopsd.data.answer_leaks.statement import judge_statement
from nemo_aopsd.data.dag import Fault, answer_leak, build_graph, find_faults


def find_graph_faults(raw: Any, answer: str | None) -> list[Fault]:
    """`dag.find_faults`, with the leaks by value of a graph that is otherwise sound; errors first.

    A last warning, undecided_answer, is for a checkpoint whose value is too large to be compared with the answer.
    """
    faults = find_faults(raw, None)
    if not answer or any(fault.is_error for fault in faults):
        return find_faults(raw, answer)
    verdicts = list(_verdicts(build_graph(raw), answer))
    leaks = [answer_leak(node, statement) for node, statement, verdict in verdicts if verdict]
    undecided = [
        Fault("undecided_answer", f"node {node!r}: look at it, too large to compare: {statement[:80]}", is_error=False)
        for node, statement, verdict in verdicts
        if verdict is None
    ]
    return [*leaks, *faults, *undecided]


def find_answer_leaks(graph: nx.DiGraph, answer: str) -> Iterator[Fault]:
    """A `states_answer` fault for each checkpoint that gives `answer` away, as text or by its value."""
    for node, statement, verdict in _verdicts(graph, answer):
        if verdict:
            yield answer_leak(node, statement)


def states_answer(statement: str, answer: str, *, is_last: bool) -> bool:
    """True if the statement gives the answer away; `is_last` says that nothing else requires it.

    >>> states_answer("So the chance is 0.5.", r"\\frac{1}{2}", is_last=True)
    True
    >>> states_answer("x = 2", "2", is_last=False)
    False
    """
    return bool(judge_statement(statement, answer, is_last=is_last))


def _verdicts(graph: nx.DiGraph, answer: str) -> Iterator[tuple[str, str, bool | None]]:
    for node, statement in graph.nodes(data="statement"):
        yield node, statement, judge_statement(statement, answer, is_last=not graph.succ[node])
