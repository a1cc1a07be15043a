"""What the chat client sends, what it tries again, and what never gets out of it."""

import asyncio
import json
import os
import sys
from typing import Any

import pytest

from nemo_aopsd.chat.client import ChatClient, RequestRefused, ServerUnavailable, first_readable
from nemo_aopsd.chat.endpoint import parse_endpoint, read_key
from nemo_aopsd.chat.protocol import Completion, Request
from nemo_aopsd.errors import UserError
from tests.chat_server import ChatServer, Reply

KEY = "sk-very-secret-0123456789"
SCHEMA = {"type": "object"}


def error(message, status=400, **options):
    return Reply(status=status, body=json.dumps({"error": {"message": message}}).encode(), **options)


class Asked:
    """Requests made at once: `found` (completions and exceptions), `num_requests`, the `server`, and `pauses` taken."""

    def __init__(self, answer, *contents, key=None, url=None, schema=None, model="m", **options):
        self.pauses = []
        with ChatServer(answer) as self.server:
            endpoint = parse_endpoint(url or self.server.url, key)
            asyncio.run(self._ask(endpoint, contents or ["hi"], schema, model, options))

    async def _ask(self, endpoint, contents, schema, model, options):
        async def sleep(seconds):
            self.pauses.append(seconds)

        limits = {"concurrency": 8, "timeout": 20, "max_retries": 0, "sleep": sleep}
        requests = [Request(model, [{"role": "user", "content": text}], 9, None, schema) for text in contents]
        async with ChatClient(endpoint, **limits | options) as client:
            self.found = await asyncio.gather(*map(client.complete, requests), return_exceptions=True)
            self.num_requests = client.num_requests

    @property
    def texts(self):
        return [completion.text if isinstance(completion, Completion) else completion for completion in self.found]


def in_turn(*replies):
    rest = iter(replies)
    return lambda body, headers: next(rest)


