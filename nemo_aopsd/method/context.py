"""What each side reads: the student the bare question, the teacher the question and its privileged context.

Both are chat messages; wording comes from `prompts/`. Nothing is ever truncated here: a row that is too long
for the engine is the step's business (an error or a counted drop).
"""

import random
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, cast

from nemo_aopsd.config.extension import is_own, made, own_class
from nemo_aopsd.config.schema import AOPSDConfig, ContextKind, CurriculumConfig
from nemo_aopsd.data.dag import frontier, serialize
from nemo_aopsd.data.problems import Problem, misspelt, row_at
from nemo_aopsd.engine import Message, Tokenizer
from nemo_aopsd.errors import UserError, nearest
from nemo_aopsd.prompts import fill
from nemo_aopsd.types import Tokens

# Each context and the field of a problem that it shows; of another problem for `other_problem`.
FIELD: dict[ContextKind, str | None] = {
    "none": None,
    "solution": "solution",
    "plan": "plan",
    "subproblems": "subproblems",
    "dag_full": "dag",
    "dag_frontier": "dag",
    "other_problem": "solution",
}

_ROLES = ("system", "user", "assistant")
_GRAPHS = (
    " To make graphs: aopsd dag build {file} --out DAGS.jsonl --base-url URL --model NAME. Methods that need none: "
    "--method grpo (answers alone), --method opsd (solutions)."
)


class OwnContext(Protocol):
    """A class that `aopsd.context.kind` may name."""

    field: ClassVar[str | None]  # what a problem must have: `solution`, `plan`, `subproblems`, `dag`, or None
    adaptive: ClassVar[bool]  # whether it depends on the checkpoints that the response reached; the judge is then asked

    def messages(self, problem: Problem, reached: frozenset[str], prompts: str) -> list[Message]:
        """The teacher's prompt. `reached` is R, empty unless the context is adaptive; `prompts` is `aopsd.prompts`."""
        ...


def field_of(kind: str) -> str | None:
    """The field of a problem that a context shows. Raises UserError if an own class names another one than ours."""
    if not is_own(kind):
        return FIELD[cast(ContextKind, kind)]
    field, known = own_class("context.kind", kind).field, [*dict.fromkeys(filter(None, FIELD.values()))]
    if field not in (None, *known):
        hint = nearest(str(field), known)
        raise UserError(f"aopsd.context.kind={kind}: `field` is {field!r}; expected {', '.join(known)} or None.{hint}")
    return field


def check_problems(problems: Sequence[Problem], kind: str, curriculum: str, trains_on: str = "") -> None:
    """Refuse, before any model is loaded, a problem that lacks what the context or the judge will need.

    `trains_on` is the objective, if that reads solutions.
    """
    learns = CurriculumConfig(name=curriculum).needs_progress
    needed = {"dag": f"aopsd.curriculum.name={curriculum}"} if learns else {}
    if shown := field_of(kind):
        needed[shown] = f"aopsd.context.kind={kind}"
    if trains_on:
        needed["solution"] = f"aopsd.objective.name={trains_on}"
    for problem in problems:
        for field, setting in needed.items():
            if not _has(problem, field):
                lacking = sum(not _has(each, field) for each in problems)
                file = shlex.quote(problem.where.rpartition(":")[0])
                listed = f" List all: aopsd dag check {file}." if field == "dag" and lacking < len(problems) else ""
                raise UserError(
                    f"{problem.where}: problem {problem.id!r} has no `{field}`, which {setting} needs; {lacking} of "
                    f"{len(problems)} problems lack it.{misspelt(row_at(problem.where), field)} Add it, drop these "
                    "rows, or choose another setting." + listed + (_GRAPHS.format(file=file) if field == "dag" else "")
                )
    if kind == "other_problem":
        _check_donors(problems)


def has_context(problem: Problem, kind: str) -> bool:
    """Whether the problem has what the context shows."""
    field = field_of(kind)
    return field is None or _has(problem, field)


def _has(problem: Problem, field: str) -> bool:
    value = getattr(problem, field)
    return not (value is None or (isinstance(value, str) and not value.strip()) or value == ())


def _check_donors(problems: Sequence[Problem]) -> None:
    """Each problem can have a donor with another text, each used once, if no text fills more than half of the file."""
    text, number = Counter(map(_text, problems)).most_common(1)[0]
    if 2 * number > len(problems):
        example = next(problem for problem in problems if _text(problem) == text)
        wanted = "at least two problems, and none whose question fills more than half of the file"
        found = f"that of {example.id!r} has {number} of {len(problems)} rows. Add problems, or drop repeated ones"
        raise UserError(f"{example.where}: aopsd.context.kind=other_problem needs {wanted}: {found}.")


def student_messages(problem: Problem, prompts: str) -> list[Message]:
    """The bare question with the answer-format instruction."""
    return _user(fill(prompts, "student", problem=problem.problem))


