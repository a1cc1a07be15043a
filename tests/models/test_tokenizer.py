"""Many conversations at once: ids as if each were rendered alone, with less to read."""

import json
import shutil
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from nemo_aopsd.config.schema import AOPSDConfig, JudgeConfig
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.judge import checkpoint_messages, judge_attempts
from nemo_aopsd.models.tokenizer import HFTokenizer, tokenizer_at_hand
from nemo_aopsd.run.preflight import look
from tests import REPO
from tests.fakes import make_config

BUILTIN = REPO / "nemo_aopsd/builtin"
GPT = r" ?[A-Za-z]+| ?[^\sA-Za-z]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # o200k's, for English
MERGES = [(".", "Ċ"), (".Ċ", "/"), ("Ċ", "Ġ"), ("Ġ", "Ċ"), ("w", "o")]
STORY = "Long enough to be most of a text, and of one line."


class Counting(HFTokenizer):
    """Counts the characters that the tokenizer reads."""

    num_read = 0

    def _ids_of(self, texts):
        texts = set(texts)
        self.num_read += sum(map(len, texts))
        return super()._ids_of(texts)


def words(prefix_space=False):
    """Byte-level BPE with merges that cross from one line to the next."""
    letters = [*pre_tokenizers.ByteLevel.alphabet(), *map("".join, MERGES)]
    core = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, MERGES))
    split = pre_tokenizers.Split(Regex(GPT), "isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    if prefix_space:
        core.normalizer = normalizers.Prepend(" ")
    hf = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="!")
    hf.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return Counting(hf, [])


@pytest.mark.parametrize(
    ("endings", "prefix_space", "is_shared"),
    [
        (("\nResult: one.", "\nResult: two.", "\nResult: two."), False, True),
        (("\none", "\n/two"), False, False),  # `.\n/` is one piece
        (("\n          one", "\n          \n two"), False, False),  # so are blanks up to the last line break
        (("\nResult: one.", "\nResult: two."), True, False),  # a line by itself gets a blank in front
    ],
)
def test_a_beginning_that_is_read_once_changes_no_id(endings, prefix_space, is_shared):
    tokenizer, texts = words(prefix_space), [STORY + ending for ending in endings]
    rendered = tokenizer.render_all([[{"role": "user", "content": text}] for text in texts], None)
    assert rendered == [tokenizer.encode(text) for text in texts]
    assert (tokenizer.num_read < sum(map(len, set(texts)))) == is_shared


def test_a_beginning_does_not_end_where_an_added_token_may_begin():
    core = words().hf
    core.add_tokens([AddedToken("<|end_of_turn|>", lstrip=True)])  # takes the line break before it
    tokenizer, texts = HFTokenizer(core, []), [f"{STORY}\n{ending}" for ending in ("<|end_of_turn|>", "<|end_of_day|>")]
    rendered = tokenizer.render_all([[{"role": "user", "content": text}] for text in texts], None)
    assert rendered == [tokenizer.encode(text) for text in texts]


def test_blocks_of_conversations_keep_their_order():
    tokenizer = words()
    texts = [f"{number} and {number % 7}" for number in range(600)]
    rendered = tokenizer.render_all([[{"role": "user", "content": text}] for text in texts], None)
    assert rendered == [tokenizer.encode(text) for text in texts]
    assert tokenizer.render_all([], None) == []


def test_a_judge_by_log_odds_asks_what_it_would_ask_one_by_one():
    tokenizer = Counting(AutoTokenizer.from_pretrained(BUILTIN / "model"), [])
    problems = load_problems(BUILTIN / "data/train.jsonl")[:40]
    responses = [tokenizer.encode(" ".join([problem.solution or ""] * 3)) for problem in problems]
    asked = []

    class Model:
        def next_logprobs(self, *arguments):
            asked.append(arguments)
            return [[torch.zeros(len(arguments[3]))] * len(row) for row in arguments[2]]

    aopsd = AOPSDConfig(prompts="tiny", judge=JudgeConfig(kind="log_odds"))
    config = make_config(Path("run"), aopsd, max_total_sequence_length=9999)
    model: Any = Model()
    judge_attempts(model, tokenizer, problems, responses, config, seed=0)
    ((prompts, nothing, branches, _),) = asked
    num_characters = 0
    assert nothing == [[]] * len(problems)
    for problem, response, prompt, row in zip(problems, responses, prompts, branches, strict=True):
        texts = [
            tokenizer.hf.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
            for question in checkpoint_messages(problem, tokenizer.decode(response), "tiny")
        ]
        num_characters += sum(map(len, texts))
        alone = [tokenizer.encode(text) for text in texts]
        assert [prompt + branch.tokens for branch in row] == alone
        assert {branch.position for branch in row} == {0}
        columns = takewhile(lambda column: len(set(column)) == 1, zip(*alone, strict=False))
        assert prompt == [column[0] for column in columns]  # all that they share
    assert tokenizer.num_read < num_characters / 2


def test_pieces_are_the_text_of_each_token_by_itself():
    tokenizer = HFTokenizer(AutoTokenizer.from_pretrained(BUILTIN / "model"), [])
    tokens = [5, 9, 5, tokenizer.end_id]
    assert tokenizer.pieces(tokens) == tokenizer.pieces(tokens) == [tokenizer.hf.decode([token]) for token in tokens]


def test_a_row_beyond_what_the_tokenizer_names_is_no_warning_of_its_library():
    """Whether a row fits is told in our words, with the problem and what to set."""
    hf = AutoTokenizer.from_pretrained(str(REPO / "nemo_aopsd/builtin/model"))
    assert hf.model_max_length < len(HFTokenizer(hf, []).render([{"role": "user", "content": "1 " * 999}], None))
    assert not hf.deprecation_warnings  # transformers notes there what it has warned of


@pytest.mark.parametrize("engine", ["local", "nemo_rl"])
def test_a_folder_without_a_tokenizer_is_told_as_that_and_not_as_one_without_a_chat_template(tmp_path, engine):
    """transformers makes a tokenizer of no words from `config.json` alone."""
    shutil.copy(BUILTIN / "model/config.json", tmp_path)
    config = make_config(tmp_path, AOPSDConfig(engine=engine), model_name=str(tmp_path))
    with pytest.raises(UserError, match=rf"{tmp_path}: no tokenizer in it \(tokenizer\*, vocab\*, "):
        tokenizer_at_hand(config)


def test_a_tokenizer_larger_than_the_model_is_told_before_lengths_that_it_gives(tmp_path):
    model = shutil.copytree(BUILTIN / "model", tmp_path / "model")
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"vocab_size": 64}))
    config = make_config(tmp_path, AOPSDConfig(), model_name=str(model))
    config.data["train"]["data_path"] = str(BUILTIN / "data/train.jsonl")
    config.policy["max_total_sequence_length"] = 8
    found = look(config, [], lambda: None, lambda: None)
    assert found.refused["prompts"].startswith(f"{model}: 320 tokens, but the model's vocabulary has 64. ")
