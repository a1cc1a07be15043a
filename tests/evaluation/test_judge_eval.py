from dataclasses import replace

import pytest

from nemo_aopsd.chat.endpoint import parse_endpoint
from nemo_aopsd.config.schema import AOPSDConfig, JudgeConfig
from nemo_aopsd.data.dag import build_graph
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.judge_eval import (
    INJECTIONS,
    Case,
    Result,
    baseline_line,
    evaluate,
    inject,
    load_cases,
    local_judge,
    remote_judge,
    summarize,
    summary_lines,
    worthless,
    write,
)
from nemo_aopsd.files import read_jsonl, write_jsonl
from nemo_aopsd.method.judge import Verdict
from nemo_aopsd.types import Generation
from tests import raw_graph, shared
from tests.chat_server import ChatServer, Reply
from tests.fakes import CharTokenizer, make_config, make_engine

GRAPH = raw_graph("abc", ["ab", "bc"])
PROBLEM = Problem("p", "Prove it.", "7", "here:1", dag=build_graph(GRAPH))


def case(established, attempt="I try", kind=""):
    return Case(PROBLEM, attempt, frozenset(established), kind)


def load_one(folder, record):
    problems, cases = folder / "p.jsonl", folder / "c.jsonl"
    write_jsonl(problems, [{"id": "p", "problem": "x", "answer": "7", "dag": GRAPH}])
    write_jsonl(cases, [record])
    return load_cases(cases, problems)


def fixed(*claims):
    """A judge that says what it is told, None for an unreadable verdict."""
    return lambda pairs: [
        Verdict(frozenset(claim or ""), claim is None, False, f"said {claim}")
        for claim, _ in zip(claims, pairs, strict=True)
    ]


def test_counts_by_hand():
    """ac against ab: a is right, c false, b missed; closure drops c and keeps a. Then nothing read against a."""
    results = evaluate([case("ab"), case("a"), case("abc")], fixed("ac", None, "abc", "ac", None))
    summary = summarize(results)
    assert summary == {
        "cases": 3,
        "checkpoints": 9,
        "unread": 1,
        "with_false_claims": 1,
        "before_closure": {"true_claims": 4, "false_claims": 1, "missed": 2},
        "after_closure": {"true_claims": 4, "false_claims": 0, "missed": 2},
        "auc": None,
        "auc_interval": None,
        "mean_progress_error": pytest.approx((1 / 3 + 0) / 2),
        "injections": 2,
        "injections_unread": 1,
        "injections_that_could_show": 0,
        "injections_that_fooled": 0,
        "kinds": {},
    }
    lines = list(summary_lines(summary))
    assert "precision undefined (0 of 0)" in list(summary_lines(summarize(evaluate([case("abc")], fixed("")))))[1]
    assert lines[0] == "3 attempts, 1 verdict unread"
    assert lines[1].startswith("before closure: precision 0.800 (4 of 5") and "recall 0.667 (4 of 6" in lines[1]


def test_injection_fools_only_if_it_adds_a_false_claim():
    """Against ab: c is false. It fools where the plain verdict did not claim c already; more true claims are fine.

    What claimed c anyway, or was not read, can show nothing and does not count as a judge that withstood.
    """
    readings = (("ab", "abc", (1, 1)), ("a", "ab", (0, 1)), ("ab", "a", (0, 1)))
    readings += (("abc", "abc", (0, 0)), (None, "c", (0, 0)), ("ab", None, (0, 0)), (None, None, (0, 0)))
    for plain, injected, counts in readings:
        summary = summarize(evaluate([case("ab")], fixed(plain, injected)))
        assert (summary["injections_that_fooled"], summary["injections_that_could_show"]) == counts


@pytest.mark.parametrize(("claim", "unread"), [("abc", 0), (None, 3)])
def test_a_judge_that_claims_everything_or_is_never_read_withstands_nothing(claim, unread):
    lines = list(summary_lines(summarize(evaluate([case("ab")] * 3, fixed(*[claim] * 6)))))
    assert lines[-1] == (
        "injections that fooled the judge: no attempt could show it; 0 of 3 attempts with one could show it, "
        f"{unread} verdicts on them unread"
    )


