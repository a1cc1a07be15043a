"""Parallel sizes against a model's config.json: what does not divide is refused before a GPU is taken."""

import json

import pytest
from huggingface_hub import constants

from nemo_aopsd.config.load import load_config
from nemo_aopsd.engines.nemo_rl.settings import read_settings
from nemo_aopsd.errors import UserError
from tests import REPO

CONFIGS = REPO / "examples" / "configs"
ENVIRONMENT = {"TORCH_CUDA_ARCH_LIST": "9.0"}
MEGATRON, DTENSOR, VLLM = "policy.megatron_cfg", "policy.dtensor_cfg", "policy.generation.vllm_cfg"
TP, PP, EP = (f"{MEGATRON}.{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "expert_model"))
FIRST, LAST = (f"{MEGATRON}.num_layers_in_{end}_pipeline_stage" for end in ("first", "last"))
VLLM_TP, VLLM_EP = f"{VLLM}.tensor_parallel_size", f"{VLLM}.expert_parallel_size"
# Qwen3-4B's sizes, and a mixture's.
DENSE = {
    **{"model_type": "qwen3", "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"intermediate_size": 9728, "vocab_size": 151936, "hidden_size": 2560},
}
MIXTURE = DENSE | {"model_type": "qwen3_moe", "num_experts": 96, "num_key_value_heads": 4, "num_experts_per_tok": 8}


@pytest.fixture
def model(tmp_path):
    """Makes a model directory of a config.json alone."""

    def make(content):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return folder

    return make


def faults(name, *overrides, gpus=32):
    """The lines of the refusal; none if there is none. Batches divide over any power of two."""
    common = [f"policy.model_name={name}", f"cluster.gpus_per_node={gpus}", "aopsd.num_prompts_per_step=480"]
    try:
        read_settings(load_config(CONFIGS / "aopsd_qwen3_4b_megatron.yaml", [*common, *overrides]), ENVIRONMENT)
    except UserError as error:
        return str(error).split("\n")[1:]
    return []


def tensor(size):
    return (f"{TP}={size}", f"{MEGATRON}.sequence_parallel={'true' if size > 1 else 'false'}")


@pytest.mark.parametrize("content", [DENSE, MIXTURE], ids=["dense", "mixture"])
def test_sizes_that_divide_pass(model, content):
    for overrides in (
        (),
        (*tensor(4), f"{PP}=4", f"{VLLM_TP}=8"),
        (f"{PP}=8", f"{FIRST}=1"),  # 35 / 7
        (f"{PP}=8", f"{FIRST}=3", f"{LAST}=3"),  # 30 / 6
        (f"{PP}=2", f"{FIRST}=30", f"{LAST}=6"),
        tensor(16) if content is DENSE else (),  # two GPUs share a key-value head
    ):
        assert faults(model(content), *overrides) == []
    if content is MIXTURE:
        assert faults(model(content), f"{EP}=16", f"{VLLM_TP}=4", f"{VLLM_EP}=4") == []


@pytest.mark.parametrize(
    ("overrides", "key", "expected", "remedy"),
    [
        (
            (f"{PP}=8",),
            f"{PP} is 8",
            "a divisor of the 36 layers",
            f"one of 1, 2, 3, 4, 6, 9, 12, 18, 36, or {FIRST}=1",
        ),
        (
            (f"{PP}=4", f"{FIRST}=10"),
            *(f"{PP} is 4", f"beside {FIRST}=10: 26 of the 36 layers", f"without these keys, or {FIRST}=9"),
        ),
        ((f"{PP}=2", f"{FIRST}=30", f"{LAST}=5"), f"{PP} is 2", "1 of the 36 layers", "without these keys"),
        ((f"{PP}=2", f"{LAST}=40"), f"{PP} is 2", f"{LAST}=40: -4 of the 36 layers", "without these keys"),
        ((f"{PP}=2", f"{FIRST}=0"), f"{FIRST} is 0", "null, or a whole number of at least 1", f"Set {FIRST}=null"),
        (
            (f"++{MEGATRON}.account_for_embedding_in_pipeline_split=true",),
            *(f"{MEGATRON}.account_for_embedding_in_pipeline_split is true", "null: NeMo RL v0.7.0 does not", FIRST),
        ),
        (
            (f"++{MEGATRON}.pipeline_model_parallel_layout='Et|tL'",),
            *(f"{MEGATRON}.pipeline_model_parallel_layout is Et|tL", "null: NeMo RL", FIRST),
        ),
        ((f"{EP}=2",), f"{EP} is 2", "1: the model has no experts, by", f"Set {EP}=1"),
        ((f"{VLLM_TP}=2", f"{VLLM_EP}=2"), f"{VLLM_EP} is 2", "1: the model has no experts", f"Set {VLLM_EP}=1"),
    ],
)
def test_a_dense_model_is_split_otherwise(model, overrides, key, expected, remedy):
    folder = model(DENSE)
    (line,) = faults(folder, *overrides)
    assert line.startswith(f"- {key}; expected ")
    assert expected in line and remedy in line
    assert str(folder / "config.json") in line or "null" in line


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_attention_heads": 30}, "a divisor of the 30 attention heads of"),
        ({"num_attention_heads": 24, "num_key_value_heads": 6}, "a divisor or a multiple of the 6 key-value heads of"),
        ({"vocab_size": 151937}, "a divisor of the 151937 words of the vocabulary of"),
        ({"intermediate_size": 9730}, "a divisor of the 9730 columns of the MLP of"),
        (
            {"linear_num_key_heads": 6, "linear_num_value_heads": 16},
            "a divisor of the 6 key heads of linear attention of",
        ),
    ],
)
def test_tensor_parallelism_of_megatron(model, changes, expected):
    (line,) = faults(model(DENSE | changes), *tensor(4))
    assert line.startswith(f"- {TP} is 4; expected {expected} ")
    assert line.endswith((f"Set {TP} to 1.", f"Set {TP} to 1 or 2."))


