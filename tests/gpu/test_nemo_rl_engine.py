"""One layout, from start to resume, in the order of this file: parity, alignment, training, export, resume.

The reference is the local engine in float32 on the same weights, rounded to bfloat16 as the cluster has them. Its own
forward on the same rollouts is the yardstick, and sets the tolerances: in bfloat16 for vLLM, and for the trainer in
what that computes in, FP8 (fp8.py) or bfloat16.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch

from nemo_aopsd.config.load import to_yaml
from nemo_aopsd.config.nemo_rl_keys import OptimizerKwargs
from nemo_aopsd.config.schema import TeacherConfig
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.engines import nemo_rl
from nemo_aopsd.engines.local import loading
from nemo_aopsd.engines.local.engine import LocalEngine
from nemo_aopsd.engines.local.settings import Settings
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_write, derive_seed, read_journal
from nemo_aopsd.method.context import student_messages
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.step import collect
from nemo_aopsd.models.tokenizer import open_tokenizer
from nemo_aopsd.run.trainer import train
from nemo_aopsd.types import Branch, Sampling
from tests.gpu.conftest import KILLED, STEPS
from tests.gpu.fp8 import round_products

EPOCH = 2  # steps
LENGTHS = (5, 900, 37, 12)
OVERLAP = 0.5  # nats: a threshold with many triggers
ROOM = 1.5  # other kernels than the yardstick's may err by half as much again


def local_engine(folder, precision="float32"):
    settings = Settings(
        model=Path(folder),
        tokenizer=Path(folder),
        optimizer=OptimizerKwargs(lr=0.0),
        teacher=TeacherConfig(),
        judge=None,
        max_total_sequence_length=8192,
        precision="bfloat16",
        max_grad_norm=1e9,
        prefix_cache_gb=0.5,
    )
    # On the CPU: the reference shares neither memory nor kernels nor a cuDNN with what it checks.
    with mock.patch.object(torch.cuda, "is_available", return_value=False):
        model = loading.load_model(settings)
    tokenizer = loading.wrap_tokenizer(open_tokenizer(settings.tokenizer), model)
    return LocalEngine(model.to(getattr(torch, precision)), tokenizer, settings)


@pytest.fixture(scope="session")
def local(config):
    return local_engine(config.policy["model_name"])


@pytest.fixture(scope="session")
def problems(config):
    """Two steps' worth, so that epochs end within the five steps."""
    return load_problems(config.data["train"]["data_path"])[: EPOCH * config.aopsd.num_prompts_per_step]


@pytest.fixture(scope="session")
def rollouts(engine, config, problems):
    """One collection on the cluster, with a threshold low enough for many probes."""
    aopsd = replace(config.aopsd, probes=replace(config.aopsd.probes, threshold=OVERLAP))
    chosen = problems[: config.aopsd.num_prompts_per_step]
    objective = build_objective(aopsd.objective)
    found = collect(chosen, engine, objective, replace(config, aopsd=aopsd), donors={}, seed=7)
    print("seconds", {stage: round(value, 2) for stage, value in found.seconds.items()})
    return found.scored


def columns(rollouts):
    return (
        [rollout.draft.student_prompt for rollout in rollouts],
        [rollout.draft.teacher_prompt for rollout in rollouts],
        [rollout.draft.output.tokens for rollout in rollouts],
    )


def differences(found, expected):
    """Largest, mean, root mean square and mean signed difference of two ragged lists."""
    gap = torch.cat([torch.as_tensor(a) for a in found]) - torch.cat([torch.as_tensor(b) for b in expected])
    size = {"max": gap.abs().max().item(), "mean": gap.abs().mean().item(), "rms": gap.square().mean().sqrt().item()}
    return {**size, "bias": gap.mean().item(), "n": len(gap)}


def in_fp8(config):
    return bool((config.policy["megatron_cfg"].get("fp8_cfg") or {}).get("enabled"))


def tolerance(config):
    return 0.15 if in_fp8(config) else 0.02


@pytest.fixture(scope="session")
def references(local, rollouts):
    """Log-probs of the rollouts in float32, by role."""
    student_prompts, teacher_prompts, responses = columns(rollouts)
    sides = {"student": student_prompts, "teacher": teacher_prompts}
    return {role: getattr(local, role).logprobs(prompts, responses) for role, prompts in sides.items()}


@pytest.fixture(scope="session")
def yardstick(config, rollouts, references):
    """What bfloat16 alone does to student's and teacher's log-probs and to the gap."""
    return errors_of(local_engine(config.policy["model_name"], "bfloat16"), rollouts, references)


