"""The benchmark of the NeMo RL engine, without NeMo RL: its numbers, its model and its loop over a fake engine."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer

from benchmarks import arms
from benchmarks import step_cost_nemo as bench
from nemo_aopsd.engines.nemo_rl.settings import read_settings
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import student_messages, teacher_messages
from nemo_aopsd.models.tokenizer import HFTokenizer
from tests.fakes import FakeEngine, random_table


def step(weighting, total, **seconds):
    stages = dict.fromkeys(arms.STAGES, 0.0) | seconds | {"total": total}
    return arms.Step(weighting, stages, [8], 0.5, 0.01, 3, 7.0)


STEPS = [  # two pairs: 12 over 10 and 22 over 20
    step("uniform", 10.0, rollout=6.0, update=4.0),
    step("continuation", 12.0, rollout=6.0, update=4.5, probes=1.5),
    step("uniform", 20.0, rollout=16.0, update=4.0),
    step("continuation", 22.0, rollout=16.0, update=4.5, probes=1.5),
]


def test_ratio_is_of_pairs_with_its_spread():
    found = arms.summary(STEPS)
    expected = {"over": "uniform", "median": 1.15, "least": 1.1, "greatest": 1.2}
    assert found["ratios"] == {"continuation": pytest.approx(expected)}
    assert found["rounds"] == 2
    assert found["seconds"]["uniform"]["rollout"] == {"median": 11.0, "least": 6.0, "greatest": 16.0}
    assert found["seconds"]["continuation"]["probes"] == {"median": 1.5, "least": 1.5, "greatest": 1.5}


def test_an_arm_is_divided_by_pg_with_the_same_scoring_and_that_by_the_first_arm():
    totals = {"continuation@trainer": 45, "uniform@sampler": 25, "continuation@sampler": 30, "uniform@trainer": 40}
    ratios = arms.summary([step(arm, float(total)) for arm, total in totals.items()])["ratios"]
    assert {arm: (ratio["over"], ratio["median"]) for arm, ratio in ratios.items()} == {
        "continuation@sampler": ("uniform@sampler", 1.2),
        "uniform@trainer": ("uniform@sampler", 1.6),
        "continuation@trainer": ("uniform@trainer", 1.125),
    }


def test_refit_rollout_and_update_are_held_against_those_of_stock_grpo():
    rounds = [
        step("uniform@sampler", 20.0, rollout=11.0, teacher=2.0, update=9.0),  # 20 over 25
        step("grpo", 30.0, rollout=15.0, student=3.0, update=10.0),
        step("continuation@sampler", 26.0, rollout=11.0, update=9.0),
        step("grpo", 30.0, rollout=10.0, student=3.0, update=10.0),
        step("uniform@sampler", 23.0, rollout=12.0, update=10.0),  # 22 over 20
        step("continuation@sampler", 28.0, rollout=11.0, update=9.0),
    ]
    found = arms.summary(rounds)
    assert found["shared"] == {"uniform@sampler": pytest.approx({"median": 0.95, "least": 0.8, "greatest": 1.1})}
    assert found["ratios"]["continuation@sampler"]["over"] == "uniform@sampler"
    assert any("of PG, sampler over those of NeMo RL's GRPO: 0.950" in line for line in arms.report(rounds))
    assert arms.summary(STEPS)["shared"] == {}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bench.write_model(tmp_path_factory.mktemp("model"), layers=1, hidden=320)


def test_a_mixture_has_the_form_of_the_published_one(tmp_path):
    """Qwen3-30B-A3B, of hidden size 2048: 128 experts of 768, 8 of them chosen, 32 heads and 4 key heads."""
    folder = bench.write_model(tmp_path, layers=1, hidden=512, experts=16)
    found = AutoConfig.from_pretrained(folder)
    assert (found.moe_intermediate_size * 4, found.num_attention_heads * 4, found.num_key_value_heads * 4) == (
        768,
        32,
        4,
    )
    assert (found.num_experts, found.num_experts_per_tok, found.tie_word_embeddings) == (16, 8, False)
    with safe_open(folder / "model.safetensors", "pt") as file:  # as vLLM and Megatron-Bridge read it
        names = file.keys()
    assert "model.layers.0.mlp.experts.15.down_proj.weight" in names


def test_prompts_have_the_asked_lengths(model):
    config = bench.make_config(bench.parse_arguments(["--folder", "x", "--responses", "5"]), model)
    tokenizer = HFTokenizer(AutoTokenizer.from_pretrained(model), [])
    problems = bench.make_problems(tokenizer, config, question=300, teacher_prompt=1500)
    students = [tokenizer.render(student_messages(problem, "default"), None) for problem in problems]
    teachers = [tokenizer.render(teacher_messages(problem, "solution", "default"), None) for problem in problems]
    assert [len(prompt) for prompt in students] == [300] * 5
    assert [len(prompt) for prompt in teachers] == [1500] * 5
    # A sampler's cache of prefixes, 16 tokens a block, has nothing to share.
    assert len({tuple(prompt[:16]) for prompt in students}) == len({tuple(prompt[:16]) for prompt in teachers}) == 5
    with pytest.raises(UserError, match="no room beside its template"):
        bench.make_problems(tokenizer, config, question=10, teacher_prompt=1500)


@pytest.mark.parametrize("words", [[], ["--responses", "64", "--tokens", "8192"], ["--teacher-prompt", "7000"]])
def test_the_config_passes_the_engines_checks(words, model):
    args = bench.parse_arguments(["--folder", "x", *words, "policy.generation.vllm_cfg.enforce_eager=true"])
    config = bench.make_config(args, model)
    settings = read_settings(config, {"TORCH_CUDA_ARCH_LIST": "9.0"})
    assert settings.scoring_rows_multiple == 1 and config.policy["sequence_packing"]["enabled"]
    assert settings.train_global_batch_size == config.aopsd.num_prompts_per_step == args.responses
    # The longest row: the teacher's prompt, the response, and a probe behind its last token.
    assert config.max_row_tokens == args.teacher_prompt + args.tokens + config.aopsd.probes.length
    assert config.rollout.max_new_tokens == args.tokens
    assert config.policy["megatron_cfg"]["optimizer"]["grad_norm_skip_threshold"] == 0.0
    stepping = bench.make_config(bench.parse_arguments(["--folder", "x", "--adam"]), model)
    assert "grad_norm_skip_threshold" not in stepping.policy["megatron_cfg"]["optimizer"]
    assert config.policy["generation"]["vllm_cfg"]["enforce_eager"] is True
    assert (config.aopsd.context.kind, config.aopsd.curriculum.name) == ("solution", "shuffle")


@dataclass(frozen=True)
class Settings:
    scoring: str = "trainer"
    probe_runner: str = "requests"


@pytest.fixture
def fake(monkeypatch):
    """An engine for `main`, and arguments that are small enough for it."""
    engine = FakeEngine(random_table(0, end_boost=-50.0), random_table(1, end_boost=-50.0))
    engine.settings, engine.stopped = Settings(), []
    engine.stop = lambda: engine.stopped.append(True)
    monkeypatch.setattr(bench, "nemo_rl", SimpleNamespace(check=lambda config: None, build=lambda config: engine))
    monkeypatch.setenv("NRL_MEGATRON_CHECKPOINT_DIR", "elsewhere")
    return engine


# The fake samples without log-probs, and its tokenizer has two tokens for a digit and its space.
SMALL = "--layers 1 --hidden 320 --responses 2 --tokens 40 --question 200 --teacher-prompt 900 --rate 0.1 --minutes 0"
FAKES = ["aopsd.scoring=trainer", "policy.max_total_sequence_length=4096"]


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["step_cost_nemo.py", *map(str, words)])
    bench.main()


@pytest.mark.parametrize("arm", ["batched:0.02@sampler", "unifrom", "topk", "uniform@vllm", "grpo:2"])
def test_an_arm_that_is_none_is_refused_before_anything_starts(arm, fake, monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "--folder", tmp_path, "--arm", "batched@sampler:0.02", "--arm", arm)
    assert f"{arm}: expected METHOD[@SCORING][:RATE]" in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_a_whole_run(fake, monkeypatch, tmp_path, capsys):
    """`main` over the fake engine: from arguments to the line of JSON."""
    names = ["uniform", "continuation", "uniform@prefill", "batched", "continuation:0.5", "aopsd"]
    words = [*SMALL.split(), *(word for arm in names for word in ("--arm", arm)), "--steps", "1"]
    run(monkeypatch, "--folder", tmp_path, *words, "--json", tmp_path / "result.json", *FAKES)
    assert fake.stopped and fake.tokenizer.end_ids == frozenset()
    result = json.loads((tmp_path / "result.json").read_text())
    assert capsys.readouterr().out.splitlines()[-1] == json.dumps(result)
    assert (result["tokens"], result["layers"], result["rounds"]) == (40, 1, 1)
    assert [s["lengths"] for s in result["steps"]] == [[40]] * 6
    steps = {s["arm"]: s for s in result["steps"]}
    assert set(steps) == set(names)
    judged = {arm: step["seconds"]["judge"] for arm, step in steps.items()}
    assert steps["aopsd"]["num_probes"] and max(judged, key=judged.__getitem__) == "aopsd"
    assert steps["continuation:0.5"]["num_probes"] > 2 * steps["continuation"]["num_probes"] > 0


def test_an_interrupted_run_leaves_its_finished_rounds(fake, monkeypatch, tmp_path):
    train, left = bench.train_step, iter(range(3))  # for the threshold, and two rounds
    monkeypatch.setattr(bench, "train_step", lambda *args, **kwargs: next(left) + 1 and train(*args, **kwargs))
    with pytest.raises((StopIteration, RuntimeError)):
        run(monkeypatch, "--folder", tmp_path, *SMALL.split(), "--arm", "uniform", "--json", tmp_path / "r", *FAKES)
    assert json.loads((tmp_path / "r").read_text())["rounds"] == 2 and fake.stopped


def test_a_run_is_held_against_one_of_the_same_card(fake, monkeypatch, tmp_path, capsys):
    file = tmp_path / "then.json"
    run(monkeypatch, "--folder", tmp_path, *SMALL.split(), "--steps", "2", "--json", file, *FAKES)
    then = json.loads(file.read_text())
    for step in then["steps"]:
        step["seconds"] = {stage: seconds / 1000 for stage, seconds in step["seconds"].items() if stage != "judge"}
    file.write_text(json.dumps(then))
    with pytest.raises(SystemExit) as ended:  # with the file's sizes: Qwen3-4B would take hours
        run(monkeypatch, "--folder", tmp_path, "--baseline", file)
    out = capsys.readouterr().out
    [slower] = [line for line in out.splitlines() if line.startswith("SLOWER: ")]
    assert ended.value.code == 1 and "uniform: total" in slower and out.count("once more") == 1
    with pytest.raises(SystemExit):
        run(monkeypatch, "--folder", tmp_path, "--baseline", file, "--arm", "uniform", "--steps", "1")
    out = capsys.readouterr().out
    assert "uniform: total" in out and "continuation: total" not in out and "round 1" in out and "round 2" not in out
    with pytest.raises(UserError, match="has no arm grpo, only "):
        run(monkeypatch, "--folder", tmp_path, "--baseline", file, "--arm", "grpo")
    file.write_text(json.dumps(then | {"device": "NVIDIA H300"}))
    with pytest.raises(UserError, match="seconds of NVIDIA H300, and this is no GPU"):
        run(monkeypatch, "--folder", tmp_path, "--baseline", file)


def test_stages_of_a_baseline_are_those_that_are_not_small():
    found = bench.by_stage(STEPS)
    assert found["continuation: probes"] == [1.5, 1.5] and found["uniform: total"] == [10.0, 20.0]
    assert "uniform: student" not in found
