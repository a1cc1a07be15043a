"""Scoring by vLLM against scoring by the trainer, before any update: teacher and student are the same weights.

For the lanes with `aopsd.scoring=sampler` or `prefill` (tests/gpu/layouts.py), which run it first; skipped for others.
"""

# ruff: noqa: F811 (fixtures of another file)

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch

from nemo_aopsd.cluster import SCORED_ROWS
from nemo_aopsd.method.probes import run_probes
from nemo_aopsd.method.weighting import probe_weights
from nemo_aopsd.types import Branch, Sampling
from tests.gpu.test_nemo_rl_engine import (  # noqa: F401
    OVERLAP,
    ROOM,
    columns,
    differences,
    errors_of,
    local,
    overlap,
    problems,
    references,
    rollouts,
    yardstick,
)

DELTA = 2.0
MEGABYTE = 2**20


@pytest.fixture(autouse=True, scope="session")  # before the session's rollouts, which others may not have an engine for
def sampler(config):
    if config.aopsd.scoring == "trainer":
        pytest.skip("for vLLM as the scorer")


def test_gaps_triggers_and_gradients_are_those_of_the_trainer_s_scoring(
    engine, config, local, rollouts, yardstick, note
):
    student_prompts, teacher_prompts, responses = columns(rollouts)
    students = engine.student.trainer_logprobs(student_prompts, responses)
    teachers = engine.teacher.trainer_logprobs(teacher_prompts, responses)
    by_trainer = [t - s for t, s in zip(teachers, students, strict=True)]
    by_sampler = [rollout.gap for rollout in rollouts]
    size = (torch.cat(by_sampler) - torch.cat(by_trainer)).abs()
    found = {"mean": size.mean().item(), "p99": size.quantile(0.99).item(), "max": size.max().item()}
    overlaps = {delta: overlap(by_sampler, by_trainer, delta) for delta in (OVERLAP, DELTA)}

    probes = replace(config.aopsd.probes, threshold=OVERLAP)
    bound = config.aopsd.objective.advantage_clip

    def gradient_of(gaps):
        models, prompts = (engine.student, engine.teacher), (student_prompts, teacher_prompts)
        own = run_probes(*models, *prompts, responses, gaps, probes, in_loss=[True] * len(gaps))
        weights = [probe_weights(row, len(gap)) for row, gap in zip(own, gaps, strict=True)]
        advantages = [(w * gap).clamp(-bound, bound) for w, gap in zip(weights, gaps, strict=True)]
        return gradient(local, student_prompts, responses, advantages)

    gradients = [gradient_of(gaps) for gaps in (by_sampler, by_trainer)]
    cosine, rounding = cosine_of(*gradients), cosine_of(*map(gradient_of, yardstick["gaps"]))
    norms = [each.norm().item() for each in gradients]
    note(
        gap_difference=found,
        yardstick=yardstick["gap"],
        overlap=overlaps,
        cosine=cosine,
        rounding=rounding,
        norms=norms,
    )
    assert found["mean"] < 2 * ROOM * yardstick["gap"]["mean"]  # each of the two may err
    assert 1 - overlaps[OVERLAP] < 2 * ROOM * (1 - yardstick["gap"]["overlap"]) + 0.02  # likewise
    assert 1 - cosine < max(
        0.01, 2 * ROOM * (1 - rounding)
    )  # likewise; near a threshold rounding decides what is probed


def cosine_of(one, other):
    return torch.nn.functional.cosine_similarity(one, other, dim=0).item()


def gradient(local, prompts, responses, advantages):
    """Of the unmoved student's loss, in float32 on the CPU."""
    model = copy.deepcopy(local.student.network.causal_lm).requires_grad_(True)
    model.zero_grad()
    for prompt, response, advantage in zip(prompts, responses, advantages, strict=True):
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].float()
        logprobs = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
        (-(advantage * logprobs).sum()).backward()
    return torch.cat([weight.grad.double().flatten() for weight in model.parameters() if weight.grad is not None])


def test_a_teacher_that_sees_what_the_student_sees_triggers_nothing(engine, rollouts, note):
    """Decoding against a prefill of the same weights: the gap is rounding alone."""
    prompts, _, responses = columns(rollouts)
    found = engine.teacher.logprobs(prompts, responses)
    gaps = torch.cat(found) - torch.cat([rollout.student_logprobs for rollout in rollouts])
    sizes = gaps.abs()
    note(mean=sizes.mean().item(), p99=sizes.quantile(0.99).item(), max=sizes.max().item(), bias=gaps.mean().item())
    assert len(gaps) > 500
    assert not (sizes >= DELTA).any()


