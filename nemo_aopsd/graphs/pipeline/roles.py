"""One problem through the three roles of the paper: produce, judge, repair at most twice, compress, validate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import networkx as nx

from nemo_aopsd.chat.client import RequestRefused
from nemo_aopsd.chat.protocol import Completion
from nemo_aopsd.data.dag import Fault, serialize
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.graphs.pipeline import stages

MAX_REPAIRS = 2  # a problem, wherever they are spent
_READINGS = 2  # of a verdict or of plan and sub-problems, if the first is no use

Ask = Callable[..., Awaitable[Completion]]  # (stage, attempt, messages) -> answer


@dataclass(slots=True)
class Outcome:
    """`graph` is None if rejected; `stage`, `faults` and `last_text` then say where, why and about what.

    `context_faults` tells of plan and sub-problems that were left out of an accepted row.
    """

    problem: Problem
    repairs: int = 0
    stage: str = ""
    graph: nx.DiGraph | None = None
    num_transitive: int = 0
    contexts: dict[str, list[str]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    context_faults: list[Fault] = field(default_factory=list)
    last_text: str = ""


async def build_one(problem: Problem, ask: Ask) -> Outcome:
    """Accept or reject one problem. Raises what `ask` raises; asking again gives the same answers, so it resumes.

    A request that the server refuses (too long, say) rejects what it was made for.
    """
    outcome = Outcome(problem)
    if not (problem.solution or "").strip():
        outcome.stage, outcome.faults = "input", [Fault("no_solution", "the row has no `solution`")]
        return outcome

    async def tracked(stage: str, attempt: int, messages: list[dict[str, str]]) -> Completion:
        outcome.stage = stage
        return await ask(stage, attempt, messages)

    try:
        dense = await _accepted_dense(outcome, tracked)
        if dense is not None:
            await _compress(outcome, dense, tracked)
        if outcome.graph is not None:
            await _add_contexts(outcome, tracked)
    except RequestRefused as error:
        refused = [Fault("refused", str(error))]
        if outcome.graph is None:
            outcome.faults = refused
        else:
            outcome.context_faults = refused
    return outcome


async def _accepted_dense(outcome: Outcome, ask: Ask) -> nx.DiGraph | None:
    problem = outcome.problem
    draft = stages.read_dense(await ask("produce", 1, stages.messages("produce", problem)))
    while True:
        outcome.faults, outcome.last_text = draft.faults, draft.text
        if draft.graph is not None and not outcome.faults:
            verdict = await _judge(outcome, draft.graph, ask)
            if verdict is None:
                outcome.faults = [Fault("unreadable_verdict", f"{_READINGS} verdicts in no known form")]
                return None
            outcome.faults = verdict
        if not outcome.faults:
            return draft.graph
        if outcome.repairs == MAX_REPAIRS:
            return None
        outcome.repairs += 1
        gaps = {"previous": stages.previous(draft), "defects": stages.listed(outcome.faults)}
        draft = stages.read_dense(await ask("repair", outcome.repairs, stages.messages("repair", problem, **gaps)))


async def _judge(outcome: Outcome, graph: nx.DiGraph, ask: Ask) -> list[Fault] | None:
    messages = stages.messages("judge", outcome.problem, graph=serialize(graph))
    for reading in range(1, 1 + _READINGS):
        verdict = stages.read_verdict(await ask("judge", reading, messages))
        if verdict is not None:
            return verdict
    return None


async def _compress(outcome: Outcome, dense: nx.DiGraph, ask: Ask) -> None:
    problem, graph = outcome.problem, serialize(dense)
    completion = await ask("compress", 1, stages.messages("compress", problem, graph=graph))
    while True:
        draft = stages.read_compressed(completion, problem.answer, dense)
        outcome.faults, outcome.last_text = draft.faults, draft.text
        if not draft.faults:
            outcome.graph, outcome.num_transitive = draft.graph, draft.num_transitive
            return
        if outcome.repairs == MAX_REPAIRS:
            return
        outcome.repairs += 1
        gaps = {"graph": graph, "previous": stages.previous(draft), "defects": stages.listed(draft.faults)}
        completion = await ask("recompress", outcome.repairs, stages.messages("recompress", problem, **gaps))


async def _add_contexts(outcome: Outcome, ask: Ask) -> None:
    messages = stages.messages("contexts", outcome.problem)
    for reading in range(1, 1 + _READINGS):
        found = stages.read_contexts(await ask("contexts", reading, messages), outcome.problem.answer)
        if isinstance(found, dict):
            outcome.contexts, outcome.context_faults = found, []
            return
        outcome.context_faults = found