@pytest.fixture(scope="session")
def trainer_yardstick(config, rollouts, references, yardstick):
    """The same of what the trainer computes in."""
    if not in_fp8(config):
        return yardstick
    rounded = local_engine(config.policy["model_name"], "bfloat16")
    for model in (rounded.student, rounded.teacher):
        round_products(model.network.causal_lm)
    return errors_of(rounded, rollouts, references)


def errors_of(rounded, rollouts, references):
    """Of the engine `rounded`: `differences` by role, and of the gap, with what they do to the triggers; both gaps."""
    student_prompts, teacher_prompts, responses = columns(rollouts)
    errors = {"student": rounded.student.logprobs(student_prompts, responses)}
    errors["teacher"] = rounded.teacher.logprobs(teacher_prompts, responses)
    gaps = [[t - s for t, s in zip(sides["teacher"], sides["student"], strict=True)] for sides in (errors, references)]
    gap = differences(*gaps) | {"overlap": overlap(*gaps, OVERLAP)}
    return {role: differences(errors[role], references[role]) for role in errors} | {"gap": gap, "gaps": gaps}


def overlap(one, other, delta):
    """Positions that both trigger, as a share of those that either does; 1 where there are none."""
    a, b = (torch.cat([torch.as_tensor(gap) for gap in gaps]).abs() >= delta for gaps in (one, other))
    return ((a & b).sum() / max((a | b).sum(), 1)).item() if (a | b).any() else 1.0


def test_log_probs_equal_the_local_engine_s(rollouts, references, trainer_yardstick, note):
    for role, expected in references.items():
        measured = differences([getattr(rollout, f"{role}_logprobs") for rollout in rollouts], expected)
        note(role=role, cluster_minus_float32=measured, local_rounded_minus_float32=trainer_yardstick[role])
        assert measured["mean"] < ROOM * trainer_yardstick[role]["mean"]
    sampled = [rollout.draft.output.logprobs for rollout in rollouts]
    note(vllm_minus_trainer=differences(sampled, [rollout.student_logprobs for rollout in rollouts]))


def test_probes_equal_the_local_engine_s(local, rollouts, yardstick, note):
    """NLLs as they are; continuations by what the reference thinks of them.

    The embedded model has words that it likes equally well (`merely`, `briefly`), so that rounding decides, and equal
    continuations tell nothing: of the local engine's own, in bfloat16 and in float32, fewer than a third are equal.
    """
    student_prompts, teacher_prompts, responses = columns(rollouts)
    branches = [[Branch(p.position, [p.anchor, *p.suffix]) for p in rollout.probes] for rollout in rollouts]
    regrets = greedy_regrets(local.teacher, teacher_prompts, rollouts)
    scores = local.student.branch_logprobs(student_prompts, responses, branches)
    wanted = [-row[1:].mean().item() for rows in scores for row in rows if len(row) > 1]
    found = [p.nll for rollout in rollouts for p in rollout.probes if p.nll is not None]
    measured = differences([torch.tensor(found)], [torch.tensor(wanted)])
    note(probes=sum(map(len, branches)), regret_max=regrets.max().item(), nll=measured)
    assert len(regrets) > 100
    assert regrets.max() < 2 * ROOM * yardstick["teacher"]["max"]  # the error of the best token, and of the chosen one
    assert measured["mean"] < 0.02


def greedy_regrets(teacher, prompts, rollouts):
    """For each greedy token of the probes, by how many nats the reference likes another one better."""
    rows, paths, firsts = [], [], []
    for prompt, rollout in zip(prompts, rollouts, strict=True):
        for probe in rollout.probes:
            rows.append(prompt + rollout.draft.output.tokens[: probe.position])
            paths.append([probe.anchor, *probe.suffix])
            firsts.append(1 if probe.gap > 0 else 0)  # the student's own anchor was not the teacher's choice
    best = [top.logprobs[:, 0] for top in teacher.top_logprobs(rows, paths, 1)]
    own = teacher.logprobs(rows, paths)
    return torch.cat([(b - o)[first:] for b, o, first in zip(best, own, firsts, strict=True)])


def test_no_row_is_lost_at_any_alignment(engine, local, rollouts, yardstick, note):
    """Anchors at every place of a block of the cache, with suffixes that the cache holds already."""
    longest = max(rollouts, key=lambda rollout: len(rollout.draft.output.tokens))
    tokens = longest.draft.output.tokens
    branches = [[Branch(t, tokens[t : t + 4]) for t in range(len(tokens) - 4)] * 2]
    found = engine.student.branch_logprobs([longest.draft.student_prompt], [tokens], branches)
    expected = local.student.branch_logprobs([longest.draft.student_prompt], [tokens], branches)
    measured = differences(found[0], expected[0])
    note(branches=len(branches[0]), **measured)
    assert [len(row) for row in found[0]] == [4] * len(branches[0])
    assert measured["mean"] < ROOM * yardstick["student"]["mean"]


