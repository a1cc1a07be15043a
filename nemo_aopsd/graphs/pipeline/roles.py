"""One problem through the three roles of the paper: produce, judge, repair at most twice, compress, validate."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import networkx as nx

from nemo_aopsd.chat.client import RequestRefused
from nemo_aopsd.chat.protocol import Completion
from nemo_aopsd.data.dag import Fault, serialize
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.graphs.pipeline import stages
from nemo_aopsd.graphs.pipeline.stages import Draft

MAX_REPAIRS = 2  # a problem, wherever they are spent
_READINGS = 2  # of a verdict or of plan and sub-problems, if the first is no use
_LONGEST_QUOTE = 20_000  # characters of an unreadable answer that is shown to its author again
_NO_VERDICT = Fault("unreadable_verdict", f"{_READINGS} verdicts in no known form")

Ask = Callable[[str, int, list[dict[str, str]]], Awaitable[Completion]]  # (stage, attempt, messages) -> answer


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
            outcome.graph = await _compressed(outcome, dense, tracked)
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
    async def read(completion: Completion) -> Draft:
        draft = stages.read_dense(completion)
        if draft.graph is None or draft.faults:
            return draft
        messages = stages.messages("judge", outcome.problem, graph=serialize(draft.graph))
        for reading in range(1, 1 + _READINGS):
            verdict = stages.read_verdict(await ask("judge", reading, messages))
            if verdict is not None:
                return replace(draft, faults=verdict)
        return replace(draft, faults=[_NO_VERDICT])

    return await _repaired(outcome, ask, "produce", "repair", read)


async def _compressed(outcome: Outcome, dense: nx.DiGraph, ask: Ask) -> nx.DiGraph | None:
    async def read(completion: Completion) -> Draft:
        return stages.read_compressed(completion, outcome.problem.answer, dense)

    return await _repaired(outcome, ask, "compress", "recompress", read, graph=serialize(dense))


async def _repaired(
    outcome: Outcome, ask: Ask, first: str, again: str, read: Callable[[Completion], Awaitable[Draft]], **gaps: str
) -> nx.DiGraph | None:
    """The graph of the first draft without a fault, or None once all repairs are spent."""
    completion = await ask(first, 1, stages.messages(first, outcome.problem, **gaps))
    while True:
        draft = await read(completion)
        outcome.faults, outcome.last_text, outcome.num_transitive = draft.faults, draft.text, draft.num_transitive
        if not draft.faults:
            return draft.graph
        if outcome.repairs == MAX_REPAIRS or _NO_VERDICT in draft.faults:
            return None
        outcome.repairs += 1
        faults = [(fault.kind, fault.detail) for fault in draft.faults]
        shown = {
            "previous": draft.text[:_LONGEST_QUOTE] if draft.graph is None else serialize(draft.graph),
            "defects": "\n".join(f"- {'' if kind == 'judge' else f'{kind}: '}{detail}" for kind, detail in faults),
        }
        completion = await ask(again, outcome.repairs, stages.messages(again, outcome.problem, **gaps, **shown))


async def _add_contexts(outcome: Outcome, ask: Ask) -> None:
    messages = stages.messages("contexts", outcome.problem)
    for reading in range(1, 1 + _READINGS):
        found = stages.read_contexts(await ask("contexts", reading, messages), outcome.problem.answer)
        if isinstance(found, dict):
            outcome.contexts, outcome.context_faults = found, []
            return
        outcome.context_faults = found
