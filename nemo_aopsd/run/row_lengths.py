"""Whether prompts leave room within the longest row, once there is a tokenizer and before anything is sampled.

A row counts as in step.py and judge.py. A context that depends on the attempt counts as the whole graph, so what is
said of the teacher is what can happen, not what must.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nemo_aopsd.config.schema import CONTINUED, AOPSDConfig, Config
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Message, Tokenizer
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import assign_donors, student_messages, teacher_messages
from nemo_aopsd.method.judge import CUT, judge_messages

_KEY = "policy.max_total_sequence_length"


@dataclass(frozen=True)
class _Rows:
    """What the longest row of each problem takes, in tokens, beside its budget."""

    problems: Sequence[Problem]
    tokens: list[int]
    budget: int

    @property
    def too_long(self) -> list[int]:
        return [tokens for tokens in self.tokens if tokens > self.budget]

    def describe(self, expected: int, what: str) -> str:
        """Found, expected and how many of which."""
        tokens, problem = max(zip(self.tokens, self.problems, strict=True), key=lambda row: row[0])
        return (
            f"{_KEY} is {self.budget}; expected at least {expected}: {what} in {len(self.too_long)} of "
            f"{len(self.tokens)} problems (longest: {problem.where}, problem {problem.id!r}, {tokens} tokens)"
        )


def check_lengths(
    config: Config, problems: Sequence[Problem], held_out: Sequence[Problem] | None, tokenizer: Tokenizer
) -> list[str]:
    """Warnings of teacher rows that may not fit. Raises UserError for problems that no response at all could pass."""
    aopsd, budget = config.aopsd, config.max_row_tokens
    questions = _questions(problems, aopsd, tokenizer)
    faults = [
        *_no_response(_Rows(problems, [length + 1 for length in questions], budget)),
        *_no_verdict(problems, config, tokenizer),
    ]
    if held_out:
        answered = [length + 1 for length in _questions(held_out, aopsd, tokenizer)]
        faults += _no_response(_Rows(held_out, answered, budget))
    warnings: list[str] = []
    if aopsd.objective.reads_teacher:
        prompts = _teacher_prompts(problems, config, tokenizer)
        fatal, warnings = _teacher(problems, questions, prompts, config)
        faults += fatal
    if faults:
        raise UserError("data and lengths do not fit:\n" + "\n".join(f"- {fault}" for fault in faults))
    return warnings


def _questions(problems: Sequence[Problem], aopsd: AOPSDConfig, tokenizer: Tokenizer) -> list[int]:
    asked = (student_messages(problem, aopsd.prompts) for problem in problems)
    return [_length(messages, tokenizer, aopsd.thinking.student) for messages in asked]


def _length(messages: list[Message], tokenizer: Tokenizer, thinking: bool | None) -> int:
    return len(tokenizer.render(messages, thinking))


def _no_response(rows: _Rows) -> Iterator[str]:
    if rows.too_long:
        need = max(rows.tokens)
        what = "the student's prompt leaves no room for one token of a response"
        yield f"{rows.describe(need, what)}. Set {_KEY}={need} at least, or drop these problems."


def _no_verdict(problems: Sequence[Problem], config: Config, tokenizer: Tokenizer) -> Iterator[str]:
    """As judge.py refuses it in the middle of a step."""
    aopsd = config.aopsd
    if not aopsd.needs_progress:
        return
    verdict = aopsd.judge.max_new_tokens
    prompts = (judge_messages(problem, CUT, aopsd.prompts) for problem in problems)
    tokens = [_length(messages, tokenizer, aopsd.thinking.student) + verdict for messages in prompts]
    rows = _Rows(problems, tokens, config.max_row_tokens)
    if rows.too_long:
        what = f"the judge's prompt without any attempt, with aopsd.judge.max_new_tokens={verdict}, does not fit"
        yield f"{rows.describe(max(tokens), what)}. Set {_KEY} to more than that, or lower aopsd.judge.max_new_tokens."


def _teacher_prompts(problems: Sequence[Problem], config: Config, tokenizer: Tokenizer) -> list[int]:
    """The longest that each problem's may become."""
    aopsd = config.aopsd
    donors = assign_donors(problems, aopsd.seed) if aopsd.shown_context == "other_problem" else {}
    shown = (
        teacher_messages(
            problem,
            aopsd.context.kind,
            aopsd.prompts,
            reached=frozenset(problem.dag or ()),
            mark_frontier=aopsd.context.mark_frontier,
            donor=donors.get(problem.id),
        )
        for problem in problems
    )
    return [_length(messages, tokenizer, aopsd.thinking.teacher) for messages in shown]


def _teacher(
    problems: Sequence[Problem], questions: list[int], prompts: list[int], config: Config
) -> tuple[list[str], list[str]]:
    """Faults and warnings."""
    aopsd, budget, longest = config.aopsd, config.max_row_tokens, config.rollout.max_new_tokens
    probe = aopsd.probes.length if aopsd.weighting in CONTINUED else 0
    drops = aopsd.context.on_overlong == "drop"
    behind = f"{longest} tokens of response" + (f" and {probe} of a probe" if probe else "")
    need = max(prompts) + longest + probe

    shortest = _Rows(problems, [prompt + 1 + probe for prompt in prompts], budget)
    if shortest.too_long and (not drops or len(shortest.too_long) == len(problems)):
        what = "the teacher's prompt leaves no room for one token of a response" + (" and its probe" if probe else "")
        otherwise = "drop these problems" if drops else "aopsd.context.on_overlong=drop to leave such rollouts out"
        return [f"{shortest.describe(max(shortest.tokens), what)}. Set {_KEY}={need} for {behind}, or {otherwise}."], []

    rooms = [min(longest, max(budget - question, 0)) for question in questions]  # a response ends with its own row
    rows = _Rows(problems, [prompt + room + probe for prompt, room in zip(prompts, rooms, strict=True)], budget)
    if not rows.too_long:
        return [], []
    outcome = "such a rollout would be left out of the update" if drops else "such a rollout would end the run"
    never = f", that of {len(shortest.too_long)} always" if shortest.too_long else ""
    what = f"the teacher's row may not fit with {behind}{never}"
    remedy = f"Set {_KEY}={need}, or lower policy.generation.max_new_tokens"
    otherwise = "" if drops else ", or set aopsd.context.on_overlong=drop"
    return [], [f"{rows.describe(need, what)}; {outcome}. {remedy}{otherwise}."]
