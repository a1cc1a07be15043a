"""The configs for NeMo RL, read by our own loader, against the public architecture of their models."""

import json
from dataclasses import dataclass
from functools import cache

import pytest

from nemo_aopsd.config.load import load_config
from nemo_aopsd.engines.nemo_rl.settings import read_settings
from tests import REPO

ROOT = REPO
CONFIGS = ROOT / "examples" / "configs"
ENVIRONMENT = {"TORCH_CUDA_ARCH_LIST": "9.0"}
TENSOR, PIPELINE = "policy.megatron_cfg.tensor_model_parallel_size", "policy.megatron_cfg.pipeline_model_parallel_size"


@dataclass(frozen=True)
class Architecture:
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    ffn: int | None  # of one expert, where there are experts; None where no public figure was at hand
    vocabulary: int
    head_dim: int = 128
    experts: int = 1
    linear_heads: int | None = None  # of gated delta layers: keys and values


# Layers, heads and experts: Qwen3 Technical Report, arXiv 2505.09388, tables 1 and 2; hidden, ffn and vocabulary sizes:
# config.json of the models at huggingface.co/Qwen. The 2507 releases have the architecture of the first ones.
#
# Qwen3.5-2B is less certain: 24 layers (6 of them full attention), 8 heads, 2 key-value heads and 16 linear heads as
# its model card is quoted by others (fitmygpu.com/models/qwen-3.5-2b), 2 key-value heads also in Megatron-Bridge's
# recipe (recipes/qwen_vl/h100/qwen35_vl.py); the vocabulary is that of the whole family in transformers' Qwen3_5Config.
ARCHITECTURES = {
    "Qwen/Qwen3-4B-Instruct-2507": Architecture(36, 32, 8, 2560, 9728, 151936),
    "Qwen/Qwen3-8B": Architecture(36, 32, 8, 4096, 12288, 151936),
    "Qwen/Qwen3-14B": Architecture(40, 40, 8, 5120, 17408, 151936),
    "Qwen/Qwen3-32B": Architecture(64, 64, 8, 5120, 25600, 151936),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": Architecture(48, 32, 4, 2048, 768, 151936, experts=128),
    "Qwen/Qwen3.5-2B": Architecture(24, 8, 2, 2048, None, 248320, head_dim=256, linear_heads=16),
}
TINY = json.loads((ROOT / "nemo_aopsd/builtin/model" / "config.json").read_text())
TINY_ARCHITECTURE = Architecture(
    *(TINY["num_hidden_layers"], TINY["num_attention_heads"], TINY["num_key_value_heads"]),
    *(TINY["hidden_size"], TINY["intermediate_size"], TINY["vocab_size"], TINY["head_dim"]),
)

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


@pytest.fixture(params=RUNS)
def config(request):
    return load(request.param)


@pytest.fixture
def architecture(config):
    name = config.policy["model_name"]
    return TINY_ARCHITECTURE if name.endswith("builtin/model") else ARCHITECTURES[name]


def test_every_config_is_covered():
    given = ["policy.model_name=any", "data.train.data_path=any"]  # some files leave them to the user
    engines = {path.stem: load_config(path, given).aopsd.engine for path in CONFIGS.glob("aopsd_*.yaml")}
    ours = {name for name, engine in engines.items() if engine == "nemo_rl"}
    assert ours == {f"aopsd_{run.split()[0]}" for run in RUNS}


def test_it_passes_the_start_up_checks(config):
    assert config.aopsd.engine == "nemo_rl"
    settings = read_settings(config, ENVIRONMENT)
    assert settings.backend == "megatron"
    batch = config.aopsd.num_prompts_per_step * config.aopsd.num_generations_per_prompt
    assert settings.train_global_batch_size == batch == 32
    assert batch % settings.data_parallel_size == 0


def test_layers_heads_and_weights_divide(config, architecture):
    megatron, vllm = config.policy["megatron_cfg"], config.policy["generation"]["vllm_cfg"]
    tensor, pipeline = megatron["tensor_model_parallel_size"], megatron["pipeline_model_parallel_size"]
    for size in (tensor, vllm["tensor_parallel_size"]):
        # Megatron-Bridge does not pad the vocabulary unless told to, and NeMo RL does not tell it.
        for whole in (architecture.heads, architecture.kv_heads, architecture.hidden, architecture.vocabulary):
            assert whole % size == 0
        assert (architecture.ffn or size) % size == 0
        assert (architecture.linear_heads or size) % size == 0
    first = megatron["num_layers_in_first_pipeline_stage"]
    if first is None:
        assert architecture.layers % pipeline == 0
    else:
        assert (architecture.layers - first) % (pipeline - 1) == 0
    assert megatron["num_layers_in_last_pipeline_stage"] is None


def test_experts_divide(config, architecture):
    megatron, cluster = config.policy["megatron_cfg"], config.raw["cluster"]
    expert = megatron["expert_model_parallel_size"]
    assert architecture.experts % expert == 0
    assert (expert > 1) == (architecture.experts > 1)
    # All-to-all stays within a node, and so does tensor parallelism, in training and in vLLM.
    for size in (expert, megatron["tensor_model_parallel_size"]):
        assert cluster["gpus_per_node"] % size == 0
    assert cluster["gpus_per_node"] % config.policy["generation"]["vllm_cfg"]["tensor_parallel_size"] == 0


def test_blockwise_fp8_has_whole_blocks():
    config = load("qwen3_4b_megatron_fp8")
    megatron, architecture = config.policy["megatron_cfg"], ARCHITECTURES[config.policy["model_name"]]
    assert megatron["fp8_cfg"] == {"enabled": True, "fp8": "e4m3", "fp8_recipe": "blockwise", "fp8_param": False}
    tensor = megatron["tensor_model_parallel_size"]
    qkv = (architecture.heads + 2 * architecture.kv_heads) * architecture.head_dim
    for width in (architecture.hidden, architecture.ffn // tensor, qkv // tensor):
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
    assert gpu.raw["aopsd"] == cpu.raw["aopsd"] | {"engine": "nemo_rl"}
    for key in ("model_name", "max_total_sequence_length", "max_grad_norm"):
        assert gpu.policy[key] == cpu.policy[key]
    assert gpu.policy["optimizer"] == cpu.policy["optimizer"]
    assert gpu.rollout == cpu.rollout
    assert gpu.data["train"]["data_path"] == cpu.data["train"]["data_path"]
    adam, kwargs = gpu.policy["megatron_cfg"]["optimizer"], cpu.policy["optimizer"]["kwargs"]
    assert (adam["lr"], adam["weight_decay"], adam["adam_eps"]) == (kwargs["lr"], kwargs["weight_decay"], kwargs["eps"])
    assert [adam["adam_beta1"], adam["adam_beta2"]] == kwargs["betas"]
