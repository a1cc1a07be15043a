"""The requests of the three roles, and what makes an answer usable.

Producer: solution to dense graph. Judge: fidelity and completeness. Second producer: dense graph to key checkpoints,
terminal-answer layer removed. Every defect that a program can find is found here and not left to the judge.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx

from nemo_aopsd.chat.protocol import Completion
from nemo_aopsd.data.dag import Fault, find_faults, serialize, transitive_edges
from nemo_aopsd.data.leaks import find_answer_leaks, states_answer
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.graphs.pipeline.parse import read_checkpoints, read_ids, read_object
from nemo_aopsd.prompts import fill

_PROMPTS = str(Path(__file__).parent / "prompts")
_LONGEST_QUOTE = 20_000  # characters of an unreadable answer that is shown to its author again


@dataclass(frozen=True, slots=True)
class Draft:
    """A graph as a model wrote it. `graph` is None if it cannot be built; then `faults` say why."""

    text: str
    graph: nx.DiGraph | None
    faults: list[Fault]
    num_transitive: int = 0  # edges that the transitive reduction removed


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_ACCEPTING = {"accept", "accepted", "acceptable", "approve", "approved", "ok", "okay", "no defects"}
_REJECTING = {"defects", "defect", "defective", "reject", "rejected"}
_NO_DEFECT = {"", "none", "n/a", "no defects", "no defect", "-"}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_CHECKPOINTS = {"type": "array", "items": _object(id={"type": "string"}, statement={"type": "string"}, requires=_TEXTS)}
SCHEMAS = {
    "produce": _object(checkpoints=_CHECKPOINTS),
    "judge": _object(verdict={"type": "string", "enum": ["accept", "defects"]}, defects=_TEXTS),
    "repair": _object(checkpoints=_CHECKPOINTS),
    "compress": _object(checkpoints=_CHECKPOINTS, answer_requires=_TEXTS),
    "recompress": _object(checkpoints=_CHECKPOINTS, answer_requires=_TEXTS),
    "contexts": _object(plan=_TEXTS, subproblems=_TEXTS),
}


def messages(stage: str, problem: Problem, **gaps: str) -> list[dict[str, str]]:
    """The prompt of a stage; those that read the solution get it."""
    gaps |= {"problem": problem.problem, "answer": problem.answer}
    if "compress" not in stage:
        gaps["solution"] = problem.solution or ""  # `build_one` asks nothing about a row without one
    return [{"role": "user", "content": fill(_PROMPTS, stage, **gaps)}]


def previous(draft: Draft) -> str:
    """What its author is shown of a faulty graph."""
    return serialize(draft.graph) if draft.graph is not None else draft.text[:_LONGEST_QUOTE]


def listed(faults: Iterable[Fault]) -> str:
    return "\n".join(
        f"- {fault.detail if fault.kind == 'judge' else f'{fault.kind}: {fault.detail}'}" for fault in faults
    )


def read_dense(completion: Completion) -> Draft:
    """The producer's graph. Faults: those of `dag.find_faults`, unreadable, cut_short, dead_end, repeated_statement."""
    draft, _ = _read_graph(completion)
    if draft.graph is None:
        return draft
    sinks = [node for node in draft.graph if not draft.graph.succ[node]]
    dead_ends = [Fault("dead_end", f"nothing requires {node!r}, and it is not the last") for node in sinks[:-1]]
    return Draft(draft.text, draft.graph, draft.faults + dead_ends)


def read_compressed(completion: Completion, answer: str, dense: nx.DiGraph) -> Draft:
    """The compressor's graph, transitively reduced. Faults: as for the dense one, and states_answer, disconnected
    (a checkpoint that leads to nothing which the answer requires), bad_answer_requires, not_compressed."""
    draft, found = _read_graph(completion)
    if draft.graph is None:
        return draft
    graph, redundant = draft.graph, transitive_edges(draft.graph)
    graph.remove_edges_from(redundant)
    faults = [*draft.faults, *find_answer_leaks(graph, answer), *_route_faults(graph, found.get("answer_requires"))]
    if len(graph) > len(dense):
        faults.append(Fault("not_compressed", f"{len(graph)} checkpoints, the dense graph has {len(dense)}"))
    return Draft(draft.text, graph, faults, len(redundant))


