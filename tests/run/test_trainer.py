import io
import json
import random
import re
import shutil
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console

import tests.run
from nemo_aopsd import console
from nemo_aopsd.config.schema import (
    CHOICES,
    AOPSDConfig,
    CurriculumConfig,
    EvaluationConfig,
    JudgeConfig,
    ObjectiveConfig,
    ProbeConfig,
)
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_lines, write_jsonl
from nemo_aopsd.method.weighting import band_pass
from nemo_aopsd.run import trainer
from nemo_aopsd.run.folder import write_config
from nemo_aopsd.run.reader import parse
from nemo_aopsd.run.record_types import Rollout, StepMetrics
from nemo_aopsd.run.trainer import train
from tests.fakes import FakeEngine, make_config, make_engine, make_problem, random_table
from tests.run import read

PROBLEMS = [make_problem(index) for index in range(10)]
HELD_OUT = [make_problem(index) for index in range(20, 24)]
AOPSD = AOPSDConfig(
    num_prompts_per_step=4,
    max_num_epochs=2,
    probes=ProbeConfig(threshold=1.0),
    curriculum=CurriculumConfig(num_initial_attempts=2),
    evaluation=EvaluationConfig(data_path="held_out.jsonl", num_samples=2, max_new_tokens=8),
)


class Killed(BaseException):
    """Stands for the end of the process."""


def dying(engine: FakeEngine, calls: int) -> FakeEngine:
    """The engine dies at its `calls`-th piece of work of any kind."""
    left = [calls]

    def mortal(work):
        def wrapper(*args):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return work(*args)

        return wrapper

    engine.student.generate = mortal(engine.student.generate)
    engine.teacher.logprobs = mortal(engine.teacher.logprobs)
    engine.train = mortal(engine.train)
    engine.save = mortal(engine.save)
    return engine


def run(folder, engine=None, aopsd=AOPSD, resume=False, save_period=1):
    config = make_config(folder, aopsd)
    config.checkpointing["save_period"] = save_period
    quiet = Console(quiet=True)
    train(config, PROBLEMS, HELD_OUT, engine or make_engine(), folder, resume=resume, console=quiet)


def outcome(folder):
    """Everything of a run that must not depend on when it was killed; older checkpoints do, by their period."""
    *rest, states = tests.run.outcome(folder)
    return *rest, states[-1]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(folder)
    return outcome(folder)


def test_the_engine_is_told_each_step_s_numbers_and_each_evaluation(tmp_path):
    engine = make_engine()
    run(tmp_path, engine)
    steps = [entry for entry in engine.logged if "train/loss" in entry[1]]
    assert steps == [(line["step"], line) for line in metrics_of(tmp_path)]
    rates = [entry for entry in engine.logged if entry not in steps]
    summaries = [
        json.loads(path.read_text())["pass_at_k"] for path in sorted((tmp_path / "eval").glob("epoch_???.json"))
    ]
    assert [rate for _, rate in rates] == [{f"eval/pass_at_{k}": rates[k] for k in "12"} for rates in summaries]
    assert rates[0][0] == 0 and rates[-1][0] == steps[-1][0]


def test_an_evaluation_says_how_many_of_its_problems_are_trained_on(tmp_path, capsys, uninterrupted):
    config = make_config(tmp_path, replace(AOPSD, max_num_steps=1))
    train(config, PROBLEMS, [*HELD_OUT, PROBLEMS[0]], make_engine(), tmp_path, resume=False)
    assert json.loads((tmp_path / "eval/epoch_001.json").read_text())["num_trained_on"] == 1
    assert uninterrupted[2]["epoch_001.json"][0]["num_trained_on"] == 0
    told = capsys.readouterr().out
    assert "on 5 problems, not held out: 1 is also trained on" in told
    assert "after epoch 0: pass@1" in told and "after step 1 (in epoch 1): pass@1" in told


def test_every_problem_is_visited_once_in_each_epoch(uninterrupted):
    metrics, rollouts, evals, competence, state = uninterrupted
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    for epoch in (0, 1):
        visited = [line["problem_id"] for step in rollouts.values() for line in step if line["epoch"] == epoch]
        assert Counter(visited) == Counter(problem.id for problem in PROBLEMS)
    assert [line["epoch"] for line in competence] == [0, 1, 2]
    assert {f"epoch_00{epoch}.json" for epoch in range(3)} <= set(evals)
    assert state["step"] == 6


