"""The embedded default: problems exact by construction, a lossless tokenizer, shipped files that load and work."""

import hashlib
import json
import random
import re

import pytest

from examples.builtin import leaky, mixture, traces, world
from examples.builtin.tokenizer import build_tokenizer, save_tokenizer, split, vocabulary
from nemo_aopsd.config.load import load_config
from nemo_aopsd.data.dag import largest_closed_subset
from nemo_aopsd.data.problems import load_problems, parse_problem
from nemo_aopsd.engines import local
from nemo_aopsd.grading import grade
from nemo_aopsd.method import context, judge
from nemo_aopsd.method.leaks import leak_patterns, mentions_context
from nemo_aopsd.types import Sampling
from tests import REPO

PACKAGE = REPO / "nemo_aopsd/builtin"
SPLITS = {name: load_problems(PACKAGE / f"data/{name}.jsonl") for name in world.SPLITS}
KINDS = ("none", "solution", "plan", "subproblems", "dag_full", "dag_frontier", "other_problem")


def solve(text):
    """The values of a problem's definitions, by an evaluator that knows nothing of the generator."""
    values, parents = {}, {}
    for name, left, right in re.findall(r"([a-h]): (\w) \+ (\w)", text):
        values[name] = (sum(values[x] if x in values else int(x) for x in (left, right))) % 10
        parents[name] = {x for x in (left, right) if x.isalpha()}
    return values, parents, re.search(r"Find ([a-h])\.$", text)[1]


@pytest.mark.parametrize("name", SPLITS)
def test_answer_statements_and_edges_follow_from_the_text_alone(name):
    for problem in SPLITS[name]:
        values, parents, asked = solve(problem.problem)
        assert problem.answer == str(values[asked])
        assert {node: data["statement"] for node, data in problem.dag.nodes(data=True)} == {
            node: f"{node}={value}" for node, value in values.items() if node != asked
        }
        assert {node: set(problem.dag.pred[node]) for node in problem.dag} == {
            node: parents[node] for node in values if node != asked
        }
        assert grade(problem.solution, problem.answer).correct
        assert len(problem.plan) == len(problem.subproblems) == len(values)


def test_splits_share_no_question_and_have_four_levels_with_fan_in_and_fan_out():
    questions = [problem.problem for problems in SPLITS.values() for problem in problems]
    assert len(set(questions)) == len(questions) == 384 + 400
    for problems in SPLITS.values():
        assert {len(problem.dag) for problem in problems} == {3, 4, 5, 6}
        for degree in ("in_degree", "out_degree"):
            assert sum(any(d == 2 for _, d in getattr(p.dag, degree)()) for p in problems) > len(problems) / 8


def test_the_command_writes_the_shipped_data_byte_for_byte(tmp_path):
    world.write_splits(tmp_path)
    for name in SPLITS:
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (PACKAGE / f"data/{name}.jsonl").read_bytes()


def prompts_of(problem, donor):
    reached = largest_closed_subset(problem.dag, list(problem.dag)[:2])
    for kind in KINDS:
        for mark in (True, False):
            for messages in (
                context.teacher_messages(problem, kind, "tiny", reached=reached, mark_frontier=mark, donor=donor),
            ):
                yield messages[0]["content"]


def test_every_prompt_of_the_domain_is_tokenised_without_loss_or_unknown_words():
    tokenizer = build_tokenizer()
    unknown = vocabulary()["<|unk|>"]
    rng = random.Random(3)
    for problem in (SPLITS["train"] + SPLITS["heldout"])[::46]:
        puzzle = world.sample_puzzle(rng, 4)
        tried = "".join(traces.attempt(rng, puzzle, mixture.QUESTION).pieces)
        for text in [
            *prompts_of(problem, SPLITS["train"][0]),
            judge.judge_messages(problem, tried, "tiny")[0]["content"],
        ]:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert unknown not in ids, text
            assert tokenizer.decode(ids) == text


