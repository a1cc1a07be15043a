"""Start-up checks of the NeMo RL engine: each refusal names its key, what was found, and what to do."""

import subprocess
import sys

import pytest
from huggingface_hub import constants

from nemo_aopsd.cluster.tree import Tree
from nemo_aopsd.config.load import load_config
from nemo_aopsd.engines import nemo_rl
from nemo_aopsd.engines.nemo_rl.settings import Settings, read_settings
from nemo_aopsd.engines.nemo_rl.stock_recipes import refuse_stock_recipe
from nemo_aopsd.errors import UserError
from tests import REPO

CONFIGS = REPO / "examples" / "configs"
ENVIRONMENT = {"TORCH_CUDA_ARCH_LIST": "9.0"}
MEGATRON, DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"
GENERATION, VLLM = "policy.generation", "policy.generation.vllm_cfg"
PACKING, LENGTH = "policy.sequence_packing", "policy.max_total_sequence_length"
MULTIPLE = "policy.make_sequence_length_divisible_by"
TP, PP, CP = (f"{MEGATRON}.{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context"))
EP, SP = f"{MEGATRON}.expert_model_parallel_size", f"{MEGATRON}.sequence_parallel"
ONE_GPU_WIDE = f"{TP}=1", f"{SP}=false"
FP8, ON_DTENSOR = f"{MEGATRON}.fp8_cfg.enabled=true", (f"{MEGATRON}.enabled=false", f"{DTENSOR}.enabled=true")

TOP_K = "aopsd.objective.name=topk_fkl", "aopsd.objective.top_k_form=none", "aopsd.weighting=uniform"


