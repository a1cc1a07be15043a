"""Start-up checks of the NeMo RL engine: each refusal names its key, what was found, and what to do."""

import copy
import json
import subprocess
import sys

import pytest
import yaml
from huggingface_hub import constants

from nemo_aopsd.cluster.tree import Tree
from nemo_aopsd.config.label import label_run
from nemo_aopsd.config.load import load_config
from nemo_aopsd.engines import nemo_rl
from nemo_aopsd.engines.nemo_rl.refusals import find_faults, refuse_stock_recipe
from nemo_aopsd.engines.nemo_rl.settings import Settings, read_settings
from nemo_aopsd.errors import UserError
from tests import REPO

CONFIGS = REPO / "examples" / "configs"
ENVIRONMENT = {"TORCH_CUDA_ARCH_LIST": "9.0"}
BLOCKS = {
    **{"M": "policy.megatron_cfg", "D": "policy.dtensor_cfg", "G": "policy.generation"},
    **{"V": "policy.generation.vllm_cfg", "P": "policy.sequence_packing", "B": "policy.dynamic_batching"},
    **{"TP": "policy.megatron_cfg.tensor_model_parallel_size", "SP": "policy.megatron_cfg.sequence_parallel"},
    **{"PP": "policy.megatron_cfg.pipeline_model_parallel_size", "CP": "policy.megatron_cfg.context_parallel_size"},
    **{"EP": "policy.megatron_cfg.expert_model_parallel_size", "BATCH": "policy.train_global_batch_size"},
    **{"MULTIPLE": "policy.make_sequence_length_divisible_by", "LENGTH": "policy.max_total_sequence_length"},
    "KL": "loss_fn.reference_policy_kl_penalty",
}
ON_DTENSOR = "M.enabled=false D.enabled=true"
FP8 = "M.fp8_cfg.enabled=true"
OWN = f"aopsd.objective.name={CONFIGS.parent / 'my_parts.py'}:HalfSquaredGap"
TOP_K = "aopsd.objective.name=topk_fkl aopsd.weighting=uniform"


def full(key):
    block, dot, rest = key.partition(".")
    return BLOCKS.get(block, block) + dot + rest


@pytest.fixture(scope="module")
def base():
    return load_config(CONFIGS / "aopsd_qwen3_4b_megatron.yaml")