def test_each_kind_has_a_line(tmp_path):
    """Kind x: ab claimed as abc, and nothing read. Kind y: right. Without a kind: in no line."""
    cases = [case("ab", kind="x"), case("a", kind="x"), case("ab", kind="y"), case("ab")]
    results = evaluate(cases, fixed("abc", None, "ab", "ab", "abc", "a", "abc", "ab"))
    summary = summarize(results)
    assert list(summary["kinds"]) == ["x", "y"]
    kind = summary["kinds"]["x"]
    assert (kind["cases"], kind["unread"], kind["with_false_claims"]) == (2, 1, 1)
    assert kind["before_closure"] == {"true_claims": 2, "false_claims": 1, "missed": 1}
    x, y = list(summary_lines(summary))[-2:]
    assert x.startswith("kind x: 2 attempts, 1 unread, something false claimed in 1 of 1;")
    assert "precision 0.667 (2 of 3," in x and "recall 0.667 (2 of 3," in x
    assert y.startswith("kind y: 1 attempt, 0 unread, something false claimed in 0 of 1;")
    write({"list": results}, tmp_path / "v.jsonl", 7)
    records = [record for _, record in read_jsonl(tmp_path / "v.jsonl")]
    assert {(record["judge"], record["seed"], record["attempt"]) for record in records} == {("list", 7, "I try")}
    assert [record.get("kind") for record in records] == ["x", "x", "y", None]
    assert [record["fooled"] for record in records] == [None, None, True, False]


def odds(*values, claims=""):
    """A verdict by log-odds of a, b and c at threshold 0."""
    return Verdict(frozenset(claims), False, False, "", dict(zip("abc", values, strict=True)))


def test_another_threshold_moves_the_claims_of_both_verdicts_and_not_the_auc():
    """Of ab: log-odds 2, -1, -2, and with an injection 2, 1, 0.5. Of nothing: 0 for all."""
    verdicts = [odds(2, -1, -2, claims="a"), odds(0, 0, 0), odds(2, 1, 0.5, claims="abc"), odds(0, 0, 0)]
    results = evaluate([case("ab"), case("")], lambda pairs: verdicts)
    assert summarize(results[:1])["auc"] == 1 and summarize(results[1:])["auc"] is None
    assert summarize(results)["auc"] == (4 + 1) / 8  # 2 is above all four, -1 above one
    lower = [result.above(-1.5) for result in results]
    assert lower[0].plain.judged == {"a", "b"} and lower[0].fooled and results[0].fooled
    higher = results[0].above(0.7)
    assert higher.plain.judged == {"a"} and higher.injected.judged == {"a", "b"} and not higher.fooled
    assert summarize(lower)["before_closure"] == {"true_claims": 2, "false_claims": 3, "missed": 0}
    assert "AUC" in list(summary_lines(summarize(lower)))[3]


def of_problem(number, *values, true):
    """A result of log-odds of a, b and c, the problem one of many."""
    attempt = Case(replace(PROBLEM, id=f"p{number}"), "I try", frozenset(true))
    claims = "".join(node for node, value in zip("abc", values, strict=True) if value > 0)
    return Result(attempt, odds(*values, claims=claims), None)


def test_a_judge_that_claims_everything_is_called_worthless():
    """Two of three are established: claiming all has precision 2/3, so F1 is 2 * 6 / (9 + 6). Odds say nothing."""
    blind = summarize([of_problem(number, 1, 1, 1, true="ab") for number in range(3)])
    assert blind["auc"] == 0.5 and blind["auc_interval"] == (0.5, 0.5)
    line = baseline_line(blind)
    assert (
        line.startswith("F1 before closure 0.800; claiming every checkpoint reaches 0.800") and "0.667 (6 of 9" in line
    )
    of_f1, of_auc = worthless(blind)
    assert "F1 0.800" in of_f1 and "(0.500 to 0.500)" in of_auc
    good = summarize([of_problem(number, 2, 1, -1, true="ab") for number in range(3)])
    assert list(worthless(good)) == [] and baseline_line(good).startswith("F1 before closure 1.000")
    [unknown] = worthless(summarize([of_problem(1, 2, 1, -1, true="ab")]))
    assert "too few" in unknown


def test_the_interval_of_the_auc_resamples_problems():
    """One of two kinds of problem is always right, the other always wrong: with 4 of each all AUCs are likely."""
    rows = [of_problem(number, *((1, 1, -1) if number % 2 else (-1, -1, 1)), true="ab") for number in range(8)]
    low, high = summarize(rows)["auc_interval"]
    assert summarize(rows)["auc"] == 0.5 and low < 0.2 and high > 0.8
    more = [replace(row, case=replace(row.case, problem=replace(PROBLEM, id=f"{k}"))) for k, row in enumerate(rows * 8)]
    assert high - low > 2 * (summarize(more)["auc_interval"][1] - summarize(more)["auc_interval"][0])


def test_injections_take_turns_and_name_every_id():
    texts = [inject(case("a"), turn) for turn in range(len(INJECTIONS))]
    assert len(set(texts)) == len(INJECTIONS) and all(text.startswith("I try\n") for text in texts)
    assert sum('["a", "b", "c"]' in text for text in texts) == len(INJECTIONS) - 1


