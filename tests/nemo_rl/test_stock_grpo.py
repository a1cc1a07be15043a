"""The benchmark's arm `grpo`: NeMo RL's own loop, for one step, on the workers of our engine."""

from types import SimpleNamespace

import pytest
import torch
from nemo_rl.algorithms import grpo
from nemo_rl.distributed.batched_data_dict import BatchedDataDict

from benchmarks import arms, step_cost_nemo, stock_grpo
from nemo_aopsd.errors import UserError
from tests.nemo_rl.fake_cluster import fake_refit

TOKENS = 5


@pytest.fixture
def stock(engine, monkeypatch):
    """The fake workers as the loop of NeMo RL calls them, and what it asked in its order."""
    from nemo_aopsd.engines.nemo_rl import cluster

    generation, policy, asked = engine.cluster.generation, engine.cluster.policy, []

    def generate(data, greedy):
        assert generation.turns["sampler"] == "awake" and not greedy
        asked.append(("generate", data["input_lengths"].tolist()))
        ends = data["input_lengths"] + TOKENS
        ids = torch.zeros(data.size, int(ends.max()), dtype=torch.long)
        for row, prompt, length in zip(ids, data["input_ids"], data["input_lengths"], strict=True):
            row[:length], row[length : length + TOKENS] = prompt[:length], torch.arange(10, 10 + TOKENS)
        return BatchedDataDict(
            output_ids=ids,
            generation_lengths=torch.full((data.size,), TOKENS),
            unpadded_sequence_lengths=ends,
            logprobs=torch.full(ids.shape, -1.0),
            truncated=torch.ones(data.size, dtype=torch.bool),
        )

    def train(data, loss, timer):
        asked.append(("train", data["advantages"]))
        return type(policy).train(policy, data, loss, gbs=data.size)

    monkeypatch.setattr(grpo, "refit_policy_generation", lambda *args, **_: fake_refit(*args[:3]))
    for name, value in {"generate": generate, "clear_logger_metrics": lambda: None, "get_logger_metrics": dict}.items():
        monkeypatch.setattr(generation, name, value, raising=False)
    monkeypatch.setattr(policy, "train", train)
    monkeypatch.setattr(policy, "get_logprobs", lambda data, timer: type(policy).get_logprobs(policy, data))
    kept = {}
    monkeypatch.setattr(cluster.ray, "put", lambda value: kept.setdefault(len(kept), value) and len(kept) - 1)
    monkeypatch.setattr(cluster.ray, "get", lambda refs: [kept[ref] for ref in refs])
    return SimpleNamespace(engine=engine, asked=asked)


def test_a_step_is_nemo_rls_own_and_leaves_the_turn_as_ours(stock, config, problems):
    engine = stock.engine
    seconds, lengths = stock_grpo.take_step(engine, config, problems[:4])
    (_, prompts), (_, advantages) = stock.asked
    assert len(prompts) == 4 and prompts[0] == prompts[1] != prompts[2] == prompts[3]  # two groups of two
    rows = [advantages[i, prompts[i] : prompts[i] + TOKENS] for i in range(4)]
    assert all((row < 0).all() for row in rows[::2]) and all((row > 0).all() for row in rows[1::2])
    assert lengths == [TOKENS]
    assert set(seconds) == {"rollout", "student", "update", "total"} and all(value > 0 for value in seconds.values())
    assert sum(seconds.values()) <= 2 * seconds["total"] + 1e-6  # stages are parts of the total
    assert engine.cluster.is_stale and not engine.cluster.sampler_has_turn
    assert stock_grpo.take_step(engine, config, problems[:4])[1] == [TOKENS]  # and another one follows


def test_the_timers_exist_in_nemo_rl(stock, config, problems, monkeypatch):
    """A stage whose timer has another name would count as nothing."""
    seen = {}
    monkeypatch.setattr(stock_grpo.Recorder, "log_metrics", lambda self, found, *_, prefix, **__: seen.update(found))
    with pytest.raises(KeyError, match="timing/train"):
        stock_grpo.take_step(stock.engine, config, problems[:4])
    assert {name for names in stock_grpo.STAGES.values() for name in names} <= seen.keys()


def test_an_odd_number_of_rows_is_refused(stock, config, problems):
    with pytest.raises(UserError, match="--responses"):
        stock_grpo.take_step(stock.engine, config, problems[:3])


def test_the_arm_is_timed_by_stage(stock, config, problems):
    step = step_cost_nemo.run_arm(stock.engine, "grpo", config, problems[:4], {}, seed=0)
    assert step.seconds.keys() >= {*arms.STAGES, "total"} and step.lengths == [TOKENS]
    assert step.seconds["teacher"] == step.seconds["probes"] == 0.0 and step.rate is None