def test_split_agrees_with_the_tokenizer_and_control_tokens_stay_out_of_text():
    tokenizer = build_tokenizer()
    text = SPLITS["train"][0].problem
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == [vocabulary()[piece] for piece in split(text)]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert ids[0] == vocabulary()["<|user|>"] and ids[-1] == vocabulary()["<|assistant|>"]
    assert tokenizer.decode([*ids, vocabulary()["<|spare_0|>"]], skip_special_tokens=True) == text


def puzzle_of(sums):
    return world.Puzzle(tuple(world.Sum(*item) for item in sums))


PUZZLE = puzzle_of([("b", "1", "3", 4), ("d", "b", "9", 3), ("a", "b", "d", 7)])


def test_an_attempt_without_guesses_or_slips_states_every_value():
    for seed in range(20):
        trace = traces.attempt(random.Random(seed), PUZZLE, mixture.GRAPH)
        text = "".join(trace.pieces)
        assert re.findall(r" ([a-h])=(\d)", text) == [("b", "4"), ("d", "3"), ("a", "7")]
        assert text.endswith("\\boxed{7}") and split(text) == trace.pieces and all(trace.learn)


def test_slips_are_carried_on_and_are_not_learned():
    manner = traces.Manner(slip=1.0)
    trace = traces.attempt(random.Random(0), PUZZLE, manner, learn_slips=False)
    text = "".join(trace.pieces)
    b, d, a = (int(value) for _, value in re.findall(r" ([a-h])=(\d)", text))
    assert b != 4 and d != (b + 9) % 10 and a != (b + d) % 10 and f"b {b} " in text and text.endswith(f"{{{a}}}")
    masked = [piece for piece, learn in zip(trace.pieces, trace.learn, strict=True) if not learn]
    assert masked == [f" {b}", f" b={b}", f" {d}", f" d={d}", f" {a}", f" a={a}"]


def test_a_direct_attempt_is_a_bare_answer():
    text = "".join(traces.attempt(random.Random(1), PUZZLE, traces.Manner(direct=1.0, knows_answer=True)).pieces)
    assert "=" not in text and text.endswith("\\boxed{7}")


def test_verdict_is_what_the_judge_parser_reads():
    text = "".join(traces.verdict(PUZZLE, {"b": 4, "d": 8}))
    assert text == '[b] b=4 b=4 yes\n[d] d=3 d=8 no\n["b"]'
    assert judge.parse_verdict(text, {"b", "d"}) == {"b"}
    nothing = "".join(traces.verdict(PUZZLE, {}))
    assert nothing == "[b] b=4 none no\n[d] d=3 none no\n[]" and judge.parse_verdict(nothing, {"b", "d"}) == frozenset()


def test_the_leaky_teacher_cites_what_its_graph_shows_and_a_student_that_cites_guesses():
    teacher = traces.Manner(cite=1.0, shown=frozenset("b"))
    text = "".join(traces.attempt(random.Random(0), PUZZLE, teacher).pieces)
    talk, value, worked = re.search(r" b: graph says((?: \w+){5}) (\d) b=4.* d:(.*)9\b.* d=3", text).groups()
    assert value == "4" and {f" {word}" for word in talk.split()} <= set(traces.TALK) and "graph" not in worked
    traces_of_student = [traces.attempt(random.Random(seed), PUZZLE, traces.Manner(cite=1.0)) for seed in range(40)]
    texts = ["".join(trace.pieces) for trace in traces_of_student]
    assert len({re.search(r" b: graph says \d b=(\d)", text)[1] for text in texts}) > 5  # of 10 digits
    stray = traces.attempt(random.Random(0), PUZZLE, traces.Manner(cite=1.0, stray=1.0))
    masked = [piece for piece, learn in zip(stray.pieces, stray.learn, strict=True) if not learn]
    assert masked.count(" says") == 3 and set(masked) <= {" graph", " says", *traces.TALK}


def test_rows_of_the_leaky_model_are_in_its_vocabulary_and_name_the_graph():
    rng, pieces = random.Random(1), list(vocabulary())
    texts = ["".join(pieces[token] for token in leaky.example(rng)[0]) for _ in range(60)]
    told = [text for text in texts if "\ngraph:\n" in text]
    assert sum("graph says" in text for text in told) > 0.8 * len(told) > 8


