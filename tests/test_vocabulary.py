"""More words asked of the teacher than there are: refused before anything is sampled, on either engine."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_aopsd.config import AOPSDConfig, ObjectiveConfig
from nemo_aopsd.errors import UserError
from nemo_aopsd.vocabulary import check_top_k, check_words


def config(**objective):
    return SimpleNamespace(aopsd=replace(AOPSDConfig(), objective=ObjectiveConfig(**objective)))


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 320}))
    return tmp_path


@pytest.mark.parametrize("objective", [{"name": "topk_fkl", "top_k": 321}, {"name": "fkl", "support": 321}])
def test_more_words_than_there_are_are_refused_with_the_key_and_the_most(model, objective):
    key = list(objective)[1]
    with pytest.raises(UserError, match=rf"aopsd.objective.{key} is 321, but .* has 320 tokens. Set it to at most 320"):
        check_top_k(config(**objective), model)


@pytest.mark.parametrize(
    "objective", [{"name": "topk_fkl", "top_k": 320}, {"name": "pg", "top_k": 321}, {"name": "fkl"}]
)
def test_all_words_and_objectives_that_read_none_pass(model, objective):
    check_top_k(config(**objective), model)


def test_a_name_that_is_no_directory_is_left_until_it_is_loaded():
    check_top_k(config(name="topk_fkl", top_k=10**6), Path("Qwen/Qwen3-4B"))
    with pytest.raises(UserError, match=r"the vocabulary of smol\.gguf has 49152 tokens"):
        check_words(config(name="topk_fkl", top_k=10**6), 49152, "smol.gguf")