def test_alignment_of_ragged_rows_behind_a_long_teacher_prompt(engine, local, config, note):
    generator = torch.Generator().manual_seed(0)
    vocabulary = local.student.network.causal_lm.config.vocab_size

    def draw(length):
        return torch.randint(4, vocabulary, (length,), generator=generator).tolist()

    responses = [draw(length) for length in LENGTHS]
    prompts = [draw(20) for _ in LENGTHS]
    long_prompts = [draw(1500) + prompt for prompt in prompts]
    for role, rows in (("student", prompts), ("teacher", long_prompts)):
        found = getattr(engine, role).trainer_logprobs(rows, responses)
        assert [len(row) for row in found] == list(LENGTHS)
        for index, (a, b) in enumerate(zip(found, getattr(local, role).logprobs(rows, responses), strict=True)):
            measured = differences([a], [b])
            note(role=role, length=LENGTHS[index], **measured)
            assert measured["mean"] < 10 * tolerance(config)  # random tokens are hard to predict; one off is nats away


def test_the_loss_does_not_depend_on_the_micro_batch(engine, config, rollouts, trainer_yardstick, note):
    """Without an update. With sequence packing the bins decide, and all three are the same."""
    objective = build_objective(config.aopsd.objective)
    rows = [rollout.train_row(config.aopsd, objective) for rollout in rollouts]
    unmoved = [replace(r, teacher_logprobs=r.old_logprobs, weights=torch.ones_like(r.weights)) for r in rows]
    now = [row.old_logprobs for row in rows]
    if config.aopsd.scoring != "trainer":
        now = engine.student.trainer_logprobs([row.prompt for row in rows], [row.response for row in rows])

    def losses_of(rows, sizes):
        batch, loss_fn = engine._batch_and_loss(rows, objective, num_updates=1)
        train = partial(engine.cluster.policy.train, batch, loss_fn, eval_mode=True, gbs=batch.size)
        return [float(train(mbs=size)["loss"].sum()) for size in sizes]

    engine.cluster.let_train()
    losses = losses_of(rows, (1, 2, 4))
    (shift,) = losses_of(unmoved, (1,))  # the mean of log-probs in training minus in scoring
    expected = local_loss(config, rows, now)
    note(micro_batches_1_2_4=losses, by_hand=expected, training_minus_scoring=shift)
    assert max(losses) - min(losses) < 0.02 * max(abs(expected), 0.05)
    error = trainer_yardstick["student"]
    rounding = 4 * error["rms"] / math.sqrt(error["n"])  # of a mean over the tokens
    assert abs(shift) < rounding
    assert abs(losses[0] - expected) < max(0.05 * max(abs(expected), 0.05), rounding)


def local_loss(config, rows, now):
    """Of an unmoved student: the ratio is 1, so the loss is minus the mean clipped, weighted gap, each token weighed by
    what the trainer's kernels think of it over what the sampler's did, at most `truncated_importance_sampling_ratio`.
    """
    bound = config.aopsd.objective.advantage_clip
    most = config.raw["loss_fn"]["truncated_importance_sampling_ratio"]
    rows, now = zip(*((row, own) for row, own in zip(rows, now, strict=True) if row.mask.any()), strict=True)
    gap = torch.cat([row.weights * row.gap for row in rows])
    importance = torch.cat([(own - row.sampler_logprobs).exp() for row, own in zip(rows, now, strict=True)])
    importance = importance.clamp(max=most)
    return -(importance * gap.clamp(-bound, bound)).mean().item()


