"""The environment against NeMo RL's own classes, on a CPU; the judge is a small server of the test."""

import asyncio
import copy
import threading

import pytest
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

from nemo_aopsd.baselines.environment import ProgressJudgeEnvironmentImpl, read_settings
from nemo_aopsd.chat import client
from nemo_aopsd.errors import UserError
from tests.chat_server import ChatServer, Reply

pytestmark = pytest.mark.nemo

# a -> b -> c and d apart: 4 checkpoints
PROBLEM = {
    "id": "p",
    "problem": "What is half of one?",
    "answer": "\\frac{1}{2}",
    "where": "problems.jsonl:1",
    "dag": {
        "nodes": [{"id": name, "statement": f"statement {name}"} for name in "abcd"],
        "edges": [["a", "b"], ["b", "c"]],
    },
}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.001)


def said(text):
    return lambda body, headers: Reply(text)


def attempt(text):
    return [{"role": "user", "content": "What is half of one?"}, {"role": "assistant", "content": text}]


def settings(*urls, reward=None, **judge):
    return {"reward": reward or {}, "judge": {"base_urls": list(urls), "model": "m"} | judge}


def run(config, attempts=("x",), info=PROBLEM, steps=1):
    """(EnvironmentReturn, environment) after that many steps on one event loop."""

    async def main():
        tested = ProgressJudgeEnvironmentImpl(config)
        try:
            for _ in range(steps):
                result = await tested.step(list(map(attempt, attempts)), [copy.deepcopy(info) for _ in attempts])
            return result, tested
        finally:
            await tested.shutdown()

    return asyncio.run(main())


def outcome(config, text="x", info=PROBLEM):
    result, tested = run(config, [text], info)
    return result.metadata[0]["aopsd"], tested


# Reward and contract


def test_what_a_step_returns_is_what_nemo_rl_takes():
    with ChatServer(said('["a"]')) as server:
        result, _ = run(settings(server.url), ["x", "so \\boxed{7}", "z"])
    assert isinstance(result, EnvironmentReturn) and issubclass(ProgressJudgeEnvironmentImpl, EnvironmentInterface)
    assert result.rewards.dtype == torch.float32 and result.rewards.tolist() == [0.25] * 3
    assert result.terminateds.tolist() == [1, 1, 1]
    assert result.observations == [{"role": "environment", "content": ""}] * 3
    assert result.next_stop_strings == [None] * 3 and result.answers == [None, "7", None]
    assert [info["id"] for info in result.metadata] == ["p"] * 3


@pytest.mark.parametrize(
    ("verdict", "reached", "reward"),
    [
        ('["a", "b", "c", "d"]', "abcd", 1.0),
        ('["a", "c", "d"]', "ad", 0.5),  # c without its prerequisite b does not count
        ('["b", "c"]', "", 0.0),
        ("[]", "", 0.0),
    ],
)
def test_the_reward_is_the_share_of_the_closed_set(verdict, reached, reward):
    with ChatServer(said(verdict)) as server:
        found, _ = outcome(settings(server.url, reward={"progress": 0.5}))
    assert (found["reward"], found["reached"], found["failed"]) == (0.5 * reward, list(reached), False)


def test_each_attempt_gets_its_own_verdict_in_order():
    def answer(body, headers):
        shown = body["messages"][-1]["content"]
        first = "first attempt" in shown
        return Reply('["a"]' if first else '["a", "b", "d"]', delay=0.3 if first else 0)  # the first comes back last

    with ChatServer(answer) as server:
        result, _ = run(settings(server.url), ["first attempt", "second"])
    assert result.rewards.tolist() == [0.25, 0.75]


def test_the_request_is_the_judges_prompt_with_the_policys_sampling():
    with ChatServer(said("[]")) as server:
        run(settings(server.url, temperature=0.7, top_p=0.9, max_new_tokens=33, chat_template_kwargs={"a": 1}), ["why"])
    (body,) = server.bodies
    (message,) = body.pop("messages")
    options = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 33, "chat_template_kwargs": {"a": 1}}
    assert body == {"model": "m"} | options
    assert "[c] statement c" in message["content"] and "why" in message["content"]


@pytest.mark.parametrize(
    ("text", "grade", "correct"),
    [("\\boxed{0.5}", "correct", True), ("\\boxed{2}", "wrong", False), ("0.5", "no_answer", False)],
)
def test_correctness_off_the_main_thread_as_in_a_ray_actor(text, grade, correct):
    """`\\frac{1}{2}` against 0.5 needs math-verify, which refuses any thread but the main one. No judge is asked."""
    found = {}
    config = settings("http://127.0.0.1:1/v1", reward={"progress": 0.0, "correct": 2.0})
    thread = threading.Thread(target=lambda: found.update(zip(("outcome", "env"), outcome(config, text), strict=True)))
    thread.start()
    thread.join(100)
    assert found["outcome"] == {"reward": 2.0 * correct, "correct": correct, "grade": grade}
    assert found["env"].counters["correct"] == correct


# Bad judges


THOUGHT = '<think>The checkpoints are ["a", "b", "c", "d"]. Now look at a: the attempt never'
ALL = {"prompt_tokens": 500, "completion_tokens": 512}  # judge.max_new_tokens


