"""What servers and networks do to a build, and what never gets out."""

import json
import logging
from collections import Counter

import pytest

from nemo_aopsd.chat import client
from nemo_aopsd.chat.endpoint import parse_endpoint
from nemo_aopsd.errors import UserError
from nemo_aopsd.graphs.pipeline.pipeline import Settings, build
from nemo_aopsd.graphs.pipeline.results import beside, summary_lines
from tests.chat_server import ChatServer, Reply
from tests.graphs.test_chat_client import FAULTS
from tests.recorded import answer_well, identify, write_problems

KEY = "sk-very-secret-0123456789"
PASSWORD = "p@ss:wörd/9"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.001)


def run(tmp_path, server, count=1, key=None, url=None, **settings):
    problems = write_problems(tmp_path / "problems.jsonl", count)
    settings = Settings(**{"model": "m", "max_retries": 3} | settings)
    return build(problems, tmp_path / "dags.jsonl", parse_endpoint(url or server.url, key), settings, lambda *_: None)


def test_faults_of_the_server_are_retried_and_paid_once(tmp_path):
    """Problem n meets fault n at the first try of each stage."""
    faults = [*FAULTS.values()]
    tried = set()

    def answer(body, headers):
        problem, stage = identify(body)
        if (problem, stage) not in tried:
            tried.add((problem, stage))
            return faults[int(problem[1:])]
        return answer_well(body, headers)

    count = len(faults)
    with ChatServer(answer) as server:
        summary = run(tmp_path, server, count)
        asked = Counter(map(identify, server.bodies))
    assert summary["accepted"] == count and summary["tokens_this_run"]["requests"] == 4 * count
    assert set(asked.values()) == {2} and len(asked) == summary["http_requests_without_answer"] == 4 * count
    assert len(beside(tmp_path / "dags.jsonl", "journal.jsonl").read_text().splitlines()) == 4 * count


def test_server_that_goes_down_ends_the_build_and_loses_nothing(tmp_path):
    answered = []

    def answer(body, headers):
        if len(answered) == 10:
            return Reply(status=500, body=b"down")
        answered.append(identify(body))
        return answer_well(body, headers)

    with ChatServer(answer) as server, pytest.raises(UserError, match="no answer to 3 requests in a row"):
        run(tmp_path, server, count=40, concurrency=2, max_retries=0)
    with ChatServer(answer_well) as server:
        assert run(tmp_path, server, count=40)["accepted"] == 40
        again = [identify(body) for body in server.bodies]
    assert len(again) == 160 - 10 and not set(answered) & set(again)


def test_one_problem_without_answer_leaves_the_others_alone(tmp_path):
    def answer(body, headers):
        return Reply(status=500, body=b"down") if identify(body)[0] == "p1" else answer_well(body, headers)

    with ChatServer(answer) as server, pytest.raises(UserError, match="p1: no answer: HTTP 500"):
        run(tmp_path, server, count=4, max_retries=0)
    summary = json.loads((tmp_path / "dags.summary.json").read_text())
    assert (summary["accepted"], summary["unfinished"], summary["rejected"]) == (3, 1, 0)


def test_wrong_key_ends_at_once(tmp_path):
    with (
        ChatServer(lambda *_: Reply(status=401, body=b"{}")) as server,
        pytest.raises(UserError, match="--api-key-env"),
    ):
        run(tmp_path, server, count=3, concurrency=1)
    assert len(server.bodies) <= 2  # one more may be on its way
    assert [path.name for path in tmp_path.iterdir()] == ["problems.jsonl"]


def test_server_without_structured_output_is_found_out_by_the_requests_of_the_start(tmp_path):
    def answer(body, headers):
        if "response_format" in body:
            return Reply(status=400, body=b'{"error": {"message": "unknown field response_format"}}')
        return answer_well(body, headers)

    with ChatServer(answer) as server:
        summary = run(tmp_path, server, count=8, concurrency=4)
        structured = ["response_format" in body for body in server.bodies]
    assert summary["accepted"] == 8
    assert 1 <= sum(structured) <= 8  # two problems a slot are open; each asks for its first stage
    assert not any(structured[16:])


def test_cap_on_tokens_is_never_passed_and_can_be_raised(tmp_path):
    with ChatServer(answer_well) as server, pytest.raises(UserError, match="--max-total-tokens 6000"):
        run(tmp_path, server, count=30, max_tokens=500, max_total_tokens=6000)
    first = len(server.bodies)
    assert 0 < first * 150 <= 6000
    with ChatServer(answer_well) as server:
        summary = run(tmp_path, server, count=30, max_tokens=500, max_total_tokens=10**6)
    assert summary["accepted"] == 30 and first + len(server.bodies) == 120