@pytest.fixture(autouse=True)
def no_model_is_here(tmp_path, monkeypatch):
    """What this machine has downloaded would have its own sizes: test_nemo_rl_model_sizes.py."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))


@pytest.fixture
def faults(base):
    """The refusals, in lines, of the config of Qwen3-4B on 8 GPUs (TP 2, packs) with `KEY=VALUE ...`."""

    def find(words, environment=ENVIRONMENT):
        raw = copy.deepcopy(base.raw)
        for key, _, value in (word.partition("=") for word in words.split()):
            *blocks, last = full(key).split(".")
            tree = raw
            for block in blocks:
                tree[block] = tree.get(block) or {}
                tree = tree[block]
            tree[last] = yaml.safe_load(value)
        return [str(fault) for fault in find_faults(Tree(raw), environment)]

    return find


def test_what_is_read_of_a_good_config(base):
    found = read_settings(base, ENVIRONMENT)
    sizes = {"num_nodes": 1, "gpus_per_node": 8, "train_global_batch_size": 32, "divisible_by": 2}
    rows = {"scoring_rows_multiple": 4}  # 8 GPUs / 2: packs have any number of rows
    assert found == Settings("megatron", **sizes, **rows, scoring="sampler", probe_runner="batched")


@pytest.mark.parametrize(
    ("overrides", "scoring"),
    [
        ([], "sampler"),
        (["aopsd.scoring=prefill"], "prefill"),
        (["aopsd.engine=local"], "trainer"),
        (["policy.generation.vllm_cfg.precision=fp8"], "trainer"),
        (["policy.megatron_cfg.fp8_cfg.enabled=true"], "trainer"),
        (["policy.megatron_cfg.enabled=false", "policy.dtensor_cfg.enabled=true"], "trainer"),
        (["aopsd.probes.keep_cache=true"], "trainer"),
        (["policy.megatron_cfg.pipeline_model_parallel_size=2"], "trainer"),
        (["policy.megatron_cfg.context_parallel_size=2"], "trainer"),
    ],
)
def test_who_scores_by_default(overrides, scoring):
    config = load_config(CONFIGS / "aopsd_qwen3_4b_megatron.yaml", overrides)
    assert config.aopsd.scoring == config.raw["aopsd"]["scoring"] == scoring
    assert "scoring" not in label_run(config.aopsd).differing  # nobody has set it


def test_what_is_read_of_another_one(base):
    overrides = ["policy.megatron_cfg.enabled=false", "policy.dtensor_cfg.enabled=true", "cluster.num_nodes=2"]
    overrides += ["policy.sequence_packing.enabled=false", "policy.logprob_batch_size=3"]
    overrides += ["policy.dtensor_cfg.tensor_parallel_size=2", "policy.dtensor_cfg.context_parallel_size=2"]
    overrides += ["policy.make_sequence_length_divisible_by=8"]
    found = read_settings(load_config(CONFIGS / "aopsd_qwen3_4b_megatron.yaml", overrides), {})
    assert (found.backend, found.scoring_rows_multiple) == ("dtensor", 16 / 4 * 3)  # rows by number: micro-batches


@pytest.mark.parametrize(
    ("words", "key", "remedy"),
    [
        # backend
        ("D.enabled=true", "M.enabled", "Set M.enabled=true D.enabled=false"),
        ("M.enabled=false", "M.enabled", "Set M.enabled=true"),
        (f"{ON_DTENSOR} D._v2=true", "D._v2", "Set D._v2=false, or use Megatron"),
        (f"{ON_DTENSOR} D.cpu_offload=true", "D.cpu_offload", "or use Megatron"),
        # teacher
        ("aopsd.teacher.weights=ema", "aopsd.teacher.weights", "=frozen, or aopsd.engine=local"),
        ("M.peft.enabled=true", "M.peft.enabled", "Set M.peft.enabled=false"),
        (f"{ON_DTENSOR} D.lora_cfg.enabled=true", "D.lora_cfg.enabled", "Set D.lora_cfg.enabled=false"),
        # what NeMo RL's loop would read
        ("grpo.seed=7", "grpo.seed", "Set grpo.seed=0, or aopsd.seed=7 as well"),
        ("grpo.max_num_epochs=1", "grpo.max_num_epochs", "or aopsd.max_num_epochs=1 as well"),
        ("grpo.max_num_steps=10", "grpo.max_num_steps", "=1000000, or aopsd.max_num_steps=10 as well"),
        ("grpo.max_num_steps=10 aopsd.max_num_steps=20", "grpo.max_num_steps", "Set grpo.max_num_steps=20"),
        # sampler
        ("G.backend=sglang", "G.backend", "Set G.backend=vllm"),
        ("G.colocated.enabled=false", "G.colocated.enabled", "=true"),
        ("G.stop_strings=[END]", "G.stop_strings", "=null"),
        ("G.stop_token_ids=[7]", "G.stop_token_ids", "=null"),
        ("G.temperature=0.7", "G.temperature", "Set G.temperature=1"),
        ("V.async_engine=true", "V.async_engine", "=false"),
        ("V.enable_prefix_caching=false", "V.enable_prefix_caching", "or aopsd.weighting=uniform"),
        ("V.expert_parallel_size=4", "V.expert_parallel_size", "Set V.expert_parallel_size=1"),
        ("V.kv_cache_dtype=fp8_e4m3", "V.kv_cache_dtype", "=auto"),
        (
            "loss_fn.use_importance_sampling_correction=false V.precision=fp8",
            *("loss_fn.use_importance_sampling_correction", "or V.precision=bfloat16"),
        ),
        # scoring
        ("aopsd.scoring=sampler G.top_p=0.95", "G.top_p", "Set G.top_p=1, or aopsd.scoring=trainer"),
        ("aopsd.scoring=prefill G.top_k=20", "G.top_k", "Set G.top_k=null, or aopsd.scoring=trainer"),
        (
            "aopsd.scoring=sampler V.precision=fp8",
            "aopsd.scoring",
            "Set aopsd.scoring=prefill, or V.precision=bfloat16",
        ),
        # loss
        ("KL=0.01", "KL", "Set KL=0"),
        ("KL=null", "KL", "Set KL=0"),  # left out it is 0.01
        ("aopsd.objective.aggregation=seq_mean", "aopsd.objective.aggregation", "loss_fn.token_level_loss=false"),
        ("P.fuse_loss=true PP=2", "P.fuse_loss", "=false"),
        (f"P.fuse_loss=true {FP8}", "P.fuse_loss", "=false"),
        (f"D.enabled=true M.enabled=false {TOP_K}", "D.enabled", "or aopsd.engine=local"),
        (f"P.fuse_loss=true {TOP_K}", "P.fuse_loss", "=false"),
        (f"M.use_linear_ce_fusion_loss=true {TOP_K}", "M.use_linear_ce_fusion_loss", "=false"),
        (f"M.use_linear_ce_fusion_loss=true {OWN}", "M.use_linear_ce_fusion_loss", "=false"),
        # optimizer
        *(
            (f"aopsd.keep_optimizer_on_gpu=true {other}", "aopsd.keep_optimizer_on_gpu", "=false")
            for other in (ON_DTENSOR, "M.optimizer.optimizer_cpu_offload=true", "aopsd.probes.keep_cache=true")
        ),
        # FP8
        (f"M.fp8_cfg.fp8_param=true {FP8}", "M.fp8_cfg.fp8_param", "=false"),
        (
            f"M.fp8_cfg.fp8_param=true {FP8} M.fp8_cfg.fp8_recipe=mxfp8 TP=1 SP=false",
            *("M.distributed_data_parallel_config.overlap_param_gather", "or M.fp8_cfg.fp8_param=false"),
        ),
        # GPUs and parallel sizes
        ("TP=1", "SP", "Set SP=false, or TP=2"),
        ("SP=false EP=2", "SP", "Set SP=true"),
        ("cluster.gpus_per_node=7", "cluster.gpus_per_node", "Change cluster.gpus_per_node"),
        ("PP=8", "cluster.gpus_per_node", "Change cluster.gpus_per_node"),
        ("V.tensor_parallel_size=3", "cluster.gpus_per_node", "Change cluster.gpus_per_node"),
        # batch
        ("BATCH=64", "BATCH", "Set BATCH=32"),
        ("BATCH=24", "BATCH", "Set BATCH=32"),
        ("aopsd.num_generations_per_prompt=2 BATCH=24", "BATCH", "Set BATCH=64"),
        ("cluster.num_nodes=3", "BATCH", "Change aopsd.num_prompts_per_step"),
        ("P.enabled=false policy.train_micro_batch_size=3", "BATCH", "Change aopsd.num_prompts_per_step"),
        # lengths
        ("V.max_model_len=16383", "V.max_model_len", "=16384"),
        ("P.logprob_mb_tokens=8192", "P.logprob_mb_tokens", "=16384"),
        ("P.train_mb_tokens=10001 LENGTH=10001", "P.train_mb_tokens", "=10002"),  # a row is padded
        ("B.logprob_mb_tokens=64 B.enabled=true P.enabled=false", "B.logprob_mb_tokens", "=16384"),
        ("MULTIPLE=1", "MULTIPLE", "Set MULTIPLE=2"),
        ("MULTIPLE=4 CP=2", "MULTIPLE", "Set MULTIPLE=8"),  # TP 2 x 2 x CP 2
        (f"MULTIPLE=128 {FP8} P.enabled=false", "MULTIPLE", "Set MULTIPLE=256"),  # x TP 2
        (f"MULTIPLE=32 {FP8} P.enabled=false M.fp8_cfg.fp8_recipe=mxfp8", "MULTIPLE", "Set MULTIPLE=64"),
        ("P.enabled=false CP=2 MULTIPLE=8", "P.enabled", "Set P.enabled=true, or CP=1"),
        (f"{ON_DTENSOR} D.context_parallel_size=2 MULTIPLE=4", "P.enabled", "or D.context_parallel_size=1"),
        # sizes that are no sizes
        ("PP=0", "PP", "Set PP"),
        ("cluster.gpus_per_node=all", "cluster.gpus_per_node", "Set cluster.gpus_per_node"),
        ("V.max_model_len=null", "V.max_model_len", "Set V.max_model_len"),
        ("P.train_mb_tokens=1.5", "P.train_mb_tokens", "Set P.train_mb_tokens"),
        # trackers
        ("logger.mlflow_enabled=true", "logger.mlflow", "Add logger.mlflow, or set logger.mlflow_enabled=false"),
    ],
)
def test_one_refusal(faults, words, key, remedy):
    (line,) = [line for line in faults(words) if line.startswith(full(key))]
    said, expected = line.split("; expected ")
    told = dict(word.split("=") for word in words.split()).get(key)
    assert told is None or said.endswith(f" is {json.dumps(yaml.safe_load(told)) if told.startswith('[') else told}")
    for word in remedy.replace(",", " ,").split():
        assert full(word.partition("=")[0]) in expected and word.partition("=")[2] in expected


@pytest.mark.parametrize(
    "words",
    [
        "grpo.max_num_steps=10 aopsd.max_num_steps=10 aopsd.seed=7 grpo.seed=7",  # said twice, and alike
        "D._v2=true",  # DTensor is off
        f"aopsd.objective.top_k_form=tail {TOP_K}",
        "aopsd.objective.name=dash aopsd.objective.support=64 aopsd.weighting=uniform",
        "V.enable_prefix_caching=false aopsd.weighting=uniform",
        "V.precision=fp8 aopsd.scoring=trainer",  # with the correction, which is on
        "P.fuse_loss=true",  # neither pipeline stages nor FP8
        "M.fp8_cfg.fp8_param=true",  # FP8 itself is off
        FP8,  # packs are padded by NeMo RL
        "V.tensor_parallel_size=4 V.expert_parallel_size=4",
        "P.enabled=false B.enabled=true",
        "logger.monitor_gpus=true logger.tensorboard_enabled=true",
        "env.math.num_workers=8 distillation.seed=1",  # of other scripts of NeMo RL's
    ],
)
def test_what_works_is_not_refused(faults, words):
    assert faults(words) == []


def test_every_fault_is_listed_at_once_and_a_broken_size_hides_none(faults):
    keys = [line.split(" is ")[0] for line in faults(f"TP=two D.enabled=true V.async_engine=true KL=1 {FP8}", {})]
    names = ("TP", "M.enabled", "V.async_engine", "KL", "TORCH_CUDA_ARCH_LIST")
    assert keys == [full(name) for name in names]


def test_the_engine_tells_every_fault_in_one_error(base):
    with pytest.raises(UserError) as error:
        read_settings(base, {})
    first, line = str(error.value).split("\n")
    assert first == "config, for aopsd.engine=nemo_rl:" and line.startswith("- TORCH_CUDA_ARCH_LIST is null; ")


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
@pytest.mark.parametrize("value", ["expandable_segments:True", "max_split_size_mb:64, expandable_segments: true"])
def test_memory_that_cannot_sleep_is_refused(faults, name, value):
    (line,) = faults("", ENVIRONMENT | {name: value})
    assert line.startswith(f"{name} is {value}; expected ")
    (line,) = faults(f"V.env_vars.{name}={value.replace(' ', '')}")
    assert line.startswith(f"{BLOCKS['V']}.env_vars.{name} is ")
    assert faults(f"M.env_vars.{name}={value.replace(' ', '')}") == []  # the trainer's own may
    assert faults("", ENVIRONMENT | {name: value.replace("rue", "false")}) == []


@pytest.mark.parametrize("environment", [{}, {"TORCH_CUDA_ARCH_LIST": ""}])
def test_megatron_needs_the_compute_capability(faults, environment):
    (line,) = faults("", environment)
    assert line.startswith("TORCH_CUDA_ARCH_LIST is ") and "export TORCH_CUDA_ARCH_LIST=9.0" in line


@pytest.mark.parametrize(
    ("name", "block", "command"),
    [
        ("sft_nemo_rl", "sft", "python examples/run_sft.py --config FILE"),
        ("grpo_progress_reward", "env.aopsd_progress", "python -m nemo_aopsd.baselines.run_stock examples/run_grpo.py"),
        ("grpo_correct_nemo_rl", "env.aopsd_progress", "python -m nemo_aopsd.baselines.run_stock examples/run_grpo.py"),
    ],
)
def test_a_recipe_for_a_script_of_nemo_rl_s_is_sent_there(base, name, block, command):
    """With nothing else: its other settings are right where it belongs."""
    with pytest.raises(UserError) as error:
        nemo_rl.check(load_config(CONFIGS / f"{name}.yaml"))
    (line,) = str(error.value).split("\n")
    assert f"`{block}`" in line and command in line
    refuse_stock_recipe(Tree(base.raw))


def test_neither_torch_nor_nemo_rl_is_imported():
    code = (
        "import sys, nemo_aopsd.engines.nemo_rl.settings as settings; "
        "from nemo_aopsd.config.load import load_config; "
        f"settings.read_settings(load_config({str(CONFIGS / 'aopsd_qwen3_4b_megatron.yaml')!r}), {ENVIRONMENT!r}); "
        "print(sorted({'torch', 'transformers', 'nemo_rl', 'ray', 'vllm'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "[]\n"