@pytest.mark.parametrize(
    "reply",
    [
        *map(Reply, ("garbage", '["nowhere"]', None, THOUGHT)),
        Reply(THOUGHT, finish_reason="length", usage=ALL),
        Reply('["a", "b", "c", "d"]. Now look at a: the', finish_reason="length", usage=ALL),
    ],
)
def test_an_unreadable_verdict_is_asked_again_then_counted_and_shown(reply, capsys):
    with ChatServer(lambda body, headers: reply) as server:
        result, tested = run(settings(server.url, num_retries=2))
        assert len(server.bodies) == 3
    assert result.rewards.tolist() == [0.0] and result.metadata[0]["aopsd"]["failed"] is True
    batch = BatchedDataDict({"total_reward": result.rewards})
    same, metrics = tested.global_post_process_and_metrics(batch)
    assert same is batch and metrics["judge_failed"] == 1 and metrics["judge_failed_share"] == 1.0
    assert "1 of 1 verdicts so far cannot be read" in capsys.readouterr().out


def test_a_second_answer_that_can_be_read_counts():
    replies = iter([Reply("garbage"), Reply('["d"]')])
    with ChatServer(lambda body, headers: next(replies)) as server:
        found, tested = outcome(settings(server.url))
    assert (found["reward"], found["failed"], tested.counters["judge_failed"]) == (0.25, False, 0)


def test_failures_are_printed_at_each_doubling(capsys):
    with ChatServer(said("garbage")) as server:
        run(settings(server.url, num_retries=0), ["x"] * 5)
    assert capsys.readouterr().out.count("cannot be read") == 3  # the 1st, 2nd and 4th


@pytest.mark.parametrize(
    ("reply", "told", "tries"),
    [
        (Reply("[]", delay=30), r"0\.2 seconds.*\(try 1\)", 1),
        (Reply(status=500, body=b"down"), r"HTTP 500: down \(try 4\).*temperature and top_p of policy.generation", 4),
        (Reply(status=404, body=b"no model m"), r"HTTP 404: .*no model m.*model 'm'", 1),
    ],
)
def test_a_judge_that_cannot_judge_ends_the_step_with_its_address(reply, told, tries):
    """The client's own tests have the other ways to fail: tests/graphs/test_chat_client.py."""
    with ChatServer(lambda body, headers: reply) as server:
        with pytest.raises(UserError, match=told) as raised:
            run(settings(server.url, timeout=0.2))
        assert len(server.bodies) == tries
    assert server.url in str(raised.value)


def room_for(chars, refuse):
    def answer(body, headers):
        length = len(body["messages"][0]["content"])
        return Reply('["d"]') if length <= chars else refuse

    return answer


@pytest.mark.parametrize(
    "refusal",
    [
        Reply(status=400, body=b'{"error": {"message": "This model\'s maximum context length is 9 tokens"}}'),
        Reply('["a", "b"]', finish_reason="length", usage={"prompt_tokens": 500, "completion_tokens": 3}),
    ],
)
def test_an_attempt_for_which_the_server_has_no_room_loses_its_middle(refusal):
    with ChatServer(room_for(2000, refusal)) as server:
        found, tested = outcome(settings(server.url), "start " + "x" * 5000 + " end")
    last = server.bodies[-1]["messages"][0]["content"]
    assert (found["reward"], found["cut"], tested.counters["attempts_cut"]) == (0.25, True, 1)
    assert "start x" in last and "x end" in last and "left out" in last


def test_no_room_even_without_an_attempt():
    refusal = Reply(status=400, body=b"maximum context length")
    with (
        ChatServer(room_for(10, refusal)) as server,
        pytest.raises(UserError, match=r"problems.jsonl:1: problem 'p'.*no room"),
    ):
        run(settings(server.url))


def test_requests_go_round_the_servers_and_never_exceed_the_limit():
    def answer(body, headers):
        return Reply("[]", delay=0.05)

    with ChatServer(answer) as one, ChatServer(answer) as two:
        run(settings(one.url, two.url, concurrency=3), ["x"] * 12)
        assert len(one.bodies) == len(two.bodies) == 6
        assert one.most_at_a_time + two.most_at_a_time <= 4 and one.most_at_a_time <= 3


def test_the_key_of_an_external_judge_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")

    def echo(body, headers):
        return Reply(status=401, body=f"no: {headers['authorization']}".encode())

    with ChatServer(echo) as server, pytest.raises(UserError, match=r"no: .*\[redacted\]") as raised:
        run(settings(server.url, api_key_env="JUDGE_KEY"))
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret" and "sk-very" not in str(raised.value)
    with pytest.raises(UserError, match=r"OTHER_KEY is not set"):
        run(settings("http://127.0.0.1:1/v1", api_key_env="OTHER_KEY"))


# Settings


def test_bad_settings_are_refused():
    with pytest.raises(UserError, match=r"env.aopsd_progress.judge.tempreature"):
        read_settings({"judge": {"tempreature": 1}})
    with pytest.raises(UserError, match=r"judge.concurrency"):
        read_settings({"judge": {"concurrency": "many"}})
    with pytest.raises(UserError, match=r"both weights are 0"):
        read_settings({"reward": {"progress": 0.0}})


def test_a_problem_without_a_dag_is_named():
    info = {key: value for key, value in PROBLEM.items() if key != "dag"}
    with pytest.raises(UserError, match=r"problems.jsonl:1: problem 'p' has no `dag`"):
        run(settings("http://127.0.0.1:1/v1"), info=info)