@pytest.mark.parametrize(("save_period", "step"), [(1, 3), (2, 5)])
def test_killed_at_any_moment_and_resumed_it_ends_like_an_uninterrupted_run(tmp_path, uninterrupted, save_period, step):
    for calls in range(0, 40, step):
        folder = tmp_path / f"killed_{calls}"
        for attempt, life in enumerate((calls, 7, 10**6)):  # killed twice
            with suppress(Killed):
                run(folder, dying(make_engine(), life), resume=attempt > 0, save_period=save_period)
        assert outcome(folder) == uninterrupted, f"killed after {calls} calls"


@pytest.mark.parametrize("masked", [False, True])
def test_auto_betas_are_logged_and_a_resumed_run_goes_on_with_what_it_had_seen(tmp_path, masked):
    aopsd = replace(AOPSD, probes=replace(AOPSD.probes, threshold=0.5, betas="auto"), mask_truncated=masked)

    def engine():
        """One whose answers are often cut, with probes in them."""
        return FakeEngine(random_table(0, end_boost=2.0), random_table(1, end_boost=2.0))

    run(tmp_path / "whole", engine(), aopsd)
    with pytest.raises(Killed):
        run(tmp_path / "killed", dying(engine(), 32), aopsd)
    assert len(metrics_of(tmp_path / "killed")) in range(2, 6)
    run(tmp_path / "killed", engine(), aopsd, resume=True)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    metrics, rollouts, *_ = outcome(tmp_path / "whole")
    medians = []
    for line, step in zip(metrics, rollouts.values(), strict=True):
        rows = [row for row in step if row["finished"] or not masked]
        probes = [probe for row in rows for probe in row["probes"] if probe["gap"] < 0 and probe["nll"] is not None]
        if not probes:
            continue
        medians.append(median(probe["nll"] for probe in probes))
        beta = line["probe/beta_negative"]
        assert beta == pytest.approx(max(median(medians), 0.1), abs=1e-4)
        weights = [band_pass(probe["nll"], beta) for probe in probes]
        assert [probe["weight"] for probe in probes] == pytest.approx(weights, abs=1e-3)
    assert len(set(medians)) > (1 if masked else 2)


def test_a_kill_in_the_middle_of_the_initial_attempts_leaves_no_line_twice(tmp_path):
    """Also where an earlier version left a part of a batch."""
    journal = tmp_path / "initial_progress.jsonl"
    run(tmp_path / "whole")
    whole = read(tmp_path / "whole/initial_progress.jsonl")
    write_jsonl(journal, whole[:7])
    run(tmp_path, resume=True)
    assert read(journal) == whole and len(whole) == 10


