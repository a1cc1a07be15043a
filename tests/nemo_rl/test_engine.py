"""The engine's own code with NeMo RL's workers faked on a CPU: turns, alignment, training, checkpoints, failures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import ray
import torch
from transformers import AutoModelForCausalLM

from nemo_aopsd.config.nemo_rl_keys import OptimizerKwargs
from nemo_aopsd.config.schema import TeacherConfig
from nemo_aopsd.engines import nemo_rl
from nemo_aopsd.engines.local import loading
from nemo_aopsd.engines.local.engine import LocalEngine
from nemo_aopsd.engines.local.settings import Settings
from nemo_aopsd.engines.nemo_rl.cluster import Role, cluster_errors
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_journal
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.step import collect
from nemo_aopsd.models.tokenizer import open_tokenizer
from nemo_aopsd.run.trainer import train
from nemo_aopsd.types import Branch, Sampling, TrainRow
from tests.nemo_rl import fake_cluster

pytestmark = pytest.mark.usefixtures("one_process")


def local_engine(config):
    folder = Path(config.policy["model_name"])
    settings = Settings(folder, folder, OptimizerKwargs(lr=0.0), TeacherConfig(), None, 384)
    model = loading.load_model(settings)
    return LocalEngine(model, loading.wrap_tokenizer(open_tokenizer(settings.tokenizer), model), settings)


def collected(problems, engine, config):
    objective = build_objective(config.aopsd.objective)
    return collect(problems, engine, objective, config, donors={}, seed=1).scored


def test_a_collection_equals_the_local_engine_s_on_the_same_rollouts(engine, config, problems, turns):
    assert turns == {}  # no worker starts before the first use
    rollouts = collected(problems[:4], engine, config)
    local = local_engine(config)
    prompts = [rollout.draft.student_prompt for rollout in rollouts]
    teacher_prompts = [rollout.draft.teacher_prompt for rollout in rollouts]
    responses = [rollout.draft.output.tokens for rollout in rollouts]
    for role, rows in (("student", prompts), ("teacher", teacher_prompts)):
        found = [getattr(rollout, f"{role}_logprobs") for rollout in rollouts]
        torch.testing.assert_close(found, getattr(local, role).logprobs(rows, responses), atol=1e-4, rtol=1e-4)
    for rollout in rollouts:  # vLLM's own, here the same weights in the same precision
        torch.testing.assert_close(rollout.draft.output.logprobs, rollout.student_logprobs, atol=1e-4, rtol=1e-4)
    probes = [probe for rollout in rollouts for probe in rollout.probes]
    assert probes
    starts = [
        [Branch(p.position, [r.draft.output.tokens[p.position]] if p.gap > 0 else []) for p in r.probes]
        for r in rollouts
    ]
    branches = local.teacher.continue_greedily(teacher_prompts, responses, starts, config.aopsd.probes.length)
    assert [[Branch(p.position, [p.anchor, *p.suffix]) for p in r.probes] for r in rollouts] == branches
    scores = local.student.branch_logprobs(prompts, responses, branches)
    wanted = [-row[1:].mean().item() for rows in scores for row in rows if len(row) > 1]
    assert [p.nll for p in probes if p.nll is not None] == pytest.approx(wanted, abs=1e-4)
    asked = prompts, responses, branches, [7, 3]
    torch.testing.assert_close(
        engine.student.next_logprobs(*asked), local.student.next_logprobs(*asked), atol=1e-4, rtol=0
    )


def test_a_kept_cache_needs_no_turn_between_rollout_and_update(config, problems, turns, monkeypatch):
    monkeypatch.setattr(fake_cluster.FakePolicy, "scores_beside_sampler", True)
    steps = []
    for keeps in (False, True):
        probes = replace(config.aopsd.probes, keep_cache=keeps)
        engine = nemo_rl.build(replace(config, aopsd=replace(config.aopsd, probes=probes)))
        slept = []
        sleep = engine.cluster.generation.finish_generation
        monkeypatch.setattr(engine.cluster.generation, "finish_generation", lambda: slept.append(1) or sleep())  # noqa: B023
        torch.manual_seed(0)
        rollouts = collected(problems[:4], engine, config)
        engine.cluster.let_train()
        assert turns == {"trainer": "train", "sampler": "asleep", "shown": "student"}
        steps.append((len(slept), rollouts))
        engine.stop()
    (often, apart), (seldom, kept) = steps
    assert (often, seldom) == (3, 2)  # one of them brings the teacher
    assert any(rollout.probes for rollout in kept)
    for one, other in zip(apart, kept, strict=True):
        assert one.draft.output.tokens == other.draft.output.tokens
        assert one.probes == other.probes
        assert torch.equal(one.gap, other.gap)


@pytest.mark.parametrize("sampler_tp", [1, 2])
def test_the_trainer_learns_what_the_optimizer_must_leave_to_vllms_student(config, sampler_tp, turns):
    config.policy["generation"]["vllm_cfg"]["tensor_parallel_size"] = sampler_tp
    config.raw["cluster"]["gpus_per_node"] = sampler_tp
    for asked in (False, True):
        engine = nemo_rl.build(replace(config, aopsd=replace(config.aopsd, keep_optimizer_on_gpu=asked)))
        worker = engine.cluster.policy.worker
        weights = 4 * sum(weight.numel() for weight in worker.model.parameters())
        assert worker.student_bytes == (weights / sampler_tp if asked else None)
        engine.stop()


def test_what_ray_reports_at_length_is_one_error_with_its_remedies():
    cause = torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB.\nmore")
    with pytest.raises(UserError, match=r"Tried 2 GiB\. `aopsd doctor CONFIG`.*keep_cache"), cluster_errors():
        raise ray.exceptions.RayTaskError("f", "trace", cause)
    lines = "died in its creation task\n  File x.py, line 1\nValueError: no memory for the cache"
    with (
        pytest.raises(UserError, match="died in its creation task ValueError: no memory for the cache"),
        cluster_errors(),
    ):
        raise ray.exceptions.RayActorError(error_msg=lines)
    with pytest.raises(ray.exceptions.RayTaskError), cluster_errors():
        raise ray.exceptions.RayTaskError("f", "trace", ValueError("a bug of ours"))


def test_a_tokenizer_that_cannot_be_had_is_one_error_with_its_remedies(config, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    empty, absent = str(tmp_path), "nobody/has-this"
    remedies = {
        empty: r"no tokenizer in it.*Set policy\.tokenizer\.name",
        absent: f"hf download {absent}, with HF_HOME",
    }
    for name, remedy in remedies.items():
        config.policy["tokenizer"]["name"] = name
        with pytest.raises(UserError, match=f"{name}: .*{remedy}"):
            nemo_rl.build(config)


def test_after_an_update_the_sampler_has_the_new_student_and_the_old_teacher(engine, config, problems, turns):
    teacher = engine.teacher_checksum()
    assert engine.student_checksum() == teacher
    before = {name: w.clone() for name, w in engine.cluster.policy.worker.model.named_parameters()}
    train(config, problems, None, engine, Path(config.logger["log_dir"]), resume=False)
    assert engine.teacher_checksum() == teacher != engine.student_checksum()

    engine.student.generate([[4, 5]], config.rollout, 0)
    sampler = dict(engine.cluster.generation.llm.model.named_parameters())
    trained = dict(engine.cluster.policy.worker.model.named_parameters())
    assert all(torch.equal(sampler[name], trained[name]) for name in trained)
    assert any(not torch.equal(before[name], trained[name]) for name in trained)
    engine.teacher.generate([[4, 5]], config.rollout, 0)
    assert turns["shown"] == "teacher"
    assert all(torch.equal(sampler[name], before[name]) for name in before)
    engine.student.generate([[4, 5]], config.rollout, 0)
    assert all(torch.equal(sampler[name], trained[name]) for name in trained)


def test_weights_that_a_refit_overwrites_are_not_kept_and_the_student_answers_as_before(engine, config, turns):
    """Kept for scoring and for an extra tensor of the model, not before an update; the fake makes NaN of lost ones."""
    prompts, greedy = [[4, 5, 6], [7, 8]], Sampling(max_new_tokens=8, temperature=0.0)
    llm, levels = engine.cluster.generation.llm, []
    fall_asleep = llm.sleep
    llm.sleep = lambda level: levels.append(level) or fall_asleep(level)
    first = engine.student.generate(prompts, greedy, 0)
    engine.cluster.let_score()
    engine.teacher.generate(prompts, greedy, 0)
    engine.cluster.let_train()
    assert turns == {"trainer": "train", "sampler": "asleep", "shown": "student"}
    again = engine.student.generate(prompts, greedy, 0)
    assert [row.tokens for row in again] == [row.tokens for row in first]
    torch.testing.assert_close([row.logprobs for row in again], [row.logprobs for row in first], atol=0, rtol=0)
    llm.model.computed_at_load = torch.zeros(1, device="meta")  # as if on a GPU: no parameter, no buffer
    with mock.patch.object(torch.Tensor, "is_cuda", True):
        engine.cluster.let_train()
    assert levels == [1, 1, 2, 1]  # the first one brought the teacher


def test_a_step_says_where_its_time_went_and_the_heap_is_frozen_twice(engine, config, problems):
    train(config, problems, None, engine, Path(config.logger["log_dir"]), resume=False)
    assert engine.cluster.policy.worker.times_frozen == 2  # after the start and the first of two steps
    first, second = read_journal(Path(config.logger["log_dir"]) / "metrics.jsonl", "step")
    turns = {"refit", "wake", "sleep", "to_scoring", "to_training", "train", "show_teacher", "show_student"}
    for line in (first, second):
        assert {key for key in line if key.startswith("turn/")} == {f"turn/{name}" for name in turns}
        assert line["worker/swap_teacher"] > 0
    assert sum(second[f"turn/{name}"] for name in turns) <= second["time/step"]


def test_a_resumed_run_is_the_run_that_was_never_stopped(engine, config, problems):
    whole = replace(config, aopsd=replace(config.aopsd, max_num_steps=3))
    run = Path(config.logger["log_dir"])
    train(config, problems, None, engine, run, resume=False)
    optimizer = engine.cluster.policy.worker.optimizer.state_dict()
    student = engine.student_checksum()

    again = nemo_rl.build(config)
    again.load(run / "checkpoints/step_000002")
    assert again.student_checksum() == student
    for key, value in again.cluster.policy.worker.optimizer.state_dict()["state"].items():
        torch.testing.assert_close(value, optimizer["state"][key])

    again = nemo_rl.build(whole)
    state = json.loads((run / "checkpoints/step_000002/state.json").read_text())
    train(whole, problems, None, again, run, resume=True)
    assert [line["step"] for line in read_journal(run / "metrics.jsonl", "step")] == [1, 2, 3]
    assert again.teacher_checksum() == state["teacher_checksum"] != student


def test_an_export_is_the_student_as_a_hugging_face_model(engine, config, problems, tmp_path):
    train(config, problems, None, engine, Path(config.logger["log_dir"]), resume=False)
    engine.export(tmp_path / "hf")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    for name, weight in engine.cluster.policy.worker.model.state_dict().items():
        assert torch.equal(exported[name], weight)
    assert (tmp_path / "hf/tokenizer_config.json").is_file()


def test_a_failure_under_teacher_weights_leaves_the_student_in_place(engine):
    worker = engine.cluster.policy.worker
    with torch.no_grad():
        next(worker.model.parameters()).add_(1.0)
    student = {name: w.clone() for name, w in worker.model.named_parameters()}
    with pytest.raises(MemoryError), worker.use_reference_model():
        assert not all(torch.equal(student[name], w) for name, w in worker.model.named_parameters())
        raise MemoryError
    assert all(torch.equal(student[name], w) for name, w in worker.model.named_parameters())


def test_a_lost_row_stops_the_step(engine, config, problems):
    engine.cluster.generation.llm.lose_rows = 1
    with pytest.raises(RuntimeError, match="vLLM left out 1 of"):
        collected(problems[:4], engine, config)


def test_masked_rows_fill_the_batch_and_a_batch_without_a_counted_token_is_skipped(engine, config):
    objective = build_objective(config.aopsd.objective)
    values = [torch.full((2,), -1.0)] * 3
    counted, masked = (TrainRow([4, 5], [6, 7], *values, torch.tensor([flag] * 2)) for flag in (True, False))
    assert engine.train([masked], objective)["train/skipped"] == 1.0
    assert engine.train([counted, masked], objective)["train/skipped"] == 0.0
    (batch,) = engine.cluster.policy.batches
    assert batch.size == 4 and batch["sample_mask"].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("turn", ["let_score", "let_train", "let_sample"])
def test_a_trainer_that_died_meanwhile_is_one_clear_error(engine, monkeypatch, turn):
    def die():
        raise ray.exceptions.ActorDiedError()

    cluster = engine.cluster
    cluster.let_sample(Role.STUDENT)
    cluster.let_score()
    for name in ("prepare_for_lp_inference", "prepare_for_training", "offload_after_refit"):
        monkeypatch.setattr(cluster.policy, name, die)
    with pytest.raises(UserError, match="a worker died"):
        cluster.let_sample(Role.STUDENT) if turn == "let_sample" else getattr(cluster, turn)()


@pytest.mark.parametrize("moment", ["sleep", "wake", "refit"])
def test_a_sampler_that_died_asleep_is_said_to_be_dead(engine, monkeypatch, moment):
    """NeMo RL tells of it by `False`, or by a trainer that waits in vain."""

    def die(self):
        raise ray.exceptions.ActorDiedError()

    def wait_in_vain(*args, **kwargs):
        raise RuntimeError("ZMQ communication timeout")

    cluster = engine.cluster
    monkeypatch.setattr(type(cluster.generation.workers[0]), "is_alive", die)
    if moment == "refit":
        monkeypatch.setattr("nemo_aopsd.engines.nemo_rl.cluster.refit_policy_generation", wait_in_vain)
    else:
        name = {"sleep": "finish_generation", "wake": "prepare_for_generation"}[moment]
        monkeypatch.setattr(cluster.generation, name, lambda tags=None: False)
    with pytest.raises(UserError, match="a worker died"):
        engine.student.generate([[4, 5]], engine.config.rollout, 0)


@pytest.mark.parametrize("part", ["sleep", "weights", "kv_cache"])
def test_vllm_that_neither_sleeps_nor_wakes_is_an_error(engine, monkeypatch, part):
    generation = engine.cluster.generation
    wake = generation.prepare_for_generation
    if part == "sleep":
        monkeypatch.setattr(generation, "finish_generation", lambda: False)
    monkeypatch.setattr(generation, "prepare_for_generation", lambda tags=None: tags != [part] and wake(tags))
    with pytest.raises(UserError, match="could not put vLLM to sleep" if part == "sleep" else "could not wake vLLM"):
        engine.student.generate([[4, 5]], engine.config.rollout, 0)


def test_a_checkpoint_goes_to_the_driver_s_folder_wherever_workers_are(engine, tmp_path, monkeypatch):
    """A worker of a running Ray cluster resolves a relative path against another working directory."""
    saved = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine.cluster.policy, "save_checkpoint", lambda *paths: saved.extend(paths))
    engine.cluster.save(Path("runs/step"))
    assert saved == [f"{tmp_path}/runs/step/policy/{kind}" for kind in ("weights", "optimizer", "tokenizer")]


def test_a_longer_run_goes_on_with_the_schedule_of_its_start(engine):
    """Megatron refuses a saved schedule of another planned number of steps, unless it is told to take the saved one."""
    block = engine.cluster.policy.cfg["megatron_cfg"]
    assert block["train_iters"] == 2 and block["scheduler"]["use_checkpoint_opt_param_scheduler"] is True


def test_stopping_ends_workers_that_could_not_be_asked(engine, turns):
    policy = engine.cluster.policy
    engine.stop()
    assert policy.killed == [True]
    assert turns == {}  # the fake virtual cluster gave its GPUs back
