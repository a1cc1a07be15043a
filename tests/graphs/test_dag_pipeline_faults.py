"""What servers and networks do to a build, what a kill does, and what never gets out."""

import asyncio
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter

import pytest

from nemo_aopsd.chat import client
from nemo_aopsd.chat.client import ChatClient, Request, RequestRefused, ServerUnavailable
from nemo_aopsd.chat.endpoint import parse_endpoint, read_key
from nemo_aopsd.errors import UserError
from nemo_aopsd.graphs.pipeline.pipeline import Settings, beside, build
from nemo_aopsd.graphs.pipeline.results import summary_lines
from tests.chat_server import ChatServer, Reply
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


def first_fails(reply):
    """The first try of every request gets `reply`."""
    tried = set()

    def answer(body, headers):
        if identify(body) not in tried:
            tried.add(identify(body))
            return reply
        return answer_well(body, headers)

    return answer


FAULTS = {
    "429 with Retry-After": Reply(status=429, headers={"Retry-After": "0.2"}, body=b'{"error": {"message": "slow"}}'),
    "500": Reply(status=500, body=b"oops"),
    "503 with a page": Reply(status=503, headers={"Content-Type": "text/html"}, body=b"<h1>bad gateway</h1>"),
    "dropped before the answer": Reply(drop=0),
    "dropped in the head": Reply(drop=20),
    "dropped in the body": Reply("x" * 400, drop=300),
    "too slow": Reply("late", delay=1.5),
    "body that ends early": Reply(body=b'{"choices": [{"message"'),
    "body that is not UTF-8": Reply(body=b'{"choices": "\xff"}'),
    "body with a number of thousands of digits": Reply(body=b"1" * 5000),
    "body nested too deeply": Reply(body=b"[" * 100_000),
    "body that is no completion": Reply(body=b'{"hello": "world"}'),
    "page with status 200": Reply(headers={"Content-Type": "text/html"}, body=b"<html>log in</html>"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_the_server_is_retried_and_paid_once(tmp_path, fault):
    with ChatServer(first_fails(FAULTS[fault])) as server:
        summary = run(tmp_path, server, timeout=0.5)
        stages = Counter(identify(body)[1] for body in server.bodies)
    assert summary["accepted"] == 1 and summary["tokens_this_run"]["requests"] == 4
    assert stages == Counter(produce=2, judge=2, compress=2, contexts=2)
    assert summary["http_requests_without_answer"] == 4
    assert len(beside(tmp_path / "dags.jsonl", "journal.jsonl").read_text().splitlines()) == 4


def test_retry_after_is_waited_for(tmp_path):
    times = []

    def answer(body, headers):
        times.append(time.monotonic())
        if len(times) == 1:
            return Reply(status=429, headers={"Retry-After": "1.5"}, body=b"{}")
        return answer_well(body, headers)

    with ChatServer(answer) as server:
        run(tmp_path, server)
    assert 1.5 <= times[1] - times[0] < 3


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


def test_wrong_key_and_wrong_model_end_at_once(tmp_path):
    for status, remedy in ((401, "--api-key-env"), (404, "--model")):
        with ChatServer(lambda *_, status=status: Reply(status=status, body=b"{}")) as server:
            with pytest.raises(UserError, match=remedy):
                run(tmp_path, server, count=3, concurrency=1)
            assert len(server.bodies) <= 2  # one more may be on its way


def test_request_that_is_too_long_rejects_its_problem(tmp_path):
    def answer(body, headers):
        if identify(body) == ("p1", "judge"):
            return Reply(status=400, body=b'{"error": {"message": "maximum context length is 4096 tokens"}}')
        return answer_well(body, headers)

    with ChatServer(answer) as server:
        summary = run(tmp_path, server, count=3)
    assert summary["accepted"] == 2 and summary["reasons"] == {"judge: refused": 1}
    assert "maximum context length" in (tmp_path / "dags.rejects.jsonl").read_text()


def test_structured_output_is_asked_for_where_the_server_knows_it(tmp_path):
    with ChatServer(answer_well) as server:
        run(tmp_path, server)
        schemas = [body["response_format"]["json_schema"]["schema"] for body in server.bodies]
    assert ["verdict" in schema["properties"] for schema in schemas] == [False, True, False, False]


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


def test_no_request_waits_for_the_first_answer(tmp_path):
    def answer(body, headers):
        return answer_well(body, headers, delay=0.2 if len(server.bodies) <= 4 else 0.0)

    with ChatServer(answer) as server:
        run(tmp_path, server, count=8, concurrency=4)
        assert server.most_at_a_time == 4
        assert all("response_format" in body for body in server.bodies)


def test_refusal_of_what_the_model_is_known_to_do_is_of_that_request():
    def answer(body, headers):
        if body["messages"][0]["content"] == "long":
            return Reply(status=400, body=b'{"error": {"message": "too long"}}', delay=0.1)
        return Reply("fine")

    async def ask(endpoint):
        requests = [
            Request("m", [{"role": "user", "content": content}], 9, None, {"type": "object"})
            for content in ("long", "short")
        ]
        async with ChatClient(endpoint, concurrency=2, timeout=5, max_retries=0) as client:
            found = await asyncio.gather(*map(client.complete, requests), return_exceptions=True)
            return found, client.num_requests

    with ChatServer(answer) as server:
        (refused, fine), num_requests = asyncio.run(ask(parse_endpoint(server.url, None)))
    assert isinstance(refused, RequestRefused) and fine.text == "fine"
    assert num_requests == 2  # not asked again without a schema


def test_server_that_wants_max_completion_tokens_gets_it(tmp_path):
    def answer(body, headers):
        if "max_tokens" in body:
            return Reply(status=400, body=b'{"error": {"message": "use max_completion_tokens instead"}}')
        assert body["max_completion_tokens"] == 8192
        return answer_well(body, headers)

    with ChatServer(answer) as server:
        assert run(tmp_path, server, count=2)["accepted"] == 2


def test_requests_that_are_on_their_way_also_learn_of_max_completion_tokens():
    def answer(body, headers):
        if "max_tokens" in body:
            return Reply(status=400, body=b'{"error": {"message": "use max_completion_tokens instead"}}', delay=0.05)
        return Reply("fine")

    async def ask_eight_at_a_time(endpoint):
        request = Request("m", [{"role": "user", "content": "hi"}], 9, None, None)
        async with ChatClient(endpoint, concurrency=8, timeout=5, max_retries=0) as client:
            return await asyncio.gather(*(client.complete(request) for _ in range(8)))

    with ChatServer(answer) as server:
        answers = asyncio.run(ask_eight_at_a_time(parse_endpoint(server.url, None)))
    assert [completion.text for completion in answers] == ["fine"] * 8


def test_requests_have_the_same_headers_and_bodies_of_their_own(tmp_path):
    with ChatServer(answer_well) as server:
        endpoint = parse_endpoint(server.url, "a-key-of-some-length")
        problems = write_problems(tmp_path / "problems.jsonl", 3)
        assert build(problems, tmp_path / "dags.jsonl", endpoint, Settings("m"), lambda *_: None)["accepted"] == 3
    lengths = {headers.pop("content-length") for headers in server.headers}
    assert len(lengths) > 1 and len({json.dumps(body) for body in server.bodies}) == 12
    assert all(headers == server.headers[0] for headers in server.headers)
    assert server.headers[0]["authorization"] == "Bearer a-key-of-some-length"
    assert server.headers[0]["content-type"] == "application/json"


def test_redirect_is_followed(tmp_path):
    def move(body, headers):
        return Reply(status=307, headers={"Location": f"{server.url}/chat/completions"}, body=b"")

    with ChatServer(answer_well) as server, ChatServer(move) as old_address:
        assert run(tmp_path, old_address, count=2)["accepted"] == 2
    assert len(server.bodies) == 8


def test_concurrency_is_kept(tmp_path):
    with ChatServer(lambda body, headers: answer_well(body, headers, delay=0.02)) as server:
        run(tmp_path, server, count=20, concurrency=5)
    assert server.most_at_a_time == 5


def test_pause_before_a_retry_keeps_no_other_request_waiting(tmp_path):
    """One slot; the first request is put off for a second, and the others are answered in that time."""
    times = []

    def answer(body, headers):
        times.append(time.monotonic())
        if len(times) == 1:
            return Reply(status=429, headers={"Retry-After": "1"}, body=b"{}")
        return Reply("fine")

    async def ask_three(endpoint):
        request = Request("m", [{"role": "user", "content": "hi"}], 9, None, None)
        async with ChatClient(endpoint, concurrency=1, timeout=5, max_retries=1) as client:
            return await asyncio.gather(*(client.complete(request) for _ in range(3)))

    with ChatServer(answer) as server:
        assert len(asyncio.run(ask_three(parse_endpoint(server.url, None)))) == 3
    assert times[2] - times[0] < 0.9 <= times[3] - times[0] and server.most_at_a_time == 1


def test_server_learns_nothing_about_this_machine(tmp_path):
    with ChatServer(answer_well) as server:
        run(tmp_path, server)
        names = {name for headers in server.headers for name in headers}
    assert "content-type" in names and not [name for name in names if name.startswith("x-stainless")]


def test_cap_on_tokens_is_never_passed_and_can_be_raised(tmp_path):
    with ChatServer(answer_well) as server, pytest.raises(UserError, match="--max-total-tokens 6000"):
        run(tmp_path, server, count=30, max_tokens=500, max_total_tokens=6000)
    first = len(server.bodies)
    assert 0 < first * 150 <= 6000
    with ChatServer(answer_well) as server:
        summary = run(tmp_path, server, count=30, max_tokens=500, max_total_tokens=10**6)
    assert summary["accepted"] == 30 and first + len(server.bodies) == 120


def test_tokens_of_a_server_that_reports_none_are_estimated_and_said_to_be(tmp_path):
    def answer(body, headers):
        reply = answer_well(body, headers)
        reply.usage = None
        return reply

    with ChatServer(answer) as server:
        cost = run(tmp_path, server)["tokens_this_run"]
    assert cost["estimated"] == cost["prompt_tokens"] + cost["completion_tokens"] > 1000


USAGES = {
    "none": None,
    "a text": "9",
    "a list": [1],
    "negative": {"prompt_tokens": -5, "completion_tokens": 50},
    "absurd": {"prompt_tokens": 100, "completion_tokens": 10**12},
    "zero for a prompt": {"prompt_tokens": 0, "completion_tokens": 50},
    "zero for an answer": {"prompt_tokens": 100, "completion_tokens": 0},
    "half": {"prompt_tokens": 100},
    "words": {"prompt_tokens": "many", "completion_tokens": "few"},
    "yes": {"prompt_tokens": True, "completion_tokens": True},
    "a fraction": {"prompt_tokens": 0.5, "completion_tokens": 1.5},
}


@pytest.mark.parametrize("usage", USAGES)
def test_an_answer_without_a_usage_that_can_be_is_taken_and_estimated_and_counted(tmp_path, usage):
    def answer(body, headers):
        reply = answer_well(body, headers)
        reply.usage = USAGES[usage]
        return reply

    with ChatServer(answer) as server:
        summary = run(tmp_path, server)
        assert len(server.bodies) == 4
    cost = summary["tokens_this_run"]
    assert summary["accepted"] == 1 and cost["without_usage"] == 4
    assert cost["estimated"] == cost["prompt_tokens"] + cost["completion_tokens"] > 1000
    assert any(line.startswith("4 answers came without a usage that can be") for line in summary_lines(summary))


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": "100", "completion_tokens": " 50 "}, {"prompt_tokens": 1e2, "completion_tokens": 50.0}]
)
def test_a_usage_in_another_spelling_is_read(tmp_path, usage):
    def answer(body, headers):
        reply = answer_well(body, headers)
        reply.usage = usage
        return reply

    with ChatServer(answer) as server:
        summary = run(tmp_path, server)
        assert len(server.bodies) == 4
    cost = summary["tokens_this_run"]
    assert (cost["prompt_tokens"], cost["completion_tokens"], cost["without_usage"]) == (400, 200, 0)


@pytest.mark.parametrize("status", [402, 405, 431, 451])
def test_a_server_that_refuses_everything_ends_the_build_early(tmp_path, status):
    with (
        ChatServer(lambda *_: Reply(status=status, body=b'{"error": {"message": "go away"}}')) as server,
        pytest.raises(
            UserError, match=rf"refused the first 5 requests with status {status} and answered none.*go away"
        ),
    ):
        run(tmp_path, server, count=40, concurrency=2, max_retries=0)
    assert len(server.bodies) < 20 and not (tmp_path / "dags.jsonl").read_bytes()


def test_a_setting_that_the_server_does_not_know_ends_the_build_early(tmp_path):
    body = b'{"error": {"message": "temperature is not supported by this model"}}'
    with (
        ChatServer(lambda *_: Reply(status=400, body=body)) as server,
        pytest.raises(UserError, match="refused the first 5 requests with status 400"),
    ):
        run(tmp_path, server, count=40, concurrency=2, temperature=0.5)
    assert len(server.bodies) < 30


def test_first_problems_that_are_too_long_leave_the_others_alone(tmp_path):
    def answer(body, headers):
        number = int(identify(body)[0][1:])
        if number < 10:
            message = f"maximum context length is 4096 tokens, you requested {5000 + number}"
            return Reply(status=400, body=json.dumps({"error": {"message": message}}).encode())
        return answer_well(body, headers)

    with ChatServer(answer) as server:
        summary = run(tmp_path, server, count=12, concurrency=1)
    assert (summary["accepted"], summary["rejected"]) == (2, 10)


@pytest.mark.parametrize("count", [1, 8])
def test_a_build_of_which_every_problem_is_refused_is_no_success(tmp_path, count):
    body = b'{"error": {"message": "max_tokens is too large: 8192"}}'
    with (
        ChatServer(lambda *_: Reply(status=400, body=body)) as server,
        pytest.raises(UserError, match=r"refused every request; the last time: .*too large: 8192.*--max-tokens"),
    ):
        run(tmp_path, server, count=count)
    rejects = (tmp_path / "dags.rejects.jsonl").read_text().splitlines()
    assert len(rejects) == count


@pytest.mark.parametrize(
    ("url", "reason"),
    [("http://127.0.0.1:9/v1", "ClientConnectorError"), ("http://nowhere.invalid/v1", "ClientConnectorDNSError")],
)
def test_a_connection_that_cannot_be_made_is_no_time_out(tmp_path, url, reason):
    with pytest.raises(UserError, match=rf"no answer: {reason}: ") as caught:
        run(tmp_path, None, url=url, max_retries=0)
    assert "imeout" not in str(caught.value) and "timed out" not in str(caught.value)


def build_in_a_process(problems, out, url):
    settings = Settings("m", concurrency=4)
    build(problems, out, parse_endpoint(url, None), settings, lambda *_: None)


def test_kill_at_random_points_pays_nothing_twice(tmp_path):
    """Ten kills, each at a random moment; every finished stage is asked for once, whatever was killed."""
    count, rng = 60, random.Random(4)
    problems, out = write_problems(tmp_path / "problems.jsonl", count), tmp_path / "dags.jsonl"
    journal = beside(out, "journal.jsonl")
    sent = Counter()

    def answer(body, headers):
        sent[identify(body)] += 1
        return answer_well(body, headers, delay=rng.uniform(0.005, 0.03))

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.graphs.test_dag_pipeline_faults", "aiohttp"])
    lost = 0
    with ChatServer(answer) as server:
        for kill in range(10):
            lines = journal.read_bytes().count(b"\n") if journal.exists() else 0
            before = sum(sent.values())
            process = context.Process(target=build_in_a_process, args=(problems, out, server.url))
            process.start()
            enough, deadline = before + rng.randrange(1, 20), time.monotonic() + 60
            while sum(sent.values()) < enough and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.02))
            os.kill(process.pid, signal.SIGKILL)
            process.join(10)
            assert process.exitcode == -signal.SIGKILL, f"ended by itself before kill {kill}"
            content = journal.read_bytes()
            keys = [json.loads(line)["key"] for line in content[: content.rfind(b"\n") + 1].splitlines()]
            assert len(keys) == len(set(keys)) >= lines
            lost += sum(sent.values()) - before - (len(keys) - lines)
        process = context.Process(target=build_in_a_process, args=(problems, out, server.url))
        process.start()
        process.join(60)
    assert process.exitcode == 0 and lost <= 10 * 4  # what was on its way, at most `concurrency` each time
    assert sum(sent.values()) == 4 * count + lost
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [f"p{n}" for n in range(count)]


