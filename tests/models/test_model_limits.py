"""More words or positions than a model has, and questions that its tokenizer cannot read: told before sampling."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.schema import AOPSDConfig, ObjectiveConfig
from nemo_aopsd.config.shipped import FOLDER
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.config_json import find_model_config, parse, read_model_config
from nemo_aopsd.models.limits import check_limits, check_readable, check_row, check_words
from nemo_aopsd.models.tokenizer import HFTokenizer
from nemo_aopsd.run.row_lengths import check_texts
from tests import REPO

EMBEDDED = REPO / "nemo_aopsd/builtin"
EXAMPLES = REPO / "examples/data/problems.jsonl"


def config(**objective):
    return SimpleNamespace(
        aopsd=replace(AOPSDConfig(), objective=ObjectiveConfig(**objective)),
        policy={"max_total_sequence_length": 512},
        rollout=SimpleNamespace(max_new_tokens=511),
        origins={},
    )


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 320, "max_position_embeddings": 512}))
    return tmp_path


@pytest.mark.parametrize("objective", [{"name": "topk_fkl", "top_k": 321}, {"name": "fkl", "support": 321}])
def test_more_words_than_there_are_are_refused_with_the_key_and_the_most(model, objective):
    key = list(objective)[1]
    with pytest.raises(UserError, match=rf"aopsd.objective.{key} is 321, but .* has 320 tokens. Set it to at most 320"):
        check_limits(config(**objective), model)


@pytest.mark.parametrize(
    "objective", [{"name": "topk_fkl", "top_k": 320}, {"name": "pg", "top_k": 321}, {"name": "fkl"}]
)
def test_all_words_and_objectives_that_read_none_pass(model, objective):
    check_limits(config(**objective), model)


def test_a_name_that_is_no_directory_is_left_until_it_is_loaded():
    check_limits(config(name="topk_fkl", top_k=10**6), Path("Qwen/Qwen3-4B"))
    with pytest.raises(UserError, match=r"the vocabulary of smol\.gguf has 49152 tokens"):
        check_words(config(name="topk_fkl", top_k=10**6), 49152, "smol.gguf")


def test_rows_longer_than_the_positions_are_refused_with_the_most(model):
    (model / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 511}}))
    others = r"policy\.generation\.max_new_tokens=511, aopsd\.judge\.max_new_tokens=512\.$"  # nothing is evaluated
    with pytest.raises(UserError, match=rf"length is 512, but .* has 511 positions .* at most 511, and .*: {others}"):
        check_limits(config(), model)
    with pytest.raises(UserError, match=r"smol\.gguf has 511 positions"):
        check_row(config(), parse({"max_position_embeddings": 511}, "smol.gguf"))


@pytest.mark.parametrize(
    ("content", "longest"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 512),
        ({"rope_scaling": None}, 512),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 512),  # its positions are those after scaling
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, None),
        ({"rope_parameters": {"full": {"rope_type": "default"}, "sliding": {"rope_type": "linear"}}}, None),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_positions_that_are_stretched_are_left_to_whoever_loads_the_model(content, longest):
    assert parse({"max_position_embeddings": 512} | content, "here").longest_row == longest


def test_a_file_that_is_no_json_object_is_told_by_its_place(model):
    for content in ("[]", "{"):
        (model / "config.json").write_text(content)
        with pytest.raises(UserError, match=f"{model}/config.json"):
            read_model_config(model / "config.json")
    assert find_model_config("no/such_model") is None and find_model_config(str(model.parent)) is None


def test_a_number_that_is_not_said_is_asked_for_by_name(model):
    found = read_model_config(model / "config.json")
    assert found.need("vocabulary") == 320
    with pytest.raises(UserError, match=f"{model}/config.json: .* hidden"):
        found.need("hidden")


@pytest.fixture(scope="module")
def tokenizer():
    return HFTokenizer(AutoTokenizer.from_pretrained(EMBEDDED / "model"), ())


def test_the_built_in_model_reads_its_own_problems_and_no_others(tokenizer):
    assert check_readable(load_problems(EMBEDDED / "data/train.jsonl")[:20], tokenizer, "m") == []
    english = load_problems(EXAMPLES)
    (warning,) = check_readable(english, tokenizer, "m")
    assert warning.startswith(f"{len(english)} of {len(english)} questions are mostly unknown tokens to m (first: ")
    assert f"{english[0].where}, problem {english[0].id!r}" in warning


def test_what_the_teacher_is_shown_and_the_model_cannot_read_is_a_warning(tokenizer):
    config = load_config(FOLDER / "demo.yaml", ["aopsd.context.kind=solution"])
    own = load_problems(EMBEDDED / "data/train.jsonl")[:120]
    assert check_texts(config, own, None, tokenizer) == []
    foreign = [replace(each, solution="Wir addieren die Zahlen.") for each in own[:2]]
    [told] = check_texts(config, own[:1] + foreign, None, tokenizer)
    assert told.startswith("in 2 of the first 3 prompts of the teacher a line is mostly unknown tokens to ")
    assert f"{own[0].where}, problem {own[0].id!r}: 'Wir addieren die Zahlen.'): it cannot read it." in told


def test_a_few_unknown_letters_are_none_of_it(tokenizer):
    own = load_problems(EMBEDDED / "data/train.jsonl")[0]
    assert check_readable([replace(own, problem=own.problem + " q\u00e9")], tokenizer, "m") == []
    assert check_readable([replace(own, problem="?!")], tokenizer, "m") == []
