"""Parallel sizes against a model's config.json: what does not divide is refused before a GPU is taken."""

import json

import pytest
from huggingface_hub import constants

from nemo_aopsd.config.load import load_config
from nemo_aopsd.engines.nemo_rl.settings import read_settings
from nemo_aopsd.errors import UserError
from tests.engines.test_nemo_rl_settings import CONFIGS, ENVIRONMENT, base, faults, full  # noqa: F401  fixtures

# Qwen3-4B's sizes, and a mixture's.
DENSE = {
    **{"model_type": "qwen3", "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"intermediate_size": 9728, "vocab_size": 151936, "hidden_size": 2560},
}
MIXTURE = DENSE | {"model_type": "qwen3_moe", "num_experts": 96, "num_key_value_heads": 4, "num_experts_per_tok": 8}
FIRST, LAST = (f"M.num_layers_in_{end}_pipeline_stage" for end in ("first", "last"))
ON_DTENSOR = "M.enabled=false D.enabled=true MULTIPLE=16"


@pytest.fixture
def refused(faults, tmp_path):  # noqa: F811
    """The refusals of a model, a directory of a config.json alone; the batch divides over any power of two.

    The trainer scores, as it has to with experts.
    """

    def find(content, words):
        (tmp_path / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
        batch = "aopsd.num_prompts_per_step=480 grpo.num_prompts_per_step=480 BATCH=480"
        return faults(f"policy.model_name={tmp_path} cluster.gpus_per_node=480 aopsd.scoring=trainer {batch} {words}")

    return find


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (DENSE, ""),
        (DENSE, "TP=4 PP=4 V.tensor_parallel_size=8 MULTIPLE=4"),
        (DENSE, "TP=16 MULTIPLE=16"),  # two GPUs share a key-value head
        (DENSE, f"PP=8 {FIRST}=1"),  # 35 / 7
        (DENSE, f"PP=8 {FIRST}=3 {LAST}=3"),  # 30 / 6
        (DENSE, f"PP=2 {FIRST}=30 {LAST}=6"),
        (DENSE, f"{ON_DTENSOR} D.tensor_parallel_size=8"),
        (DENSE, "policy.hf_config_overrides.num_hidden_layers=35 PP=5 cluster.gpus_per_node=320"),
        (MIXTURE, "EP=16 V.tensor_parallel_size=4 V.expert_parallel_size=4"),
        (MIXTURE | {"num_experts": None, "moe_num_experts": 60}, "EP=8"),  # a name that is not known here
    ],
)
def test_sizes_that_divide_pass(refused, content, words):
    assert refused(content, words) == []


@pytest.mark.parametrize(
    ("changes", "words", "key", "expected"),
    [
        ({}, "PP=8", "PP is 8", "36 of the 36 layers"),
        ({}, f"PP=4 {FIRST}=10", "PP is 4", "26 of the 36 layers"),
        ({}, f"PP=2 {FIRST}=30 {LAST}=5", "PP is 2", "1 of the 36 layers"),
        ({}, f"PP=2 {LAST}=40", "PP is 2", "-4 of the 36 layers"),
        ({}, "M.account_for_embedding_in_pipeline_split=true", "M.account_for_embedding_in_pipeline_split is", "null"),
        ({}, "M.pipeline_model_parallel_layout=Et|tL", "M.pipeline_model_parallel_layout is Et|tL", "null"),
        ({}, "EP=2", "EP is 2", "1: the model has no experts"),
        ({}, "V.tensor_parallel_size=2 V.expert_parallel_size=2", "V.expert_parallel_size is 2", "1: the model has no"),
        ({}, "policy.hf_config_overrides.num_hidden_layers=35 PP=2", "PP is 2", "35 of the 35 layers"),
        # a model that also sees has its sizes in the part for text
        ({"text_config": {**DENSE, "num_hidden_layers": 35}}, "PP=2", "PP is 2", "35 of the 35 layers"),
        # tensor parallelism: Megatron's, vLLM's and DTensor's
        ({"num_attention_heads": 30}, "TP=4", "TP is 4", "a divisor of the 30 attention heads of"),
        ({"vocab_size": 151937}, "TP=4", "TP is 4", "a divisor of the 151937 words of the vocabulary of"),
        ({"intermediate_size": 9730}, "TP=4", "TP is 4", "a divisor of the 9730 columns of the MLP of"),
        (
            {"linear_num_key_heads": 6, "linear_num_value_heads": 16},
            "TP=4",
            "TP is 4",
            "a divisor of the 6 key heads of linear attention of",
        ),
        ({"num_attention_heads": 24, "num_key_value_heads": 6}, "TP=4", "TP is 4", "the 6 key-value heads of"),
        ({"num_attention_heads": 30}, "V.tensor_parallel_size=4", "V.tensor_parallel_size is 4", "30 attention heads"),
        (
            *({"num_attention_heads": 24, "num_key_value_heads": 6}, "V.tensor_parallel_size=4"),
            *("V.tensor_parallel_size is 4", "the 6 key-value heads of"),
        ),
        (
            *({}, f"{ON_DTENSOR} D.tensor_parallel_size=16"),
            *("D.tensor_parallel_size is 16", "a divisor of the 8 key-value heads of"),
        ),
        ({**MIXTURE, "num_experts": 60}, "EP=8", "EP is 8", "a divisor of the 60 experts of"),
        (MIXTURE, "aopsd.scoring=sampler", "aopsd.scoring is sampler", "prefill: experts are chosen differently"),
    ],
)
def test_a_size_that_does_not_divide_is_refused(refused, tmp_path, changes, words, key, expected):
    if "TP=4" in words.split():
        words = f"{words} MULTIPLE=4"
    (line,) = refused(DENSE | changes, words)
    name, _, value = key.partition(" is")
    assert line.startswith(f"{full(name)} is{value}") and expected in line
    assert "null" in expected or str(tmp_path / "config.json") in line


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_broken_config_is_one_fault(refused, content):
    (line,) = refused(content, "")
    assert line.startswith("policy.model_name is ")


def test_a_model_that_is_not_here_is_left_to_nemo_rl(faults):  # noqa: F811
    assert faults("policy.model_name=not/a/hub/name PP=2") == []


def test_a_hub_model_in_the_cache_is_read_without_a_network(tmp_path, monkeypatch, faults):  # noqa: F811
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.socket.connect", lambda *address: pytest.fail("a connection"))
    folder = tmp_path / "models--Qwen--Qwen3-4B"
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "snapshots/abc/config.json").write_text(json.dumps(DENSE | {"num_hidden_layers": 35}))
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("abc")
    (line,) = faults("policy.model_name=Qwen/Qwen3-4B PP=2")
    assert f"35 layers of {folder}/snapshots/abc/config.json" in line


@pytest.mark.parametrize(
    ("content", "fits"),
    [
        ({"max_position_embeddings": 16384}, True),
        ({"max_position_embeddings": 8192}, False),
        ({"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, True),
        ({"text_config": DENSE | {"max_position_embeddings": 8192}}, False),
    ],
)
def test_rows_fit_the_positions(tmp_path, content, fits):
    (tmp_path / "config.json").write_text(json.dumps(DENSE | content))
    config = load_config(CONFIGS / "aopsd_qwen3_4b_megatron.yaml", [f"policy.model_name={tmp_path}"])
    if fits:
        read_settings(config, ENVIRONMENT)
    else:
        with pytest.raises(UserError, match=r"max_total_sequence_length is 16384, .*8192"):
            read_settings(config, ENVIRONMENT)