def test_the_student_answers_as_before_after_sleep_wake_and_swap(engine, rollouts, note):
    """Each time with an empty cache, so that the same kernels run; what is lost would answer like noise, or alike."""
    from nemo_aopsd.engines.nemo_rl.cluster import Role

    cluster = engine.cluster
    prompts = [rollout.draft.student_prompt for rollout in rollouts[:16]]
    greedy = Sampling(max_new_tokens=48, temperature=0.0)
    levels = []

    def answer():
        cluster.let_sample(Role.STUDENT)
        cluster._ask_sampler("reset_prefix_cache")
        answers = engine.student.generate(prompts, greedy, 0)
        return [each.tokens for each in answers], torch.cat([each.logprobs for each in answers])

    before, logprobs, digest = *answer(), weights_of(engine)
    for change in ("swap", "level 1", "level 2", "level 2 from the teacher"):
        if change == "swap" or "teacher" in change:
            engine.teacher.generate(prompts[:1], greedy, 0)
        if change == "level 1":
            cluster.let_score()
        elif change != "swap":
            cluster._ask_sampler("let_weights_go")
            levels.append(on_worker(engine, lambda self: self.sleep_level))
            cluster.let_train()
        after, again = answer()
        shift = (again - logprobs).abs().max().item()
        note(change=change, sleep_level=levels[-1:], shift=shift, same=sum(map(list.__eq__, before, after)))
        assert after == before, change
        assert shift < 1e-3, change
        assert weights_of(engine) == digest, change
    uniform = -math.log(engine.hf_tokenizer.vocab_size)
    assert logprobs.mean() > uniform + 1


def test_batched_probes_equal_requests_and_hold_nothing(engine, config, rollouts, yardstick, note):
    """The same tokens but for ties, log-probs of the same tokens, and a cache that is as free as before."""
    student_prompts, teacher_prompts, responses = columns(rollouts)
    starts = [[Branch(t, [row[t]] if t % 2 else []) for t in range(0, len(row), 7)] for row in responses]
    models = {
        runner: [with_runner(model, runner) for model in (engine.teacher, engine.student)]
        for runner in ("requests", "batched")
    }
    engine.teacher.logprobs(teacher_prompts, responses)  # which fills the cache, as a step does
    grown, scored, free = {}, {}, {}
    for runner, (teacher, student) in models.items():
        grown[runner] = teacher.continue_greedily(teacher_prompts, responses, starts, config.aopsd.probes.length)
        scored[runner] = student.branch_logprobs(student_prompts, responses, grown["requests"])
        free[runner] = on_worker(engine, free_blocks)
    assert on_worker(engine, lambda self: self._no_runner) is None
    assert free["batched"] == free["requests"]

    others, rows, paths = 0, [], []
    for index, (one, other) in enumerate(zip(grown["requests"], grown["batched"], strict=True)):
        for a, b in zip(one, other, strict=True):
            if a.tokens != b.tokens:
                others += 1
                size = next(i for i, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)) if x != y)
                rows.append(teacher_prompts[index] + responses[index][: a.position])
                paths.append(a.tokens[: size + 1])
    tops = models["requests"][0].top_logprobs(rows, paths, 2)
    ties = [float(top.logprobs[-1, 0] - top.logprobs[-1, 1]) for top in tops]
    flat = [[score for row in scored[runner] for score in row] for runner in models]
    measured = differences(*flat)
    left = on_worker(engine, lambda self: self.num_left)
    note(
        probes=sum(map(len, starts)),
        other_tokens=others,
        widest_tie=max(ties, default=0.0),
        by_requests=left,
        **measured,
    )
    assert left == 0
    assert all(tie < 2 * yardstick["teacher"]["max"] for tie in ties)  # of the one token and of the other
    assert measured["mean"] < ROOM * yardstick["student"]["mean"]


def with_runner(model, runner):
    model = copy.copy(model)
    model.settings = replace(model.settings, probe_runner=runner)
    return model


def free_blocks(worker):
    scheduler = worker.llm.llm_engine.engine_core.engine_core.scheduler
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def on_worker(engine, function):
    """What `function` returns of the first vLLM worker."""
    import ray

    return ray.get(engine.cluster.generation.worker_group.workers[0].__ray_call__.remote(function))


def weights_of(engine):
    """A hash of the weights that vLLM has on the GPU."""

    def hashed(self):
        def of_model(worker):
            import hashlib

            digest = hashlib.sha256()
            for name, weight in worker.model_runner.model.named_parameters():
                digest.update(name.encode() + weight.detach().flatten().view(torch.uint8).cpu().numpy().tobytes())
            return digest.hexdigest()

        return self.llm.collective_rpc(of_model)

    return on_worker(engine, hashed)


def test_scoring_takes_bounded_memory(engine, config, note):
    """What it takes beyond the prefill alone, however long rows are."""
    vocabulary = len(engine.hf_tokenizer)
    generator = torch.Generator().manual_seed(0)
    length = config.max_row_tokens - 16
    rows = torch.randint(4, vocabulary, (16, length), generator=generator).tolist()
    prompts, responses = [row[:16] for row in rows], [row[16:] for row in rows]
    engine.student.generate([rows[0]], Sampling(max_new_tokens=1), 0)

    def measured(work):
        def begin(self):
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()

        engine.cluster._ask_sampler("reset_prefix_cache")
        before = on_worker(engine, begin)
        work()
        return on_worker(engine, lambda self: torch.cuda.max_memory_allocated()) - before

    plain = measured(lambda: engine.student.generate(rows, Sampling(max_new_tokens=1), 0))
    scoring = measured(lambda: engine.student.logprobs(prompts, responses))
    bound = SCORED_ROWS * vocabulary * 14 + 64 * MEGABYTE
    at_once = min(16 * length, 16384) * vocabulary * 10
    note(plain_mb=plain / MEGABYTE, scoring_mb=scoring / MEGABYTE, bound_mb=bound / MEGABYTE, all_mb=at_once / MEGABYTE)
    assert scoring - plain < bound
