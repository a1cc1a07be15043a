"""`aopsd.scoring=sampler`: what is asked of whom, and one and three updates a batch against a float64 reference."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nemo_aopsd.engines import nemo_rl
from nemo_aopsd.engines.nemo_rl.cluster import Role
from nemo_aopsd.engines.nemo_rl.models import ClusterModel
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.step import collect
from nemo_aopsd.types import Branch, TrainRow
from tests.nemo_rl import fake_cluster
from tests.nemo_rl.test_engine import local_engine

pytestmark = pytest.mark.usefixtures("one_process")


def build(config, scoring, **policy):
    policy = {**config.policy, **policy}
    raw = {**config.raw, "policy": policy}
    raw["aopsd"] = {**raw["aopsd"], "scoring": scoring}
    if policy["train_global_batch_size"] == 6:
        raw["aopsd"]["num_prompts_per_step"] = 6
        raw["grpo"] = {**raw["grpo"], "num_prompts_per_step": 6}
    return nemo_rl.build(replace(config, aopsd=replace(config.aopsd, scoring=scoring), policy=policy, raw=raw))


@pytest.mark.parametrize("scoring", ["sampler", "prefill"])
def test_a_collection_asks_the_trainer_nothing_and_equals_the_local_engine_s(
    config,
    problems,
    turns,
    monkeypatch,
    scoring,
):
    monkeypatch.setattr(fake_cluster.FakePolicy, "get_logprobs", None)
    engine = build(config, scoring)
    objective = build_objective(config.aopsd.objective)
    rollouts = collect(problems[:4], engine, objective, engine.config, donors={}, seed=1).scored
    assert turns == {"trainer": "cpu", "sampler": "awake", "shown": "student"}
    local = local_engine(config)
    prompts = [rollout.draft.student_prompt for rollout in rollouts]
    teacher_prompts = [rollout.draft.teacher_prompt for rollout in rollouts]
    responses = [rollout.draft.output.tokens for rollout in rollouts]
    for rollout, student, teacher in zip(
        rollouts,
        local.student.logprobs(prompts, responses),
        local.teacher.logprobs(teacher_prompts, responses),
        strict=True,
    ):
        own = rollout.draft.output.logprobs
        assert (rollout.student_logprobs is own) == (scoring == "sampler")
        torch.testing.assert_close(rollout.student_logprobs, student, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(rollout.teacher_logprobs, teacher, atol=1e-4, rtol=1e-4)
    assert any(rollout.probes for rollout in rollouts)
    found = engine.teacher.top_logprobs(teacher_prompts, responses, 4)
    for top, expected in zip(found, local.teacher.top_logprobs(teacher_prompts, responses, 4), strict=True):
        torch.testing.assert_close(top.logprobs, expected.logprobs, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(top.entropy, expected.entropy, atol=1e-4, rtol=1e-4)


def drawn_rows(number):
    """Rows with gaps and weights, some of their tokens masked."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for length in range(5, 5 + number):
        old = -3 * torch.rand(length, generator=generator)
        rows.append(
            TrainRow(
                prompt=torch.randint(4, 300, (6,), generator=generator).tolist(),
                response=torch.randint(4, 300, (length,), generator=generator).tolist(),
                old_logprobs=old,
                teacher_logprobs=old + 2 * torch.randn(length, generator=generator),
                weights=torch.rand(length, generator=generator),
                mask=torch.rand(length, generator=generator) < 0.8,
                sampler_logprobs=old,
            )
        )
    return rows


def logprobs_of(model, row):
    ids = torch.tensor([row.prompt + row.response])
    logprobs = model(ids).logits[0, len(row.prompt) - 1 : -1].log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(row.response)[:, None])[:, 0]


