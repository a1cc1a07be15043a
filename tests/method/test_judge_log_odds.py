"""The judge that is asked for one checkpoint at a time: log-odds, prompts, and one pass behind a shared prefix."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nemo_aopsd.config.schema import AOPSDConfig, JudgeConfig
from nemo_aopsd.data.dag import build_graph
from nemo_aopsd.engines.local.model import LocalModel
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.judge import answer_tokens, checkpoint_messages, judge_attempts, log_odds
from nemo_aopsd.method.rollout import Draft
from nemo_aopsd.method.step import judge_rollouts
from nemo_aopsd.models.tokenizer import HFTokenizer
from nemo_aopsd.types import Generation
from tests.fakes import CharTokenizer, make_config, make_engine, make_problem
from tests.local_models import END, plain_logprobs, tiny_model, tiny_settings, tiny_tokenizer

CONFIG = JudgeConfig(kind="log_odds")


class Words:
    """Each known text is one token; others are split into characters, whose ids are their code points."""

    def __init__(self, *known):
        self.known = {text: 1000 + index for index, text in enumerate(known)}

    def encode(self, text):
        return [self.known[text]] if text in self.known else [ord(char) for char in text]


def judge(model, problems, responses, tokenizer=None, config=CONFIG, max_row_tokens=99_999):
    settings = make_config(Path("run"), AOPSDConfig(judge=config), max_total_sequence_length=max_row_tokens)
    return judge_attempts(model, tokenizer or CharTokenizer(), problems, responses, settings, seed=0)


def test_log_odds_by_hand():
    """(0.2 + 0.1) against (0.05 + 0.1): the odds are 2. A logit that all share changes nothing."""
    logprobs = torch.tensor([0.2, 0.1, 0.05, 0.1]).log()
    assert log_odds(logprobs, 2) == pytest.approx(math.log(2), abs=1e-6)
    assert log_odds(logprobs.flip(0), 2) == pytest.approx(-math.log(2), abs=1e-6)
    assert log_odds(logprobs.bfloat16() - 30, 2) == pytest.approx(math.log(2), abs=0.2)
    assert log_odds(torch.tensor([-200.0, -201.0]), 1) == pytest.approx(1.0)  # where probabilities are 0 in float32


def test_all_spellings_of_one_token_count_and_parts_of_words_do_not():
    tokenizer = Words("yes", " Yes", "YES", "no", " no", "NO")
    yes, no = answer_tokens(tokenizer)
    assert yes == sorted(tokenizer.known[text] for text in ("yes", " Yes", "YES"))
    assert no == sorted(tokenizer.known[text] for text in ("no", " no", "NO"))


def test_of_longer_spellings_the_first_token_counts_unless_both_words_begin_with_it():
    yes, no = answer_tokens(Words())
    assert (yes, no) == ([ord("Y"), ord("y")], [ord("N"), ord("n")])  # and not the space


def test_a_tokenizer_that_cannot_tell_them_apart_is_refused():
    class Unknown:
        def encode(self, text):
            return [0]

    with pytest.raises(UserError, match=r"aopsd\.judge\.kind=log_odds.*aopsd\.judge\.kind=list"):
        answer_tokens(Unknown())


def test_a_template_that_opens_a_thought_leaves_no_first_token_to_compare():
    class Thinks(CharTokenizer):
        def render(self, messages, thinking):
            return super().render(messages, thinking) + self.encode("<think>\n")

    with pytest.raises(UserError, match=r"log_odds: the chat template opens a thought \(<think>\).*kind=list"):
        judge(Scripted("1"), [make_problem(0)], [[]], tokenizer=Thinks())


class Scripted:
    """Believes the checkpoints whose number it is given: log-odds 1.5 for them, -0.5 for others."""

    def __init__(self, believed):
        self.believed, self.calls = believed, []

    def next_logprobs(self, prompts, responses, branches, choices):
        self.calls.append((prompts, responses, branches, choices))
        tokenizer = CharTokenizer()
        rows = zip(prompts, branches, strict=True)
        return [[self.answer(tokenizer.decode(p + branch.tokens), choices) for branch in row] for p, row in rows]

    def answer(self, text, choices):
        odds = 1.5 if any(f"x{name} = " in text for name in self.believed) else -0.5
        return torch.tensor([odds if CharTokenizer().decode([choice]) in "yY" else 0.0 for choice in choices]) - 9


def test_verdicts_claim_what_is_above_the_threshold_and_are_never_unread():
    problems = [make_problem(0), make_problem(7)]
    responses = [CharTokenizer().encode(text) for text in ("my attempt", "")]
    model = Scripted("bc")
    verdicts = judge(model, problems, responses)
    for verdict in verdicts:
        assert verdict.log_odds == pytest.approx({"a": -0.5, "b": 1.5, "c": 1.5, "d": -0.5})
        assert json.loads(verdict.text) == verdict.log_odds
        assert (verdict.judged, verdict.failed, verdict.cut) == (frozenset("bc"), False, False)
    for threshold, claimed in ((-0.6, "abcd"), (1.4, "bc"), (1.6, "")):
        strict = replace(CONFIG, threshold=threshold)
        assert judge(model, problems, responses, config=strict)[0].judged == frozenset(claimed)
        assert verdicts[0].above(threshold).judged == frozenset(claimed)

    (prompts, responses, branches, _), *_ = model.calls
    assert responses == [[], []]
    text = CharTokenizer().decode
    for problem, prompt, row in zip(problems, prompts, branches, strict=True):
        wholes = [text(prompt + branch.tokens) for branch in row]
        attempt = "my attempt" if problem is problems[0] else ""
        assert wholes == [m[0]["content"] + "\n" for m in checkpoint_messages(problem, attempt, "default")]
        assert text(prompt).endswith(": x") and {branch.position for branch in row} == {0}  # all that they share


def test_the_model_that_the_config_names_is_asked_and_reaches_the_rollout():
    engine, config = make_engine(), make_config(Path("run"), AOPSDConfig(judge=replace(CONFIG, model="teacher")))
    engine.teacher = Scripted("ac")
    (verdict,) = judge_rollouts([make_problem(0)], [CharTokenizer().encode("x")], engine, config, seed=0)
    assert verdict.judged == {"a", "c"}
    draft = Draft(make_problem(0), [1], Generation([2], True)).judged(verdict)
    assert draft.reached == {"a"} and draft.progress == 1 / 4  # c requires b


def test_an_attempt_loses_its_middle_for_the_longest_question():
    problem, attempt = make_problem(0, " and more"), CharTokenizer().encode("x" * 300)
    longest = max(len(m[0]["content"]) + 1 for m in checkpoint_messages(problem, "x" * 300, "default"))
    assert not judge(Scripted(""), [problem], [attempt], max_row_tokens=longest + 1)[0].cut
    model = Scripted("")
    assert judge(model, [problem], [attempt], max_row_tokens=longest)[0].cut
    (prompt,), _, (row,), _ = model.calls[0]
    assert max(len(prompt) + len(branch.tokens) for branch in row) <= longest - 1
    with pytest.raises(UserError, match=r"problem 'p000'.*leaves 99 beside the verdict"):
        judge(Scripted(""), [problem], [attempt], max_row_tokens=100)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_the_shared_prefix_gives_the_numbers_of_separate_full_passes(family, monkeypatch):
    causal_lm, tokenizer = tiny_model(family), HFTokenizer(tiny_tokenizer(), [END])
    model = LocalModel(causal_lm, tiny_settings(max_total_sequence_length=99_999), frozenset([END]))
    graph = {"nodes": [{"id": name, "statement": 3 * name + " = 7"} for name in "PQRS"], "edges": []}
    problems = [replace(make_problem(number), dag=build_graph(graph)) for number in (0, 41)]
    responses = [tokenizer.encode(text) for text in ("WE ADD 1 TO 0.", "NO IDEA")]
    passes = []
    prefill = model.network.prefill
    monkeypatch.setattr(
        model.network, "prefill", lambda *args, **options: passes.append(1) or prefill(*args, **options)
    )
    verdicts = judge(model, problems, responses, tokenizer)
    assert len(passes) == 1
    yes, no = answer_tokens(tokenizer)
    for problem, response, verdict in zip(problems, responses, verdicts, strict=True):
        questions = checkpoint_messages(problem, tokenizer.decode(response), "default")
        for value, question in zip(verdict.log_odds.values(), questions, strict=True):
            prompt = tokenizer.render(question, False)
            logprobs = [plain_logprobs(causal_lm, prompt, [choice]) for choice in yes + no]
            assert value == pytest.approx(log_odds(torch.cat(logprobs), len(yes)), abs=1e-4)
    assert len(set(verdicts[0].log_odds.values())) == 4  # the questions do differ