USAGES = {
    "none": None,
    "a text": "9",
    "a list": [1],
    "negative": {"prompt_tokens": -5, "completion_tokens": 50},
    "absurd": {"prompt_tokens": 100, "completion_tokens": 10**12},
    "zero for a prompt": {"prompt_tokens": 0, "completion_tokens": 50},
    "zero for an answer": {"prompt_tokens": 100, "completion_tokens": 0},
    "half": {"prompt_tokens": 100},
    "texts": {"prompt_tokens": "100", "completion_tokens": "50"},
    "yes": {"prompt_tokens": True, "completion_tokens": True},
}


def test_usages_that_cannot_be_right_are_estimated_and_counted(tmp_path):
    """Problem n is answered with usage n; the last is right."""
    usages = [*USAGES.values(), {"prompt_tokens": 100, "completion_tokens": 50}]
    wrong = 4 * len(USAGES)

    def answer(body, headers):
        reply = answer_well(body, headers)
        reply.usage = usages[int(identify(body)[0][1:])]
        return reply

    with ChatServer(answer) as server:
        summary = run(tmp_path, server, len(usages))
        assert len(server.bodies) == 4 * len(usages)
    cost = summary["tokens_this_run"]
    assert summary["accepted"] == len(usages) and cost["without_usage"] == wrong
    assert cost["prompt_tokens"] + cost["completion_tokens"] == cost["estimated"] + 4 * 150
    assert cost["estimated"] > 250 * wrong
    assert any(line.startswith(f"{wrong} answers came without a usage") for line in summary_lines(summary))


@pytest.mark.parametrize(("status", "message"), [(402, "go away"), (400, "temperature is not supported by this model")])
def test_a_server_that_refuses_everything_ends_the_build_early(tmp_path, status, message):
    refusal = Reply(status=status, body=json.dumps({"error": {"message": message}}).encode())
    with (
        ChatServer(lambda *_: refusal) as server,
        pytest.raises(UserError, match=rf"first 5 requests with status {status}, .*{message}"),
    ):
        run(tmp_path, server, count=40, concurrency=2, max_retries=0)
    assert len(server.bodies) < 30 and not (tmp_path / "dags.jsonl").read_bytes()


def test_requests_that_are_too_long_reject_their_problems_alone(tmp_path):
    def answer(body, headers):
        problem, stage = identify(body)
        number = int(problem[1:])
        if number < 10 or (number, stage) == (11, "judge"):
            message = f"maximum context length is 4096 tokens, you requested {5000 + number}"
            return Reply(status=400, body=json.dumps({"error": {"message": message}}).encode())
        return answer_well(body, headers)

    with ChatServer(answer) as server:
        summary = run(tmp_path, server, count=12, concurrency=1)
    assert (summary["accepted"], summary["reasons"]) == (1, {"produce: refused": 10, "judge: refused": 1})
    assert (tmp_path / "dags.rejects.jsonl").read_text().count("maximum context length") == 11


def everything_written(tmp_path, caplog, capfd, *errors):
    files = "\n".join(path.read_text() for path in tmp_path.iterdir())
    captured = capfd.readouterr()
    return "\n".join([files, caplog.text, captured.out, captured.err, *map(str, errors), *map(repr, errors)])


@pytest.mark.parametrize("status", [200, 400, 401, 500])
@pytest.mark.parametrize("quoted", ["", "p%40ss%3Aw%C3%B6rd%2F9"])
def test_key_and_password_never_get_out(tmp_path, caplog, capfd, status, quoted):
    """The server echoes what it was sent; everything is logged at the finest level."""
    caplog.set_level(logging.DEBUG)

    def answer(body, headers):
        echo = f"your header was {headers['authorization']}, your key {KEY}, your password {PASSWORD if quoted else ''}"
        return Reply(
            echo, status=status, body=None if status == 200 else json.dumps({"error": {"message": echo}}).encode()
        )

    errors = []
    with ChatServer(answer) as server:
        url = server.url.replace("http://", f"http://me:{quoted}@" if quoted else "http://")
        try:
            run(tmp_path, server, key=KEY, url=url, max_retries=0)
        except UserError as error:
            errors = [error, error.__cause__, error.__context__]
        sent = server.headers[0]["authorization"]
    assert sent.startswith("Basic " if quoted else "Bearer ")
    written = everything_written(tmp_path, caplog, capfd, *errors)
    assert "your key [redacted]" in written
    for secret in [KEY, sent.split()[1], *([PASSWORD, quoted, json.dumps(PASSWORD)[1:-1]] if quoted else [])]:
        assert secret not in written


def test_connection_that_fails_names_no_password(tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(UserError, match="no answer") as caught:
        run(tmp_path, None, key=KEY, url="http://me:hush-hush@127.0.0.1:9/v1", max_retries=0)
    written = everything_written(tmp_path, caplog, capfd, caught.value)
    assert "hush-hush" not in written and KEY not in written and "127.0.0.1:9" in written