@pytest.mark.parametrize(
    ("size", "order"), [(6, [[0, 1, 2, 3, 4, 5]]), (2, [[0, 3], [1, 4], [2, 5]]), (4, [[0, 2, 4], [1, 3, 5]])]
)
def test_updates_follow_the_bracketed_advantage(config, turns, size, order):
    """A = clip(w ([log q - log p]_sampler - [log p_now - log p_old]_trainer), +-C), PPO's clip, TIS, token mean."""
    engine = build(config, "sampler", train_global_batch_size=size)
    objective = build_objective(config.aopsd.objective)
    rows = drawn_rows(6)
    model = copy.deepcopy(engine.cluster.policy.worker.model).double()
    for row_index, row in enumerate(rows):  # near the student, so that importance weights and ratios say something
        noise = 0.4 * torch.randn(len(row.response), generator=torch.Generator().manual_seed(row_index))
        sampled = (logprobs_of(model, row).detach() + noise).float()
        moved = {"old_logprobs": sampled, "sampler_logprobs": sampled}
        rows[row_index] = replace(row, **moved, teacher_logprobs=sampled + row.gap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # Adam's first steps would show rounding as a whole step
    worker = engine.cluster.policy.worker
    worker.optimizer = torch.optim.SGD(worker.model.parameters(), lr=0.5)
    old = [logprobs_of(model, row).detach() for row in rows]
    bound, losses = config.aopsd.objective.advantage_clip, []
    for batch in order:
        num_tokens, loss = sum(rows[i].mask.sum() for i in batch), 0
        for i in batch:
            now, row = logprobs_of(model, rows[i]), rows[i]
            gap = (row.teacher_logprobs - row.sampler_logprobs).double()
            advantage = (row.weights * (gap - (now.detach() - old[i]))).clamp(-bound, bound)
            importance = (old[i] - row.sampler_logprobs).exp().clamp(max=2)
            ratio = (now - old[i]).exp()
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            loss = loss - (importance * surrogate)[row.mask].sum() / num_tokens
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())

    if size == 6:
        engine.cluster.policy.get_logprobs = None  # one update needs no other pass of the trainer
    metrics = engine.train(rows, objective)
    assert metrics["train/loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    trained = dict(worker.model.named_parameters())
    for name, expected in model.named_parameters():
        torch.testing.assert_close(trained[name].double(), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("num_rows", "size", "updates"),
    [
        (5, 2, [[0, 3], [1, 4], [2]]),
        (5, 4, [[0, 2, 4], [1, 3]]),
        (9, 4, [[0, 3, 6], [1, 4, 7], [2, 5, 8]]),
        (3, 4, [[0, 1, 2]]),
    ],
)
def test_updates_differ_by_one_row_at_most_and_are_filled(config, turns, num_rows, size, updates):
    engine = build(config, "sampler", train_global_batch_size=size)
    rows = [replace(row, mask=torch.ones_like(row.mask)) for row in drawn_rows(num_rows)]
    engine.train(rows, build_objective(config.aopsd.objective))
    (batch,) = engine.cluster.policy.batches
    assert batch.size == size * len(updates)
    for first, expected in zip(range(0, batch.size, size), updates, strict=True):
        update, fill = batch.slice(first, first + size), size - len(expected)
        assert update["sample_mask"].tolist() == [1] * len(expected) + [0] * fill
        ids = [6 + len(rows[i].response) for i in expected]
        assert update["input_lengths"][: len(expected)].tolist() == ids
        found = [row[: int(n)].tolist() for row, n in zip(update["input_ids"], update["input_lengths"], strict=True)]
        assert found[: len(expected)] == [rows[i].prompt + rows[i].response for i in expected]


def test_the_runner_of_probes_is_read_at_each_call_and_whole_rows_are_requests():
    asked = []

    def sample_shards(method, common, **shards):
        asked.append((method, common.get("runner", "requests")))
        return [[[torch.zeros(1) for _ in row] for row in shards["branches"][0]]]

    generation = SimpleNamespace(dp_size=1)
    cluster = SimpleNamespace(generation=generation, let_sample=lambda role: None, sample_shards=sample_shards)
    model = ClusterModel(Role.TEACHER, cluster, None, [2], 0)
    row = ([[5, 6]], [[7, 8]], [[Branch(1, [9])]])
    for runner in ("requests", "batched"):
        model.settings = SimpleNamespace(scoring="sampler", probe_runner=runner)
        model.continue_greedily(*row, 4)
        model.branch_logprobs(*row)
    model.next_logprobs(*row, [3, 4])
    model.logprobs(*row[:2])
    assert asked == [
        *(("continue_branches", "requests"), ("score_branches", "requests")),
        *(("continue_branches", "batched"), ("score_branches", "batched")),
        *(("score_choices", "requests"), ("score_branches", "requests")),
    ]