def test_training_moves_the_student_and_not_the_teacher(engine, config, problems, note):
    config = replace(config, aopsd=replace(config.aopsd, max_num_steps=STEPS))
    teacher, student = engine.teacher_checksum(), engine.student_checksum()
    asked = [student_messages(problem, config.aopsd.prompts) for problem in problems[:16]]
    prompts = [engine.tokenizer.render(messages, config.aopsd.thinking.student) for messages in asked]
    greedy = Sampling(max_new_tokens=48, temperature=0.0)
    before = engine.student.generate(prompts, greedy, 0)
    atomic_write(Path(config.logger["log_dir"]) / "config.yaml", to_yaml(config))
    train(config, problems, None, engine, Path(config.logger["log_dir"]), resume=False)
    metrics = read_journal(Path(config.logger["log_dir"]) / "metrics.jsonl", "step")
    for line in metrics:
        note(**{key: round(value, 4) for key, value in line.items()})
    assert [line["step"] for line in metrics] == list(range(1, STEPS + 1))
    assert [line["epoch"] for line in metrics] == [step // EPOCH for step in range(STEPS)]
    assert all(math.isfinite(line["train/grad_norm"]) and line["train/grad_norm"] > 0 for line in metrics)
    after = engine.student.generate(prompts, greedy, 0)
    changed = sum(a.tokens != b.tokens for a, b in zip(before, after, strict=True))
    shift = differences([b.logprobs[:1] for b in before], [a.logprobs[:1] for a in after])
    note(teacher=engine.teacher_checksum()[:16], greedy_answers_changed=f"{changed} of {len(prompts)}", shift=shift)
    assert engine.teacher_checksum() == teacher == student
    assert engine.student_checksum() != student
    assert changed or shift["max"] > 0


def test_export_and_one_update_equal_the_local_engine_s(
    engine, config, local, problems, trainer_yardstick, tmp_path, note
):
    """Each with its own log-probs: the error of one that both used would be in gap and ratio, and so in its square."""
    engine.export(tmp_path / "hf")
    exported = local_engine(tmp_path / "hf")
    chosen = problems[: config.aopsd.num_prompts_per_step]
    objective = build_objective(config.aopsd.objective)
    rollouts = collect(chosen, engine, objective, config, donors={}, seed=derive_seed(1, "export")).scored
    student_prompts, teacher_prompts, responses = columns(rollouts)
    students = exported.student.logprobs(student_prompts, responses)
    teachers = local.teacher.logprobs(teacher_prompts, responses)
    measured = differences([rollout.student_logprobs for rollout in rollouts], students)
    pairs = zip(rollouts, students, teachers, strict=True)
    exact = [replace(rollout, student_logprobs=s, teacher_logprobs=t) for rollout, s, t in pairs]
    expected = exported.train([rollout.train_row(config.aopsd, objective) for rollout in exact], objective)
    cluster = engine.train([rollout.train_row(config.aopsd, objective) for rollout in rollouts], objective)
    note(
        exported_student=measured,
        loss=cluster["train/loss"],
        local_loss=expected["train/loss"],
        grad_norm=cluster["train/grad_norm"],
        local_grad_norm=expected["train/grad_norm"],
        metrics={key: value for key, value in cluster.items() if "/" in key},
    )
    assert measured["mean"] < ROOM * trainer_yardstick["student"]["mean"]
    gap = trainer_yardstick["gap"]
    rounding = abs(gap["bias"]) + 4 * gap["rms"] / math.sqrt(gap["n"])  # of a mean over the tokens
    assert abs(cluster["train/loss"] - expected["train/loss"]) < max(0.01, rounding)
    assert cluster["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=0.2)


@pytest.fixture(scope="session")
def resumed(engine, config):
    """New workers, once the first ones have given their GPUs back."""
    engine.stop()
    again = nemo_rl.build(config)
    yield again
    again.stop()


def test_new_workers_go_on_from_the_checkpoint(resumed, config, problems, note):
    run = Path(config.logger["log_dir"])
    state = json.loads((run / "checkpoints" / f"step_{STEPS:06d}" / "state.json").read_text())
    longer = replace(config, aopsd=replace(config.aopsd, max_num_steps=STEPS + 2))
    train(longer, problems, None, resumed, run, resume=True)
    steps = [line["step"] for line in read_journal(run / "metrics.jsonl", "step")]
    teacher = resumed.teacher_checksum()
    note(resumed_at=STEPS, steps=steps, teacher=teacher[:16])
    assert steps == list(range(1, STEPS + 3))
    assert teacher == state["teacher_checksum"] != resumed.student_checksum()


def test_a_killed_worker_is_a_clear_error_within_two_minutes(resumed, config, problems, note):
    import ray

    run = Path(config.logger["log_dir"])
    before = sorted((run / "checkpoints").iterdir())
    workers = getattr(resumed.cluster, KILLED).worker_group.workers
    worker = workers[-1]  # on several GPUs another one than the first, which waits for it
    pid = ray.get(worker.__ray_call__.remote(lambda self: os.getpid()))
    started = time.monotonic()
    threading.Timer(2.0, os.kill, (pid, signal.SIGKILL)).start()
    longer = replace(config, aopsd=replace(config.aopsd, max_num_steps=STEPS + 400))
    with pytest.raises(UserError, match="a worker died") as error:
        train(longer, problems, None, resumed, run, resume=False)
    note(killed=KILLED, of=len(workers), seconds=time.monotonic() - started, message=str(error.value))
    assert time.monotonic() - started < 120
    assert sorted((run / "checkpoints").iterdir()) == before