def student_prompts(
    problems: Sequence[Problem], tokenizer: Tokenizer, prompts: str, thinking: bool | None
) -> list[Tokens]:
    """What the student reads of each problem, in token ids."""
    return tokenizer.render_all([student_messages(problem, prompts) for problem in problems], thinking)


def teacher_messages(
    problem: Problem,
    kind: str,
    prompts: str,
    *,
    reached: frozenset[str] = frozenset(),
    mark_frontier: bool = True,
    donor: Problem | None = None,
) -> list[Message]:
    """The teacher's prompt x + P. `reached` is R for `dag_frontier`; `donor` is the other problem."""
    if is_own(kind):
        return checked_messages(kind, made("context.kind", kind), problem, reached, prompts)
    wording, more = f"teacher_{kind}", {}
    match kind:
        case "none":
            return student_messages(problem, prompts)
        case "solution":
            context = _solution(problem)
        case "plan" | "subproblems":
            context = "\n".join(f"{number}. {step}" for number, step in enumerate(getattr(problem, kind), start=1))
        case "dag_full":
            wording, context = "teacher_dag", serialize(problem.graph)
        case "dag_frontier":
            wording = "teacher_dag_marked" if mark_frontier else "teacher_dag"
            context = disclose(problem, reached, mark_frontier)
        case "other_problem":
            assert donor is not None, f"{problem.where}: `donors_for` gives every problem one"
            context, more = _solution(donor), {"donor_problem": donor.problem}
        case _:
            raise AssertionError(f"{kind!r} is no context")
    return _user(fill(prompts, wording, problem=problem.problem, context=context, **more))


def checked_messages(
    kind: str, part: OwnContext, problem: Problem, reached: frozenset[str], prompts: str
) -> list[Message]:
    """What an own class of this name shows. Raises UserError unless it is a list of chat messages."""
    found = part.messages(problem, reached, prompts)
    texts = [[each.get(key) if isinstance(each, dict) else None for key in ("role", "content")] for each in found or ()]
    if not texts or not all(role in _ROLES and isinstance(content, str) for role, content in texts):
        wanted = f"`messages` must give chat messages, each with `content` as text and as `role` {' or '.join(_ROLES)}"
        got = f"for problem {problem.id!r} it gave {repr(found)[:120]}"
        raise UserError(f"aopsd.context.kind={kind}: {wanted}; {got}.")
    return found


def shown_messages(
    problem: Problem, aopsd: AOPSDConfig, reached: frozenset[str], donors: Mapping[str, Problem]
) -> list[Message]:
    """The teacher's prompt under the run's own context."""
    return teacher_messages(
        problem,
        aopsd.shown_context,
        aopsd.prompts,
        reached=reached,
        mark_frontier=aopsd.context.mark_frontier,
        donor=donors.get(problem.id),
    )


def disclose(problem: Problem, reached: frozenset[str], mark_frontier: bool = True) -> str:
    """P(y) = phi(G[R u F(R)]) (eq:local-disclosure); marks say `reached` or `next`."""
    ahead = frontier(problem.graph, reached)
    marks = dict.fromkeys(reached, "reached") | dict.fromkeys(ahead, "next")
    return serialize(problem.graph, marks if mark_frontier else None, only=reached | ahead)


def disclosed_share(problem: Problem, kind: str, reached: frozenset[str]) -> float | None:
    """Share of the graph that the teacher saw; None where the context shows no graph, or is not ours."""
    if is_own(kind) or field_of(kind) != "dag":
        return None
    match kind:
        case "dag_full":
            return 1.0
        case "dag_frontier":
            return len(reached | frontier(problem.graph, reached)) / len(problem.graph)
    raise AssertionError(f"the context {kind!r} shows a graph: say how much of it")


def donors_for(problems: Sequence[Problem], kind: str, seed: int) -> dict[str, Problem]:
    """One other problem for each, fixed for the run, and each of them once (OP2SD, arXiv 2608.09228).

    Empty for a context that shows no other problem. In a seeded order, problems of one text stand next to each other.
    The list is rotated by the size of the largest group, so that no problem gets its own text. That works if no text
    fills more than half of the list.
    """
    if kind != "other_problem":
        return {}
    order = random.Random(f"{seed}/donors").sample(problems, len(problems))
    groups: dict[str, list[Problem]] = {}
    for problem in order:
        groups.setdefault(_text(problem), []).append(problem)
    cycle = [problem for group in groups.values() for problem in group]
    shift = max(map(len, groups.values()))
    return {problem.id: donor for problem, donor in zip(cycle, cycle[shift:] + cycle[:shift], strict=True)}


def _solution(problem: Problem) -> str:
    assert problem.solution is not None, f"{problem.where}: `check_problems` has looked"
    return problem.solution


def _text(problem: Problem) -> str:
    return " ".join(problem.problem.split())


def _user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]
