"""Top-k distillation on the cluster: the teacher's top k, then each of three updates, against the local engine.

For the lane `topk` (tests/gpu/layouts.py), whose overrides choose the objective; skipped for the others.
"""

from __future__ import annotations

import pytest
import torch

from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.step import collect
from tests.gpu.test_nemo_rl_engine import ROOM, columns, differences, local_engine, problems, tolerance  # noqa: F401


@pytest.fixture(autouse=True)
def topk(config):
    if not build_objective(config.aopsd.objective).signal.top_k:
        pytest.skip("for an objective on the teacher's top k")


@pytest.fixture(scope="module")
def started(engine):
    yield engine
    engine.stop()


def collected(engine, config, problems, seed):  # noqa: F811
    chosen = problems[: config.aopsd.num_prompts_per_step]
    objective = build_objective(config.aopsd.objective)
    return collect(chosen, engine, objective, config, donors={}, seed=seed).scored


def test_the_teachers_top_k_is_the_local_engines(started, config, problems, note):  # noqa: F811
    rollouts = collected(started, config, problems, 1)
    _, teacher_prompts, responses = columns(rollouts)
    k = build_objective(config.aopsd.objective).signal.top_k
    expected, rounded = (
        local_engine(config.policy["model_name"], precision).teacher.top_logprobs(teacher_prompts, responses, k)
        for precision in ("float32", "bfloat16")
    )
    found = [rollout.top_k for rollout in rollouts]
    measured, yardstick = (
        {
            "logprobs": differences(
                [top.logprobs.flatten() for top in side], [top.logprobs.flatten() for top in expected]
            ),
            "entropy": differences([top.entropy for top in side], [top.entropy for top in expected]),
            "regret": {"mean": (lost := regret_of_the_first(side, expected)).mean().item(), "max": lost.max().item()},
        }
        for side in (found, rounded)
    )
    note(cluster=measured, local_bfloat16=yardstick)
    assert all(measured[name]["mean"] < ROOM * yardstick[name]["mean"] for name in ("logprobs", "entropy"))
    most = 2 * ROOM * yardstick["logprobs"]["max"]  # the error of the best word, and of the chosen one
    assert measured["regret"]["max"] < most


def regret_of_the_first(found, expected):
    """By how many nats the reference likes its own first word better than the one found; inf if not in its top k.

    Equal ids would tell nothing: where words are equally likely, rounding decides
    (8 % of the local engine's own: benchmarks/rounding.py).
    """
    lost = []
    for side, reference in zip(found, expected, strict=True):
        same = reference.ids == side.ids[:, :1]
        chosen = torch.where(same, reference.logprobs, -torch.inf).amax(-1)
        lost.append(reference.logprobs[:, 0] - chosen)
    return torch.cat(lost)


def test_three_updates_have_the_local_engines_loss_and_gradient_norm(started, config, problems, tmp_path, note):  # noqa: F811
    objective = build_objective(config.aopsd.objective)
    teacher, student = started.teacher_checksum(), started.student_checksum()
    for step in range(3):
        started.export(tmp_path / f"hf{step}")
        rollouts = collected(started, config, problems, 10 + step)
        rows = objective.prepare([rollout.train_row(config.aopsd, objective) for rollout in rollouts])
        rows = [row for row in rows if row.mask.any()]
        expected = local_engine(tmp_path / f"hf{step}").train(rows, objective)
        found = started.train(rows, objective)
        names = ("train/loss", "train/divergence", "train/frac_negative", "train/grad_norm")
        note(step=step, cluster={n: found[n] for n in names}, local={n: expected[n] for n in names})
        for name in ("train/loss", "train/divergence"):
            assert abs(found[name] - expected[name]) < tolerance(config), name
        if config.aopsd.objective.name != "dash":  # whose tokens have coefficients
            assert found["train/divergence"] == pytest.approx(found["train/loss"], abs=1e-5)  # its own token mean
        assert found["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=10 * tolerance(config))
    assert started.teacher_checksum() == teacher == student != started.student_checksum()
