"""Our configs through NeMo RL's own loader and schema: v0.7.0 takes every file as it is."""

import inspect
import math
import re
from pathlib import Path

import nemo_rl
import pytest
import torch
from nemo_rl.algorithms.advantage_estimator import GRPOAdvantageEstimator
from nemo_rl.algorithms.grpo import MasterConfig
from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossFn
from nemo_rl.algorithms.reward_functions import apply_reward_shaping
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation.vllm import VllmConfig
from nemo_rl.models.generation.vllm.config import VllmSpecificArgs
from nemo_rl.models.policy import DTensorConfig, MegatronConfig
from nemo_rl.utils.config import load_config as load_theirs
from nemo_rl.utils.config import parse_hydra_overrides, register_omegaconf_resolvers
from omegaconf import OmegaConf
from pydantic import ValidationError

from nemo_aopsd.config.keys import find_slips
from nemo_aopsd.config.load import _KNOWN, _merge, file_layers, flatten, load_config, register_resolvers
from nemo_aopsd.config.shipped import FOLDER, find_method
from nemo_aopsd.config.unread import _slip, _unread_by_local
from nemo_aopsd.method.reward import group_advantages
from tests.engines.test_nemo_rl_configs import CONFIGS, RUNS, load
from tests.nemo_rl.versions import read

# NeMo RL fills these in by itself before it builds an engine.
FILLED_IN = {"skip_tokenizer_init"}


def container(run):
    """As NeMo RL's scripts make it of a file and overrides. `${package:...}` is ours."""
    path = CONFIGS / f"aopsd_{run.split()[0]}.yaml"
    register_resolvers()
    register_omegaconf_resolvers()
    return OmegaConf.to_container(parse_hydra_overrides(load_theirs(path), list(RUNS[run])), resolve=True)


@pytest.mark.parametrize("run", RUNS)
def test_both_loaders_and_the_schema_take_it_whole(run):
    theirs, ours = container(run), load(run).raw
    for key in ("policy", "loss_fn", "data", "logger", "checkpointing", "cluster", "grpo", "env"):
        assert ours[key] == theirs[key]
    assert flatten(theirs["aopsd"]).items() <= flatten(ours["aopsd"]).items()  # ours has every default as well
    config = MasterConfig(**theirs)
    assert config.aopsd["engine"] == "nemo_rl"
    assert config.policy["train_global_batch_size"] == read(config.grpo, "num_prompts_per_step") == 32
    assert config.policy["generation"]["vllm_cfg"]["max_model_len"] == config.policy["max_total_sequence_length"]
    # The schema's unions let an incomplete block pass as a disabled one.
    policy = theirs["policy"]
    assert MegatronConfig.__required_keys__ <= policy["megatron_cfg"].keys()
    assert DTensorConfig.__required_keys__ <= policy["dtensor_cfg"].keys()
    assert VllmConfig.__required_keys__ <= policy["generation"].keys()
    assert VllmSpecificArgs.__required_keys__ - FILLED_IN <= policy["generation"]["vllm_cfg"].keys()
    assert "offload_optimizer_for_logprob" in policy  # read without a default, and in no schema


@pytest.mark.parametrize("run", ["qwen3_4b_megatron", "qwen3_4b_megatron_fp8", "tiny_h100 TP 2"])
def test_row_lengths_suit_nemo_rls_packing(run):
    data = pytest.importorskip("nemo_rl.models.megatron.data", exc_type=ImportError)
    policy = load(run).policy
    multiple = policy["make_sequence_length_divisible_by"]
    longest = policy["max_total_sequence_length"] + -policy["max_total_sequence_length"] % multiple
    of_row, of_pack, _ = data._get_pack_sequence_parameters_for_megatron(policy["megatron_cfg"], multiple, longest)
    assert of_row == multiple
    if policy["megatron_cfg"]["fp8_cfg"]["enabled"]:
        assert of_pack == multiple  # so the last row of a pack is not stretched


def test_the_loss_takes_its_block():
    loss = ClippedPGLossFn(MasterConfig(**container("qwen3_4b_megatron")).loss_fn)
    assert loss.use_importance_sampling_correction and loss.truncated_importance_sampling_ratio == 2.0
    assert loss.reference_policy_kl_penalty == 0.0


def test_the_schema_would_object():
    broken = container("qwen3_4b_megatron")
    del broken["policy"]["precision"]
    with pytest.raises(ValidationError, match="precision"):
        MasterConfig(**broken)


