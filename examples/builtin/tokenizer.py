"""The tokenizer of the embedded model: one id a word, mark or digit, each with the space before it.

Splitting is lossless, so `decode(encode(text)) == text` for every text of the embedded domain; a word outside it
becomes `<|unk|>`.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from examples.builtin import traces
from examples.builtin.world import MODULUS, NAMES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|unk|>")
PIECE = (
    r"\[[a-h]\]| ?[a-h]=[0-9]| ?[a-h]:| ?\"[a-h]\"| ?\\boxed\{| ?\(requires:| ?[A-Za-z]+| ?[0-9]+|\n| ?[^\sA-Za-z0-9]"
)
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@cache
def vocabulary() -> dict[str, int]:
    """Every piece of the domain, special tokens first, filled to a multiple of 64 so that no logit lacks a token."""
    digits = [str(digit) for digit in range(MODULUS + 1)]
    pieces = [
        *SPECIAL,
        "\n",
        *(f"[{name}]" for name in NAMES),
        *(f'{space}"{name}"' for name in NAMES for space in ("", " ")),
    ]
    pieces += [f"{space}{name}:" for name in NAMES for space in ("", " ")]
    pieces += [f" {name}={digit}" for name in NAMES for digit in range(MODULUS)]
    pieces += [*(f" {name}" for name in NAMES), *digits, *(f" {digit}" for digit in digits)]
    pieces += ["Mod", ":", " +", ",", ".", " Find", "graph", "solution", "plan", "questions", "example", " makes"]
    pieces += [" What", "?", " answer", " \\boxed{", "}", " (requires:", ")", " reached", " next"]
    pieces += ["checkpoints", "attempt", "[", "]", " none", " no", " yes", *traces.pieces()]
    distinct = list(dict.fromkeys(pieces))
    distinct += [f"<|spare_{index}|>" for index in range(-len(distinct) % 64)]
    return {piece: index for index, piece in enumerate(distinct)}


def split(text: str) -> list[str]:
    """The pieces of bare text; `"".join` gives it back."""
    return re.findall(PIECE, text)


def save_tokenizer(directory: Path) -> None:
    """Write the tokenizer in a form that transformers 4 reads as well: its name of the class, its key of the tokens."""
    build_tokenizer().save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["additional_special_tokens"] = config.pop("extra_special_tokens")
    del config["backend"]
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A Hugging Face tokenizer with end, padding and a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel(vocabulary(), unk_token="<|unk|>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    core.decoder = decoders.Fuse()
    control = [piece for piece in vocabulary() if piece.startswith("<|") and piece not in SPECIAL[:2]]
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        unk_token="<|unk|>",
        additional_special_tokens=control,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
        chat_template=TEMPLATE,
    )
