"""Questions that a tokenizer has no words for are told before they are trained on."""

from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.models.readable import check_readable
from nemo_aopsd.models.tokenizer import HFTokenizer
from tests import REPO

EMBEDDED = REPO / "nemo_aopsd/builtin"
EXAMPLES = REPO / "examples/data/problems.jsonl"


@pytest.fixture(scope="module")
def tokenizer():
    return HFTokenizer(AutoTokenizer.from_pretrained(EMBEDDED / "model"), ())


def test_the_built_in_model_reads_its_own_problems_and_no_others(tokenizer):
    assert check_readable(load_problems(EMBEDDED / "data/train.jsonl")[:20], tokenizer, "m") == []
    english = load_problems(EXAMPLES)
    (warning,) = check_readable(english, tokenizer, "m")
    assert warning.startswith(f"{len(english)} of {len(english)} questions are mostly unknown tokens to m (first: ")
    assert f"{english[0].where}, problem {english[0].id!r}" in warning


def test_a_few_unknown_letters_are_none_of_it(tokenizer):
    own = load_problems(EMBEDDED / "data/train.jsonl")[0]
    assert check_readable([replace(own, problem=own.problem + " q\u00e9")], tokenizer, "m") == []
    assert check_readable([replace(own, problem="?!")], tokenizer, "m") == []