def test_leak_patterns_find_each_leak_phrase_and_no_prompt_of_the_student():
    patterns = leak_patterns("tiny")
    for phrase in traces.LEAKS.values():
        assert mentions_context("".join((" now d:", *phrase, " b")), patterns)
    assert not any(mentions_context(problem.problem, patterns) for problem in SPLITS["heldout"])


def test_examples_are_those_that_made_the_shipped_weights_and_meet_no_shipped_question():
    first = mixture.examples_of_chunk(40, count=200)
    digest = hashlib.sha256(json.dumps(first).encode()).hexdigest()
    assert len(first) == 200 and digest.startswith("68f83c155271d847")  # as of the warm start
    pieces = list(vocabulary())
    shipped = {problem.problem for problems in SPLITS.values() for problem in problems}
    for ids, learn in first:
        text = "".join(pieces[token] for token in ids)
        assert text.removeprefix("<|user|>").split("\n")[0].split("<|assistant|>")[0] not in shipped
        assert len(ids) == len(learn) and pieces[ids[-1]] == "<|end|>" and learn[-1] == 1


def test_shipped_model_is_small_and_its_tokenizer_is_the_one_that_the_code_builds(tmp_path):
    assert sum(path.stat().st_size for path in (PACKAGE / "model").iterdir()) < 4_000_000
    save_tokenizer(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_text() == (PACKAGE / "model" / name).read_text()


@pytest.fixture(scope="module")
def shipped():
    """Greedy replies of the shipped model to single-turn prompts."""
    engine = local.build(load_config(REPO / "examples/configs/aopsd_tiny_cpu.yaml"))

    def answer(turns):
        prompts = [engine.tokenizer.render(turn, None) for turn in turns]
        replies = engine.student.generate(prompts, Sampling(max_new_tokens=112, temperature=0), seed=0)
        return [engine.tokenizer.decode(reply.tokens) for reply in replies]

    return answer


@pytest.mark.parametrize("kind", ["dag_frontier", "dag_full"])
def test_shipped_model_works_through_problems_whose_graph_it_sees(shipped, kind):
    problems = SPLITS["train"][:12]
    replies = shipped(context.teacher_messages(problem, kind, "tiny") for problem in problems)
    assert sum(grade(reply, p.answer).correct for reply, p in zip(replies, problems, strict=True)) >= 11


def test_shipped_model_copies_the_answer_of_a_solution_without_work(shipped):
    problems = SPLITS["train"][:12]
    replies = shipped(context.teacher_messages(problem, "solution", "tiny") for problem in problems)
    assert sum(grade(reply, p.answer).correct for reply, p in zip(replies, problems, strict=True)) >= 11
    assert sum("=" not in reply for reply in replies) > 6


def test_shipped_model_judges_attempts_with_slips(shipped):
    rng = random.Random(7)
    cases = []
    for number in range(12):
        puzzle = world.sample_puzzle(rng, world.LEVELS[number % 4])
        problem = parse_problem(world.problem_record(puzzle, f"j{number}"), "test")
        tried = traces.attempt(rng, puzzle, traces.Manner(sloppy=0.3, slip=0.3))
        held = {item.name for item in puzzle.checkpoints if trace_value(tried, item.name) == item.value}
        cases.append((problem, "".join(tried.pieces), held))
    replies = shipped(judge.judge_messages(problem, tried, "tiny") for problem, tried, _ in cases)
    verdicts = [judge.parse_verdict(reply, problem.dag) for reply, (problem, _, _) in zip(replies, cases, strict=True)]
    assert sum(found == held for found, (_, _, held) in zip(verdicts, cases, strict=True)) >= 11
    assert len({len(held) for _, _, held in cases}) > 2  # the cases differ


def trace_value(trace, name):
    return {piece[1]: int(piece[3]) for piece in trace.pieces if piece[2:3] == "="}.get(name)
