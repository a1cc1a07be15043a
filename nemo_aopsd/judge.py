"""Progress judge (sec:disclosure): which checkpoints does an attempt establish?

The judge sees statements without edges, so closure is computed and never guessed. A verdict that cannot be read
is retried once by sampling, then counted as failed: nothing reached, and left out of the competence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nemo_aopsd.config import JudgeConfig
from nemo_aopsd.data import Problem
from nemo_aopsd.engine import LanguageModel, Message, Tokenizer
from nemo_aopsd.prompts import fill
from nemo_aopsd.types import Sampling, Tokens

_FLAT_LIST = re.compile(r"\[[^\[\]]*\]")
_MARKUP = re.compile(r"<(\|[^|<>]*\||/?attempt)>")
_CUT = "\n[... middle of the attempt left out ...]\n"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`judged` ids before closure; empty when `failed`. `cut` says that the attempt was too long to show whole."""

    judged: frozenset[str]
    failed: bool
    cut: bool
    text: str


def judge_messages(problem: Problem, attempt: str, prompts: str) -> list[Message]:
    """The judge's prompt. Chat markup and closing tags in the attempt are defused, so that it stays a quotation."""
    checkpoints = "\n".join(f"[{node}] {data['statement']}" for node, data in problem.dag.nodes(data=True))
    quoted = _MARKUP.sub(r"(\1)", attempt)
    gaps = {"problem": problem.problem, "checkpoints": checkpoints, "attempt": quoted}
    return [{"role": "user", "content": fill(prompts, "judge", **gaps)}]


def parse_verdict(text: str, known: Collection[str]) -> frozenset[str] | None:
    """The last JSON list of known ids in `text`; None if there is none or it names anything else.

    >>> sorted(parse_verdict('Checkpoints 1 and 2 hold: ["1", 2]', {"1", "2", "3"}))
    ['1', '2']
    """
    lists = _FLAT_LIST.findall(text)
    if not lists:
        return None
    try:
        items = json.loads(lists[-1])
    except json.JSONDecodeError:
        return None
    ids = {str(item).strip() for item in items if isinstance(item, str | int) and not isinstance(item, bool)}
    return frozenset(ids) if len(ids) == len(set(map(str, items))) and ids <= set(known) else None


def judge_attempts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    responses: Sequence[Tokens],
    *,
    config: JudgeConfig,
    prompts: str,
    thinking: bool | None,
    seed: int,
) -> list[Verdict]:
    """One verdict an attempt, greedy first; unread ones again by sampling at temperature 1, `num_retries` times."""
    attempts = [shorten(response, tokenizer, config.max_attempt_tokens) for response in responses]
    rendered = [
        tokenizer.render(judge_messages(problem, attempt, prompts), thinking)
        for problem, (attempt, _) in zip(problems, attempts, strict=True)
    ]
    verdicts: dict[int, Verdict] = {}
    pending = list(range(len(problems)))
    for trial in range(1 + config.num_retries):
        sampling = Sampling(max_new_tokens=config.max_new_tokens, temperature=float(trial > 0))
        for index, output in zip(
            pending, model.generate([rendered[i] for i in pending], sampling, seed + trial), strict=True
        ):
            text = tokenizer.decode(output.tokens)
            judged = parse_verdict(text, problems[index].dag)
            verdicts[index] = Verdict(judged or frozenset(), judged is None, attempts[index][1], text)
        pending = [index for index in pending if verdicts[index].failed]
        if not pending:
            break
    return [verdicts[index] for index in range(len(problems))]


def shorten(response: Tokens, tokenizer: Tokenizer, limit: int) -> tuple[str, bool]:
    """The attempt's text, its middle left out beyond `limit` tokens; True if something was."""
    if len(response) <= limit:
        return tokenizer.decode(response), False
    head = limit // 2
    tail = limit - head
    return tokenizer.decode(response[:head]) + _CUT + tokenizer.decode(response[len(response) - tail :]), True
