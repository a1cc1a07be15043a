"""What of a model's text is meant for its reader. Thoughts are left out, in the markup of the common model families.

All that reads a model's answer goes through here: the grader, the judges, the readers of graphs and labels.
"""

import re

from nemo_aopsd.engine import Tokenizer
from nemo_aopsd.types import Tokens

_TAGS = "think|thinking|thoughts?|reasoning|reflection|seed:think"  # Qwen, DeepSeek and most others; Seed-OSS
_PIPED = "thinking|thoughts?"  # <|START_THINKING|> of Command, <|begin_of_thought|> of OpenThinker
_OPENING = re.compile(
    rf"<(?:{_TAGS})>|(?-i:\[THINK\])|\u25c1think\u25b7|<\|(?:start_|begin_of_)(?:{_PIPED})\|>"  # [THINK] is Magistral's
    r"|<\|channel\|>(?!final)|<\|channel>",  # gpt-oss names each channel, and `final` is the answer; Gemma has one
    re.IGNORECASE,
)
_CLOSING = re.compile(
    rf"</(?:{_TAGS})>|(?-i:\[/THINK\])|\u25c1/think\u25b7|<\|end_(?:of_)?(?:{_PIPED})\|>"
    r"|<\|channel\|>final[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>|<channel\|>",
    re.IGNORECASE,
)
_MARKS = re.compile(rf"{_OPENING.pattern}|{_CLOSING.pattern}|<\|(?:channel|message|constrain)\|>", re.IGNORECASE)
_TAIL = 16  # tokens of a prompt in which an opening tag at its end is looked for


def after_thoughts(text: str) -> str:
    """The part of a response that is meant for the reader: what follows the last thought.

    A thought that was never closed hides what follows it; one that the prompt opened has no opening tag in the text.

    >>> after_thoughts("<think>[1]? </think>[2]"), after_thoughts("[1]? </think>[2]"), after_thoughts("<think>[1]")
    ('[2]', '[2]', '')
    """
    ends = [match.end() for match in _CLOSING.finditer(text)]
    return _OPENING.split(text[ends[-1] :] if ends else text, maxsplit=1)[0]


def final_answer(text: str, *, finished: bool) -> str | None:
    """What counts as an answer; None if the text was cut off, at the limit of tokens say: it may have gone on.

    A text that only thinks has the answer `""`.
    """
    return after_thoughts(text) if finished else None


def whole_text(prompt: Tokens, response: Tokens, tokenizer: Tokenizer) -> str:
    """The response as text, after the tag of the thought that it begins in, if the chat template opened one."""
    return opened_thought(prompt, tokenizer) + tokenizer.decode(response)


def opened_thought(prompt: Tokens, tokenizer: Tokenizer) -> str:
    """The opening tag at the end of a prompt; empty without one."""
    tail = tokenizer.decode(prompt[-_TAIL:]).rstrip()
    opened = [match for match in _OPENING.finditer(tail) if match.end() == len(tail)]
    return opened[0][0] if opened else ""


def is_thought_mark(token: str) -> bool:
    """Whether a special token belongs to the markup of thoughts, and so has to stay in a decoded text."""
    return _MARKS.fullmatch(token) is not None
