"""Whether a model's vocabulary, positions and tokenizer suffice for a run, checked before anything is sampled."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_aopsd.config.keys import typed, where
from nemo_aopsd.config.rules import without_room
from nemo_aopsd.config.schema import Config
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Message, Tokenizer
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.config_json import FILE, ModelConfig, read_model_config

ROW = "policy.max_total_sequence_length"
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")
_LEAST_KEPT = 0.5  # share of the letters and digits of a text that must come back
_LEAST_LINE = 10  # letters and digits of a line whose loss is told

MAX_LOGITS = 2**25  # logits that exist at once, 128 MiB in float32; a GPU takes four times as many


def check_limits(config: Config, model: Path) -> None:
    """Raise UserError if `model`, a Hugging Face directory, has fewer words or positions than the config reads.

    A GGUF file, and a name that is no directory here, say how many only once they are loaded.
    """
    if (model / FILE).is_file():
        found = read_model_config(model / FILE)
        check_words(config, found.vocabulary, str(model))
        check_row(config, found)


def check_words(config: Config, words: int | None, model: str) -> None:
    """Raise UserError if the objective reads more than `words` words, those of `model`; None is not known."""
    objective = config.aopsd.objective
    k = getattr(objective, objective.top_k_key) if objective.top_k_key else None
    if k and words is not None and k > words:
        found = f"aopsd.objective.{objective.top_k_key} is {k}, but the vocabulary of {model} has {words} tokens"
        place = where(config, f"aopsd.objective.{objective.top_k_key}")
        raise UserError(f"{place}: {found}. Set it to at most {words}; 16 and 32 are usual.")


def check_row(config: Config, model: ModelConfig) -> None:
    """Raise UserError if a row may be longer than what `model` was made for."""
    longest, row = model.longest_row, config.policy["max_total_sequence_length"]
    if longest is not None and row > longest:
        known = f"{model.where} has {longest} positions (max_position_embeddings)"
        short = without_room(config.aopsd, config.rollout.max_new_tokens, longest)
        others = ", ".join(f"{key}={length}" for key, length, _ in short)
        remedy = f"Set it to at most {longest}" + (f", and lower what is to fit in it: {others}" if others else "")
        raise UserError(f"{where(config, ROW)}: {ROW} is {row}, but {known}. {remedy}.")


def check_has_tokenizer(path: Path) -> None:
    """Raise UserError if `path` is a folder without a tokenizer: transformers would make an empty one of it."""
    if path.is_dir() and not any(file for pattern in _TOKENIZER_FILES for file in path.glob(pattern)):
        raise UserError(f"{path}: no tokenizer in it ({', '.join(_TOKENIZER_FILES)}). Set policy.tokenizer.name.")


def check_vocabulary(num_tokens: int, words: int, tokenizer: str) -> None:
    """Raise UserError if `tokenizer` has more tokens than the model has words."""
    if num_tokens > words:
        sizes = f"{num_tokens} tokens, but the model's vocabulary has {words}"
        raise UserError(f"{tokenizer}: {sizes}. Set policy.tokenizer.name to the model's own.")


def check_thinking(thinking: Mapping[str, bool | None], tokenizer: Tokenizer, model: str) -> list[str]:
    """A warning for each key of `thinking` that is set, where the chat template of `model` knows no such switch."""
    question: list[Message] = [{"role": "user", "content": "?"}]
    chosen = {key: value for key, value in thinking.items() if value is not None}
    if not chosen or tokenizer.render(question, True) != tokenizer.render(question, False):
        return []
    return [
        f"{key} is {typed(value)}, without effect: the chat template of {model} has no `enable_thinking`. Leave it out."
        for key, value in chosen.items()
    ]


def check_readable(problems: Sequence[Problem], tokenizer: Tokenizer, model: str) -> list[str]:
    """A warning if questions come back from the tokenizer of `model` without most of their letters and digits."""
    lost = [problem for problem in problems if _is_lost(problem.problem, tokenizer)]
    if not lost:
        return []
    return [
        f"{len(lost)} of {len(problems)} questions are mostly unknown tokens to {model} (first: {lost[0].where}, "
        f"problem {lost[0].id!r}): it cannot read them. Choose another policy.model_name, or problems in its language."
    ]


def check_shown(shown: Sequence[tuple[Problem, list[Message]]], tokenizer: Tokenizer, model: str) -> list[str]:
    """As `check_readable`, of the lines of what the teacher is `shown` of each problem; short ones do not count."""
    lost = [
        (problem, line)
        for problem, messages in shown
        for line in "\n".join(message["content"] for message in messages).splitlines()
        if _letters(line) >= _LEAST_LINE and _is_lost(line, tokenizer)
    ]
    if not lost:
        return []
    number, (first, line) = len({problem.id for problem, _ in lost}), lost[0]
    return [
        f"in {number} of the first {len(shown)} prompts of the teacher a line is mostly unknown tokens to {model} "
        f"(first: {first.where}, problem {first.id!r}: {line[:60]!r}): it cannot read it. Correct the context, or "
        "choose another one, or another policy.model_name."
    ]


def _is_lost(text: str, tokenizer: Tokenizer) -> bool:
    return _letters(tokenizer.decode(tokenizer.encode(text))) < _LEAST_KEPT * _letters(text)


def _letters(text: str) -> int:
    return sum(character.isalnum() for character in text)


def chunk_size(vocabulary: int, on_gpu: bool, most: int = MAX_LOGITS) -> int:
    """Positions whose logits the local engine forms at once."""
    return max(1, most * (4 if on_gpu else 1) // vocabulary)