def read_verdict(completion: Completion) -> list[Fault] | None:
    """The judge's defects, none for an acceptance; None if the verdict is unreadable or contradicts itself.

    What has one meaning is taken, however it is spelled: `Accept`, `approved`, no `defects` or `"none"` with it, one
    defect in place of a list.
    """
    found = read_object(completion.text, "verdict")
    if isinstance(found, Fault):
        return None
    verdict, defects = _word(found["verdict"]), _read_defects(found.get("defects"))
    if defects is None or verdict not in (_REJECTING if defects else _ACCEPTING):
        return None
    return [Fault("judge", defect) for defect in defects]


def _read_defects(value: Any) -> list[str] | None:
    """Texts; an object in place of one as JSON. None for anything else."""
    items = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, str | dict) for item in items):
        return None
    texts = [json.dumps(item, ensure_ascii=False) if isinstance(item, dict) else item.strip() for item in items]
    return [text for text in texts if _word(text) not in _NO_DEFECT]


def _word(value: Any) -> str:
    return value.strip(" .!\"'*`").lower() if isinstance(value, str) else ""


def read_contexts(completion: Completion, answer: str) -> dict[str, list[str]] | list[Fault]:
    """`{"plan", "subproblems"}`, or faults: unreadable, cut_short, malformed, states_answer."""
    found = read_object(completion.text, "plan")
    if isinstance(found, Fault):
        return [_cut(completion) or found]
    contexts = {name: _texts(found.get(name)) or [] for name in ("plan", "subproblems")}
    faults = [
        Fault("malformed", f"`{name}` must be a non-empty list of texts") for name in contexts if not contexts[name]
    ]
    for name, steps in contexts.items():
        faults += [
            Fault("states_answer", f"{name}: {step[:80]}")
            for step in steps
            if states_answer(step, answer, is_last=True)
        ]
    return faults or contexts


def _read_graph(completion: Completion) -> tuple[Draft, dict[str, Any]]:
    """The draft with the faults of its structure, and the object that held it."""
    found = read_object(completion.text, "checkpoints")
    if isinstance(found, Fault):
        return Draft(completion.text, None, [_cut(completion) or found]), {}
    raw = read_checkpoints(found)
    if isinstance(raw, Fault):
        return Draft(completion.text, None, [_cut(completion) or raw]), {}
    errors = [fault for fault in find_faults(raw) if fault.is_error]
    if errors:
        return Draft(json.dumps(found, ensure_ascii=False), None, errors), found
    graph = nx.DiGraph()
    graph.add_nodes_from((node["id"], {"statement": node["statement"]}) for node in raw["nodes"])
    graph.add_edges_from(raw["edges"])
    counts = Counter(" ".join(node["statement"].casefold().split()) for node in raw["nodes"])
    repeated = [Fault("repeated_statement", f"{text[:80]!r}, {n} times") for text, n in counts.items() if n > 1]
    return Draft(completion.text, graph, repeated), found


def _route_faults(graph: nx.DiGraph, answer_requires: Any) -> Iterable[Fault]:
    """Connected to the route: with the removed answer put back as the last node, everything leads to it."""
    required = read_ids(answer_requires)
    if not required or not set(required) <= set(graph):
        yield Fault("bad_answer_requires", f"expected ids of kept checkpoints, got {str(answer_requires)[:80]}")
        return
    for node in graph:
        if not graph.succ[node] and node not in required:
            yield Fault("disconnected", f"checkpoint {node!r} leads to nothing that the answer requires")


def _cut(completion: Completion) -> Fault | None:
    if completion.finish_reason == "length":
        return Fault("cut_short", "the answer ran out of tokens; a larger --max-tokens may help")
    return None


def _texts(value: Any) -> list[str] | None:
    """A list of non-empty texts; None if it is anything else."""
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        return None
    return value