def test_torn_last_line_is_cut_off_and_asked_again(tmp_path):
    with ChatServer(answer_well) as server:
        run(tmp_path, server, count=3)
    journal = tmp_path / "dags.journal.jsonl"
    content = journal.read_bytes()
    journal.write_bytes(content[:-30] + "é".encode()[:1])
    with ChatServer(answer_well) as server:
        assert run(tmp_path, server, count=3)["accepted"] == 3
        assert len(server.bodies) == 1
    assert len(journal.read_bytes().splitlines()) == 12
    for line in journal.read_bytes().splitlines():
        json.loads(line)


def damaged(line):
    """Ways in which a line of a journal gets spoilt, by name."""
    entry = json.loads(line)
    names = ("key", "text", "finish_reason", "prompt_tokens", "completion_tokens", "usage_estimated")
    without = {
        f"without {name}": json.dumps({key: value for key, value in entry.items() if key != name}) for name in names
    }
    return without | {
        "text in place of tokens": json.dumps(entry | {"prompt_tokens": "9"}),
        "null in place of a text": json.dumps(entry | {"text": None}),
        "a list in place of a key": json.dumps(entry | {"key": [1]}),
        "cut": line[: len(line) // 2],
        "nonsense": "nonsense",
        "no object": "[1]",
        "nested too deeply": "[" * 100_000,
        "nested below a key": '{"key": ' + "[" * 100_000,
    }


DAMAGE = damaged('{"key": "k", "text": "", "finish_reason": "", "prompt_tokens": 1, "completion_tokens": 1, '
                 '"usage_estimated": false}')  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_line_of_the_journal_is_named_and_costs_nothing_but_its_own_answer(tmp_path, kind):
    with ChatServer(answer_well) as server:
        run(tmp_path, server, count=2)
    journal = tmp_path / "dags.journal.jsonl"
    lines = journal.read_text().splitlines()
    spoilt = [*lines[:2], damaged(lines[2])[kind], *lines[3:]]
    journal.write_text("\n".join(spoilt) + "\n")
    before = journal.read_bytes()
    with ChatServer(answer_well) as server, pytest.raises(UserError, match=r"journal\.jsonl:3: no line .* delete it"):
        run(tmp_path, server, count=2)
    assert server.bodies == [] and journal.read_bytes() == before
    journal.write_text("\n".join(spoilt[:2] + spoilt[3:]) + "\n")  # as the message says
    with ChatServer(answer_well) as server:
        assert run(tmp_path, server, count=2)["accepted"] == 2
        assert len(server.bodies) == 1


def test_several_damaged_lines_are_counted(tmp_path):
    (tmp_path / "dags.journal.jsonl").write_text('{"key": "k"\n\nnonsense\n')
    with (
        ChatServer(answer_well) as server,
        pytest.raises(UserError, match=r"journal\.jsonl:1 \(and 1 more lines\): no"),
    ):
        run(tmp_path, server)


def test_last_line_without_its_line_break_is_kept(tmp_path):
    with ChatServer(answer_well) as server:
        run(tmp_path, server)
    journal = tmp_path / "dags.journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole.removesuffix(b"\n").replace(b"\n", b"\r\n\n"))  # an editor's doing
    with ChatServer(answer_well) as server:
        assert run(tmp_path, server)["accepted"] == 1
        assert server.bodies == []
    assert journal.read_bytes().replace(b"\r\n\n", b"\n") == whole


@pytest.mark.parametrize("content", ["my notes, one line", '{"id": "p0", "problem": "?"}', "one\ntwo"])
def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path, content):
    (tmp_path / "dags.journal.jsonl").write_text(content)
    with ChatServer(answer_well) as server, pytest.raises(UserError, match="no line of a journal"):
        run(tmp_path, server)
    assert (tmp_path / "dags.journal.jsonl").read_text() == content


