"""Whole builds against a real HTTP server: accepted, repaired and rejected rows, and their counts."""

import json
from collections import Counter

import pytest

from nemo_aopsd.chat.endpoint import parse_endpoint
from nemo_aopsd.chat.protocol import Completion
from nemo_aopsd.data.dag import Fault
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.graphs.pipeline.pipeline import Settings, build
from nemo_aopsd.graphs.pipeline.results import beside
from nemo_aopsd.graphs.pipeline.stages import read_verdict
from tests.chat_server import ChatServer, Reply
from tests.recorded import answer_well, checkpoints, dense, good, identify, problem, write_problems


def run(tmp_path, answer, count=1, key=None, **settings):
    """Build `count` problems; returns (summary, accepted problems, rejects, [(problem, stage)] of all requests)."""
    problems, out = write_problems(tmp_path / "problems.jsonl", count), tmp_path / "dags.jsonl"
    with ChatServer(answer) as server:
        settings = Settings(**{"model": "m", "max_retries": 3} | settings)
        summary = build(problems, out, parse_endpoint(server.url, key), settings, lambda tally, ledger: None)
        requests = [identify(body) for body in server.bodies]
    accepted = load_problems(out) if out.stat().st_size else []
    rejects = [json.loads(line) for line in beside(out, "rejects.jsonl").read_text().splitlines()]
    assert json.loads(beside(out, "summary.json").read_text()) == summary
    return summary, accepted, rejects, requests


def scripted(**by_stage):
    """Answers by stage, in order, the last one for ever; a text is sent as it is, the rest as JSON."""
    used = Counter()

    def answer(body, headers):
        problem_id, stage = identify(body)
        replies = by_stage.get(stage, [good(problem_id, stage)])
        reply = replies[min(used[stage], len(replies) - 1)]
        used[stage] += 1
        if isinstance(reply, Reply):
            return reply
        return Reply(reply if isinstance(reply, str) else json.dumps(reply))

    return answer


TWO_REPAIRS = [
    checkpoints(("mended once", [])),
    checkpoints(*[(f"mended twice, {n}", [n - 1][: n > 1]) for n in (1, 2, 3)]),
]


def test_accepted_row_trains(tmp_path):
    summary, accepted, rejects, requests = run(tmp_path, answer_well)
    assert requests == [("p0", stage) for stage in ("produce", "judge", "compress", "contexts")]
    (row,) = accepted
    assert row.answer == problem(0)["answer"] and row.solution == problem(0)["solution"]
    assert row.plan == ("Find the length", "Multiply", "Add one half") and row.subproblems == (
        "How long?",
        "What area?",
    )
    assert list(row.graph.edges) == [("1", "2"), ("2", "3")]  # without the transitive 1 -> 3
    assert summary["transitive_edges_removed"] == 1
    assert (summary["accepted"], summary["repaired"], summary["rejected"]) == (1, 0, 0)
    assert summary["tokens_this_run"] == {
        "requests": 4,
        "prompt_tokens": 400,
        "completion_tokens": 200,
        "estimated": 0,
        "without_usage": 0,
    }
    assert rejects == []


def test_judge_defects_are_repaired(tmp_path):
    defects = {"verdict": "defects", "defects": ["2: half of 30 is 15"]}
    seen = []

    def answer(body, headers):
        seen.append(body["messages"][0]["content"])
        return inner(body, headers)

    inner = scripted(judge=[defects, defects, {"verdict": "accept", "defects": []}], repair=TWO_REPAIRS)
    summary, accepted, _, requests = run(tmp_path, answer)
    stages = [stage for _, stage in requests]
    assert stages == ["produce", "judge", "repair", "judge", "repair", "judge", "compress", "contexts"]
    assert "2: half of 30 is 15" in seen[2] and "[3] The area is 20 times 30 (requires: 1, 2)" in seen[2]
    assert (summary["accepted"], summary["repaired"]) == (1, 1) and len(accepted) == 1


def test_two_repairs_at_most(tmp_path):
    inner = scripted(judge=[{"verdict": "defects", "defects": ["1: wrong"]}], repair=TWO_REPAIRS)
    summary, accepted, rejects, requests = run(tmp_path, inner)
    assert [stage for _, stage in requests] == ["produce", "judge", "repair", "judge", "repair", "judge"]
    assert summary["rejected"] == 1 and not accepted and summary["reasons"] == {"judge: judge": 1}
    (reject,) = rejects
    assert reject["problem_id"] == "p0" and reject["repairs"] == 2
    assert reject["reasons"] == [{"kind": "judge", "detail": "1: wrong"}]