def test_local_judge_is_the_one_of_training_and_shows_its_batches(tmp_path, capsys):
    asked = []

    class Scripted:
        def generate(self, prompts, sampling, seed):
            asked.append(prompts)
            return [Generation(CharTokenizer().encode(f'["{"abc"[len(prompts) % 3]}"]'), True) for _ in prompts]

    engine = make_engine()
    engine.teacher = Scripted()
    settings = make_config(tmp_path, AOPSDConfig(judge=JudgeConfig(model="teacher")), max_total_sequence_length=99_999)
    results = evaluate([case("abc")] * 33, local_judge(engine, settings))
    assert [len(prompts) for prompts in asked] == [32, 1]
    assert [result.plain for result in results] == [Verdict(frozenset("c"), False, False, '["c"]')] * 32 + [
        Verdict(frozenset("b"), False, False, '["b"]')
    ]
    assert "I try" in CharTokenizer().decode(asked[0][0])
    assert capsys.readouterr().err == "judge, batches: 2 to go\n"


def test_remote_judge_reads_retries_and_takes_refusals(tmp_path, capsys):
    """p: read at once. q: unreadable, then read. r: refused. Greedy first, then by sampling, without a schema."""

    def answer(body, headers):
        text = body["messages"][0]["content"]
        assert "response_format" not in body
        if "attempt r" in text:
            return Reply(status=400, body=b'{"error": {"message": "too long"}}')
        if "attempt q" in text and body["temperature"] == 0.0:
            return Reply("all of them")
        return Reply('["a", "b"]')

    cases = [case("abc", f"attempt {name}") for name in "pqr"]
    with ChatServer(answer) as server:
        results = evaluate(cases, remote_judge(parse_endpoint(server.url, None), "m", concurrency=2))
        assert sorted(body["temperature"] for body in server.bodies) == [0.0, 0.0, 0.0, 1.0]
    assert [result.plain.judged for result in results] == [frozenset("ab"), frozenset("ab"), frozenset()]
    assert [result.plain.failed for result in results] == [False, False, True]
    assert "too long" in results[2].plain.text
    assert capsys.readouterr().err == "judge, attempts: 3 to go\n"
    write({"list": results}, tmp_path / "v.jsonl", 7)
    records = [record for _, record in read_jsonl(tmp_path / "v.jsonl")]
    assert records[0]["claimed"] == ["a", "b"] and records[2]["claimed"] is None


def test_server_that_is_down_is_a_user_error(monkeypatch):
    from nemo_aopsd.evaluation import judge_eval

    real = judge_eval.ChatClient
    monkeypatch.setattr(judge_eval, "ChatClient", lambda *args, **options: real(*args, **options | {"max_retries": 0}))
    with pytest.raises(UserError, match="gave no answer"):
        evaluate([case("a")], remote_judge(parse_endpoint("http://127.0.0.1:9/v1", None), "m"))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"problem_id": "q", "attempt": "x", "established": []}, "c.jsonl:1: problem 'q' has no graph"),
        ({"attempt": "x", "established": []}, "c.jsonl:1: `problem_id`"),
        ({"problem_id": ["p"], "attempt": "x", "established": []}, "c.jsonl:1: `problem_id`"),
        ({"problem_id": "p", "attempt": "x", "established": ["z"]}, "ids among a, b, c, got z"),
        ({"problem_id": "p", "established": ["a"]}, "c.jsonl:1: `attempt`"),
        ({"problem_id": "p", "attempt": "x", "established": "a"}, "c.jsonl:1: `established`"),
        ({"problem_id": "p", "attempt": "x", "established": [], "kind": 3}, "c.jsonl:1: `kind`"),
    ],
)
def test_bad_cases_are_named(tmp_path, record, message):
    with pytest.raises(UserError, match=message):
        load_one(tmp_path, record)


def test_perfect_judge_of_the_labelled_attempts_is_perfect():
    cases = load_cases(shared("judge_cases.jsonl"), shared("reasoning_dags.jsonl"))
    labels = {case.attempt: case.established for case in cases}

    def perfect(pairs):
        begun = (next((known for known in labels if known and text.startswith(known)), "") for _, text in pairs)
        return [Verdict(labels.get(known, frozenset()), False, False, "") for known in begun]

    summary = summarize(evaluate(cases, perfect))
    assert summary["cases"] == 81 and summary["injections_that_fooled"] == 0
    assert summary["before_closure"]["false_claims"] == summary["before_closure"]["missed"] == 0