@pytest.fixture(autouse=True)
def no_model_is_here(tmp_path, monkeypatch):
    """What this machine has downloaded would have its own sizes: test_nemo_rl_model_sizes.py."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))


def settings(*overrides, environment=ENVIRONMENT, name="qwen3_4b_megatron"):
    return read_settings(load_config(CONFIGS / f"aopsd_{name}.yaml", overrides), environment)


def faults(*overrides, environment=ENVIRONMENT):
    """The lines of the refusal, without the first."""
    with pytest.raises(UserError) as error:
        settings(*overrides, environment=environment)
    first, *lines = str(error.value).split("\n")
    assert first == "config, for aopsd.engine=nemo_rl:"
    return lines


def test_a_good_config_is_read():
    found = settings("policy.logprob_batch_size=3")
    assert found == Settings(
        backend="megatron",
        model_name="Qwen/Qwen3-4B-Instruct-2507",
        tokenizer_name="Qwen/Qwen3-4B-Instruct-2507",
        num_nodes=1,
        gpus_per_node=8,
        tensor_parallel_size=2,
        pipeline_parallel_size=1,
        context_parallel_size=1,
        sampler_parallel_size=1,
        train_global_batch_size=32,
        train_micro_batch_size=1,
        logprob_batch_size=3,
        packs_rows=True,
        divisible_by=2,
        max_total_sequence_length=16384,
    )
    assert found.data_parallel_size == 4  # 8 GPUs / TP 2
    assert found.scoring_rows_multiple == 4  # packs have any number of rows


def test_rows_by_number_come_in_micro_batches():
    found = settings(f"{PACKING}.enabled=false", "policy.logprob_batch_size=3")
    assert not found.packs_rows
    assert found.scoring_rows_multiple == 4 * 3


def test_parallel_sizes_share_the_gpus():
    found = settings(f"{TP}=2", f"{PP}=2", f"{CP}=2", f"{MULTIPLE}=8", "cluster.num_nodes=2")
    assert (found.tensor_parallel_size, found.pipeline_parallel_size, found.context_parallel_size) == (2, 2, 2)
    assert found.data_parallel_size == 2  # 16 / 8


def test_the_other_backend_has_its_own_sizes():
    found = settings(*ON_DTENSOR, f"{DTENSOR}.tensor_parallel_size=4", environment={})
    assert found.backend == "dtensor"
    assert found.data_parallel_size == 2  # 8 / 4, whatever Megatron's block says


@pytest.mark.parametrize("form", ["none", "renorm", "teacher_renorm", "tail"])
def test_top_k_distillation_has_all_forms(form):
    assert settings(*TOP_K, f"aopsd.objective.top_k_form={form}").backend == "megatron"


@pytest.mark.parametrize("name", ["fkl", "dash"])
def test_whole_vocabulary_objectives_with_a_support(name):
    assert settings(*TOP_K, f"aopsd.objective.name={name}", "aopsd.objective.support=64").backend == "megatron"


def test_what_the_stock_loop_reads_may_be_said_twice():
    assert settings("grpo.max_num_steps=10", "aopsd.max_num_steps=10", "aopsd.seed=7", "grpo.seed=7")
    assert settings("aopsd.max_num_epochs=1", "aopsd.num_prompts_per_step=64")  # grpo's follow


def test_version_2_may_stand_where_dtensor_is_off():
    assert settings(f"{DTENSOR}._v2=true").backend == "megatron"


def test_an_odd_tokenizer_is_kept():
    assert settings("policy.tokenizer.name=models/other").tokenizer_name == "models/other"


@pytest.mark.parametrize(
    ("overrides", "key", "found", "remedy"),
    [
        # backend
        ([f"{DTENSOR}.enabled=true"], f"{MEGATRON}.enabled", "true", f"Set {MEGATRON}.enabled=true {DTENSOR}.enabled"),
        ([f"{MEGATRON}.enabled=false"], f"{MEGATRON}.enabled", "false", f"Set {MEGATRON}.enabled=true"),
        ([*ON_DTENSOR, f"{DTENSOR}._v2=true"], f"{DTENSOR}._v2", "true", f"Set {DTENSOR}._v2=false, or use Megatron"),
        ([*ON_DTENSOR, f"{DTENSOR}.cpu_offload=true"], f"{DTENSOR}.cpu_offload", "true", "or use Megatron"),
        # teacher
        (["aopsd.teacher.weights=ema"], "aopsd.teacher.weights", "ema", "Set aopsd.teacher.weights=frozen"),
        (["aopsd.teacher.weights=live"], "aopsd.teacher.weights", "live", "aopsd.engine=local"),
        (
            ["++grpo.skip_reference_policy_logprobs_calculation=true"],
            *("grpo.skip_reference_policy_logprobs_calculation", "true", "=false, or leave it out"),
        ),
        # what NeMo RL's loop would read
        (["grpo.seed=7"], "grpo.seed", "7", "Set grpo.seed=0, or aopsd.seed=7 as well"),
        (["grpo.max_num_epochs=1"], "grpo.max_num_epochs", "1", "or aopsd.max_num_epochs=1 as well"),
        (["grpo.max_num_steps=10"], "grpo.max_num_steps", "10", "=1000000, or aopsd.max_num_steps=10 as well"),
        (
            ["grpo.max_num_steps=10", "aopsd.max_num_steps=20"],
            *("grpo.max_num_steps", "10", "Set grpo.max_num_steps=20, or aopsd.max_num_steps=10 as well"),
        ),
        ([f"{MEGATRON}.peft.enabled=true"], f"{MEGATRON}.peft.enabled", "true", f"Set {MEGATRON}.peft.enabled=false"),
        (
            [*ON_DTENSOR, f"{DTENSOR}.lora_cfg.enabled=true"],
            *(f"{DTENSOR}.lora_cfg.enabled", "true", f"Set {DTENSOR}.lora_cfg.enabled=false"),
        ),
        # sampler
        ([f"{GENERATION}.backend=sglang"], f"{GENERATION}.backend", "sglang", f"Set {GENERATION}.backend=vllm"),
        (
            [f"{GENERATION}.colocated.enabled=false"],
            *(f"{GENERATION}.colocated.enabled", "false", f"Set {GENERATION}.colocated.enabled=true"),
        ),
        ([f"{GENERATION}.stop_strings=[END]"], f"{GENERATION}.stop_strings", "['END']", "stop_strings=null"),
        ([f"{GENERATION}.stop_token_ids=[7]"], f"{GENERATION}.stop_token_ids", "[7]", "stop_token_ids=null"),
        ([f"{GENERATION}.temperature=0.7"], f"{GENERATION}.temperature", "0.7", f"Set {GENERATION}.temperature=1.0"),
        ([f"{VLLM}.async_engine=true"], f"{VLLM}.async_engine", "true", f"Set {VLLM}.async_engine=false"),
        (
            [f"{VLLM}.enable_prefix_caching=false"],
            *(f"{VLLM}.enable_prefix_caching", "false", "or aopsd.weighting=uniform"),
        ),
        (
            [f"{VLLM}.pipeline_parallel_size=2"],
            *(f"{VLLM}.pipeline_parallel_size", "2", f"Set {VLLM}.pipeline_parallel_size=1"),
        ),
        ([f"{VLLM}.expert_parallel_size=4"], f"{VLLM}.expert_parallel_size", "4", f"Set {VLLM}.expert_parallel_size=1"),
        ([f"{VLLM}.kv_cache_dtype=fp8"], f"{VLLM}.kv_cache_dtype", "fp8", f"Set {VLLM}.kv_cache_dtype=auto"),
        ([f"{VLLM}.kv_cache_dtype=fp8_e4m3"], f"{VLLM}.kv_cache_dtype", "fp8_e4m3", f"Set {VLLM}.kv_cache_dtype=auto"),
        (
            [f"{VLLM}.precision=fp8", "loss_fn.use_importance_sampling_correction=false"],
            *("loss_fn.use_importance_sampling_correction", "false", f"or {VLLM}.precision=bfloat16"),
        ),
        # loss
        (
            ["loss_fn.reference_policy_kl_penalty=0.01"],
            *("loss_fn.reference_policy_kl_penalty", "0.01", "Set loss_fn.reference_policy_kl_penalty=0.0"),
        ),
        (
            [f"{MEGATRON}.defer_fp32_logits=false"],
            *(f"{MEGATRON}.defer_fp32_logits", "false", "or policy.logprob_chunk_size=null"),
        ),
        ([f"{PACKING}.fuse_loss=true", f"{PP}=2"], f"{PACKING}.fuse_loss", "true", f"Set {PACKING}.fuse_loss=false"),
        ([f"{PACKING}.fuse_loss=true", FP8], f"{PACKING}.fuse_loss", "true", f"Set {PACKING}.fuse_loss=false"),
        # GPUs and parallel sizes
        ([f"{TP}=1"], SP, "true", f"Set {SP}=false, or {TP}=2"),
        ([f"{SP}=false", f"{EP}=2"], SP, "false", f"Set {SP}=true"),
        # batch
        (
            ["policy.train_global_batch_size=64"],
            *("policy.train_global_batch_size", "64", "Set policy.train_global_batch_size=32"),
        ),
        (
            ["aopsd.num_generations_per_prompt=2", "policy.train_global_batch_size=32"],
            *("policy.train_global_batch_size", "32", "Set policy.train_global_batch_size=64"),
        ),
        (["cluster.num_nodes=3"], "policy.train_global_batch_size", "32", "Change aopsd.num_prompts_per_step"),
        (
            [f"{PACKING}.enabled=false", "policy.train_micro_batch_size=3"],
            *("policy.train_global_batch_size", "32", "Change aopsd.num_prompts_per_step"),
        ),
        # lengths
        ([f"{VLLM}.max_model_len=16383"], f"{VLLM}.max_model_len", "16383", f"Set {VLLM}.max_model_len=16384"),
        (
            [f"{PACKING}.logprob_mb_tokens=8192"],
            *(f"{PACKING}.logprob_mb_tokens", "8192", f"Set {PACKING}.logprob_mb_tokens=16384"),
        ),
        (
            [f"{PACKING}.train_mb_tokens=8192"],
            *(f"{PACKING}.train_mb_tokens", "8192", f"Set {PACKING}.train_mb_tokens=16384"),
        ),
        (  # a row of 10,001 tokens is padded to 10,002
            [f"{LENGTH}=10001", f"{PACKING}.train_mb_tokens=10001", f"{PACKING}.logprob_mb_tokens=10002"],
            *(f"{PACKING}.train_mb_tokens", "10001", f"Set {PACKING}.train_mb_tokens=10002"),
        ),
        (
            [
                *(f"{PACKING}.enabled=false", "policy.dynamic_batching.enabled=true"),
                "policy.dynamic_batching.logprob_mb_tokens=64",
            ],
            *("policy.dynamic_batching.logprob_mb_tokens", "64", "logprob_mb_tokens=16384"),
        ),
        ([f"{MULTIPLE}=1"], MULTIPLE, "1", f"Set {MULTIPLE}=2"),
        ([f"{CP}=2", f"{MULTIPLE}=4"], MULTIPLE, "4", f"Set {MULTIPLE}=8"),  # TP 2 x 2 x CP 2
        ([FP8, f"{PACKING}.enabled=false", f"{MULTIPLE}=128"], MULTIPLE, "128", f"Set {MULTIPLE}=256"),  # x TP 2
        (
            [FP8, f"{PACKING}.enabled=false", f"{MULTIPLE}=32", f"{MEGATRON}.fp8_cfg.fp8_recipe=mxfp8"],
            *(MULTIPLE, "32", f"Set {MULTIPLE}=64"),
        ),
        # packing
        (
            [f"{CP}=2", f"{MULTIPLE}=8", f"{PACKING}.enabled=false"],
            *(f"{PACKING}.enabled", "false", f"Set {PACKING}.enabled=true, or {CP}=1"),
        ),
        (
            [*ON_DTENSOR, f"{DTENSOR}.context_parallel_size=2", f"{MULTIPLE}=4"],
            *(f"{PACKING}.enabled", "true", f"or {DTENSOR}.context_parallel_size=1"),
        ),
        (
            ["policy.dynamic_batching.enabled=true"],
            *("policy.dynamic_batching.enabled", "true", "Set policy.dynamic_batching.enabled=false"),
        ),
        (
            ["policy.dynamic_batching.enabled=true", f"{PACKING}.enabled=false", f"{PP}=2"],
            *("policy.dynamic_batching.enabled", "true", "Set policy.dynamic_batching.enabled=false"),
        ),
        # numerics
        (
            [FP8, f"{MEGATRON}.fp8_cfg.fp8_param=true"],
            *(f"{MEGATRON}.fp8_cfg.fp8_param", "true", f"Set {MEGATRON}.fp8_cfg.fp8_param=false"),
        ),
        (
            [FP8, f"{MEGATRON}.fp8_cfg.fp8_param=true", f"{MEGATRON}.fp8_cfg.fp8_recipe=mxfp8", *ONE_GPU_WIDE],
            *(f"{MEGATRON}.distributed_data_parallel_config.overlap_param_gather", "true", "fp8_cfg.fp8_param=false"),
        ),
        (
            [f"{TP}=4", "policy.logprob_batch_size=2"],
            *("policy.logprob_batch_size", "2", "Set policy.logprob_batch_size=1"),
        ),
        (
            ["aopsd.objective.aggregation=seq_mean"],
            *("aopsd.objective.aggregation", "seq_mean", "loss_fn.token_level_loss=false for a mean over responses"),
        ),
        # top-k distillation
        ([*TOP_K, *ON_DTENSOR], f"{DTENSOR}.enabled", "true", f"Set {DTENSOR}.enabled=false, or aopsd.engine=local"),
        ([*TOP_K, f"++{PACKING}.fuse_loss=true"], f"{PACKING}.fuse_loss", "true", f"Set {PACKING}.fuse_loss=false"),
        (
            [*TOP_K, f"++{MEGATRON}.use_linear_ce_fusion_loss=true"],
            *(f"{MEGATRON}.use_linear_ce_fusion_loss", "true", f"Set {MEGATRON}.use_linear_ce_fusion_loss=false"),
        ),
        # sizes that are no sizes
        ([f"{PP}=0"], PP, "0", f"Set {PP}"),
        (["cluster.gpus_per_node=all"], "cluster.gpus_per_node", "all", "Set cluster.gpus_per_node"),
        ([f"{VLLM}.max_model_len=null"], f"{VLLM}.max_model_len", "null", f"Set {VLLM}.max_model_len"),
        ([f"{VLLM}.tensor_parallel_size=true"], f"{VLLM}.tensor_parallel_size", "true", "Set policy.generation"),
        ([f"{PACKING}.train_mb_tokens=1.5"], f"{PACKING}.train_mb_tokens", "1.5", f"Set {PACKING}.train_mb_tokens"),
    ],
)
def test_one_refusal(overrides, key, found, remedy):
    (line,) = faults(*overrides)
    assert line.startswith(f"- {key} is {found}; expected ")
    assert remedy in line


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ([f"{TP}=2", "cluster.gpus_per_node=7"], "a multiple of 2, for the trainer (TP 2 x PP 1 x CP 1)"),
        ([f"{TP}=2", f"{PP}=8"], "a multiple of 16, for the trainer (TP 2 x PP 8 x CP 1)"),
        ([f"{VLLM}.tensor_parallel_size=3"], f"a multiple of 3, for the sampler ({VLLM}.tensor_parallel_size 3)"),
        ([f"{PP}=2", f"{EP}=8"], f"a multiple of 16, for the experts ({PP} 2 x {EP} 8 x "),
    ],
)
def test_gpus_that_do_not_divide(overrides, why):
    (line,) = [line for line in faults(*overrides) if why in line]
    assert line.startswith("- cluster.gpus_per_node is ")
    assert "Change cluster.gpus_per_node, cluster.num_nodes or these sizes." in line


def test_every_fault_is_listed_at_once():
    lines = faults(
        *(f"{DTENSOR}.enabled=true", "aopsd.teacher.weights=live", f"{VLLM}.async_engine=true"),
        *(f"{MULTIPLE}=1", "loss_fn.reference_policy_kl_penalty=1"),
        environment={},
    )
    keys = [line.removeprefix("- ").split(" is ")[0] for line in lines]
    assert keys == [
        *(f"{MEGATRON}.enabled", "aopsd.teacher.weights", f"{VLLM}.async_engine"),
        *("loss_fn.reference_policy_kl_penalty", MULTIPLE, "TORCH_CUDA_ARCH_LIST"),
    ]


def test_a_broken_size_hides_no_other_fault():
    lines = faults(f"{TP}=two", f"{MULTIPLE}=2", f"{VLLM}.async_engine=true", "policy.train_global_batch_size=4")
    assert [line.split(" is ")[0] for line in lines] == [
        *(f"- {TP}", f"- {VLLM}.async_engine", "- policy.train_global_batch_size")
    ]


def test_a_penalty_left_out_is_not_zero(tmp_path):
    text = (CONFIGS / "nemo_rl_base.yaml").read_text().replace("reference_policy_kl_penalty: 0.0", "other: 0")
    (tmp_path / "nemo_rl_base.yaml").write_text(text)
    (tmp_path / "run.yaml").write_text(
        "defaults: nemo_rl_base.yaml\npolicy: {model_name: m}\nlogger: {log_dir: runs/x}\n"
    )
    with pytest.raises(UserError, match="kl_penalty is null; expected 0"):
        read_settings(load_config(tmp_path / "run.yaml"), ENVIRONMENT)


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
@pytest.mark.parametrize("value", ["expandable_segments:True", "max_split_size_mb:64, expandable_segments: true"])
def test_memory_that_cannot_sleep_is_refused(name, value):
    (line,) = faults(environment=ENVIRONMENT | {name: value})
    assert line.startswith(f"- {name} is {value}; expected no expandable_segments")
    assert f"Unset it; for the trainer alone use {MEGATRON}.env_vars" in line


def test_memory_of_vllm_alone_is_looked_at_too():
    (line,) = faults(f"++{VLLM}.env_vars.PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'")
    assert line.startswith(f"- {VLLM}.env_vars.PYTORCH_CUDA_ALLOC_CONF is expandable_segments:True")


def test_other_allocator_settings_and_the_trainers_own_pass():
    off = ENVIRONMENT | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
    assert settings(environment=off)
    assert settings(f"{MEGATRON}.env_vars={{PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True'}}")


@pytest.mark.parametrize("environment", [{}, {"TORCH_CUDA_ARCH_LIST": ""}])
def test_megatron_needs_the_compute_capability(environment):
    (line,) = faults(environment=environment)
    assert line.startswith("- TORCH_CUDA_ARCH_LIST is ")
    assert "export TORCH_CUDA_ARCH_LIST=9.0" in line


def test_the_real_environment_is_the_default(monkeypatch):
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    config = load_config(CONFIGS / "aopsd_qwen3_4b_megatron.yaml")
    with pytest.raises(UserError, match="TORCH_CUDA_ARCH_LIST is null"):
        read_settings(config)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert read_settings(config).backend == "megatron"


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{VLLM}.enable_prefix_caching=false", "aopsd.weighting=uniform"],
        [f"{VLLM}.precision=fp8"],  # with the correction, which is on
        [f"{PACKING}.fuse_loss=true"],  # neither pipeline stages nor FP8
        [f"{MEGATRON}.fp8_cfg.fp8_param=true"],  # FP8 itself is off
        [FP8],  # packs are padded by NeMo RL
        [f"{MEGATRON}.defer_fp32_logits=false", "policy.logprob_chunk_size=null"],
        [f"{TP}=2", "policy.logprob_batch_size=2"],
        [f"{VLLM}.tensor_parallel_size=4", f"{VLLM}.expert_parallel_size=4"],
        ["aopsd.num_generations_per_prompt=4"],  # the batch follows
        [f"{PACKING}.enabled=false", "policy.dynamic_batching.enabled=true"],
    ],
)
def test_what_works_is_not_refused(overrides):
    assert settings(*overrides).max_total_sequence_length == 16384


def test_a_tracker_needs_its_block():
    assert faults("logger.mlflow_enabled=true", "logger.wandb_enabled=true", "logger.tensorboard_enabled=true") == [
        "- logger.mlflow is null; expected a block, since logger.mlflow_enabled is true. "
        "Add logger.mlflow, or set logger.mlflow_enabled=false."
    ]
    assert faults("logger.monitor_gpus=true") == [
        "- logger.monitor_gpus is true; expected false: no tracker is on to take what it measures. "
        "Set logger.monitor_gpus=false, or logger.tensorboard_enabled=true."
    ]
    assert settings("logger.monitor_gpus=true", "logger.tensorboard_enabled=true")


@pytest.mark.parametrize(
    ("name", "block", "command"),
    [
        ("sft_nemo_rl", "sft", "python examples/run_sft.py --config FILE (docs/nemo_rl.md)"),
        *(
            (
                *(name, "env.aopsd_progress"),
                "python -m nemo_aopsd.engines.nemo_rl.run_stock examples/run_grpo.py --config FILE "
                "(docs/nemo_rl_environment.md)",
            )
            for name in ("grpo_progress_reward", "grpo_correct_nemo_rl")
        ),
    ],
)
def test_a_recipe_for_a_script_of_nemo_rl_s_is_sent_there(name, block, command):
    """With nothing else: its other settings are right where it belongs."""
    with pytest.raises(UserError) as error:
        nemo_rl.check(load_config(CONFIGS / f"{name}.yaml"))
    (line,) = str(error.value).split("\n")
    assert line.startswith(f"config: with the block `{block}` this is a recipe for NeMo RL's own examples/run_")
    assert f"From the NeMo RL folder run: {command}." in line


def test_blocks_of_other_scripts_may_stay_in_a_config_of_ours():
    overrides = ("++env.math.num_workers=8", "++data.default.dataset_name=OpenMathInstruct-2", "++distillation.seed=1")
    assert settings(*overrides).backend == "megatron"
    refuse_stock_recipe(Tree(load_config(CONFIGS / "aopsd_qwen3_4b_megatron.yaml", overrides).raw))


def test_neither_torch_nor_nemo_rl_is_imported():
    code = (
        "import sys, nemo_aopsd.engines.nemo_rl.settings as settings; "
        "from nemo_aopsd.config.load import load_config; "
        f"settings.read_settings(load_config({str(CONFIGS / 'aopsd_qwen3_4b_megatron.yaml')!r}), {ENVIRONMENT!r}); "
        "print(sorted({'torch', 'transformers', 'nemo_rl', 'ray', 'vllm'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "[]\n"
