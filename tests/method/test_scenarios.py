"""What users of similar tools ran into, as far as one machine can show it; docs/scenarios.md maps each to its test."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nemo_aopsd.builtin.tokenizer import build_tokenizer
from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.schema import AOPSDConfig, ContextConfig, CurriculumConfig, ProbeConfig, TeacherConfig
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.engines import local
from nemo_aopsd.engines.local.engine import LocalEngine
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import assign_donors, student_messages, teacher_messages
from nemo_aopsd.method.objectives.pg import PolicyGradient
from nemo_aopsd.method.step import train_step
from nemo_aopsd.models.tokenizer import HFTokenizer
from nemo_aopsd.types import Branch, Generation, Sampling, TrainRow
from tests import REPO
from tests.fakes import make_config, make_engine, make_problem
from tests.local_models import END, plain_greedy, plain_logprobs, tiny_model, tiny_settings, tiny_tokenizer

PROBLEMS = [make_problem(index) for index in range(4)]
OTHER_END = 7
PLAIN = AOPSDConfig(context=ContextConfig(kind="none"), curriculum=CurriculumConfig(name="shuffle"))
CONTEXTS = ["solution", "plan", "subproblems", "dag_full", "dag_frontier", "other_problem"]
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
    donors = assign_donors(problems, seed=0)
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


def test_chat_markup_in_a_response_changes_no_token_count(embedded):
    engine, _, rollouts, rows, _, responses = embedded
    assert "<|user|>" in engine.tokenizer.pieces(responses[0])
    for response, rollout, row in zip(responses, rollouts, rows, strict=True):
        columns = (row.old_logprobs, row.teacher_logprobs, row.weights, row.mask, rollout.gap)
        assert {len(column) for column in columns} == {len(response)}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", CONTEXTS)
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
@pytest.mark.parametrize("kind", CONTEXTS)
def test_no_python_object_shows_in_a_prompt(kind, prompts):
    problem = PROBLEMS[0]
    for reached in (frozenset(), frozenset("ab"), frozenset("abcd")):
        [message] = teacher_messages(problem, kind, prompts, reached=reached, donor=PROBLEMS[1])
        text = message["content"]
        assert not re.search(r"[\[({]\s*['\"{]|DiGraph|frozenset|object at 0x|\bNone\b|statement'", text)
    if kind == "dag_full":
        assert all(f"x{node} = 0" in text for node in "abcd")


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_short_and_a_long_prompt_in_one_batch_equal_each_alone(kind):
    engine = tiny_engine(kind)
    draw = torch.Generator().manual_seed(0)
    prompts = [torch.randint(4, 64, (length,), generator=draw).tolist() for length in (30, 400)]
    responses = [torch.randint(8, 64, (length,), generator=draw).tolist() for length in (25, 11)]
    together = engine.student.logprobs(prompts, responses)
    greedy = engine.student.generate(prompts, Sampling(max_new_tokens=12, temperature=0), 0)
    for prompt, response, found, output in zip(prompts, responses, together, greedy, strict=True):
        alone = engine.student.logprobs([prompt], [response])[0]
        torch.testing.assert_close(found, alone, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            found, plain_logprobs(engine.student.network.causal_lm, prompt, response), atol=1e-4, rtol=1e-4
        )
        plain = plain_greedy(engine.student.network.causal_lm, prompt, 12)
        cut = next((t + 1 for t, token in enumerate(plain) if token == OTHER_END), len(plain))
        assert output.tokens == plain[:cut]


@pytest.mark.parametrize("weighting", ["uniform", "continuation"])
@pytest.mark.parametrize("missing", [1, 3])
def test_a_teacher_that_returns_too_few_values_stops_the_step_before_the_update(missing, weighting):
    engine = make_engine()
    before = engine.student.logits.detach().clone()
    score = engine.teacher.logprobs
    engine.teacher.logprobs = lambda prompts, responses: [row[:-missing] for row in score(prompts, responses)]
    generate = engine.student.generate
    engine.student.generate = lambda *call: [Generation(row.tokens * 6, False) for row in generate(*call)]
    with pytest.raises((RuntimeError, ValueError, AssertionError)):
        run_step(engine, replace(PLAIN, weighting=weighting))
    assert not engine.trained and torch.equal(engine.student.logits, before)


def shorten(model, shorter) -> None:
    """`shorter` maps the log-probs [T] of each response to what `model` returns of them."""
    score = model.logprobs
    model.logprobs = lambda prompts, responses: shorter(score(prompts, responses))


@pytest.mark.parametrize("side", ["teacher", "student"])
def test_a_single_value_for_a_longer_response_stops_the_step(side):
    engine = make_engine()
    shorten(getattr(engine, side), lambda rows: [row[:1] for row in rows])
    with pytest.raises((RuntimeError, ValueError, AssertionError)):
        run_step(engine)


def test_a_value_that_both_sides_lack_stops_the_step():
    engine = tiny_engine()
    for model in (engine.student, engine.teacher):  # of the shortest row, so that padding fills it up
        shorten(model, lambda rows: [row[:-1] if row is min(rows, key=len) else row for row in rows])
    with pytest.raises((RuntimeError, ValueError, AssertionError)):
        run_step(engine, replace(PLAIN, weighting="uniform"))


def test_a_teacher_that_returns_too_few_rows_stops_the_step():
    engine = make_engine()
    score = engine.teacher.logprobs
    engine.teacher.logprobs = lambda prompts, responses: score(prompts, responses)[:-1]
    with pytest.raises(ValueError, match=r"zip|log-probs"):
        run_step(engine)
    assert not engine.trained


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.1])
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


@pytest.mark.parametrize("spare", [1, 0, -1])
def test_a_row_just_below_at_and_above_the_longest_length(spare):
    one = PROBLEMS[:1]
    [rollout], _ = run_step(tiny_engine(), problems=one)
    limit = len(rollout.draft.teacher_prompt) + len(rollout.draft.output.tokens) + PLAIN.probes.length + spare
    lengths = {"max_total_sequence_length": limit}
    if spare >= 0:
        _, [row] = run_step(tiny_engine(**lengths), problems=one, **lengths)
        assert row.response == rollout.draft.output.tokens
        return
    with pytest.raises(UserError, match=rf"p000.*exceed policy\.max_total_sequence_length={limit}"):
        run_step(tiny_engine(**lengths), problems=one, **lengths)
    drop = replace(PLAIN, context=ContextConfig(kind="none", on_overlong="drop"))
    left, rows = run_step(tiny_engine(**lengths), drop, problems=one, **lengths)
    assert left == rows == []


def training_rows(engine: LocalEngine) -> list[TrainRow]:
    prompts, responses = [[4, 5, 6], [12] * 9], [[8, 9, 10, 11, END], [13, 14, 15]]
    old = engine.student.logprobs(prompts, responses)
    return [
        TrainRow(prompt, response, p, p + 0.5, torch.ones(len(p)), torch.ones(len(p), dtype=torch.bool))
        for prompt, response, p in zip(prompts, responses, old, strict=True)
    ]


def test_probe_scores_do_not_depend_on_the_order_and_follow_the_weights():
    engine = tiny_engine()
    prompts, responses = [[4, 5, 6], [12] * 9, [20, 21]], [[8, 9, 10, 11, 30], [13, 14, 15], [9, 8]]
    branches = [[Branch(1, [40, 41]), Branch(4, [42])], [Branch(0, [43, 44, 45])], [Branch(2, [46, 47])]]

    def score(order):
        pick = [[rows[index] for index in order] for rows in (prompts, responses, branches)]
        engine.student.logprobs(*pick[:2])
        return dict(zip(order, engine.student.branch_logprobs(*pick), strict=True))

    def plain():
        causal_lm = engine.student.network.causal_lm
        return {
            i: [plain_logprobs(causal_lm, prompts[i] + responses[i][: b.position], b.tokens) for b in branches[i]]
            for i in range(3)
        }

    before = score([0, 1, 2])
    torch.testing.assert_close(score([2, 0, 1]), before, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(before, plain(), atol=1e-4, rtol=1e-4)
    engine.student.logprobs(prompts, responses)  # leaves prefixes of the old weights behind
    engine.train(training_rows(engine), PolicyGradient(AOPSDConfig().objective))
    after = dict(enumerate(engine.student.branch_logprobs(prompts, responses, branches)))
    torch.testing.assert_close(after, plain(), atol=1e-4, rtol=1e-4)
    assert (after[0][0] - before[0][0]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["frozen", "ema"])
def test_the_teachers_checksum_before_training_after_steps_and_after_resuming(tmp_path, kind):
    changes = {"teacher": TeacherConfig(weights=kind, ema_decay=0.9)}
    engine, objective = tiny_engine(**changes), PolicyGradient(AOPSDConfig().objective)
    start, rows = engine.teacher_checksum(), training_rows(engine)
    for _ in range(2):
        engine.train(rows, objective)
    trained = engine.teacher_checksum()
    assert (trained == start) == (kind == "frozen")
    engine.save(tmp_path)
    resumed = tiny_engine(**changes)
    assert resumed.teacher_checksum() == start
    resumed.load(tmp_path)
    assert resumed.teacher_checksum() == trained
    for each in (engine, resumed):
        each.train(rows, objective)
    assert resumed.teacher_checksum() == engine.teacher_checksum()


def named_tests() -> list[tuple[str, str]]:
    table = (REPO / "docs/scenarios.md").read_text(encoding="utf-8")
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", table)


def test_every_test_that_the_table_of_scenarios_names_exists():
    assert len(named_tests()) > 40
    for file, name in named_tests():
        body = ast.parse((REPO / file).read_text(encoding="utf-8")).body
        assert name in {node.name for node in body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"


def test_every_row_of_the_table_says_what_shows_it():
    rows = re.findall(r"^\| [\d, ]+ \|.*\|$", (REPO / "docs/scenarios.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 40
    for row in rows:
        assert re.search(r"`tests/|not on one machine|with the NeMo RL engine|not covered", row), row
