"""What users of similar tools ran into, as far as one machine can show it; docs/scenarios.md maps each to its test."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from examples.builtin.tokenizer import build_tokenizer
from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.schema import CHOICES, AOPSDConfig, ContextConfig, CurriculumConfig, ProbeConfig
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.engines import local
from nemo_aopsd.engines.local.engine import LocalEngine
from nemo_aopsd.method.context import donors_for, student_messages, teacher_messages
from nemo_aopsd.method.objectives.pg import PolicyGradient
from nemo_aopsd.method.step import train_step
from nemo_aopsd.models.tokenizer import HFTokenizer
from nemo_aopsd.types import Generation
from tests import REPO
from tests.fakes import make_config, make_problem
from tests.local_models import END, plain_logprobs, tiny_model, tiny_settings, tiny_tokenizer

PROBLEMS = [make_problem(index) for index in range(4)]
OTHER_END = 7
PLAIN = AOPSDConfig(context=ContextConfig(kind="none"), curriculum=CurriculumConfig(name="shuffle"))
SHOWING = [kind for kind in CHOICES["context.kind"] if kind != "none"]
TEMPLATES = {  # name: (template, end of a user's turn, generation marker)
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "<|im_end|>",
        "<|im_start|>assistant\n",
    ),
    "headers": (
        "{% for m in messages %}<|head|>{{ m.role }}<|/head|>\n\n{{ m.content }}<|eot|>{% endfor %}"
        "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}",
        "<|eot|>",
        "<|head|>assistant<|/head|>\n\n",
    ),
}


def tiny_engine(kind: str = "llama", **changes) -> LocalEngine:
    tokenizer = HFTokenizer(tiny_tokenizer(), [END, OTHER_END])
    return LocalEngine(tiny_model(kind), tokenizer, tiny_settings(**changes))


def run_step(engine, aopsd: AOPSDConfig = PLAIN, seed: int = 0, problems=PROBLEMS, **policy):
    """Scored rollouts and training rows of one step."""
    config = make_config(Path("unused"), aopsd, **policy)
    return run_step_of(config, engine, problems, seed)


def run_step_of(config, engine, problems, seed: int = 0):
    trained, train = [], engine.train
    engine.train = lambda rows, objective: trained.extend(rows) or train(rows, objective)
    donors = donors_for(problems, "other_problem", seed=0)
    objective = PolicyGradient(config.aopsd.objective)
    return train_step(problems, engine, objective, config, donors=donors, seed=seed).scored, trained


def sampling(temperature: float = 1.0, max_new_tokens: int = 12) -> dict:
    return {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": 1.0, "top_k": None}


@pytest.fixture(scope="module")
def embedded():
    """A step of the embedded model whose rollouts are ids that no text gives back, chat markup among them."""
    config = load_config(REPO / "examples/configs/aopsd_tiny_cpu.yaml")
    config = replace(config, aopsd=replace(config.aopsd, probes=ProbeConfig(threshold=1.0)))
    problems = load_problems(config.data["train"]["data_path"])[:3]
    engine = local.build(config)
    student = local.build(config).student.network.causal_lm  # as it was before the step
    markup = engine.tokenizer.encode("<|user|>") + engine.tokenizer.encode("<|assistant|>")
    end = min(engine.tokenizer.end_ids)
    responses = [[40, *markup, 41, 90, end], [8, 9, 10, 11, 9, end], [60, *markup, 12]]
    seen, generate = [], engine.student.generate

    def script(prompts, *rest):
        seen.append(prompts)
        if len(seen) > 1:
            return generate(prompts, *rest)  # the judge
        return [Generation(response, response[-1] == end) for response in responses]

    engine.student.generate = script
    rollouts, rows = run_step_of(config, engine, problems)
    return engine, student, rollouts, rows, seen[0], responses


def test_the_prompt_that_is_sampled_from_is_the_prompt_that_is_scored_and_trained_on(embedded):
    engine, student, rollouts, rows, sent, _ = embedded
    for prompt, rollout, row in zip(sent, rollouts, rows, strict=True):
        messages = student_messages(rollout.draft.problem, "tiny")
        expected = engine.tokenizer.hf.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert prompt == rollout.draft.student_prompt == row.prompt == expected
        pieces = engine.tokenizer.pieces(prompt)
        assert pieces[0] == "<|user|>" and pieces[-1] == "<|assistant|>"  # chat tokens are still there
        scored = plain_logprobs(student, expected, row.response)
        torch.testing.assert_close(row.old_logprobs, scored, atol=1e-4, rtol=1e-4)


def test_response_ids_that_no_text_gives_back_are_scored_and_trained_on_verbatim(embedded):
    engine, student, rollouts, rows, _, responses = embedded
    hf = engine.tokenizer.hf
    for response, rollout, row in zip(responses, rollouts, rows, strict=True):
        assert engine.tokenizer.encode(engine.tokenizer.decode(response)) != response
        assert row.response == rollout.draft.output.tokens == response
        messages = teacher_messages(rollout.draft.problem, "dag_frontier", "tiny", reached=rollout.draft.reached)
        prompt = hf.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        expected = plain_logprobs(student, prompt, response)  # the frozen teacher starts as the student
        torch.testing.assert_close(row.teacher_logprobs, expected, atol=1e-4, rtol=1e-4)
        columns = (row.old_logprobs, row.teacher_logprobs, row.weights, row.mask, rollout.gap)
        assert {len(column) for column in columns} == {len(response)}
    assert "<|user|>" in engine.tokenizer.pieces(responses[0])


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", SHOWING)
def test_the_private_context_stands_in_the_users_turn_before_the_generation_marker(kind, template):
    text_of_template, turn_end, marker = TEMPLATES[template]
    tokenizer = build_tokenizer()
    tokenizer.chat_template = text_of_template
    problem, donor = PROBLEMS[:2]
    private = {
        "solution": problem.solution,
        "plan": problem.plan[-1],
        "subproblems": problem.subproblems[-1],
        "dag_full": "xd = 0",
        "dag_frontier": "xc = 0",
        "other_problem": donor.solution,
    }[kind]
    messages = teacher_messages(problem, kind, "default", reached=frozenset("ab"), donor=donor)
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert 0 <= text.rindex(private) < text.rindex(turn_end) < text.rindex(marker)
    assert text.endswith(marker)


@pytest.mark.parametrize("prompts", ["default", "tiny"])
@pytest.mark.parametrize("kind", SHOWING)
def test_no_python_object_shows_in_a_prompt(kind, prompts):
    problem = PROBLEMS[0]
    for reached in (frozenset(), frozenset("ab"), frozenset("abcd")):
        [message] = teacher_messages(problem, kind, prompts, reached=reached, donor=PROBLEMS[1])
        text = message["content"]
        assert not re.search(r"[\[({]\s*['\"{]|DiGraph|frozenset|object at 0x|\bNone\b|statement'", text)
    if kind == "dag_full":
        assert all(f"x{node} = 0" in text for node in "abcd")


@pytest.mark.parametrize(
    ("sides", "shorter"),
    [
        (["teacher"], lambda rows: [row[:-1] for row in rows]),
        (["teacher"], lambda rows: rows[:-1]),
        (["teacher"], lambda rows: [row[:1] for row in rows]),
        (["student"], lambda rows: [row[:1] for row in rows]),
        # of the shortest row alone, so that padding would fill it up
        (["student", "teacher"], lambda rows: [row[:-1] if row is min(rows, key=len) else row for row in rows]),
    ],
)
@pytest.mark.parametrize("weighting", ["uniform", "continuation"])
def test_missing_values_stop_the_step_before_the_update(sides, shorter, weighting):
    engine = tiny_engine()
    for side in sides:
        model = getattr(engine, side)
        model.logprobs = lambda *rows, score=model.logprobs: shorter(score(*rows))
    trained = []
    engine.train = lambda *rows: trained.append(rows)
    with pytest.raises(ValueError, match=r"zip|log-probs"):
        run_step(engine, replace(PLAIN, weighting=weighting))
    assert not trained


@pytest.mark.parametrize("temperature", [0.6, 1.1])
def test_teacher_equal_to_student_leaves_no_gap_whatever_the_rollout_temperature(temperature):
    rollouts, _ = run_step(tiny_engine(), generation=sampling(temperature, 40))
    reference, _ = run_step(tiny_engine(), generation=sampling(3.0, 40))
    assert sum(len(rollout.draft.output.tokens) for rollout in rollouts) > 8
    assert [rollout.draft.output for rollout in rollouts] != [
        rollout.draft.output for rollout in reference
    ]  # it was used
    assert max(rollout.gap.abs().max().item() for rollout in rollouts) < 1e-4


def test_each_of_several_end_tokens_ends_a_response_and_is_learned_from():
    engine = tiny_engine()
    assert engine.tokenizer.end_ids == {END, OTHER_END}
    aopsd = replace(PLAIN, num_generations_per_prompt=10, mask_truncated=True)
    rollouts, rows = run_step(engine, aopsd, generation=sampling(3.0, 60))
    finished = [(rollout, row) for rollout, row in zip(rollouts, rows, strict=True) if rollout.draft.output.finished]
    assert {rollout.draft.output.tokens[-1] for rollout, _ in finished} == {END, OTHER_END}
    for rollout, row in finished:
        assert not {END, OTHER_END} & set(rollout.draft.output.tokens[:-1])
        assert row.response[-1] == rollout.draft.output.tokens[-1] and row.mask[-1] and row.mask.all()


def test_every_row_of_the_table_of_scenarios_says_what_shows_it_and_the_tests_are_there():
    table = (REPO / "docs/scenarios.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [\d, ]+ \|.*\|$", table, re.MULTILINE)
    assert len(rows) > 40
    for row in rows:
        assert re.search(r"`tests/|not on one machine|with the NeMo RL engine|not covered", row), row
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", table):
        assert f"def {name}(" in (REPO / file).read_text(encoding="utf-8"), f"{file}::{name}"
