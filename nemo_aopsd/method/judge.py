"""Progress judge (sec:disclosure): which checkpoints does an attempt establish?

The judge sees statements without edges, so closure is computed and never guessed. A verdict that cannot be read
is retried once by sampling, then counted as failed: nothing reached, and left out of the competence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_aopsd.config.schema import JudgeConfig
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import LanguageModel, Message, Tokenizer
from nemo_aopsd.errors import UserError
from nemo_aopsd.prompts import fill
from nemo_aopsd.types import Sampling, Tokens

_MARKUP = re.compile(r"<\s*([|\uff5c][^<>]*[|\uff5c]|/?\s*attempt)\s*>", re.IGNORECASE)
_UNCLOSED = re.compile(r'\[\s*["\d][^\]]*\Z')  # a list that ran out of tokens
CUT = "\n[... middle of the attempt left out ...]\n"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`judged` ids before closure; empty when `failed`. `cut`: the attempt was too long to be shown whole."""

    judged: frozenset[str]
    failed: bool
    cut: bool
    text: str


def judge_messages(problem: Problem, attempt: str, prompts: str) -> list[Message]:
    """The judge's prompt. Chat markup and closing tags in the attempt are defused, so that it stays a quotation."""
    checkpoints = "\n".join(f"[{node}] {data['statement']}" for node, data in problem.graph.nodes(data=True))
    quoted = _MARKUP.sub(r"(\1)", attempt)
    gaps = {"problem": problem.problem, "checkpoints": checkpoints, "attempt": quoted}
    return [{"role": "user", "content": fill(prompts, "judge", **gaps)}]


def parse_verdict(text: str, known: Collection[str]) -> frozenset[str] | None:
    """The last JSON list in `text` as a set of ids; None if there is none or it holds anything but known ids.

    The judge reads checkpoints as `[id] statement` and may cite them so in prose. A lone number in brackets is
    therefore no list where a real one stands, and several different ones make no list.

    >>> sorted(parse_verdict('Checkpoints 1 and 2 hold: ["1", 2]. [3] is missing.', {"1", "2", "3"}))
    ['1', '2']
    """
    found = _json_lists(text)
    if not found or _UNCLOSED.search(text):
        return None
    lists = [items for items in found if len(items) != 1 or not isinstance(items[0], int)]
    if not lists and any(items != found[0] for items in found):
        return None
    items = (lists or found)[-1]
    if not all(isinstance(item, str | int) for item in items):
        return None
    ids = frozenset(str(item).strip() for item in items)
    return ids if ids <= set(known) else None


def _json_lists(text: str) -> list[list[Any]]:
    """Every outermost JSON list in `text`, in order."""
    lists, position, decoder = [], 0, json.JSONDecoder()
    while (position := text.find("[", position)) >= 0:
        try:
            items, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):  # no JSON, or a number of thousands of digits
            position += 1
        else:
            lists.append(items)
    return lists


def judge_attempts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    responses: Sequence[Tokens],
    *,
    config: JudgeConfig,
    prompts: str,
    thinking: bool | None,
    max_row_tokens: int,
    seed: int,
) -> list[Verdict]:
    """One verdict an attempt, greedy first; unread ones again by sampling at temperature 1, `num_retries` times.

    Prompt and verdict fit into `max_row_tokens`. Raises UserError if a problem leaves no room for any attempt.
    """

    def ask(problem: Problem, attempt: str) -> Tokens:
        return tokenizer.render(judge_messages(problem, attempt, prompts), thinking)

    room = max_row_tokens - config.max_new_tokens
    asked = [
        _ask_within(room, ask, problem, response, tokenizer, config.max_attempt_tokens)
        for problem, response in zip(problems, responses, strict=True)
    ]
    verdicts: dict[int, Verdict] = {}
    pending = list(range(len(problems)))
    for trial in range(1 + config.num_retries):
        if not pending:
            break
        sampling = Sampling(max_new_tokens=config.max_new_tokens, temperature=float(trial > 0))
        for index, output in zip(
            pending, model.generate([asked[i][0] for i in pending], sampling, seed + trial), strict=True
        ):
            text = tokenizer.decode(output.tokens)
            judged = parse_verdict(text, problems[index].graph)
            verdicts[index] = Verdict(judged or frozenset(), judged is None, asked[index][1], text)
        pending = [index for index in pending if verdicts[index].failed]
    return [verdicts[index] for index in range(len(problems))]


def _ask_within(
    room: int,
    ask: Callable[[Problem, str], Tokens],
    problem: Problem,
    response: Tokens,
    tokenizer: Tokenizer,
    limit: int,
) -> tuple[Tokens, bool]:
    """A judge's prompt of at most `room` tokens, and whether the attempt lost its middle for it."""
    while True:
        attempt, cut = shorten(response, tokenizer, limit)
        prompt = ask(problem, attempt)
        excess = len(prompt) - room
        if excess <= 0:
            return prompt, cut
        if limit == 0:
            raise UserError(
                f"{problem.where}: problem {problem.id!r}: the judge's prompt takes {len(prompt)} tokens without any "
                f"attempt, but policy.max_total_sequence_length less aopsd.judge.max_new_tokens leaves {room}. "
                "Raise the first or lower the second."
            )
        limit = max(0, min(limit, len(response)) - excess)


def shorten(response: Tokens, tokenizer: Tokenizer, limit: int) -> tuple[str, bool]:
    """The attempt's text, its middle left out beyond `limit` tokens; True if something was."""
    if len(response) <= limit:
        return tokenizer.decode(response), False
    head = limit // 2
    tail = limit - head
    return tokenizer.decode(response[:head]) + CUT + tokenizer.decode(response[len(response) - tail :]), True