@pytest.mark.parametrize(("calls", "said"), [(0, "0 of 10"), (4, "8 of 10"), (9, "10 of 10")])
def test_a_resume_before_the_first_checkpoint_says_what_it_keeps(tmp_path, capsys, calls, said):
    """Four pieces of work are two batches of attempts and their verdicts; nine are all, and the first evaluation."""
    config = make_config(tmp_path, AOPSD)
    with suppress(Killed):
        train(config, PROBLEMS, HELD_OUT, dying(make_engine(), calls), tmp_path, resume=False)
    capsys.readouterr()
    train(config, PROBLEMS, HELD_OUT, make_engine(), tmp_path, resume=True)
    told = capsys.readouterr().out
    assert f"starts again at step 1, keeps the initial attempts at {said} problems" in told
    left = 3 - -(-int(said[:2]) // 4)
    assert (f"initial attempts, batches: {left} to go" in told) == (left > 0)
    train(replace_budget(config), PROBLEMS, HELD_OUT, make_engine(), tmp_path, resume=True)
    assert "goes on at step 7\n" in capsys.readouterr().out
    train(replace_budget(config), PROBLEMS, HELD_OUT, make_engine(), tmp_path, resume=True)
    assert "nothing left to do: 9 steps done; reached: aopsd.max_num_epochs=3\n" in capsys.readouterr().out
    (tmp_path / "eval/epoch_003.json").unlink()
    train(replace_budget(config), PROBLEMS, HELD_OUT, make_engine(), tmp_path, resume=True)
    told = capsys.readouterr().out
    assert "nothing left" not in told and "only the last evaluation is left to do: 9 steps done; reached: " in told


def test_a_curriculum_of_ones_own_that_needs_no_attempts_keeps_none(tmp_path, capsys):
    parts = Path(__file__).parents[2] / "examples/my_parts.py"
    config = make_config(tmp_path, replace(AOPSD, curriculum=CurriculumConfig(name=f"{parts}:SortedOrder")))
    with suppress(Killed):
        train(config, PROBLEMS, HELD_OUT, dying(make_engine(), 1), tmp_path, resume=False)
    capsys.readouterr()
    train(config, PROBLEMS, HELD_OUT, make_engine(), tmp_path, resume=True)
    assert "starts again at step 1\n" in capsys.readouterr().out


def replace_budget(config):
    return replace(config, aopsd=replace(config.aopsd, max_num_epochs=3))


def flip(folder, draw):
    """Turn one bit of one file of a run over; returns the file."""
    path = draw.choice([path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size])
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return path


def test_a_flipped_bit_in_any_file_is_told_by_file_or_changes_nothing(tmp_path, uninterrupted):
    """Of a run that has a checkpoint within an epoch, and one more step behind it."""
    with suppress(Killed):
        run(tmp_path / "run", dying(make_engine(), 33), save_period=2)
    write_config(tmp_path / "run", "aopsd: {seed: 0}\n", "aopsd train x")
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == ["step_000003", "step_000004"]
    assert (tmp_path / "run/rollouts/step_000005.jsonl").exists()
    draw, harmless = random.Random(0), []
    for index in range(40):
        copy = tmp_path / str(index)
        shutil.copytree(tmp_path / "run", copy)
        path = flip(copy, draw)
        try:
            run(copy, resume=True, save_period=2)
        except UserError as error:
            assert path.name in str(error) or "manifest.json" in path.name, f"{path}: {error}"
        else:
            assert outcome(copy) == uninterrupted, path
            harmless.append(path)
        shutil.rmtree(copy)
    assert {path.parent.name for path in harmless} <= {"step_000003"}  # the checkpoint before the newest one


def test_what_a_tracker_forgets_and_is_told_again_adds_up_to_an_uninterrupted_run(tmp_path):
    def numbers(logged):
        return [(step, {k: v for k, v in each.items() if not k.startswith("time/")}) for step, each in logged]

    whole, killed, again = make_engine(), dying(make_engine(), 32), make_engine()
    run(tmp_path / "whole", whole, save_period=2)
    with pytest.raises(Killed):
        run(tmp_path / "killed", killed, save_period=2)
    run(tmp_path / "killed", again, resume=True, save_period=2)
    assert (killed.forgotten_after, again.forgotten_after) == (0, 4) and killed.logged[-1][0] == 5
    stays = [entry for entry in killed.logged if entry[0] <= again.forgotten_after]
    assert numbers([*stays, *again.logged]) == numbers(whole.logged)


def test_resuming_with_another_teacher_or_other_problems_is_refused(tmp_path):
    run(tmp_path, aopsd=replace(AOPSD, max_num_steps=2))
    other = FakeEngine(random_table(0), random_table(7))
    with pytest.raises(UserError, match=r"the teacher's weights differ .* set aopsd\.teacher\.weights as it had it"):
        run(tmp_path, other, resume=True)
    config = make_config(tmp_path, AOPSD)
    changed = [replace(PROBLEMS[0], answer="another"), *PROBLEMS[1:]]
    with pytest.raises(UserError, match="not the problems that the run"):
        train(config, changed, HELD_OUT, make_engine(), tmp_path, resume=True, console=Console(quiet=True))


def test_resuming_with_another_judge_is_refused(tmp_path):
    (tmp_path / "judge.gguf").write_bytes(b"one")
    aopsd = replace(AOPSD, judge=JudgeConfig(model=str(tmp_path / "judge.gguf")))
    engine = make_engine()
    engine.judge = engine.teacher, engine.tokenizer
    run(tmp_path, engine, aopsd=replace(aopsd, max_num_steps=1))
    run(tmp_path, engine, aopsd=replace(aopsd, max_num_steps=2), resume=True)
    (tmp_path / "judge.gguf").write_bytes(b"two")
    with pytest.raises(UserError, match=r"judge\.gguf: is not the model that judged .*aopsd\.judge\.model"):
        run(tmp_path, engine, aopsd=aopsd, resume=True)


def test_a_state_has_the_keys_of_every_checkpoint_made_so_far(uninterrupted):
    """A key that is renamed or added without a default would make a traceback of the resumption of an older run."""
    assert set(uninterrupted[-1]) | {"train_seconds"} == {
        *("step", "next_batch", "response_tokens", "train_seconds", "teacher_checksum", "problems", "held_out"),
        *("judge", "curriculum", "surprise"),
    }
    assert set(uninterrupted[-1]["curriculum"]) == {"epoch", "competence", "observed", "history"}


def test_max_num_steps_stops_early_and_a_longer_run_goes_on_from_there(tmp_path, uninterrupted):
    run(tmp_path, aopsd=replace(AOPSD, max_num_steps=2))
    assert len(metrics_of(tmp_path)) == 2
    ended = json.loads((tmp_path / "eval/epoch_001.settings.json").read_text())  # within the first epoch
    assert ended["weights"] == "step_000002"
    run(tmp_path, resume=True)
    assert outcome(tmp_path) == uninterrupted


def metrics_of(folder):
    return read(folder / "metrics.jsonl")


def test_a_budget_of_response_tokens_ends_at_the_step_that_reaches_it_and_is_kept_over_a_kill(tmp_path, uninterrupted):
    totals = [line["rollout/total_tokens"] for line in uninterrupted[0]]
    lengths = [sum(len(line["response"]) for line in step) for step in uninterrupted[1].values()]
    assert totals == [sum(lengths[: count + 1]) for count in range(6)]
    for budget, steps in ((totals[2], 3), (totals[2] + 1, 4)):
        folder = tmp_path / str(budget)
        limited = replace(AOPSD, max_response_tokens=int(budget))
        with pytest.raises(Killed):
            run(folder, dying(make_engine(), 20), aopsd=limited)
        assert 0 < len(metrics_of(folder)) < steps
        run(folder, aopsd=limited, resume=True)
        assert [line["rollout/total_tokens"] for line in metrics_of(folder)] == totals[:steps]
        state = json.loads((folder / f"checkpoints/step_{steps:06d}/state.json").read_text())
        assert state["response_tokens"] == totals[steps - 1]


def test_a_budget_of_seconds_counts_the_steps_alone_and_goes_on_counting(tmp_path, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr("nemo_aopsd.clock.time.perf_counter", lambda: next(clock))  # each stage takes one second
    first = replace(AOPSD, max_num_steps=1)
    run(tmp_path, aopsd=first)
    [line] = metrics_of(tmp_path)
    each = line["time/step"]
    assert each >= 5 and line["time/total"] == each
    run(tmp_path, aopsd=replace(AOPSD, max_train_seconds=2 * each + 1.0), resume=True)
    assert [line["time/total"] for line in metrics_of(tmp_path)] == [each, 2 * each, 3 * each]
    state = json.loads((tmp_path / "checkpoints/step_000003/state.json").read_text())
    assert state["train_seconds"] == 3 * each


@pytest.mark.parametrize(("name", "rate"), [("sft", 0.5), ("gkd", 0.0)])
def test_solutions_teach_but_say_nothing_of_the_students_competence(tmp_path, name, rate):
    objective = ObjectiveConfig(name=name, on_policy_rate=rate)
    run(tmp_path, aopsd=replace(AOPSD, objective=objective, weighting="uniform"))
    history = read(tmp_path / "competence.jsonl")
    assert history[0]["competence"] == history[-1]["competence"]


@pytest.mark.parametrize("name", CHOICES["objective.name"])
def test_what_a_run_keeps_of_a_rollout_is_read_whatever_the_objective(tmp_path, name):
    """Some have no teacher, so no prompt of one."""
    objective = ObjectiveConfig(name=name)
    changed = replace(AOPSD, objective=objective, weighting="uniform", num_generations_per_prompt=2, max_num_steps=1)
    run(tmp_path, aopsd=replace(changed, curriculum=CurriculumConfig(name="shuffle")))
    kept = [parse(Rollout, line, where) for where, line in read_lines(tmp_path / "rollouts/step_000001.jsonl")]
    assert len(kept) == 8 and all((row.teacher_prompt is not None) == objective.reads_teacher for row in kept)


def test_no_steps_is_an_evaluation_of_the_model_as_it_is(tmp_path, uninterrupted):
    run(tmp_path, aopsd=replace(AOPSD, max_num_steps=0))
    assert AOPSD.curriculum.needs_progress and not (tmp_path / "initial_progress.jsonl").exists()
    names = {path.name for path in (tmp_path / "eval").iterdir()}
    assert names == {"epoch_000.json", "epoch_000.jsonl", "epoch_000.settings.json"}
    correct = json.loads((tmp_path / "eval/epoch_000.json").read_text())["correct_per_problem"]
    assert correct == uninterrupted[2]["epoch_000.json"][0]["correct_per_problem"]
    assert (tmp_path / "metrics.jsonl").read_text() == "" and not (tmp_path / "checkpoints").exists()


def test_failed_verdicts_are_counted_and_left_out_of_the_competence(tmp_path):
    engine = make_engine()
    generate, decode = engine.student._generate, engine.tokenizer.decode

    def mute(prompt, *rest):
        """A judge that never says a list."""
        output = generate(prompt, *rest)
        return replace(output, tokens=output.tokens[1:]) if decode(prompt).startswith("You check") else output

    engine.student._generate = mute
    run(tmp_path, engine, replace(AOPSD, max_num_steps=1))
    (line,) = read(tmp_path / "metrics.jsonl")
    assert line["judge/failed"] == 4
    assert "dag/progress" not in line
    (start,) = read(tmp_path / "competence.jsonl")
    assert set(start["competence"].values()) == {None}
    (rollout, *_) = read(tmp_path / "rollouts/step_000001.jsonl")
    assert rollout["progress"] is None and rollout["reached"] == []


@pytest.mark.parametrize(
    ("limits", "steps", "left"),
    [
        ({}, 6, [(6 - step) / step for step in range(1, 7)]),  # 10 problems, 4 a step, 2 epochs
        ({"max_num_steps": 4}, 4, [3.0, 1.0, 1 / 3, 0.0]),
        ({"max_num_epochs": 9, "max_response_tokens": 1}, 27, [0.0]),
    ],
)
def test_a_step_says_what_is_left_by_the_budget_that_ends_the_run(tmp_path, monkeypatch, limits, steps, left):
    seen, seconds = [], []
    monkeypatch.setattr(trainer, "step_line", lambda metrics, whole, _: seen.append((metrics, whole)) or "")
    run(tmp_path, make_engine(), replace(AOPSD, **limits))
    for metrics, whole in seen:
        assert whole.steps == steps
        seconds.append(whole.seconds_left / metrics["time/total"])
    assert seconds == pytest.approx(left)


def test_while_a_checkpoint_is_saved_the_step_whose_line_is_said_counts_as_done(tmp_path, monkeypatch):
    beats = []

    @contextmanager
    def repeated(function):
        beats.append(function)
        yield

    monkeypatch.setattr(console, "_repeated", repeated)
    monkeypatch.setattr(console, "EVERY", 0.0)
    engine, log = make_engine(), Console(file=io.StringIO(), width=200)
    save = engine.save
    engine.save = lambda folder: beats[-1]() or save(folder)
    aopsd = replace(AOPSD, max_num_epochs=1, curriculum=CurriculumConfig(name="shuffle"))
    config = make_config(tmp_path, aopsd)
    config.checkpointing["save_period"] = 1
    train(config, PROBLEMS, None, engine, tmp_path, resume=False, console=log)
    said = [re.match(r"step \d/3|epoch 1/1, steps: \d (of 3|to go)", line) for line in log.file.getvalue().splitlines()]
    beat = "epoch 1/1, steps: "
    assert [found and found[0] for found in said] == [
        *(f"{beat}3 to go", "step 1/3", f"{beat}1 of 3", "step 2/3", f"{beat}2 of 3", "step 3/3")
    ]


@pytest.mark.parametrize(
    ("limits", "used", "left"),
    [
        ({}, 20, 4.0),  # of 24 steps; by the mean of all, 118 s for 20, it would be 23.6 s
        ({"max_response_tokens": 300}, 20, 2.0),  # 290 are used, of late 5 a second
        ({"max_train_seconds": 120.0}, 20, 2.0),
        ({}, 2, 22 * 50.0),  # the first two steps are all that is known
    ],
)
def test_time_left_goes_by_the_last_steps(tmp_path, limits, used, left):
    """The first two steps take 50 s and 100 tokens each, those after them 1 s and 5 tokens. Then 12 epochs of 2."""
    config = make_config(tmp_path, replace(AOPSD, max_num_epochs=12, **limits))
    running = trainer.Trainer(config, PROBLEMS, None, make_engine(), tmp_path, Console(quiet=True))
    for step in range(1, used + 1):
        late = max(0, step - 2)
        running.step, running.train_seconds = step, 50.0 * (step - late) + late
        running.response_tokens = 100 * (step - late) + 5 * late
        whole = running._whole(2)
        values = {"step": step, "time/total": running.train_seconds, "rollout/total_tokens": running.response_tokens}
        running.rows.append(StepMetrics(0, step, values))
    assert whole.seconds_left == pytest.approx(left)


def test_a_fall_of_pass_at_1_is_told_where_it_happens(tmp_path, capsys, monkeypatch):
    rates = iter([2, 2, 0])

    def fake(*_, epoch, out, **__):
        counts = dict.fromkeys("abcdefghi", next(rates))
        found = {"epoch": epoch, "num_samples": 2, "num_problems": 9, "correct_per_problem": counts, "ungradable": 0}
        rate = counts["a"] / 2
        found |= {"pass_at_k": {"1": rate, "2": rate}, "leak_rate": 0, "truncation_rate": 0, "mean_tokens": 1}
        found |= {"pass_at_k_interval": {key: {"low": rate, "high": rate} for key in "12"}}
        out.mkdir(exist_ok=True)
        (out / f"epoch_{epoch:03d}.json").write_text(json.dumps(found))
        return found

    monkeypatch.setattr(trainer, "evaluate", fake)
    train(make_config(tmp_path, AOPSD), PROBLEMS, PROBLEMS, make_engine(), tmp_path, resume=False)
    told = [line for line in capsys.readouterr().out.splitlines() if "fell from" in line]
    assert (
        len(told) == 1 and told[0].startswith("warning: step 6: ") and "1.000 at step 3 to 0.000 at step 6" in told[0]
    )


def test_a_resumed_run_does_not_warn_of_what_it_was_warned_of(tmp_path, capsys):
    aopsd = replace(AOPSD, objective=ObjectiveConfig("fkl", token_clip=1e-3), weighting="uniform")
    for limit in (1, 3):
        config = make_config(tmp_path, replace(aopsd, max_num_steps=limit))
        train(config, PROBLEMS, None, make_engine(), tmp_path, resume=limit > 1)
    assert capsys.readouterr().out.count("aopsd.objective.token_clip") == 1


@pytest.mark.parametrize(("token_clip", "times"), [(1e-3, 1), (None, 0)])
def test_a_negative_divergence_is_told_once(tmp_path, capsys, token_clip, times):
    aopsd = replace(AOPSD, objective=ObjectiveConfig("fkl", token_clip=token_clip), weighting="uniform")
    train(make_config(tmp_path, aopsd), PROBLEMS, None, make_engine(), tmp_path, resume=False)
    assert capsys.readouterr().out.count("aopsd.objective.token_clip") == times
    signs = [step["train/divergence"] < 0 for step in read(tmp_path / "metrics.jsonl")]
    assert len(signs) > 1 and all(sign == bool(times) for sign in signs)
