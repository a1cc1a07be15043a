"""Progress judge (sec:disclosure): which checkpoints does an attempt establish?

The judge sees statements without edges, so closure is computed and never guessed. It is asked in one of three ways:

- `list`: it writes the ids. A verdict that cannot be read is retried once by sampling, then counted as failed: nothing
  reached, and left out of the competence. So is one that was cut off, and what is inside of thoughts is not read.
- `evidence`: as `list`, but it writes a line a checkpoint, `[id] quote`. A quote that does not stand in the attempt, as
  the judge saw it, establishes nothing.
- `log_odds`: a question a checkpoint, answered by log p(yes) - log p(no) of the first token. All questions on a
  response share the prompt up to the checkpoint, which is read once. Every verdict can be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from nemo_aopsd.config.extension import is_own, made
from nemo_aopsd.config.schema import AOPSDConfig, Config, JudgeConfig
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import LanguageModel, Message, Tokenizer
from nemo_aopsd.errors import UserError
from nemo_aopsd.prompts import fill
from nemo_aopsd.thoughts import final_answer, opened_thought, whole_text
from nemo_aopsd.types import Branch, Sampling, Tokens

if TYPE_CHECKING:
    from torch import Tensor

_MARKUP = re.compile(r"<\s*([|\uff5c][^<>]*[|\uff5c]|/?\s*attempt)\s*>", re.IGNORECASE)
_UNCLOSED = re.compile(r'\[\s*["\d][^\]]*\Z')  # a list that ran out of tokens
CUT = "\n[... middle of the attempt left out ...]\n"
_LEAST_QUOTE = 3  # letters and digits; less than that stands anywhere
_LINE = re.compile(r"^[\s*-]*\[([^\]\s]+)\][ \t:]*(.*)$", re.MULTILINE)  # [id] what is quoted
_QUOTES = " \t\"'`\u201c\u201d"


class Asked(NamedTuple):
    """What the judge reads of one attempt."""

    prompts: list[Tokens]
    cut: bool  # did the attempt lose its middle?
    attempt: str  # as the prompts show it


@dataclass(frozen=True, slots=True)
class Verdict:
    """`judged` ids before closure; empty when `failed`. `cut`: the attempt was too long to be shown whole.

    `log_odds` by id, where the judge was asked for them; `text` then lists them.
    """

    judged: frozenset[str]
    failed: bool
    cut: bool
    text: str
    log_odds: dict[str, float] | None = None

    def above(self, threshold: float) -> Verdict:
        """The verdict of the same log-odds at another threshold."""
        return replace(self, judged=frozenset(id for id, value in (self.log_odds or {}).items() if value > threshold))


class OwnJudge(Protocol):
    """A class that `aopsd.judge.kind` may name."""

    def __init__(self, aopsd: AOPSDConfig): ...

    def judge(
        self,
        problems: Sequence[Problem],
        responses: Sequence[Tokens],
        model: LanguageModel,
        tokenizer: Tokenizer,
        seed: int,
    ) -> list[frozenset[str] | None]:
        """Ids before closure, for each attempt; None for a verdict that cannot be read, which is counted."""
        ...


def judge_messages(problem: Problem, attempt: str, prompts: str, kind: str = "list") -> list[Message]:
    """The prompt of a judge that writes. Markup in the attempt is defused, so that it stays a quotation."""
    template = "judge" if kind == "list" else f"judge_{kind}"
    checkpoints = "\n".join(f"[{node}] {data['statement']}" for node, data in problem.graph.nodes(data=True))
    return _message(problem, attempt, prompts, template, checkpoints=checkpoints)


def checkpoint_messages(problem: Problem, attempt: str, prompts: str) -> list[list[Message]]:
    """The prompts of a `log_odds` judge: one a checkpoint, in the order of the graph."""
    statements = [data["statement"] for _, data in problem.graph.nodes(data=True)]
    return [_message(problem, attempt, prompts, "judge_checkpoint", checkpoint=statement) for statement in statements]


def _message(problem: Problem, attempt: str, prompts: str, template: str, **gaps: str) -> list[Message]:
    shown = defused(attempt)
    return [{"role": "user", "content": fill(prompts, template, problem=problem.problem, attempt=shown, **gaps)}]


def defused(attempt: str) -> str:
    """The attempt without the brackets that would make markup of a part of it."""
    return _MARKUP.sub(r"(\1)", attempt)


def judge_prompts(
    problems: Sequence[Problem], attempts: Sequence[str], tokenizer: Tokenizer, aopsd: AOPSDConfig
) -> list[list[Tokens]]:
    """`questions` on each attempt in token ids.

    Those of `log_odds` never think, whatever is set: the first token is the answer.
    """
    thinking = False if aopsd.judge.kind == "log_odds" else aopsd.thinking.student
    asked = [questions(problem, attempt, aopsd) for problem, attempt in zip(problems, attempts, strict=True)]
    rendered = iter(tokenizer.render_all(list(chain.from_iterable(asked)), thinking))
    return [[next(rendered) for _ in row] for row in asked]


def questions(problem: Problem, attempt: str, aopsd: AOPSDConfig) -> list[list[Message]]:
    """What a judge of ours is asked about an attempt: one prompt, or for `log_odds` one a checkpoint."""
    if aopsd.judge.kind == "log_odds":
        return checkpoint_messages(problem, attempt, aopsd.prompts)
    return [judge_messages(problem, attempt, aopsd.prompts, aopsd.judge.kind)]


def parse_verdict(answer: str | None, known: Collection[str]) -> frozenset[str] | None:
    """The last JSON list in a judge's `final_answer` as a set of ids; None if there is none.

    It is none either if it holds anything but known ids.

    The judge reads checkpoints as `[id] statement` and may cite them so in prose. So a list of one number is ignored
    if there is any other list, and several different ones cannot be read.

    >>> sorted(parse_verdict('Checkpoints 1 and 2 hold: ["1", 2]. [3] is missing.', {"1", "2", "3"}))
    ['1', '2']
    """
    found = _json_lists(answer or "")
    if not answer or not found or _UNCLOSED.search(answer):
        return None
    lists = [items for items in found if len(items) != 1 or not isinstance(items[0], int)]
    if not lists and any(items != found[0] for items in found):
        return None
    items = (lists or found)[-1]
    if not all(isinstance(item, str | int) for item in items):
        return None
    ids = frozenset(str(item).strip() for item in items)
    return ids if ids <= set(known) else None


def parse_evidence(answer: str | None, known: Collection[str], attempt: str) -> frozenset[str] | None:
    """The ids whose quote stands in the attempt, blanks aside; None if the answer has no line of a known id.

    >>> sorted(parse_evidence('[1] "so x = 4"\\n[2] y is 7\\n[3] none', {"1", "2", "3"}, "Add: so  x = 4. Done."))
    ['1']
    """
    lines = [(id, quote) for id, quote in _LINE.findall(answer or "") if id in known]
    if not lines:
        return None
    text = " ".join(attempt.split())
    return frozenset(id for id, quote in lines if _stands_in(text, " ".join(quote.strip(_QUOTES).split())))


def _stands_in(text: str, quote: str) -> bool:
    """As whole words, and long enough to mean something."""
    says_something = sum(map(str.isalnum, quote)) >= _LEAST_QUOTE and quote.rstrip(".").lower() != "none"
    return says_something and re.search(rf"(?<!\w){re.escape(quote)}(?!\w)", text) is not None


def read_verdict(kind: str, problem: Problem, attempt: str, answer: str | None) -> frozenset[str] | None:
    """The ids that a written verdict claims of the attempt; None if it cannot be read."""
    if kind == "evidence":
        return parse_evidence(answer, problem.graph, defused(attempt))
    return parse_verdict(answer, problem.graph)


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
    config: Config,
    seed: int,
) -> list[Verdict]:
    """One verdict an attempt.

    Prompts and verdict fit into a row of the engine. Raises UserError if a problem leaves no room for any attempt.
    """
    aopsd = config.aopsd
    if is_own(aopsd.judge.kind):
        judge = made("judge.kind", aopsd.judge.kind, aopsd)
        return checked_verdicts(aopsd.judge.kind, judge.judge(problems, responses, model, tokenizer, seed), problems)
    room = config.max_row_tokens - aopsd.judge.verdict_tokens
    asked = _ask_within(room, problems, responses, tokenizer, aopsd)
    if aopsd.judge.kind != "log_odds":
        return _read_written(model, tokenizer, problems, asked, aopsd.judge, seed)
    return _read_log_odds(model, tokenizer, problems, asked, aopsd.judge.threshold)


def checked_verdicts(kind: str, found: Any, problems: Sequence[Problem]) -> list[Verdict]:
    """What an own class of this name finds. Raises UserError unless it is None or known ids for each response."""
    wanted = f"aopsd.judge.kind={kind}: `judge` must give the ids that are established, or None, for each response"
    if not isinstance(found, Sequence) or len(found) != len(problems):
        got = len(found) if isinstance(found, Sequence) else type(found).__name__
        raise UserError(f"{wanted}; got {got} for {len(problems)} responses.")
    for problem, ids in zip(problems, found, strict=True):
        if ids is not None and not (isinstance(ids, set | frozenset | list | tuple) and {*ids} <= {*problem.graph}):
            raise UserError(f"{wanted}, ids of {', '.join(problem.graph)} for problem {problem.id!r}; got {ids!r}.")
    return [Verdict(frozenset(ids or ()), ids is None, cut=False, text="") for ids in found]


def _read_written(
    model: LanguageModel,
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    asked: Sequence[Asked],
    config: JudgeConfig,
    seed: int,
) -> list[Verdict]:
    """Greedy first; unread ones again by sampling at temperature 1, `num_retries` times."""
    verdicts: dict[int, Verdict] = {}
    pending = list(range(len(problems)))
    for trial in range(1 + config.num_retries):
        if not pending:
            break
        sampling = Sampling(max_new_tokens=config.max_new_tokens, temperature=float(trial > 0))
        outputs = model.generate([asked[index].prompts[0] for index in pending], sampling, seed + trial)
        for index, output in zip(pending, outputs, strict=True):
            (prompt,), cut, attempt = asked[index]
            text = whole_text(prompt, output.tokens, tokenizer)
            judged = read_verdict(config.kind, problems[index], attempt, final_answer(text, finished=output.finished))
            verdicts[index] = Verdict(judged or frozenset(), judged is None, cut, text)
        pending = [index for index in pending if verdicts[index].failed]
    return [verdicts[index] for index in range(len(problems))]


def _read_log_odds(
    model: LanguageModel, tokenizer: Tokenizer, problems: Sequence[Problem], asked: Sequence[Asked], threshold: float
) -> list[Verdict]:
    """Asks all questions in one call. Those on one response share a prefix, which the engine reads once."""
    yes, no = answer_tokens(tokenizer)
    if tag := opened_thought(asked[0].prompts[0], tokenizer):
        why = f"the chat template opens a thought ({tag}) even where thinking is off"
        raise UserError(f"aopsd.judge.kind=log_odds: {why}. Set aopsd.judge.kind=list.")
    shared = [_common_prefix(each.prompts) for each in asked]
    branches = [
        [Branch(0, prompt[len(start) :]) for prompt in each.prompts] for start, each in zip(shared, asked, strict=True)
    ]
    found = model.next_logprobs(shared, [[]] * len(shared), branches, yes + no)
    verdicts = []
    for problem, each, row in zip(problems, asked, found, strict=True):
        odds = {node: log_odds(logprobs, len(yes)) for node, logprobs in zip(problem.graph, row, strict=True)}
        verdicts.append(Verdict(frozenset(), False, each.cut, json.dumps(odds), odds).above(threshold))
    return verdicts


def _common_prefix(rows: Sequence[Tokens]) -> Tokens:
    first, last = min(rows), max(rows)  # as lists are ordered: what these two share, all between share
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((index for index, (one, other) in pairs if one != other), len(first))]


def answer_tokens(tokenizer: Tokenizer) -> tuple[Tokens, Tokens]:
    """The first tokens of yes and of no, in all spellings: in any case, with or without a space in front.

    Where some spellings of a word are one token, only those count, for other words begin with a part. A token that
    begins both words counts for neither. Raises UserError if no token tells them apart.
    """

    def first(word: str) -> set[int]:
        cases = (word, word.capitalize(), word.upper())
        spelt = [ids for case in cases for space in ("", " ") if (ids := tokenizer.encode(space + case))]
        return {ids[0] for ids in spelt if len(ids) == 1} or {ids[0] for ids in spelt}

    yes, no = first("yes"), first("no")
    if not (yes - no and no - yes):
        raise UserError("aopsd.judge.kind=log_odds: no token tells `yes` from `no`. Set aopsd.judge.kind=list.")
    return sorted(yes - no), sorted(no - yes)


def log_odds(logprobs: Tensor, num_yes: int) -> float:
    """log p(yes) - log p(no) from the log-probs [K] of all tokens of yes, then of no; p is a sum over tokens."""
    answers = logprobs.float()
    return (answers[:num_yes].logsumexp(0) - answers[num_yes:].logsumexp(0)).item()


def _ask_within(
    room: int, problems: Sequence[Problem], responses: Sequence[Tokens], tokenizer: Tokenizer, aopsd: AOPSDConfig
) -> list[Asked]:
    """Prompts of at most `room` tokens each; of a longer attempt the middle is left out."""
    asked: dict[int, Asked] = {}
    limits = dict.fromkeys(range(len(responses)), aopsd.judge.max_attempt_tokens)  # of those that are still too long
    while limits:
        shown = [shorten(responses[index], tokenizer.decode, limit) for index, limit in limits.items()]
        attempts = [attempt for attempt, _ in shown]
        prompts = judge_prompts([problems[index] for index in limits], attempts, tokenizer, aopsd)
        rows = zip(limits, prompts, shown, strict=True)
        asked |= {index: Asked(own, cut, attempt) for index, own, (attempt, cut) in rows}
        limits = {
            index: _lower(limit, longest, room, problems[index], responses[index])
            for index, limit in limits.items()
            if (longest := max(map(len, asked[index].prompts))) > room
        }
    return [asked[index] for index in range(len(responses))]


def _lower(limit: int, longest: int, room: int, problem: Problem, response: Tokens) -> int:
    """How many tokens of a response to show after `limit`, which made a prompt of `longest` tokens."""
    if limit == 0:
        takes = f"the judge's prompt takes {longest} tokens without any attempt"
        leaves = f"policy.max_total_sequence_length leaves {room} beside the verdict"
        remedy = "Raise it, or lower aopsd.judge.max_new_tokens where aopsd.judge.kind is not log_odds."
        raise UserError(f"{problem.where}: problem {problem.id!r}: {takes}, but {leaves}. {remedy}")
    return max(0, min(limit, len(response)) - (longest - room))


def shorten(response: Tokens, decode: Callable[[Tokens], str], limit: int) -> tuple[str, bool]:
    """The attempt's text, its middle left out beyond `limit` tokens; True if something was."""
    if len(response) <= limit:
        return decode(response), False
    head = limit // 2
    tail = limit - head
    return decode(response[:head]) + CUT + decode(response[len(response) - tail :]), True