def test_a_hybrid_of_gated_delta_layers_has_its_sizes_in_the_part_for_text(model):
    content = {"model_type": "qwen3_5", "text_config": DENSE | {"num_hidden_layers": 35}, "vision_config": {}}
    (line,) = faults(model(content), f"{PP}=2")
    assert "a divisor of the 35 layers" in line


@pytest.mark.parametrize(
    ("changes", "refused"),
    [({"num_attention_heads": 30}, True), ({"num_attention_heads": 24, "num_key_value_heads": 6}, True), ({}, False)],
)
def test_tensor_parallelism_of_vllm(model, changes, refused):
    lines = faults(model(DENSE | changes), *tensor(1), f"{VLLM_TP}=4")
    assert [line.split(";")[0] for line in lines] == [f"- {VLLM_TP} is 4"] * refused


def test_dtensor_copies_no_key_value_heads(model):
    on = (f"{MEGATRON}.enabled=false", f"{DTENSOR}.enabled=true", "policy.make_sequence_length_divisible_by=16")
    assert faults(model(DENSE), *on, f"{DTENSOR}.tensor_parallel_size=8") == []
    (line,) = faults(model(DENSE), *on, f"{DTENSOR}.tensor_parallel_size=16")
    assert line.startswith(f"- {DTENSOR}.tensor_parallel_size is 16; expected a divisor of the 8 key-value heads of")
    assert line.endswith("to 1 or 2 or 4 or 8.")


def test_experts_are_split_evenly_by_megatron(model):
    (line,) = faults(model(MIXTURE | {"num_experts": 60}), f"{EP}=8")
    assert line.startswith(f"- {EP} is 8; expected a divisor of the 60 experts of ")
    renamed = {key: value for key, value in MIXTURE.items() if key != "num_experts"} | {"moe_num_experts": 60}
    assert faults(model(renamed), f"{EP}=8") == []  # a name that is not known here: left to NeMo RL


def test_overrides_of_the_model_count(model):
    folder = model(DENSE)
    assert len(faults(folder, f"{PP}=2", "++policy.hf_config_overrides.num_hidden_layers=35")) == 1
    assert faults(folder, f"{PP}=5", "++policy.hf_config_overrides.num_hidden_layers=35", gpus=40) == []


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_broken_config_is_one_fault(model, content):
    (line,) = faults(model(content))
    assert line.startswith("- policy.model_name is ") and "expected a config.json with one JSON object" in line


@pytest.mark.parametrize("name", ["Qwen/Qwen3-4B", "not/a/hub/name"])
def test_a_model_that_is_not_here_is_left_to_nemo_rl(name, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert faults(name, f"{PP}=8", f"{EP}=2") == []


def test_a_hub_model_in_the_cache_is_read_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.socket.connect", lambda *address: pytest.fail("a connection"))
    snapshot = tmp_path / "models--Qwen--Qwen3-4B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(DENSE))
    refs = tmp_path / "models--Qwen--Qwen3-4B" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    (line,) = faults("Qwen/Qwen3-4B", f"{PP}=8")
    assert f"36 layers of {snapshot}/config.json" in line


LONGER = "++policy.hf_config_overrides.max_position_embeddings=32768"


@pytest.mark.parametrize(
    ("content", "overrides", "expected"),
    [
        (DENSE | {"max_position_embeddings": 16384}, (), []),
        (DENSE | {"max_position_embeddings": 8192}, (), ["expected at most 8192"]),
        (DENSE | {"max_position_embeddings": 8192}, (LONGER,), []),
        (DENSE | {"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, (), []),
        ({"text_config": DENSE | {"max_position_embeddings": 8192}}, (), ["expected at most 8192"]),
    ],
)
def test_rows_fit_the_positions(model, content, overrides, expected):
    lines = faults(model(content), *overrides)
    key = "policy.max_total_sequence_length"
    assert [line.split(", ")[0] for line in lines] == [f"- {key} is 16384; {fault}" for fault in expected]
