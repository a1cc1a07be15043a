"""The step with the other objectives: only what is declared is computed; demonstrations, rewards, payload."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nemo_aopsd.config.schema import CHOICES, AOPSDConfig, ContextConfig, CurriculumConfig, ObjectiveConfig
from nemo_aopsd.console import Whole, step_line
from nemo_aopsd.grading.budget import LONGEST
from nemo_aopsd.method.demonstrations import demonstrations, takes_solutions
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.reward import with_rewards
from nemo_aopsd.method.step import train_step
from nemo_aopsd.run.metrics import step_metrics
from nemo_aopsd.run.records import rollout_record
from nemo_aopsd.types import Generation
from tests.fakes import END, CharTokenizer, make_config, make_engine, make_problem

AT, WHOLE = {"step": 1.0, "epoch": 0.0}, Whole(1, 1, 0.0)
PROBLEMS = [make_problem(index) for index in range(4)]
NAMES = CHOICES["objective.name"]
SHUFFLE = CurriculumConfig(name="shuffle")


def settings(name: str, **changes) -> AOPSDConfig:
    values = {"weighting": "uniform", "curriculum": SHUFFLE, "context": ContextConfig(kind="solution")}
    group = {"num_generations_per_prompt": 2} if name == "grpo" else {}
    return AOPSDConfig(objective=ObjectiveConfig(name=name, **changes), **values, **group)


def step(engine, aopsd: AOPSDConfig, seed: int = 0, problems=PROBLEMS, **policy):
    config = make_config(Path("run"), aopsd, **policy)
    made = build_objective(aopsd.objective)
    return train_step(problems, engine, made, config, donors={}, seed=seed)


def forbid(model, *names: str) -> None:
    """Make those methods fail if they are called."""
    for name in names:
        setattr(model, name, None)


UNUSED_OF_TEACHER = {
    "pg": ["top_logprobs", "distributions"],
    "sft": ["logprobs", "top_logprobs", "generate", "distributions"],
    "grpo": ["logprobs", "top_logprobs", "generate", "distributions"],
    **{name: ["logprobs", "top_logprobs"] for name in ("fkl", "rkl", "jsd", "dash", "gkd")},
    "topk_fkl": ["logprobs"],
    "eopd": [],
    "minillm": ["top_logprobs"],
}


@pytest.mark.parametrize("name", NAMES)
def test_each_objective_trains_and_computes_only_what_it_declares(name):
    engine = make_engine()
    aopsd = settings(name)
    forbid(engine.teacher, "continue_greedily", *UNUSED_OF_TEACHER[name])
    forbid(engine.student, "top_logprobs", "branch_logprobs")
    if name in ("sft", "fkl", "rkl", "jsd", "dash", "gkd", "topk_fkl"):
        forbid(engine.student, "logprobs")
    if name == "sft":
        forbid(engine.student, "generate")
    before = engine.student.logits.detach().clone()
    result = step(engine, aopsd)
    metrics = step_metrics(result, aopsd, [False] * len(result.drafts))
    assert all(value == value and abs(value) < float("inf") for value in metrics.values())
    assert ("gap/mean_abs" in metrics) == (name in ("pg", "eopd", "minillm"))
    records = [rollout_record(*pair, CharTokenizer(), aopsd.shown_context) for pair in result.pairs()]
    assert all((record["teacher_prompt"] is None) == (name in ("sft", "grpo")) for record in records)
    assert not any(record["dropped"] for record in records)
    moved = not torch.equal(before, engine.student.logits)
    assert moved != (name == "grpo")  # no answer of a random table is right, so no group tells anything


def test_no_teacher_means_no_judge_for_its_context_and_no_drop():
    for name in ("sft", "grpo"):
        engine = make_engine()
        aopsd = replace(settings(name), context=ContextConfig(kind="dag_frontier"))
        result = step(engine, aopsd, max_total_sequence_length=60)
        assert all(draft.verdict is None and draft.fits for draft in result.drafts)
        assert "dag/disclosed_share" not in step_metrics(result, aopsd, [False] * len(result.drafts))


# Demonstrations


def test_a_demonstration_is_the_solution_and_the_end_token():
    config = make_config(Path("run"), settings("sft"), generation={"max_new_tokens": 14})
    [found] = demonstrations(PROBLEMS[:1], [[5]], CharTokenizer(), config)
    assert found == Generation([*CharTokenizer().encode("Add one to 0."), END], True)


@pytest.mark.parametrize(("longest", "row"), [(13, 4096), (4096, 14)])
def test_a_demonstration_that_is_too_long_is_cut_without_an_end_token(longest, row):
    limits = {"generation": {"max_new_tokens": longest}, "max_total_sequence_length": row}
    config = make_config(Path("run"), settings("sft"), **limits)
    [found] = demonstrations(PROBLEMS[:1], [[5]], CharTokenizer(), config)
    assert found == Generation(CharTokenizer().encode("Add one to 0."), False)


def test_sft_trains_on_the_solutions_alone_and_counts_those_that_were_cut():
    problems = [*PROBLEMS[:3], replace(PROBLEMS[3], solution="A long story about three and one.")]
    engine, aopsd = make_engine(), replace(settings("sft"), mask_truncated=True)  # which is about rollouts alone
    result = step(engine, aopsd, problems=problems, generation={"max_new_tokens": 20})
    [rows] = engine.trained
    assert [CharTokenizer().decode(row.response) for row in rows] == [
        *(f"Add one to {index}." for index in range(3)),
        "A long story about t",
    ]
    assert [row.response[-1] == END for row in rows] == [True, True, True, False]
    assert all(row.mask.all() for row in rows)
    metrics = step_metrics(result, aopsd, [True] * 4)
    assert (metrics["rollout/demonstrations"], metrics["rollout/cut_demonstrations"]) == (4, 1)
    assert "rollout/leak_rate" not in metrics  # the student said nothing


def test_the_coin_of_gkd_is_fair_seeded_and_per_step():
    flips = [takes_solutions(0.25, seed) for seed in range(2000)]
    assert 0.72 < sum(flips) / len(flips) < 0.78
    assert flips == [takes_solutions(0.25, seed) for seed in range(2000)]
    assert not any(takes_solutions(1.0, seed) for seed in range(100))
    assert all(takes_solutions(0.0, seed) for seed in range(100))


def test_a_gkd_step_is_all_demonstrations_or_all_rollouts():
    kinds = set()
    for seed in range(12):
        result = step(make_engine(), settings("gkd"), seed=seed)
        [kind] = {draft.is_demonstration for draft in result.drafts}
        texts = [CharTokenizer().decode(draft.output.tokens) for draft in result.drafts]
        assert (texts == [f"Add one to {index}" for index in range(4)]) == kind  # cut at 12 tokens
        kinds.add(kind)
    assert kinds == {True, False}


# Rewards


def test_grpo_rewards_finished_right_answers_and_raises_their_likelihood():
    engine = make_engine()
    aopsd = replace(settings("grpo"), num_generations_per_prompt=3)
    texts = (("so \\boxed{1}", True), ("no \\boxed{7}", True), ("so \\boxed{1}", False))
    engine.student.generate = lambda prompts, sampling, seed: [
        Generation([*CharTokenizer().encode(text), *([END] if done else [])], done) for text, done in texts
    ]
    result = step(engine, aopsd, problems=PROBLEMS[:1])
    assert [draft.reward for draft in result.drafts] == [1.0, 0.0, 0.0]
    assert step_metrics(result, aopsd, [False] * 3)["reward/mean"] == pytest.approx(1 / 3)
    [rows] = engine.trained
    found = [row.advantages[0].item() for row in rows]
    assert found == pytest.approx([value / 3**0.5 for value in (2, -1, -1)], abs=1e-5)
    after = engine.student.logprobs([row.prompt for row in rows], [row.response for row in rows])
    assert after[0].sum() > rows[0].old_logprobs.sum()


@pytest.mark.parametrize("reward", ["added", "direction"])
def test_a_teacher_with_a_reward_has_grpos_advantages_and_the_gaps(reward):
    engine = make_engine()
    aopsd = replace(settings("pg", reward=reward), num_generations_per_prompt=2)
    texts = ("so \\boxed{1}", "no \\boxed{7}")
    texts += ("\\boxed{7}", "\\boxed{77}")  # the second problem's, both wrong: their group tells nothing
    engine.student.generate = lambda *_: [Generation([*CharTokenizer().encode(text), END], True) for text in texts]
    result = step(engine, aopsd, problems=PROBLEMS[:2])
    assert [draft.reward for draft in result.drafts] == [1.0, 0.0, 0.0, 0.0]
    [rows] = engine.trained
    assert [row.advantages[0].item() for row in rows] == pytest.approx([0.5**0.5, -(0.5**0.5), 0, 0], abs=1e-5)
    assert all(len(row.advantages) == len(row.response) and row.gap.abs().sum() > 0 for row in rows)


def test_grading_counts_in_the_seconds_of_the_step(monkeypatch):
    def slow(*args):
        time.sleep(0.1)
        return with_rewards(*args)

    monkeypatch.setattr("nemo_aopsd.method.step.with_rewards", slow)
    assert step(make_engine(), settings("grpo")).seconds["rollout"] > 0.1


def test_an_answer_that_the_teacher_has_no_room_for_still_counts_in_its_group(monkeypatch):
    engine = make_engine()
    aopsd = replace(settings("pg", reward="added"), num_generations_per_prompt=2)
    texts = ("so \\boxed{1}", "no \\boxed{7}")
    engine.student.generate = lambda *_: [Generation([*CharTokenizer().encode(text), END], True) for text in texts]
    monkeypatch.setattr("nemo_aopsd.method.step._fits", lambda draft, *_: draft.reward == 1)
    step(engine, aopsd, problems=PROBLEMS[:1])
    [[row]] = engine.trained
    assert row.advantages[0].item() == pytest.approx(0.5**0.5, abs=1e-5)


def test_an_answer_inside_of_a_thought_that_the_chat_template_opens_earns_nothing(monkeypatch):
    render, encode = CharTokenizer.render, CharTokenizer().encode
    monkeypatch.setattr(CharTokenizer, "render", lambda *args: [*render(*args), *encode("<think>\n")])
    engine = make_engine()
    texts = ("so \\boxed{1}", "so</think>\\boxed{1}")
    engine.student.generate = lambda *_: [Generation([*encode(text), END], True) for text in texts]
    result = step(engine, settings("grpo"), problems=PROBLEMS[:1])
    assert [draft.reward for draft in result.drafts] == [0.0, 1.0]
    records = [rollout_record(*pair, engine.tokenizer, "solution") for pair in result.pairs()]
    assert [record["response_text"] for record in records] == [f"<think>{text}" for text in texts]


def test_an_answer_that_the_grader_cannot_judge_is_counted():
    engine = make_engine()
    aopsd = replace(settings("grpo"), num_generations_per_prompt=3)
    texts = ("so \\boxed{1}", f"\\boxed{{{'n' * (LONGEST + 1)}}}", "no \\boxed{7}")
    encode = CharTokenizer().encode
    engine.student.generate = lambda *_: [Generation([*encode(text), END], True) for text in texts]
    result = step(engine, aopsd, problems=PROBLEMS[:1])
    metrics = step_metrics(result, aopsd, [False] * 3)
    assert (metrics["reward/mean"], metrics["reward/undecided"]) == (pytest.approx(1 / 3), 1.0)
    assert "  reward 0.33  " in (line := step_line(metrics | AT, WHOLE)) and "  ungradable answers 1  " in line
    metrics = step_metrics(step(make_engine(), settings("pg")), settings("pg"), [False] * 4)
    assert "reward/undecided" not in metrics


# Payload


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "pg"}, 13),
        ({"name": "topk_fkl", "top_k": 16}, 128),
        ({"name": "topk_fkl", "top_k": 32}, 256),
        ({"name": "eopd", "top_k": 16}, 13 + 128 + 4),
        ({"name": "sft"}, None),  # no teacher
        ({"name": "minillm"}, None),  # whose whole distribution is in the update
    ],
)
def test_supervision_bytes_per_token_are_those_of_the_types_of_the_rows(changes, expected):
    found = step(make_engine(), settings(**changes)).train_metrics
    assert found.get("train/supervision_bytes_per_token") == expected
