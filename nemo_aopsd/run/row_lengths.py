"""Whether prompts leave room for a response, checked once there is a tokenizer and before anything is sampled.

A row counts as in step.py and judge.py. A context that depends on the attempt counts as the whole graph, so the
teacher's lengths are upper bounds.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from nemo_aopsd.config.extension import is_own
from nemo_aopsd.config.rules import probe_room
from nemo_aopsd.config.schema import AOPSDConfig, Config
from nemo_aopsd.console import slow
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Message, Tokenizer
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import donors_for, shown_messages, student_prompts
from nemo_aopsd.method.judge import CUT, answer_tokens, judge_prompts
from nemo_aopsd.models.config_json import find_model_config
from nemo_aopsd.models.limits import check_readable, check_shown, check_thinking

_SAMPLE = 100  # prompts of the teacher that are looked at for what the model cannot read
_KEY = "policy.max_total_sequence_length"


class _TooLong(NamedTuple):
    found: str
    need: int  # the budget to set
    otherwise: str  # what else to do


def check_texts(
    config: Config, problems: Sequence[Problem], held_out: Sequence[Problem] | None, tokenizer: Tokenizer
) -> list[str]:
    """Warnings of all that a tokenizer tells before a model is loaded. Raises what `check_lengths` raises."""
    model, thinking = config.policy["model_name"], config.aopsd.thinking
    roles = {f"aopsd.thinking.{role}": getattr(thinking, role) for role in ("student", "teacher")}
    with slow("measuring the prompts"):
        unread = check_readable(problems, tokenizer, model)
        if not unread and config.aopsd.objective.reads_teacher:
            shown = zip(problems, _teacher_messages(problems, config.aopsd), strict=True)
            unread = check_shown([*islice(shown, _SAMPLE)], tokenizer, model)
        others = [*check_thinking(roles, tokenizer, model), *unread]
        try:
            return [*check_lengths(config, problems, held_out, tokenizer), *others]
        except UserError as error:
            raise UserError("\n".join([str(error), *others])) from error


def check_lengths(
    config: Config, problems: Sequence[Problem], held_out: Sequence[Problem] | None, tokenizer: Tokenizer
) -> list[str]:
    """Warnings of teacher rows that may not fit. Raises UserError for problems without room for any response."""
    aopsd = config.aopsd

    def questions(asked: Sequence[Problem]) -> list[int]:
        return list(map(len, student_prompts(asked, tokenizer, aopsd.prompts, aopsd.thinking.student)))

    faults: list[_TooLong] = []
    warnings: list[_TooLong] = []
    measured = questions(problems)
    for asked, lengths in ((problems, measured), (held_out or [], questions(held_out or []))):
        tokens = [length + 1 for length in lengths]
        what = "the student's prompt leaves no room for one token of a response"
        faults += _too_long(config, asked, tokens, what, "drop these problems")
    # As judge.py refuses it in the middle of a step. A judge model of its own has another tokenizer.
    if aopsd.needs_progress and not aopsd.judge.has_own_model and not is_own(aopsd.judge.kind):
        judge, behind = aopsd.judge, aopsd.judge.verdict_tokens
        prompts = judge_prompts(problems, [CUT] * len(problems), tokenizer, aopsd)
        tokens = [max(map(len, rows)) + behind for rows in prompts]
        what = f"the judge's prompt without any attempt, with {behind} tokens of a verdict, does not fit"
        room = _budget(config) + behind - max(tokens)
        lower = f"lower aopsd.judge.max_new_tokens {f'to {room}' if room > 0 else 'and drop the longest problems'}"
        otherwise = lower if judge.kind != "log_odds" else "drop these problems"
        faults += _too_long(config, problems, tokens, what, otherwise)
        if judge.kind == "log_odds":
            answer_tokens(tokenizer)
    if aopsd.objective.reads_teacher:
        told = list(_teacher_messages(problems, aopsd))
        prompts = list(map(len, tokenizer.render_all(told, aopsd.thinking.teacher)))
        fatal, warnings = _teacher(config, problems, measured, prompts)
        faults += fatal
    if faults:
        listed = "\n".join(f"- {fault.found}" for fault in faults)
        raise UserError(f"data and lengths do not fit:\n{listed}\n{_remedy(config, faults)}")
    return [f"{warning.found} {_remedy(config, [warning])}" for warning in warnings]


def _too_long(
    config: Config, problems: Sequence[Problem], tokens: list[int], what: str, otherwise: str, need: int = 0
) -> list[_TooLong]:
    """One if any problem's row takes more than its budget; `need` is by default the longest row."""
    budget = _budget(config)
    number = sum(length > budget for length in tokens)
    if not number:
        return []
    longest, problem = max(zip(tokens, problems, strict=True), key=lambda row: row[0])
    need = need or longest
    limit = f"{_KEY} is" if budget == config.max_row_tokens else "the model's positions are"
    found = (
        f"{limit} {budget}; expected at least {need}: {what} in {number} of {len(tokens)} problems "
        f"(longest: {problem.where}, problem {problem.id!r}, {longest} tokens)."
    )
    return [_TooLong(found, need, otherwise)]


