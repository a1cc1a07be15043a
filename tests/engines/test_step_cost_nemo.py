"""The benchmark of the NeMo RL engine, without NeMo RL: its numbers, its model and its loop over a fake engine."""

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, GenerationConfig

from benchmarks import step_cost_nemo as bench
from nemo_aopsd.config.schema import AOPSDConfig, ContextConfig, CurriculumConfig
from nemo_aopsd.engines.nemo_rl.settings import read_settings
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import student_messages, teacher_messages
from nemo_aopsd.models.tokenizer import HFTokenizer
from tests.fakes import FakeEngine, make_problem, random_table
from tests.fakes import make_config as fake_config


def step(weighting, total, **seconds):
    stages = dict.fromkeys(bench.STAGES, 0.0) | seconds | {"total": total}
    return bench.Step(weighting, stages, [8], 0.5, 0.01, 3, 7.0)


STEPS = [  # two pairs: 12 over 10 and 22 over 20
    step("uniform", 10.0, rollout=6.0, update=4.0),
    step("continuation", 12.0, rollout=6.0, update=4.5, probes=1.5),
    step("uniform", 20.0, rollout=16.0, update=4.0),
    step("continuation", 22.0, rollout=16.0, update=4.5, probes=1.5),
]


def test_ratio_is_of_pairs_with_its_spread():
    found = bench.summary(STEPS)
    assert found["ratios"] == {"continuation": pytest.approx({"median": 1.15, "least": 1.1, "greatest": 1.2})}
    assert found["rounds"] == 2
    assert found["seconds"]["uniform"]["rollout"] == {"median": 11.0, "least": 6.0, "greatest": 16.0}
    assert found["seconds"]["continuation"]["probes"] == {"median": 1.5, "least": 1.5, "greatest": 1.5}


def test_the_threshold_leaves_the_wanted_share_at_or_above_it():
    gaps = torch.randperm(10_000, generator=torch.Generator().manual_seed(0)) / 1000  # 0 to 9.999, each once
    threshold = bench.threshold_of(gaps, 0.0115)
    assert 9.884 < threshold <= 9.885
    assert (gaps >= threshold).sum() == 115


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bench.write_model(tmp_path_factory.mktemp("model"), layers=1, hidden=320)