def test_graph_that_comes_back_unchanged_is_not_judged_again(tmp_path):
    inner = scripted(judge=[{"verdict": "defects", "defects": ["1: wrong"]}])
    _, _, _, requests = run(tmp_path, inner)
    assert [stage for _, stage in requests] == ["produce", "judge", "repair", "repair"]


# Gives the answer of problem 0 away.
LEAK = checkpoints(("The length is 30", []), ("The total is 1201/2", [1])) | {"answer_requires": ["2"]}
CYCLE = checkpoints(("a", [3]), ("b", [1]), ("c", [2]))
DENSE_FAULTS = {
    "cut_short": json.dumps(dense(0))[:-40],
    "unreadable": "I would rather talk about the weather.",
    "dangling_edge": checkpoints(("a", []), ("b", [1, 7])),
    "cycle": CYCLE,
    "self_loop": checkpoints(("a", [1])),
    "empty_graph": {"checkpoints": []},
    "malformed": {"checkpoints": [{"id": "1", "requires": []}]},
    "dead_end": checkpoints(("a", []), ("b", []), ("c", [1])),
    "repeated_statement": checkpoints(("same", []), ("Same", [1])),
}
COMPRESSED_FAULTS = {
    "states_answer": LEAK,
    "cycle": CYCLE | {"answer_requires": ["3"]},
    "disconnected": checkpoints(("a", []), ("b", []), ("c", [1])) | {"answer_requires": ["3"]},
    "bad_answer_requires": checkpoints(("a", [])) | {"answer_requires": ["9"]},
    "not_compressed": checkpoints(*[(f"fact {n}", [n - 1] if n > 1 else []) for n in range(1, 6)])
    | {"answer_requires": ["5"]},
}


def faulty(faults, *stages):
    """Problem n gets fault n for an answer at these stages."""
    replies = [*faults.values()]

    def answer(body, headers):
        problem_id, stage = identify(body)
        reply = replies[int(problem_id[1:])]
        if stage not in stages:
            return answer_well(body, headers)
        return Reply(reply if isinstance(reply, str) else json.dumps(reply))

    return answer


def test_faults_of_dense_graphs_cost_no_judge_and_are_named(tmp_path):
    count, answer = len(DENSE_FAULTS), faulty(DENSE_FAULTS, "produce", "repair")
    summary, _, rejects, requests = run(tmp_path, answer, count)
    assert Counter(stage for _, stage in requests) == {"produce": count, "repair": 2 * count}
    assert summary["reasons"] == {f"repair: {kind}": 1 for kind in DENSE_FAULTS}
    assert [reject["reasons"][0]["kind"] for reject in rejects] == [*DENSE_FAULTS]
    assert all(reject["last_text"] for reject in rejects)


def test_faults_of_dense_graphs_are_repaired(tmp_path):
    summary, accepted, _, requests = run(tmp_path, faulty(DENSE_FAULTS, "produce"), len(DENSE_FAULTS))
    stages = ("produce", "repair", "judge", "compress", "contexts")
    assert Counter(requests) == {(f"p{n}", stage): 1 for n in range(len(DENSE_FAULTS)) for stage in stages}
    assert summary["repaired"] == len(accepted) == len(DENSE_FAULTS)


def test_faults_of_compressed_graphs_are_named(tmp_path):
    count, answer = len(COMPRESSED_FAULTS), faulty(COMPRESSED_FAULTS, "compress", "recompress")
    summary, accepted, rejects, requests = run(tmp_path, answer, count)
    stages = {"produce": count, "judge": count, "compress": count, "recompress": 2 * count}
    assert Counter(stage for _, stage in requests) == stages and accepted == []
    for kind, reject in zip(COMPRESSED_FAULTS, rejects, strict=True):
        assert f"recompress: {kind}" in summary["reasons"]
        assert kind in {reason["kind"] for reason in reject["reasons"]}


def test_repairs_are_shared_between_the_two_graphs(tmp_path):
    _, accepted, _, requests = run(tmp_path, scripted(produce=[CYCLE], compress=[LEAK], recompress=[LEAK]))
    assert [stage for _, stage in requests] == ["produce", "repair", "judge", "compress", "recompress"]
    assert accepted == []


