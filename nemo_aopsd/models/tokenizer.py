"""A Hugging Face tokenizer behind the core's `Tokenizer` protocol."""

import struct
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nemo_aopsd.config.schema import Config
from nemo_aopsd.engine import Message
from nemo_aopsd.errors import UserError, first_line
from nemo_aopsd.models.config_json import TOKENIZER_FILES, find_cached, find_model_config
from nemo_aopsd.models.limits import check_has_tokenizer, check_vocabulary
from nemo_aopsd.thoughts import is_thought_mark
from nemo_aopsd.types import Tokens

_AT_ONCE = 256  # conversations of a call: enough for its threads, and what it returns of each token takes 100 bytes
_LEAST_SHARED = 8  # characters behind a seam


class HFTokenizer:
    """`hf` is the wrapped tokenizer; `end_ids` joins its own end token, which is `end_id`, and the model's list."""

    def __init__(self, hf: Any, model_end_ids: Iterable[int]):
        if not hf.chat_template:
            remedy = "Use an instruction-tuned model, or add chat_template.jinja to its directory."
            raise UserError(f"{hf.name_or_path}: the tokenizer has no chat template. {remedy}")
        self.hf = hf
        own = [] if hf.eos_token_id is None else [hf.eos_token_id]
        ends = [*own, *model_end_ids]
        if not ends:
            raise UserError(f"{hf.name_or_path}: neither tokenizer nor model names an end token. Set eos_token.")
        self.end_ids, self.end_id = frozenset(ends), ends[0]
        plain = hf("a")["input_ids"]
        special = {id: token.content for id, token in hf.added_tokens_decoder.items() if token.special}
        marks = {id for id, token in special.items() if is_thought_mark(token)}
        self._hidden = special.keys() - marks if marks else None  # None: all special tokens
        self._openers = {token[0] for token in hf.get_added_vocab()}
        self._piece_of: dict[int, str] = {}
        self._adds_bos = hf.bos_token_id is not None and plain[:1] == [hf.bos_token_id]

    def render(self, messages: list[Message], thinking: bool | None) -> Tokens:
        """Prompt ids with the generation marker and, if the model wants one, exactly one beginning-of-sequence."""
        return self.render_all([messages], thinking)[0]

    def render_all(self, conversations: list[list[Message]], thinking: bool | None) -> list[Tokens]:
        options = {} if thinking is None else {"enable_thinking": thinking}
        rendered = []
        for start in range(0, len(conversations), _AT_ONCE):
            block = conversations[start : start + _AT_ONCE]
            texts = self.hf.apply_chat_template(block, add_generation_prompt=True, tokenize=False, **options)
            rendered += [self._with_one_bos(ids) for ids in self._encode_all(texts)]
        return rendered

    def _encode_all(self, texts: Sequence[str]) -> list[Tokens]:
        """The ids of each text as if it stood alone; a beginning that it shares with its leader is read once.

        Where a leader's tail, read by itself, gives other ids than within the leader, texts are read whole.
        """
        leaders = list(_leaders(texts, self._openers))
        parts = [part[seam:] for text, (leader, seam) in zip(texts, leaders, strict=True) for part in (leader, text)]
        ids = self._ids_of(parts)
        found: list[Tokens | None] = []
        for text, (leader, seam) in zip(texts, leaders, strict=True):
            whole, tail = ids[leader], ids[leader[seam:]]
            before = len(whole) - len(tail)
            found.append(whole[:before] + ids[text[seam:]] if whole[before:] == tail else None)
        alone = self._ids_of(text for text, row in zip(texts, found, strict=True) if row is None)
        return [alone[text] if row is None else row for text, row in zip(texts, found, strict=True)]

    def _ids_of(self, texts: Iterable[str]) -> dict[str, Tokens]:
        different = list(dict.fromkeys(texts))
        # not verbose: rows that are too long are told in our words (run/row_lengths.py)
        ids = self.hf(different, add_special_tokens=False, verbose=False)["input_ids"] if different else []
        return dict(zip(different, ids, strict=True))

    def _with_one_bos(self, ids: Tokens) -> Tokens:
        bos = self.hf.bos_token_id
        while bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]
        return [bos, *ids] if bos is not None and self._adds_bos and ids[:1] != [bos] else ids

    def encode(self, text: str) -> Tokens:
        return self.hf(text, add_special_tokens=False)["input_ids"]

    def decode(self, tokens: Tokens) -> str:
        """Without special tokens, but for those that mark thoughts: a thought must not look like the answer."""
        if self._hidden is not None:
            tokens = [token for token in tokens if token not in self._hidden]
        return self.hf.decode(tokens, skip_special_tokens=self._hidden is None, clean_up_tokenization_spaces=False)

    def pieces(self, tokens: Tokens) -> list[str]:
        for token in set(tokens).difference(self._piece_of):
            self._piece_of[token] = self.hf.decode([token], clean_up_tokenization_spaces=False)
        return [self._piece_of[token] for token in tokens]


