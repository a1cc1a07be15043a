"""The requests of the three roles, and what makes an answer usable.

Producer: solution to dense graph. Judge: fidelity and completeness. Second producer: dense graph to key checkpoints,
terminal-answer layer removed. Every defect that a program can find is found here and not left to the judge.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import networkx as nx
from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from nemo_aopsd.chat.protocol import Completion
from nemo_aopsd.data.dag import Fault, build_graph, find_faults, transitive_edges
from nemo_aopsd.data.leaks import find_answer_leaks, states_answer
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.graphs.pipeline.parse import read_object
from nemo_aopsd.prompts import fill

_PROMPTS = str(Path(__file__).parent / "prompts")
_ACCEPTING = {"accept", "accepted", "acceptable", "approve", "approved", "ok", "okay", "no defects"}
_REJECTING = {"defects", "defect", "defective", "reject", "rejected"}
_NO_DEFECT = {"", "none", "n/a", "no defects", "no defect", "-"}
_CUT_SHORT = Fault("cut_short", "the answer ran out of tokens; a larger --max-tokens may help")

# What the model is asked for. Its schema goes to servers that know structured output; its answer is held against it.
# No docstrings in these classes: they would be sent along.


class _Answer(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True, json_schema_extra={"additionalProperties": False})


class _Checkpoint(_Answer):
    id: str
    statement: str
    requires: list[str]


class _Dense(_Answer):
    checkpoints: list[_Checkpoint]


class _Compressed(_Dense):
    answer_requires: list[str]


class _Verdict(_Answer):
    verdict: Literal["accept", "defects"]
    defects: list[str]


_Steps = Annotated[list[Annotated[str, StringConstraints(min_length=1)]], MinLen(1)]


class _Contexts(_Answer):
    plan: _Steps
    subproblems: _Steps


SCHEMAS = {
    **dict.fromkeys(("produce", "repair"), _Dense.model_json_schema()),
    **dict.fromkeys(("compress", "recompress"), _Compressed.model_json_schema()),
    "judge": _Verdict.model_json_schema(),
    "contexts": _Contexts.model_json_schema(),
}
_A = TypeVar("_A", bound=_Answer)


@dataclass(frozen=True, slots=True)
class Draft:
    """A graph as a model wrote it. `graph` is None if it cannot be built; then `faults` say why."""

    text: str
    graph: nx.DiGraph | None
    faults: list[Fault]
    num_transitive: int = 0  # edges that the transitive reduction removed


def messages(stage: str, problem: Problem, **gaps: str) -> list[dict[str, str]]:
    """The prompt of a stage; those that read the solution get it."""
    gaps |= {"problem": problem.problem, "answer": problem.answer}
    if "compress" not in stage:
        gaps["solution"] = problem.solution or ""  # `build_one` asks nothing about a row without one
    return [{"role": "user", "content": fill(_PROMPTS, stage, **gaps)}]


def read_dense(completion: Completion) -> Draft:
    """The producer's graph. Faults: those of `dag.find_faults`, unreadable, cut_short, malformed, dead_end,
    repeated_statement."""
    answer = _read(completion, "checkpoints", _Dense)
    draft = _draft(completion, answer)
    if draft.graph is None:
        return draft
    sinks = [node for node in draft.graph if not draft.graph.succ[node]]
    dead_ends = [Fault("dead_end", f"nothing requires {node!r}, and it is not the last") for node in sinks[:-1]]
    return replace(draft, faults=draft.faults + dead_ends)


def read_compressed(completion: Completion, answer: str, dense: nx.DiGraph) -> Draft:
    """The compressor's graph, transitively reduced. Faults: as for the dense one, and states_answer, disconnected
    (a checkpoint that leads to nothing which the answer requires), bad_answer_requires, not_compressed."""
    found = _read(completion, "checkpoints", _Compressed)
    draft = _draft(completion, found)
    if draft.graph is None or isinstance(found, Fault):
        return draft
    graph, redundant = draft.graph, transitive_edges(draft.graph)
    graph.remove_edges_from(redundant)
    faults = [*draft.faults, *find_answer_leaks(graph, answer), *_route_faults(graph, found.answer_requires)]
    if len(graph) > len(dense):
        faults.append(Fault("not_compressed", f"{len(graph)} checkpoints, the dense graph has {len(dense)}"))
    return replace(draft, faults=faults, num_transitive=len(redundant))


def read_verdict(completion: Completion) -> list[Fault] | None:
    """The judge's defects, none for an acceptance; None if the verdict is unreadable or contradicts itself.

    What has one meaning is taken, however it is spelled: `Accept`, `approved`, no `defects` or `"none"` with it, one
    defect in place of a list.
    """
    found = read_object(completion.answer or "", "verdict")
    if isinstance(found, Fault):
        return None
    defects = found.get("defects") or []
    defects = defects if isinstance(defects, list) else [defects]
    if not all(isinstance(defect, str) for defect in defects):
        return None
    defects = [defect for defect in defects if _word(defect) not in _NO_DEFECT]
    if _word(found["verdict"]) not in (_REJECTING if defects else _ACCEPTING):
        return None
    return [Fault("judge", defect) for defect in defects]


def _word(value: Any) -> str:
    return value.strip(" .!\"'*`").lower() if isinstance(value, str) else ""


def read_contexts(completion: Completion, answer: str) -> dict[str, list[str]] | list[Fault]:
    """`{"plan", "subproblems"}`, or faults: unreadable, cut_short, malformed, states_answer."""
    found = _read(completion, "plan", _Contexts)
    if isinstance(found, Fault):
        return [found]
    contexts: dict[str, list[str]] = found.model_dump()
    leaks = [
        Fault("states_answer", f"{name}: {step[:80]}")
        for name, steps in contexts.items()
        for step in steps
        if states_answer(step, answer, is_last=True)
    ]
    return leaks or contexts


def _read(completion: Completion, key: str, answer: type[_A]) -> _A | Fault:
    """The answer in the form that was requested, or the fault of its form."""
    if completion.answer is None:
        return _CUT_SHORT
    found = read_object(completion.answer, key)
    if isinstance(found, Fault):
        return found
    try:
        return answer.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return Fault("malformed", f"{'.'.join(map(str, first['loc']))}: {first['msg']}")


def _draft(completion: Completion, answer: _Dense | Fault) -> Draft:
    """The graph with the faults of its structure."""
    if isinstance(answer, Fault):
        return Draft(completion.text, None, [answer])
    nodes = [{"id": item.id, "statement": item.statement} for item in answer.checkpoints]
    edges = [[parent, item.id] for item in answer.checkpoints for parent in dict.fromkeys(item.requires)]
    raw = {"nodes": nodes, "edges": edges}
    errors = [fault for fault in find_faults(raw) if fault.is_error]
    if errors:
        return Draft(json.dumps(answer.model_dump(), ensure_ascii=False), None, errors)
    counts = Counter(" ".join(node["statement"].casefold().split()) for node in nodes)
    repeated = [Fault("repeated_statement", f"{text[:80]!r}, {n} times") for text, n in counts.items() if n > 1]
    return Draft(completion.text, build_graph(raw), repeated)


def _route_faults(graph: nx.DiGraph, required: list[str]) -> Iterable[Fault]:
    """Connected to the route: with the removed answer put back as the last node, everything leads to it."""
    if not required or not set(required) <= set(graph):
        yield Fault("bad_answer_requires", f"expected ids of kept checkpoints, got {str(required)[:80]}")
        return
    for node in graph:
        if not graph.succ[node] and node not in required:
            yield Fault("disconnected", f"checkpoint {node!r} leads to nothing that the answer requires")