def test_tokens_below_zero_in_an_old_journal_take_nothing_off_the_count(tmp_path):
    with ChatServer(answer_well) as server:
        run(tmp_path, server)
    journal = tmp_path / "dags.journal.jsonl"
    journal.write_text(journal.read_text().replace('"prompt_tokens": 100', '"prompt_tokens": -100', 1))
    with ChatServer(answer_well) as server:
        assert run(tmp_path, server)["tokens_of_journal"]["prompt_tokens"] == 300


def test_two_builds_cannot_share_a_journal(tmp_path):
    from nemo_aopsd.graphs.pipeline.journal import Journal

    with ChatServer(answer_well) as server, Journal(tmp_path / "dags.journal.jsonl"):  # noqa: SIM117
        with pytest.raises(UserError, match="another process"):
            run(tmp_path, server)


def everything_written(tmp_path, caplog, capfd, *errors):
    files = "\n".join(path.read_text() for path in tmp_path.iterdir())
    captured = capfd.readouterr()
    return "\n".join([files, caplog.text, captured.out, captured.err, *map(str, errors), *map(repr, errors)])


@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
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


@pytest.mark.parametrize("status", [200, 400])
def test_key_is_masked_before_a_message_is_cut(status):
    """Whatever the place at which a long message is cut, no part of the key is left before the cut."""

    def answer(body, headers):
        echo = "." * int(body["messages"][0]["content"]) + KEY + "." * 500
        return Reply(status=status, body=json.dumps({"error": {"message": echo}}).encode())

    async def ask(endpoint, padding):
        async with ChatClient(endpoint, concurrency=8, timeout=5, max_retries=0) as client:
            requests = (Request("m", [{"role": "user", "content": str(number)}], 9, None, None) for number in padding)
            return await asyncio.gather(*map(client.complete, requests), return_exceptions=True)

    with ChatServer(answer) as server:
        errors = asyncio.run(ask(parse_endpoint(server.url, KEY), range(100, 500, 5)))
    kinds = (RequestRefused, ServerUnavailable, UserError)  # the last says that all were refused alike
    assert all(isinstance(error, kinds) and KEY[:6] not in str(error) for error in errors)