def _leaders(texts: Iterable[str], openers: Collection[str]) -> Iterator[tuple[str, int]]:
    """For each text one before it that begins as it does, and the seam behind that beginning; or itself, and 0."""
    leader = ""
    for text in texts:
        seam = _seam(leader, text, openers)
        leader = leader if seam else text
        yield leader, seam


def _seam(leader: str, text: str, openers: Collection[str]) -> int:
    """The beginning of the last line of which both share the first characters; 0 if most of the text is behind it.

    Tokenizers look a few characters ahead, and take blanks together: those at the seam are shared, and the first is
    no blank. Nor is it one of `openers`, with which added tokens begin: these may take the blanks before them, and may
    be longer than what is shared.
    """
    most = min(len(leader), len(text))
    num_shared = bisect_left(range(1, most + 1), True, key=lambda length: leader[:length] != text[:length])
    seam = text.rfind("\n", 0, max(0, num_shared - _LEAST_SHARED)) + 1
    is_safe = 2 * seam > len(text) and not text[seam].isspace() and text[seam] not in openers
    return seam if is_safe else 0


# What transformers raises for a folder or GGUF file that is none, or cut short.
UNREADABLE = (OSError, ValueError, struct.error, EOFError)
NO_GGUF = "no GGUF file of a model, or cut or damaged"


def open_tokenizer(source: str | Path, remedy: str = "Check it, or copy it again.") -> Any:
    """The Hugging Face tokenizer of a folder, a GGUF file or a hub name. Raises UserError with the remedy."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(**where_from(Path(source)))
    except UNREADABLE as error:
        what = NO_GGUF if str(source).endswith(".gguf") else "no usable tokenizer"
        raise UserError(f"{source}: {what}: {first_line(error)}. {remedy}") from error


def where_from(path: Path) -> dict[str, str]:
    """The arguments of `from_pretrained` for a folder, a GGUF file or a hub name."""
    gguf = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    return {"pretrained_model_name_or_path": str(path.parent if gguf else path), **gguf}


def tokenizer_at_hand(config: Config) -> HFTokenizer | None:
    """That of a config whose model need not be here: from a folder or the hub's cache; None where neither has it.

    A GGUF file counts as not at hand: its tokenizer takes as long as the model. Raises UserError if the folder has
    none, if it is no chat model's, or, for the local engine, if it has more tokens than the model has words.
    """
    model = config.policy["model_name"]
    name = (config.policy.get("tokenizer") or {}).get("name") or model
    path = Path(name)
    if not (path.exists() or any(find_cached(name, file) for file in TOKENIZER_FILES)):
        return None  # without the seconds that it takes to import transformers
    check_has_tokenizer(path)
    from transformers import AutoTokenizer

    try:
        hf = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # the last three: of a broken config.json
        return None
    words = (found := find_model_config(model)) and found.vocabulary
    if words and config.aopsd.engine == "local":  # which refuses it once it is loaded
        check_vocabulary(len(hf), words, hf.name_or_path)
    return HFTokenizer(hf, generation_end_ids(model, local_files_only=True))


def generation_end_ids(model_name: str, **options: Any) -> list[int]:
    """The end tokens that the model's `generation_config.json` names; none without that file."""
    from transformers import GenerationConfig

    try:
        return as_list(GenerationConfig.from_pretrained(model_name, **options).eos_token_id)
    except OSError:
        return []


def as_list(end_ids: int | list[int] | None) -> list[int]:
    """As transformers has them: none, one or several."""
    return [] if end_ids is None else end_ids if isinstance(end_ids, list) else [end_ids]
