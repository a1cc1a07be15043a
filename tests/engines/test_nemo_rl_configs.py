"""The configs for NeMo RL, read by our own loader, against the public architecture of their models."""

import json
from dataclasses import replace
from functools import cache

import pytest
from huggingface_hub import constants

from nemo_aopsd.config.load import load_config
from nemo_aopsd.engines.nemo_rl.settings import read_settings
from nemo_aopsd.models.config_json import find_model_config
from tests import REPO

CONFIGS = REPO / "examples" / "configs"
ENVIRONMENT = {"TORCH_CUDA_ARCH_LIST": "9.0"}
TENSOR, PIPELINE = "policy.megatron_cfg.tensor_model_parallel_size", "policy.megatron_cfg.pipeline_model_parallel_size"


def sizes(layers, heads, key_heads, hidden, mlp, vocabulary, **more):
    """As the `config.json` of the model at huggingface.co has them, as far as our rules read them."""
    named = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": key_heads}
    return named | {"hidden_size": hidden, "intermediate_size": mlp, "vocab_size": vocabulary} | more


# Layers, heads and experts: Qwen3 Technical Report, arXiv 2505.09388, tables 1 and 2; hidden, MLP and vocabulary sizes:
# config.json of the models at huggingface.co/Qwen. The 2507 releases have the architecture of the first ones.
#
# Qwen3.5-2B is less certain: 24 layers (6 of them full attention), 8 heads, 2 key-value heads and 16 linear heads as
# its model card is quoted by others (fitmygpu.com/models/qwen-3.5-2b), 2 key-value heads also in Megatron-Bridge's
# recipe (recipes/qwen_vl/h100/qwen35_vl.py); the vocabulary is that of the whole family in transformers' Qwen3_5Config.
MODELS = {
    "Qwen/Qwen3-4B-Instruct-2507": sizes(36, 32, 8, 2560, 9728, 151936),
    "Qwen/Qwen3-8B": sizes(36, 32, 8, 4096, 12288, 151936),
    "Qwen/Qwen3-14B": sizes(40, 40, 8, 5120, 17408, 151936),
    "Qwen/Qwen3-32B": sizes(64, 64, 8, 5120, 25600, 151936),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": sizes(48, 32, 4, 2048, 6144, 151936, num_experts=128),
    "Qwen/Qwen3.5-2B": sizes(24, 8, 2, 2048, None, 248320, linear_num_key_heads=16, linear_num_value_heads=16),
}

TP_2 = (f"{TENSOR}=2", "policy.megatron_cfg.sequence_parallel=true")
RUNS = {
    "qwen3_4b_megatron": (),
    "qwen3_4b_megatron_fp8": (),
    "qwen3_5_2b": (),
    "qwen3_8b": (),
    "qwen3_14b": (),
    "qwen3_32b": (),
    "qwen3_30b_a3b": (),
    "tiny_h100": (),
    # as the head of its file says
    "tiny_h100 TP 2": ("cluster.gpus_per_node=2", *TP_2),
    "tiny_h100 PP 2": (
        *("cluster.gpus_per_node=2", f"{PIPELINE}=2"),
        "policy.megatron_cfg.num_layers_in_first_pipeline_stage=2",
    ),
    "tiny_h100 TP 2 x DP 2": ("cluster.gpus_per_node=4", *TP_2),
    "tiny_h100 FP8": (
        *("policy.megatron_cfg.fp8_cfg.enabled=true", "policy.make_sequence_length_divisible_by=128"),
        "policy.megatron_cfg.optimizer.use_precision_aware_optimizer=false",
    ),
}


@cache
def load(run):
    return load_config(CONFIGS / f"aopsd_{run.split()[0]}.yaml", RUNS[run])