def test_megatron_takes_optimizer_and_scheduler():
    config = pytest.importorskip("megatron.bridge.training.config", exc_type=(ImportError, OSError))
    megatron = container("qwen3_4b_megatron")["policy"]["megatron_cfg"]
    assert config.OptimizerConfig(**megatron["optimizer"]).lr == 1e-6
    assert config.SchedulerConfig(**megatron["scheduler"]).lr_decay_style == "constant"


# Read only where another setting, off in ours, asks for it.
OPTIONAL = {"num_prompts_per_dataloader", "mcore_generation_config", "sglang_cfg", "nemo_gym", "async_grpo"}
READS = re.compile(
    r"(?:master_config\.(\w+)|\b(grpo|data|cluster|policy|generation)_config)\[\s*[\"'](\w+)[\"']\](?!\s*=[^=])"
)


@pytest.mark.parametrize("name", ["grpo_progress_reward", "grpo_correct_nemo_rl"])
def test_stock_grpo_finds_every_key_that_it_reads_without_a_default(name):
    """NeMo RL's schema calls some of them optional, and its script then fails in the middle of its first step."""
    tree = load_config(CONFIGS / f"{name}.yaml").raw
    blocks = {**tree, "generation": tree["policy"]["generation"]}
    source = inspect.getsource(inspect.getmodule(MasterConfig))
    asked = {(first or second, key) for first, second, key in READS.findall(source) if key not in OPTIONAL}
    assert len(asked) > 30
    missing = [f"{block}.{key}" for block, key in sorted(asked) if key not in blocks[block]]
    assert missing == ["generation.model_name"]  # NeMo RL fills it in


def test_grpo_on_correctness_asks_no_judge():
    register_omegaconf_resolvers()
    tree = OmegaConf.to_container(load_theirs(CONFIGS / "grpo_correct_nemo_rl.yaml"), resolve=True)
    assert tree["env"]["aopsd_progress"]["reward"] == {"progress": 0.0, "correct": 1.0}


def test_grpo_on_correctness_has_the_advantages_and_the_loss_of_the_local_objective():
    """Two prompts of eight answers; one right answer of the second is truncated, so both sides pay nothing for it."""
    theirs = MasterConfig(**load_config(CONFIGS / "grpo_correct_nemo_rl.yaml").raw)
    ours = load_config(FOLDER / "demo.yaml", [], find_method("grpo"))
    assert read(theirs.grpo, "num_generations_per_prompt") == ours.aopsd.num_generations_per_prompt == 8
    right = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0])
    truncated = torch.arange(16) == 11
    batch = apply_reward_shaping(
        BatchedDataDict(total_reward=right, truncated=truncated), read(theirs.grpo, "reward_shaping")
    )
    prompts, mask = torch.arange(2).repeat_interleave(8).unsqueeze(-1), torch.ones(16, 1)
    estimator = GRPOAdvantageEstimator(read(theirs.grpo, "adv_estimator"), theirs.loss_fn)
    found = estimator.compute_advantage(prompts, batch["total_reward"], mask).squeeze(-1)
    paid = (right * ~truncated).tolist()
    expected = group_advantages(prompts.flatten().tolist(), paid)
    assert found.tolist() == pytest.approx(expected, abs=1e-5)
    assert expected[0] == pytest.approx(7 / 8 / math.sqrt(1 / 8), abs=1e-5)  # 1 of 8: deviation 1 / sqrt(8)
    loss, clips = ClippedPGLossFn(theirs.loss_fn), ours.aopsd.objective
    assert loss.reference_policy_kl_penalty == 0 and loss.truncated_importance_sampling_ratio == 2
    assert (loss.ratio_clip_min, loss.ratio_clip_max) == (clips.ratio_clip_min, clips.ratio_clip_max)
    assert theirs.loss_fn.token_level_loss and clips.aggregation == "token_mean"


def test_no_key_of_nemo_rl_s_own_recipes_is_taken_for_a_slip():
    register_resolvers()
    files = sorted(Path(nemo_rl.__file__).parents[1].glob("examples/configs/**/*.yaml"))
    assert len(files) > 100
    for file in files:
        tree = {}
        for layer in file_layers(file):
            assert [*find_slips(layer, tree, _KNOWN)] == []
            tree = _merge(tree, layer, file)
        assert not [key for key in _unread_by_local(tree) if _slip(key)]