def test_the_model_has_no_end_token_and_the_wanted_shape(model):
    config = json.loads((model / "config.json").read_text())
    wanted = {"model_type": "qwen3", "hidden_size": 320, "num_hidden_layers": 1, "num_attention_heads": 4}
    wanted |= {"num_key_value_heads": 1, "intermediate_size": 1216, "head_dim": 128, "vocab_size": 151936}
    wanted |= {"max_position_embeddings": 40960, "tie_word_embeddings": True}
    assert {name: config[name] for name in wanted} == wanted
    assert config.get("eos_token_id") is None
    assert GenerationConfig.from_pretrained(model).eos_token_id is None
    with safe_open(model / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118
        queries = weights.get_tensor("model.layers.0.self_attn.q_proj.weight")
        words = weights.get_tensor("model.embed_tokens.weight")
        norms = weights.get_tensor("model.norm.weight")
    assert queries.dtype == torch.bfloat16 and queries.shape == (4 * 128, 320)
    assert queries.float().std().item() == pytest.approx(0.02, rel=0.01)
    assert words.float().std().item() == pytest.approx(0.02, rel=0.01)
    assert (norms == 1).all()


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
    assert settings.data_parallel_size == 1 and settings.packs_rows
    assert settings.train_global_batch_size == config.aopsd.num_prompts_per_step == args.responses
    # The longest row: the teacher's prompt, the response, and a probe behind its last token.
    assert config.max_row_tokens == args.teacher_prompt + args.tokens + config.aopsd.probes.length
    assert config.rollout.max_new_tokens == args.tokens
    assert config.policy["megatron_cfg"]["optimizer"]["grad_norm_skip_threshold"] == 0.0
    assert config.policy["generation"]["vllm_cfg"]["enforce_eager"] is True
    assert (config.aopsd.context.kind, config.aopsd.curriculum.name) == ("solution", "shuffle")


class Turns:
    def let_sample(self, role):
        pass

    def let_score(self):
        pass

    def let_train(self):
        pass

    def tell_sampler(self, method):
        pass


@pytest.fixture
def measured(tmp_path):
    """A fake engine that never ends a text, with turns that it does not take."""

    def run(num_rounds, deadline, arms=("uniform", "continuation")):
        engine = FakeEngine(random_table(0, end_boost=-50.0), random_table(1, end_boost=-50.0), learning_rate=0.0)
        engine.cluster = Turns()
        engine.tokenizer.end_ids = frozenset()
        aopsd = AOPSDConfig(
            num_prompts_per_step=6, context=ContextConfig(kind="solution"), curriculum=CurriculumConfig(name="shuffle")
        )
        config = fake_config(tmp_path, aopsd, generation={"max_new_tokens": 200})
        said = []
        problems = [make_problem(index) for index in range(6)]
        return bench.measure(engine, config, problems, arms, 0.02, num_rounds, deadline, said.append), said, engine

    return run


def test_steps_alternate_at_the_forced_rate_and_length(measured):
    steps, said, engine = measured(2, math.inf)
    assert [s.arm for s in steps] == ["uniform", "continuation"] * 2
    assert all(s.lengths == [200] for s in steps)
    assert len({s.threshold for s in steps}) == 1
    # The threshold is that of another step, of 1,200 tokens: 24 probes, give or take.
    assert all(0.01 < s.rate < 0.03 for s in steps)
    assert [s.num_probes for s in steps] == [0, round(1200 * steps[1].rate), 0, round(1200 * steps[3].rate)]
    assert steps[1].rate == steps[0].rate  # the same responses, where the sampler is exact
    assert all({"teacher continues", "student scores"} <= s.seconds.keys() for s in steps if s.num_probes)
    assert not any("teacher continues" in s.seconds for s in steps if not s.num_probes)
    assert all(s.seconds["total"] >= sum(s.seconds[stage] for stage in bench.STAGES) for s in steps)
    assert len(engine.trained) == 6  # the pair that warms up, and two
    assert said[0].startswith("tokens of prompts: {'student_prompt': [") and "k = 8" in said[0]
    assert said[1].startswith("warm-up, PG + continuation: ")
    assert 24 <= int(re.search(r"(\d+) probes", said[1])[1]) <= 26  # 2 % of 1,200, and ties: bigrams come again
    assert [line.split(":")[0] for line in said[2:4]] == ["round 1, PG", "round 1, PG + continuation"]


def test_a_whole_run(monkeypatch, tmp_path, capsys):
    """`main` over the fake engine: from arguments to the line of JSON."""
    engine = FakeEngine(random_table(0, end_boost=-50.0), random_table(1, end_boost=-50.0))
    engine.cluster, stopped = Turns(), []
    engine.stop = lambda: stopped.append(True)
    monkeypatch.setattr(bench, "nemo_rl", SimpleNamespace(check=lambda config: None, build=lambda config: engine))
    monkeypatch.setenv("NRL_MEGATRON_CHECKPOINT_DIR", "elsewhere")
    room = "policy.max_total_sequence_length=4096"  # the fake's tokenizer has two tokens for a digit and its space
    words = ["--folder", str(tmp_path), "--layers", "1", "--hidden", "320", "--responses", "2", "--tokens", "40"]
    words += ["--question", "200", "--teacher-prompt", "900", "--rate", "0.1", "--steps", "1", "--minutes", "0"]
    monkeypatch.setattr("sys.argv", ["step_cost_nemo.py", *words, "--json", str(tmp_path / "result.json"), room])
    bench.main()
    assert stopped and engine.tokenizer.end_ids == frozenset()
    result = json.loads((tmp_path / "result.json").read_text())
    assert capsys.readouterr().out.splitlines()[-1] == json.dumps(result)
    assert (result["tokens"], result["layers"], result["rounds"]) == (40, 1, 1)
    assert [s["lengths"] for s in result["steps"]] == [[40], [40]]