@pytest.fixture
def models_are_here(tmp_path, monkeypatch):
    """In the hub's cache: their sizes alone, by which the checks go."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name, content in MODELS.items():
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        for file, text in {"snapshots/abc/config.json": json.dumps(content), "refs/main": "abc"}.items():
            (folder / file).parent.mkdir(parents=True)
            (folder / file).write_text(text)


def test_every_config_is_covered():
    given = ["policy.model_name=any", "data.train.data_path=any"]  # some files leave them to the user
    engines = {path.stem: load_config(path, given).aopsd.engine for path in CONFIGS.glob("aopsd_*.yaml")}
    ours = {name for name, engine in engines.items() if engine == "nemo_rl"}
    assert ours == {f"aopsd_{run.split()[0]}" for run in RUNS}


@pytest.mark.parametrize("run", RUNS)
def test_it_passes_the_start_up_checks_with_its_model_s_sizes(models_are_here, run):
    """What the checks ask of sizes: test_nemo_rl_model_sizes.py."""
    config = load(run)
    model = find_model_config(config.policy["model_name"])
    assert model is not None and None not in (model.layers, model.heads, model.key_heads, model.vocabulary)
    settings = read_settings(config, ENVIRONMENT)
    assert (settings.backend, settings.train_global_batch_size) == ("megatron", 32)
    assert config.aopsd.num_prompts_per_step * config.aopsd.num_generations_per_prompt == 32
    assert 32 % settings.scoring_rows_multiple == 0
    megatron, vllm = config.policy["megatron_cfg"], config.policy["generation"]["vllm_cfg"]
    tensor, expert = megatron["tensor_model_parallel_size"], megatron["expert_model_parallel_size"]
    for size in (tensor, vllm["tensor_parallel_size"]):  # no key-value head is copied
        assert model.key_heads % size == model.hidden % size == 0
    assert (expert > 1) == (model.experts > 1)
    # All-to-all stays within a node, and so does tensor parallelism, in training and in vLLM.
    for size in (expert, tensor, vllm["tensor_parallel_size"]):
        assert settings.gpus_per_node % size == 0


def test_blockwise_fp8_has_whole_blocks():
    config = load("qwen3_4b_megatron_fp8")
    megatron, model = config.policy["megatron_cfg"], MODELS[config.policy["model_name"]]
    assert megatron["fp8_cfg"] == {"enabled": True, "fp8": "e4m3", "fp8_recipe": "blockwise", "fp8_param": False}
    tensor = megatron["tensor_model_parallel_size"]
    qkv = (model["num_attention_heads"] + 2 * model["num_key_value_heads"]) * 128
    for width in (model["hidden_size"], model["intermediate_size"] // tensor, qkv // tensor):
        assert width % 128 == 0
    assert config.policy["make_sequence_length_divisible_by"] == 128 * tensor
    assert config.policy["generation"]["vllm_cfg"]["precision"] == "bfloat16"


@pytest.mark.parametrize("run", [run for run in RUNS if "qwen" in run])
def test_the_papers_settings(run):
    """Stated in the paper: 3 epochs, rollouts at temperature 1, delta 2, k 8, betas 1 and 2.5, frozen teacher."""
    config = load(run)
    aopsd, generation = config.aopsd, config.policy["generation"]
    assert aopsd.max_num_epochs == 3 and generation["temperature"] == 1.0
    assert (aopsd.probes.threshold, aopsd.probes.length) == (2.0, 8)
    assert (aopsd.probes.beta_positive, aopsd.probes.beta_negative) == (1.0, 2.5)
    assert aopsd.teacher.weights == "frozen"
    assert aopsd.thinking.student == aopsd.thinking.teacher


def test_the_papers_evaluation_fits():
    """12,288 tokens a response; the core refuses what leaves no room for a prompt."""
    overrides = ["aopsd.evaluation.data_path=held_out.jsonl"]
    assert load_config(CONFIGS / "aopsd_qwen3_4b_megatron.yaml", overrides).aopsd.evaluation.max_new_tokens == 12288


def test_the_learning_rate_is_set_in_one_place():
    policy = load_config(CONFIGS / "aopsd_qwen3_4b_megatron.yaml", ["policy.megatron_cfg.optimizer.lr=3e-6"]).policy
    assert policy["optimizer"]["kwargs"]["lr"] == policy["megatron_cfg"]["optimizer"]["min_lr"] == 3e-6
    assert policy["megatron_cfg"]["scheduler"]["lr_warmup_iters"] == 0


def test_the_tiny_run_is_the_one_on_a_cpu():
    """Same problems, lengths, method and learning rate, so that the two engines can be compared."""
    cpu, gpu = load_config(CONFIGS / "aopsd_tiny_cpu.yaml"), load("tiny_h100")
    assert gpu.raw["aopsd"] == cpu.raw["aopsd"] | {"engine": "nemo_rl", "scoring": "sampler"}
    for key in ("model_name", "max_total_sequence_length", "max_grad_norm"):
        assert gpu.policy[key] == cpu.policy[key]
    assert gpu.policy["optimizer"] == cpu.policy["optimizer"]
    assert gpu.rollout == replace(cpu.rollout, with_logprobs=True)
    assert gpu.data["train"]["data_path"] == cpu.data["train"]["data_path"]
    adam, kwargs = gpu.policy["megatron_cfg"]["optimizer"], cpu.policy["optimizer"]["kwargs"]
    assert (adam["lr"], adam["weight_decay"], adam["adam_eps"]) == (kwargs["lr"], kwargs["weight_decay"], kwargs["eps"])
    assert [adam["adam_beta1"], adam["adam_beta2"]] == kwargs["betas"]
