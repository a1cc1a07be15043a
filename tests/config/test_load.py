"""Config files as they are read: inheritance, interpolation and overrides, slips of the pen included."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_aopsd.config.keys import select
from nemo_aopsd.config.load import load_config, to_yaml
from nemo_aopsd.config.schema import AOPSDConfig
from nemo_aopsd.errors import UserError
from tests import REPO
from tests.config import BASE, message


def test_a_short_config_gets_every_default(base):
    config = load_config(base)
    assert config.aopsd == replace(AOPSDConfig(), scoring="trainer")  # of `auto`, for the teacher continues
    assert load_config(base, ["aopsd.weighting=uniform"]).aopsd.scoring == "sampler"
    assert load_config(base, ["aopsd.weighting=uniform", "policy.precision=bfloat16"]).aopsd.scoring == "sampler"
    assert config.policy["model_name"] == "models/tiny"
    assert config.rollout.temperature == 1.0 and config.rollout.max_new_tokens == 64
    assert config.max_row_tokens == 1024
    assert config.checkpointing == {
        "enabled": True,
        "checkpoint_dir": "runs/x/checkpoints",
        "save_period": 10,
        "keep_top_k": 2,
    }
    assert config.raw["aopsd"]["probes"]["threshold"] == 2.0


def test_our_block_is_typed(write):
    path = write(
        BASE + "aopsd:\n  seed: 3\n  probes: {threshold: 1, max_per_rollout: 4}\n  thinking: {teacher: false}\n"
    )
    aopsd = load_config(path).aopsd
    assert aopsd.seed == 3
    assert aopsd.probes.threshold == 1.0 and isinstance(aopsd.probes.threshold, float)
    assert aopsd.probes.max_per_rollout == 4 and aopsd.probes.length == 8
    assert aopsd.thinking.teacher is False and aopsd.thinking.student is None


def test_parents_come_first_and_the_child_wins(write):
    write(BASE + "aopsd: {seed: 1, weighting: uniform, max_num_epochs: 1}\n", "shared/base.yaml")
    write("aopsd: {seed: 2, max_num_epochs: 2}\n", "shared/more.yaml")
    child = write("defaults: [shared/base.yaml, shared/more.yaml]\naopsd: {seed: 3}\n")
    aopsd = load_config(child).aopsd
    assert (aopsd.weighting, aopsd.max_num_epochs, aopsd.seed) == ("uniform", 2, 3)
    grandchild = write("defaults: ../run.yaml\naopsd: {weighting: continuation}\n", "sub/run.yaml")
    aopsd = load_config(grandchild).aopsd
    assert (aopsd.weighting, aopsd.max_num_epochs, aopsd.seed) == ("continuation", 2, 3)


def test_a_parent_may_be_what_the_package_ships_by_name_and_a_file_of_that_name_comes_first(write):
    child = write("defaults: demo\naopsd: {seed: 3}\n")
    assert load_config(child).aopsd.seed == 3 and load_config(child).policy["max_total_sequence_length"] == 384
    write(BASE, "demo")
    assert load_config(child).policy["max_total_sequence_length"] != 384
    with pytest.raises(UserError, match=r"names demos, but there is no file .*; `demo` is the config that the package"):
        load_config(write("defaults: demos\n"))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("policy: {max_grad_nrom: 0.1}", "policy.max_grad_norm"),
        ("policy: {generation: {temprature: 0.2}}", "policy.generation.temperature"),
        ("data: {trian: {data_path: x.jsonl}}", "data.train"),
        ("logger: {logdir: x}", "logger.log_dir"),
    ],
)
def test_slips_in_nemo_rl_s_blocks_are_refused(write, text, meant):
    write(BASE, "base.yaml")
    child = write(f"defaults: base.yaml\n{text}\n")
    assert re.match(rf"{child}:2: unknown key .* Did you mean `{meant}`\?", message(child))


def test_slips_of_keys_that_only_a_parent_has_are_refused_unless_added_on_purpose(write):
    write(BASE + "cluster: {num_nodes: 1}\nloss_fn: {ratio_clip_min: 0.2}\n", "base.yaml")
    child = write("defaults: base.yaml\nloss_fn: {ratio_clip_mni: 0.1}\n")
    assert re.search(r"Did you mean `loss_fn\.ratio_clip_min`\? If not, .*: \+loss_fn\.ratio_clip_mni=", message(child))
    assert load_config(write("defaults: base.yaml\n"), ["+loss_fn.ratio_clip_mni=0.1"]).raw["loss_fn"]["ratio_clip_mni"]
    assert load_config(write("defaults: base.yaml\nloss_fn: {ratio_clip_c: 3, other: 1}\n")).raw["loss_fn"]["other"]
    text = message(child.with_name("base.yaml"), "+policy.max_grad_nrom=1")
    assert text.startswith("override `+policy.max_grad_nrom=1`") and text.endswith("mean `policy.max_grad_norm`?")


def test_keys_of_nemo_rl_that_look_like_ours_pass(write):
    write(BASE, "base.yaml")
    text = "policy: {logprob_chunk_size: 1, train_global_batch_size: 2, max_tokens_per_step: 3}"
    assert load_config(write(f"defaults: base.yaml\n{text}\n")).policy["logprob_chunk_size"] == 1


def test_a_block_marked_override_replaces_its_parent(write):
    write(BASE.replace("max_new_tokens: 64", "max_new_tokens: 64\n    stop_strings: [x]"), "base.yaml")
    child = write("defaults: base.yaml\npolicy:\n  generation: {_override_: true, max_new_tokens: 9, backend: vllm}\n")
    defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": None}
    assert load_config(child).policy["generation"] == {"max_new_tokens": 9, "backend": "vllm"} | defaults


def test_interpolation_and_arithmetic_of_nemo_rl(write):
    path = write(
        BASE
        + "checkpointing: {checkpoint_dir: '${logger.log_dir}/kept'}\n"
        + "aopsd:\n  num_prompts_per_step: ${mul:${aopsd.probes.length}, 4}\n  prompts: '${package:prompts/tiny}'\n"
    )
    config = load_config(path, ["logger.log_dir=runs/y", "aopsd.probes.length=2"])
    assert config.checkpointing["checkpoint_dir"] == "runs/y/kept"
    assert config.aopsd.num_prompts_per_step == 8
    assert Path(config.aopsd.prompts) == REPO / "nemo_aopsd/prompts/tiny"


def test_overrides_with_and_without_plus_and_the_last_one_wins(base):
    for plus in ("", "+", "++"):
        aopsd = load_config(base, [f"{plus}aopsd.probes.threshold=0.5", f"{plus}aopsd.context.kind=plan"]).aopsd
        assert aopsd.probes.threshold == 0.5 and aopsd.context.kind == "plan"
    words = ["aopsd.seed=1", "aopsd.probes.length=4", "aopsd.seed=2", "aopsd.probes={length: 5}"]
    aopsd = load_config(base, words).aopsd
    assert (aopsd.seed, aopsd.probes.length) == (2, 5)
    assert load_config(base, [*words, "aopsd.probes.length=4"]).aopsd.probes.length == 4


def test_override_values_are_yaml(base):
    config = load_config(
        base,
        [
            "aopsd.max_num_steps=null",
            "policy.optimizer.kwargs.lr=1e-5",
            "policy.optimizer.kwargs.betas=[0.9, 0.95]",
            "logger.log_dir='runs/with space'",
            "aopsd.probes={length: 4, threshold: 1.5}",
            "+cluster.gpus_per_node=8",
        ],
    )
    assert config.policy["optimizer"]["kwargs"] == {"lr": 1e-5, "betas": [0.9, 0.95]}
    assert config.logger["log_dir"] == "runs/with space"
    assert (config.aopsd.probes.length, config.aopsd.probes.threshold) == (4, 1.5)
    assert config.raw["cluster"] == {"gpus_per_node": 8}


def test_a_path_may_begin_with_the_home_folder_for_all_who_read_it(base, write, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    config = load_config(base, ["policy.model_name=~/m.gguf", "policy.tokenizer.name=~/t", "aopsd.judge.model=~/j"])
    found = (config.policy["model_name"], config.policy["tokenizer"]["name"], config.aopsd.judge.model)
    assert found == ("/home/me/m.gguf", "/home/me/t", "/home/me/j") and config.raw["policy"] == config.policy
    assert load_config(base, ["policy.model_name=a/~b"]).policy["model_name"] == "a/~b"
    keys = ("data.train.data_path", "aopsd.evaluation.data_path", "logger.log_dir", "checkpointing.checkpoint_dir")
    raw = load_config(base, [*(f"{key}=~/x" for key in keys), "aopsd.evaluation.max_new_tokens=64"]).raw
    monkeypatch.setenv("HOME", str(base.parent))
    child = write("defaults: ~/base.yaml\naopsd: {prompts: ~/own}", "child.yaml")
    assert load_config(child).aopsd.prompts == str(base.parent / "own")
    assert [select(raw, key) for key in keys] == ["/home/me/x"] * 4


def test_what_a_run_stores_reads_back_to_the_same_config(base, write):
    config = load_config(base, ["aopsd.seed=5", "policy.optimizer.kwargs.lr=1e-5", "aopsd.prompts='é: #'"])
    assert load_config(write(to_yaml(config), "stored.yaml")) == config


def test_a_block_over_an_interpolation_changes_what_it_means_and_a_missing_value_changes_nothing(write):
    write(BASE + "env: {a: {x: 1, y: 2}, b: '${env.a}', c: 3}\n", "base.yaml")
    env = load_config(write("defaults: base.yaml\nenv: {b: {y: 5}, c: '???'}\n")).raw["env"]
    assert env == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 5}, "c": 3}


def test_every_config_that_is_shipped_loads():
    paths = sorted((REPO / "examples/configs").glob("*.yaml"))  # those of methods: test_methods.py
    assert paths
    for path in paths:
        load_config(path, ["policy.model_name=model", "data.train.data_path=problems.jsonl"])