def test_connection_that_fails_names_no_password(tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(UserError, match="got no answer") as caught:
        run(tmp_path, None, key=KEY, url="http://me:hush-hush@127.0.0.1:9/v1", max_retries=0)
    written = everything_written(tmp_path, caplog, capfd, caught.value)
    assert "hush-hush" not in written and KEY not in written and "127.0.0.1:9" in written


@pytest.mark.parametrize("url", ["localhost:8000", "http://h/v1?key=topsecret1", "ftp://u:topsecret1@h", "http://h:x/"])
def test_bad_url_is_refused_without_being_quoted(url):
    with pytest.raises(UserError) as caught:
        parse_endpoint(url, None)
    assert "topsecret1" not in str(caught.value)


@pytest.mark.parametrize("around", ["{}\n", "{}\r\n", " \t{} ", "\n{}"])
def test_blanks_and_line_breaks_around_key_and_url_are_dropped(monkeypatch, around):
    monkeypatch.setenv("MY_KEY", around.format(KEY))
    endpoint = parse_endpoint(around.format("http://h:8000/v1"), read_key("MY_KEY"))
    assert (endpoint.headers, endpoint.url) == ({"Authorization": f"Bearer {KEY}"}, "http://h:8000/v1")
    monkeypatch.setenv("MY_KEY", around.format(""))
    assert read_key("MY_KEY") is None and read_key("NOT_SET") is None


@pytest.mark.parametrize(
    ("inside", "kind"),
    [
        ("\u00e4", "not ASCII"),
        ("\u200b", "not ASCII"),
        ("\u201d", "not ASCII"),
        ("\n", "a control"),
        ("\x7f", "a control"),
    ],
)
def test_key_that_no_header_can_carry_is_refused_without_being_quoted(monkeypatch, inside, kind):
    monkeypatch.setenv("MY_KEY", f"hush{inside}hush\n")
    with pytest.raises(UserError, match=rf"--api-key-env: character 5 of the key .* MY_KEY is {kind}") as caught:
        read_key("MY_KEY")
    assert "hush" not in str(caught.value) and inside not in str(caught.value)


def test_key_of_bytes_that_are_no_text_is_refused(monkeypatch):
    monkeypatch.setitem(os.environb, b"MY_KEY", b"hush\xff")
    with pytest.raises(UserError, match="not ASCII"):
        read_key("MY_KEY")


@pytest.mark.parametrize(
    "url",
    [
        "http://u:topsecret1@h /v1",
        "http://u:topsecret1@h\n/v1",
        "http://u:topsecret1@a..b/v1",
        "http://u:topsecret1@1.2.3.999",
    ],
)
def test_url_that_would_be_changed_or_never_sent_is_refused_without_being_quoted(url):
    """`urlsplit` would drop the line break without a word."""
    with pytest.raises(UserError, match="--base-url: ") as caught:
        parse_endpoint(url, None)
    assert "topsecret1" not in repr([caught.value, caught.value.__cause__])


@pytest.mark.parametrize(
    ("url", "key", "model"),
    [
        (None, "hush\u00e4hush", "m"),
        (None, "hush\nhush", "m"),
        (None, None, "half a pair: \ud800"),
    ],
)
def test_request_that_cannot_be_sent_is_no_fault_of_the_server(tmp_path, caplog, capfd, url, key, model):
    """Not even if nobody checked the key before: no word of JSON, no retry, and no part of the key in any error."""
    started = time.monotonic()
    with (
        ChatServer(answer_well) as server,
        pytest.raises(UserError, match=r"cannot be sent \(.*--api-key-env") as caught,
    ):
        run(tmp_path, server, url=url, key=key, model=model)
    error = caught.value
    written = everything_written(tmp_path, caplog, capfd, error, error.__cause__, error.__context__)
    assert "hush" not in written and "JSON" not in str(error)
    assert server.bodies == [] and time.monotonic() - started < 5


def test_dummy_key_does_not_eat_mathematics():
    endpoint = parse_endpoint("http://h/v1", "1")
    assert endpoint.redact_answer("x = 11") == "x = 11"


def test_disk_that_takes_half_a_line_leaves_the_journal_whole(tmp_path, monkeypatch):
    from nemo_aopsd.graphs.pipeline import journal as module

    real, calls = os.write, []

    def short(file, data):
        calls.append(data)
        return real(file, data[: len(data) // 2] if len(calls) == 3 else data)

    monkeypatch.setattr(module.os, "write", short)
    with ChatServer(answer_well) as server, pytest.raises(UserError, match="the disk took only"):
        run(tmp_path, server, concurrency=1)
    monkeypatch.undo()
    assert (tmp_path / "dags.journal.jsonl").read_bytes().count(b"\n") == 2
    with ChatServer(answer_well) as server:
        assert run(tmp_path, server)["accepted"] == 1
        assert len(server.bodies) == 2


def test_missing_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(UserError, match=r"aiohttp is not installed. Run: pip install 'nemo_aopsd\[data\]'"):
        run(tmp_path, None, url="http://127.0.0.1:9/v1")