def test_unreadable_verdict_is_asked_again_once(tmp_path):
    contradiction = {"verdict": "accept", "defects": ["3: wrong"]}
    summary, _, _, requests = run(tmp_path, scripted(judge=["hm", {"verdict": "accept", "defects": []}]))
    assert [stage for _, stage in requests].count("judge") == 2 and summary["accepted"] == 1
    (tmp_path / "again").mkdir()
    summary, _, _, requests = run(tmp_path / "again", scripted(judge=[contradiction]))
    assert [stage for _, stage in requests] == ["produce", "judge", "judge"]
    assert summary["reasons"] == {"judge: unreadable_verdict": 1}


ACCEPTED = [
    {"verdict": "Accept", "defects": []},
    {"verdict": " ACCEPT. ", "defects": None},
    {"verdict": "accepted", "defects": ""},
    {"verdict": "accept", "defects": ["none"]},
    {"Verdict": "approved", "defects": ["", "None."]},
    {" verdict ": "ok", "defects": "No defects."},
]
DEFECTIVE = [
    {"verdict": "Defects", "defects": ["1: wrong"]},
    {"verdict": "rejected", "defects": "1: wrong"},
    {"VERDICT": "defect", "DEFECTS": ["1: wrong"]},
]
NO_VERDICT = [
    {"verdict": "accept", "defects": ["1: wrong"]},
    {"verdict": "defects", "defects": []},
    {"verdict": "defects", "defects": ["none"]},
    {"verdict": "acceptable?", "defects": ["none"]},
    {"verdict": True, "defects": []},
    {"verdict": "defects", "defects": [1]},
    {"defects": []},
]


@pytest.mark.parametrize("verdict", ACCEPTED + DEFECTIVE + NO_VERDICT, ids=json.dumps)
def test_a_verdict_counts_by_its_meaning_and_not_by_its_spelling(verdict):
    found = read_verdict(Completion(json.dumps(verdict), "stop", None))
    if verdict in ACCEPTED:
        assert found == []
    elif verdict in DEFECTIVE:
        assert found == [Fault("judge", "1: wrong")]
    else:
        assert found is None


def test_plan_that_gives_the_answer_away_is_left_out_and_kept_as_a_reject(tmp_path):
    leaking = {"plan": ["Add: the answer is 1201/2"], "subproblems": ["How long?"]}
    summary, accepted, rejects, _ = run(tmp_path, scripted(contexts=[leaking]))
    assert summary["accepted"] == summary["accepted_without_contexts"] == 1
    assert accepted[0].plan == () and accepted[0].dag is not None
    assert rejects[0]["rejected"] == "plan and subproblems" and rejects[0]["reasons"][0]["kind"] == "states_answer"


def test_answer_cut_at_the_limit_says_so(tmp_path):
    cut = Reply('{"checkpoints": [{"id": "1", "sta', finish_reason="length")
    _, _, rejects, _ = run(tmp_path, scripted(produce=[cut], repair=[cut]))
    assert rejects[0]["reasons"] == [
        {"kind": "cut_short", "detail": "the answer ran out of tokens; a larger --max-tokens may help"}
    ]


def test_row_without_solution_is_rejected_unpaid(tmp_path):
    row = problem(0)
    del row["solution"]
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps(row))
    nowhere = parse_endpoint("http://127.0.0.1:9/v1", None)
    summary = build(path, tmp_path / "o.jsonl", nowhere, Settings("m"), lambda *_: None)
    assert summary["reasons"] == {"input: no_solution": 1}


def test_judge_model_is_asked_only_to_judge(tmp_path):
    models = {}

    def answer(body, headers):
        models[identify(body)[1]] = body["model"]
        return answer_well(body, headers)

    run(tmp_path, answer, judge_model="other")
    assert models == {"produce": "m", "judge": "other", "compress": "m", "contexts": "m"}


def test_second_run_asks_nothing_and_writes_the_same(tmp_path):
    _, _, _, first = run(tmp_path, answer_well, count=5)
    content = (tmp_path / "dags.jsonl").read_bytes()
    summary, accepted, _, second = run(tmp_path, answer_well, count=5)
    assert len(first) == 20 and second == [] and len(accepted) == 5
    assert (tmp_path / "dags.jsonl").read_bytes() == content
    assert summary["tokens_this_run"]["requests"] == 0 and summary["tokens_of_journal"]["requests"] == 20


def test_another_judge_starts_new_entries_and_keeps_what_still_holds(tmp_path):
    run(tmp_path, answer_well)
    _, _, _, requests = run(tmp_path, answer_well, judge_model="other")
    assert requests == [("p0", "judge")]
    _, _, _, requests = run(tmp_path, answer_well, model="third", judge_model="other")
    assert [stage for _, stage in requests] == ["produce", "compress", "contexts"]