FAULTS = {
    "429": Reply(status=429, body=b"{}"),
    "500": Reply(status=500, body=b"oops"),
    "503 with a page": Reply(status=503, headers={"Content-Type": "text/html"}, body=b"<h1>bad gateway</h1>"),
    "dropped before the answer": Reply(drop=0),
    "dropped in the body": Reply("x" * 400, drop=300),
    "body that ends early": Reply(body=b'{"choices": [{"message"'),
    "body that is not UTF-8": Reply(body=b'{"choices": "\xff"}'),
    "body that is no completion": Reply(body=b'{"hello": "world"}'),
    "page with status 200": Reply(headers={"Content-Type": "text/html"}, body=b"<html>log in</html>"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_server_is_tried_again_after_growing_pauses(fault):
    asked = Asked(in_turn(*[FAULTS[fault]] * 3, Reply("fine")), max_retries=3)
    assert asked.texts == ["fine"] and asked.num_requests == len(asked.server.bodies) == 4
    assert len(asked.pauses) == 3
    assert all(0.75 * base <= pause <= base for pause, base in zip(asked.pauses, (0.5, 1, 2), strict=True))
    (last,) = Asked(lambda *_: FAULTS[fault], max_retries=1).found
    assert isinstance(last, ServerUnavailable) and "(try 2)" in str(last)


def test_pauses_stop_growing_and_concurrency_is_kept():
    assert 6 <= Asked(lambda *_: Reply(status=500), max_retries=12).pauses[-1] <= 8
    asked = Asked(lambda *_: Reply("fine", delay=0.02), *["hi"] * 20, concurrency=5)
    assert asked.texts == ["fine"] * 20 and asked.server.most_at_a_time == 5


@pytest.mark.parametrize(("asked_for", "waited"), [("1.5", 1.5), ("120", 120), ("121", None), ("soon", None)])
def test_retry_after_is_waited_for(asked_for, waited):
    late = Reply(status=429, headers={"Retry-After": asked_for}, body=b"{}")
    (pause,) = Asked(in_turn(late, Reply("fine")), max_retries=1).pauses
    assert pause == waited if waited else pause <= 0.5


@pytest.mark.parametrize("retried", [True, False])
def test_an_answer_that_takes_too_long(retried):
    answer = in_turn(Reply("late", delay=5), *[Reply("fine")] * 3)
    asked = Asked(answer, timeout=0.3, max_retries=3, retry_timeouts=retried)
    if retried:
        assert asked.texts == ["fine"]
    else:
        assert isinstance(asked.found[0], ServerUnavailable) and "0.3 seconds" in str(asked.found[0])
        assert asked.num_requests == 1


def test_pause_before_a_retry_keeps_no_other_request_waiting():
    """One slot; the first request pauses until the two others are answered."""
    others = asyncio.Event()

    async def sleep(seconds):
        await asyncio.wait_for(others.wait(), 30)

    def answer(body, headers):
        if len(server.bodies) == 3:
            loop.call_soon_threadsafe(others.set)
        return Reply(status=429, body=b"{}") if len(server.bodies) == 1 else Reply("fine")

    async def ask(endpoint):
        nonlocal loop
        loop = asyncio.get_running_loop()
        request = Request("m", [{"role": "user", "content": "hi"}], 9, None, None)
        async with ChatClient(endpoint, concurrency=1, timeout=20, max_retries=1, sleep=sleep) as client:
            return await asyncio.gather(*(client.complete(request) for _ in range(3)))

    loop: Any = None
    with ChatServer(answer) as server:
        assert len(asyncio.run(ask(parse_endpoint(server.url, None)))) == 3
    assert len(server.bodies) == 4 and server.most_at_a_time == 1


def test_structured_output_is_asked_for():
    asked = Asked(lambda *_: Reply("fine"), schema=SCHEMA)
    assert asked.server.bodies[0]["response_format"]["json_schema"]["schema"] == SCHEMA
    assert "response_format" not in Asked(lambda *_: Reply("fine")).server.bodies[0]


def test_refusal_of_what_the_model_is_known_to_do_is_of_that_request():
    def answer(body, headers):
        return error("too long", delay=0.1) if body["messages"][0]["content"] == "long" else Reply("fine")

    asked = Asked(answer, "long", "short", schema=SCHEMA)
    assert isinstance(asked.found[0], RequestRefused) and asked.texts[1] == "fine"
    assert asked.num_requests == 2  # not asked again without a schema


def test_server_that_wants_max_completion_tokens_gets_it():
    def answer(body, headers):
        return error("use max_completion_tokens", delay=0.05) if "max_tokens" in body else Reply("fine")

    asked = Asked(answer, *["hi"] * 8)
    assert asked.texts == ["fine"] * 8 and asked.server.bodies[-1]["max_completion_tokens"] == 9


def test_headers_tell_nothing_about_this_machine_and_half_a_pair_is_sent_escaped():
    asked = Asked(lambda *_: Reply("fine"), "a", "bc\ud800", key="a-key-of-some-length")
    for headers in asked.server.headers:
        assert headers["authorization"] == "Bearer a-key-of-some-length"
        assert set(headers) <= {"host", "authorization", "content-type", "content-length", "accept", "accept-encoding"}
    assert [body["messages"][0]["content"] for body in asked.server.bodies] == ["a", "bc\ud800"]
    assert asked.server.headers[0]["content-type"] == "application/json"


def test_redirect_is_followed():
    with ChatServer(lambda *_: Reply("fine")) as server:
        moved = Reply(status=307, headers={"Location": f"{server.url}/chat/completions"}, body=b"")
        assert Asked(lambda *_: moved).texts == ["fine"]
    assert len(server.bodies) == 1


def test_the_environments_proxy_is_used_unless_it_is_not_wanted(monkeypatch):
    with ChatServer(lambda *_: Reply("of the proxy")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert Asked(lambda *_: Reply("of the server")).texts == ["of the proxy"]
        assert Asked(lambda *_: Reply("of the server"), use_proxies=False).texts == ["of the server"]
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert Asked(lambda *_: Reply("of the server")).texts == ["of the server"]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_wrong_key_address_or_model_is_no_matter_of_one_request(status):
    (found,) = Asked(lambda *_: error("no", status), max_retries=3).found
    assert isinstance(found, UserError) and f"HTTP {status}" in str(found) and "--api-key-env" in str(found)


@pytest.mark.parametrize(
    ("url", "kind"), [("http://127.0.0.1:9/v1", "ConnectorError"), ("http://nowhere.invalid/v1", "DNSError")]
)
def test_a_connection_that_cannot_be_made_is_no_time_out(url, kind):
    (found,) = Asked(lambda *_: Reply(), url=url).found
    assert isinstance(found, ServerUnavailable) and kind in str(found)
    assert "imeout" not in str(found) and "timed out" not in str(found)


def test_where_no_server_is_few_tries_are_made_unless_it_has_answered():
    asked = Asked(lambda *_: Reply(), url="http://127.0.0.1:9/v1", max_retries=6)
    assert "(try 4)" in str(asked.found[0]) and sum(asked.pauses) <= 3.5

    async def ask_twice():
        async def sleep(seconds):
            pass

        limits = {"concurrency": 1, "timeout": 20, "max_retries": 6, "sleep": sleep}
        request = Request("m", [{"role": "user", "content": "hi"}], 9, None, None)
        with ChatServer(lambda *_: Reply("fine")) as server:
            client = ChatClient(parse_endpoint(server.url, None), **limits)
            await client.complete(request)
        async with client:
            with pytest.raises(ServerUnavailable, match=r"ConnectorError.*try 7"):
                await client.complete(request)

    asyncio.run(ask_twice())


@pytest.mark.parametrize("status", [200, 400])
def test_key_is_masked_before_a_message_is_cut(status):
    """Whatever the place at which a long message is cut, no part of the key is left before the cut."""

    def answer(body, headers):
        return error("." * int(body["messages"][0]["content"]) + KEY + "." * 500, status)

    kinds = (RequestRefused, ServerUnavailable, UserError)  # the last says that all were refused alike
    for found in Asked(answer, *map(str, range(100, 600, 5)), key=KEY).found:
        assert isinstance(found, kinds) and KEY[:6] not in str(found)


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8000", "http://h/v1?key=topsecret1", "ftp://u:topsecret1@h", "http://h:x/"),
        *("http://u:topsecret1@h /v1", "http://u:topsecret1@h\n/v1"),  # `urlsplit` would drop the line break
    ],
)
def test_bad_url_is_refused_without_being_quoted(url):
    with pytest.raises(UserError, match="--base-url: ") as caught:
        parse_endpoint(url, None)
    assert "topsecret1" not in repr([caught.value, caught.value.__cause__])


@pytest.mark.parametrize("around", ["{}\r\n", " \t{} "])
def test_blanks_and_line_breaks_around_key_and_url_are_dropped(monkeypatch, around):
    monkeypatch.setenv("MY_KEY", around.format(KEY))
    endpoint = parse_endpoint(around.format("http://h:8000/v1"), read_key("MY_KEY"))
    assert (endpoint.headers, endpoint.url) == ({"Authorization": f"Bearer {KEY}"}, "http://h:8000/v1")
    monkeypatch.setenv("MY_KEY", around.format(""))
    assert read_key("MY_KEY") is None and read_key("NOT_SET") is None


@pytest.mark.parametrize(("inside", "kind"), [(b"\xc3\xa4", "not ASCII"), (b"\xff", "not ASCII"), (b"\n", "a control")])
def test_key_that_no_header_can_carry_is_refused_without_being_quoted(monkeypatch, inside, kind):
    monkeypatch.setitem(os.environb, b"MY_KEY", b"hush" + inside + b"hush\n")
    with pytest.raises(UserError, match=rf"--api-key-env: character 5 of the key .* MY_KEY is {kind}") as caught:
        read_key("MY_KEY")
    assert "hush" not in str(caught.value)


def test_dummy_key_does_not_eat_mathematics():
    endpoint = parse_endpoint("http://h/v1", "1")
    assert endpoint.redact_answer("x = 11") == "x = 11"


@pytest.mark.parametrize(
    ("replies", "found"),
    [
        (["7"], (7, "7")),
        (["hm", "7", "8"], (7, "7")),
        (["hm", "no"], (None, "no")),
        (["hm", error("too long")], (None, "(refused: ")),
        ([Reply("7", finish_reason="length"), "<think>8</think>7"], (7, "<think>8</think>7")),
        (["<think>7", Reply("8", finish_reason="length")], (None, "8")),
    ],
)
def test_the_first_answer_that_can_be_read_counts(replies, found):
    """Requests differ in their temperature."""
    replies = [reply if isinstance(reply, Reply) else Reply(reply) for reply in replies]
    requests = [Request("m", [{"role": "user", "content": "hi"}], 9, heat, None) for heat in (0.0, 1.0)]

    def read_number(answer):
        return int(answer) if answer and answer.isdigit() else None

    async def ask(endpoint):
        async with ChatClient(endpoint, concurrency=1, timeout=20, max_retries=0) as client:
            return await first_readable(client, requests, read_number)

    with ChatServer(in_turn(*replies)) as server:
        value, text = asyncio.run(ask(parse_endpoint(server.url, None)))
    assert value == found[0] and text.startswith(found[1])
    assert [body["temperature"] for body in server.bodies] == [0.0, 1.0][: 1 if replies == [Reply("7")] else 2]


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[data\]'"):
        ChatClient(parse_endpoint("http://h/v1", None), concurrency=1, timeout=20, max_retries=0)