def _remedy(config: Config, faults: Sequence[_TooLong]) -> str:
    """One budget that mends all of them, or what to do instead."""
    need = max(fault.need for fault in faults)
    otherwise = " and ".join(dict.fromkeys(fault.otherwise for fault in faults))
    positions = _positions(config)
    if positions is not None and need > positions:
        shorter = " Or set aopsd.prompts=tiny: the built-in model's texts, which are shorter."
        told = f"The model has only {positions} positions, so {otherwise}."
        return told + (shorter if config.aopsd.prompts == "default" else "")
    return f"Set {_KEY}={need}, or {otherwise}."


def _positions(config: Config) -> int | None:
    model = find_model_config(config.policy["model_name"])
    return model.longest_row if model else None


def _budget(config: Config) -> int:
    """Tokens that a row can have; the setting may be above what the model has, which is refused beside."""
    return min(config.max_row_tokens, _positions(config) or config.max_row_tokens)


def _teacher_messages(problems: Sequence[Problem], aopsd: AOPSDConfig) -> Iterator[list[Message]]:
    """The longest prompt that each problem's teacher may get."""
    donors = donors_for(problems, aopsd.shown_context, aopsd.seed)
    for problem in problems:
        yield shown_messages(problem, aopsd, frozenset(problem.dag or ()), donors)


def _teacher(
    config: Config, problems: Sequence[Problem], questions: list[int], prompts: list[int]
) -> tuple[list[_TooLong], list[_TooLong]]:
    """Faults, where not even one token of a response fits, and warnings."""
    aopsd, longest, budget = config.aopsd, config.rollout.max_new_tokens, _budget(config)
    probe = probe_room(aopsd)
    drops = aopsd.context.on_overlong == "drop"
    need = max(prompts) + longest + probe
    otherwise = "drop these problems" if drops else "set aopsd.context.on_overlong=drop to leave such rollouts out"

    shortest = [prompt + 1 + probe for prompt in prompts]
    num_never = sum(length > budget for length in shortest)
    if num_never and (not drops or num_never == len(problems)):
        what = "the teacher's prompt leaves no room for one token of a response" + (" and its probe" if probe else "")
        return _too_long(config, problems, shortest, what, otherwise, need), []

    rooms = [min(longest, max(budget - question, 0)) for question in questions]  # of the student's row
    tokens = [prompt + room + probe for prompt, room in zip(prompts, rooms, strict=True)]
    behind = f"{longest} tokens of response" + (f" and {probe} of a probe" if probe else "")
    always = f" In {num_never} of them it is too long with any response." if num_never else ""
    then = f"{always} Such a rollout {'is left out of the update' if drops else 'ends the run'}."
    what = f"with {behind} the teacher's row can be too long"
    found = _too_long(config, problems, tokens, what, otherwise, need)
    return [], [each._replace(found=each.found + then) for each in found]
