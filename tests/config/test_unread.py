"""Settings that change nothing are told: by the run's other settings, by the engine, and by the chat template."""

import pytest

from nemo_aopsd import engines
from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.unread import check_slips, unusual, without_effect
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.limits import check_thinking
from tests.fakes import CharTokenizer


@pytest.mark.parametrize(
    ("override", "others", "why"),
    [
        ("aopsd.objective.jsd_beta=0.3", [], "only aopsd.objective.name=jsd or gkd reads it"),
        ("aopsd.probes.length=4", ["aopsd.weighting=uniform"], "with aopsd.weighting=uniform nothing reads it"),
        ("aopsd.judge.threshold=1", [], "only aopsd.judge.kind=log_odds reads it"),
        (
            "aopsd.probes.max_per_rollout=3",
            ["aopsd.weighting=uniform"],
            "with aopsd.weighting=uniform nothing reads it",
        ),
        ("aopsd.judge.max_new_tokens=9", ["aopsd.judge.kind=log_odds"], "aopsd.judge.kind=log_odds writes no verdict"),
        ("aopsd.evaluation.num_samples=2", [], "without aopsd.evaluation.data_path nothing is evaluated"),
        ("aopsd.objective.reward_weight=3", [], "only aopsd.objective.reward=added reads it"),
        ("aopsd.objective.evidence_clip=0.3", [], "only aopsd.objective.reward=direction reads it"),
        (
            "aopsd.objective.reward=added",
            ["aopsd.objective.name=fkl", "aopsd.weighting=uniform"],
            "only aopsd.objective.name=pg reads it",
        ),
        ("aopsd.teacher.ema_decay=0.9", [], "only aopsd.teacher.weights=ema reads it"),
        (
            "aopsd.context.kind=plan",
            ["aopsd.objective.name=sft", "aopsd.weighting=uniform"],
            "aopsd.objective.name=sft has no teacher",
        ),
    ],
)
def test_an_override_that_nothing_reads_is_told(base, override, others, why):
    key = override.partition("=")[0]
    [told] = without_effect(load_config(base, [*others, override]), [override])
    assert told == f"{key} has no effect: {why}."


def test_what_is_read_is_not_told(base):
    overrides = ["aopsd.probes.length=4", "aopsd.judge.max_new_tokens=9", "aopsd.seed=3", "policy.enforce_eager=true"]
    overrides += [
        "policy.optimizer.kwargs.lr=1e-5",
        "logger.tensorboard_enabled=true",
        "logger.wandb.project=mine",
        "+logger.wandb.mode=offline",
    ]
    assert without_effect(load_config(base, overrides), overrides) == []


def test_blocks_that_only_nemo_rl_reads_are_named_by_their_outermost_key(base):
    overrides = ["+cluster.gpus_per_node=8", "+policy.megatron_cfg.enabled=true", "+policy.generation.vllm_cfg.x=1"]
    overrides += ["+policy.generation.vllm_cfg.y=1", "+logger.monitor_gpus=true"]
    [told] = without_effect(load_config(base, overrides), overrides)
    unread = "cluster, logger.monitor_gpus, policy.generation.vllm_cfg, policy.megatron_cfg"
    assert told == f"not read by aopsd.engine=local: {unread}. docs/config.md lists what is."


def test_a_key_of_a_file_that_likely_means_one_that_the_local_engine_reads_is_refused(write, base):
    for text, meant in {
        "data: {train: {path: mine.jsonl}}": "data.train.data_path",
        "data: {data_path: mine.jsonl}": "data.train.data_path",
        "policy: {lr: 1.0e-3}": "policy.optimizer.kwargs.lr",
        "policy: {optimizer: {lr: 1.0e-3}}": "policy.optimizer.kwargs.lr",
        "policy: {optim: {lr: 1.0e-3}}": "policy.optimizer",
        "policy: {model: gpt2}": "policy.model_name",
        "policy: {generation: {max_tokens: 50}}": "policy.generation.max_new_tokens",
        "logger: {dir: x}": "logger.log_dir",
    }.items():
        child = write(f"defaults: ../base.yaml\n{text}\n", "run/config.yaml")
        with pytest.raises(UserError, match=rf"{child}:2: .* Did you mean `{meant}`\? If not, leave it out, or add "):
            engines.pick(config := load_config(child)).check(config)
    with pytest.raises(UserError, match=r"by an override: '\+policy\.optim=\{\"fused\": true\}'$"):
        check_slips(load_config(write("defaults: base.yaml\npolicy: {optim: {fused: true}}\n")))
    check_slips(load_config(child, [f"logger.log_dir={child.parent}"]))  # a run goes on
    theirs = "policy: {logprob_chunk_size: 1, generation: {val_temperature: 1}}\nlogger: {swanlab: {x: 1}}\n"
    theirs += "data: {val_data_path: held_out.jsonl}\n"
    check_slips(load_config(write(f"defaults: base.yaml\n{theirs}"), ["+policy.lr=0.001"]))


class Switchable(CharTokenizer):
    def render(self, messages, thinking):
        return super().render(messages, thinking) + ([1] if thinking is False else [])


def test_a_thinking_switch_that_the_template_lacks_is_told():
    asked = {"aopsd.thinking.student": False, "aopsd.thinking.teacher": None}
    [told] = check_thinking(asked, CharTokenizer(), "models/m")
    assert told.startswith("aopsd.thinking.student is false, without effect: the chat template of models/m ")
    assert check_thinking(asked, Switchable(), "models/m") == []
    assert check_thinking(dict.fromkeys(asked), CharTokenizer(), "models/m") == []


@pytest.mark.parametrize("engine", ["local", "nemo_rl"])
def test_held_out_problems_in_nemo_rl_s_place_are_told(base, engine):
    overrides = [f"aopsd.engine={engine}", "+data.validation={data_path: x.jsonl}"]
    told = [line for line in without_effect(load_config(base, overrides), []) if "validation" in line]
    assert len(told) == 1 and "aopsd.evaluation.data_path=FILE" in told[0]


def test_a_learning_rate_that_looks_like_a_misread_exponent_is_told(base):
    for key in ("policy.optimizer.kwargs.lr", "policy.megatron_cfg.optimizer.lr"):
        [told] = unusual(load_config(base, [f"+{key}=1000"]))
        assert told.startswith(f"override: {key} is 1000; ") and told.endswith("Check the exponent.")
        assert unusual(load_config(base, [f"+{key}=1e-3"])) == []
