"""What a build keeps of what it paid for: after kills, on full disks, and in damaged journals."""

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter

import pytest

from nemo_aopsd.chat.endpoint import parse_endpoint
from nemo_aopsd.errors import UserError
from nemo_aopsd.graphs.pipeline.ledger import Journal
from nemo_aopsd.graphs.pipeline.pipeline import Settings, build
from nemo_aopsd.graphs.pipeline.results import beside
from tests.chat_server import ChatServer
from tests.graphs.test_dag_pipeline_faults import run
from tests.recorded import answer_well, identify, write_problems


def build_in_a_process(problems, out, url):
    settings = Settings("m", concurrency=4)
    build(problems, out, parse_endpoint(url, None), settings, lambda *_: None)


def test_kill_at_random_points_pays_nothing_twice(tmp_path):
    """Four kills, each at a random moment; every finished stage is asked for once, whatever was killed."""
    count, rng = 20, random.Random(4)
    problems, out = write_problems(tmp_path / "problems.jsonl", count), tmp_path / "dags.jsonl"
    journal = beside(out, "journal.jsonl")
    sent = Counter()

    def answer(body, headers):
        sent[identify(body)] += 1
        return answer_well(body, headers, delay=rng.uniform(0.005, 0.03))

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "aiohttp"])
    lost = 0
    with ChatServer(answer) as server:
        for kill in range(4):
            lines = journal.read_bytes().count(b"\n") if journal.exists() else 0
            before = sum(sent.values())
            process = context.Process(target=build_in_a_process, args=(problems, out, server.url))
            process.start()
            enough, deadline = before + rng.randrange(1, 22), time.monotonic() + 60
            while sum(sent.values()) < enough and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.02))
            process.kill()
            process.join(10)
            assert process.exitcode == -signal.SIGKILL, f"ended by itself before kill {kill}"
            content = journal.read_bytes()
            keys = [json.loads(line)["key"] for line in content[: content.rfind(b"\n") + 1].splitlines()]
            assert len(keys) == len(set(keys)) >= lines
            lost += sum(sent.values()) - before - (len(keys) - lines)
        process = context.Process(target=build_in_a_process, args=(problems, out, server.url))
        process.start()
        process.join(60)
    assert process.exitcode == 0 and lost <= 4 * 4  # what was on its way, at most `concurrency` each time
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


WHOLE = {"key": "k", "text": "", "finish_reason": ""}
WHOLE |= {"prompt_tokens": 1, "completion_tokens": 1, "usage_estimated": False}
DAMAGE = {
    **{f"without {name}": json.dumps({key: WHOLE[key] for key in WHOLE if key != name}) for name in WHOLE},
    "text in place of tokens": json.dumps(WHOLE | {"prompt_tokens": "9"}),
    "null in place of a text": json.dumps(WHOLE | {"text": None}),
    "cut": json.dumps(WHOLE)[:40],
    "nonsense": "nonsense",
    "no object": "[1]",
    "nested too deeply": '{"key": ' + "[" * 100_000,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_line_of_the_journal_is_named_and_left(tmp_path, kind):
    path, whole = tmp_path / "journal.jsonl", json.dumps(WHOLE)
    path.write_text(f"{whole}\n{DAMAGE[kind]}\n{whole}\n")
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"journal\.jsonl:2: .* delete it"):
        Journal(path)
    assert path.read_bytes() == before


def test_a_damaged_line_costs_nothing_but_its_own_answer(tmp_path):
    with ChatServer(answer_well) as server:
        run(tmp_path, server, count=2)
    journal = tmp_path / "dags.journal.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines[:2], "nonsense", *lines[3:]]) + "\n")
    with ChatServer(answer_well) as server, pytest.raises(UserError, match=r"journal\.jsonl:3: "):
        run(tmp_path, server, count=2)
    assert server.bodies == []
    journal.write_text("\n".join(lines[:2] + lines[3:]) + "\n")  # as the message says
    with ChatServer(answer_well) as server:
        assert run(tmp_path, server, count=2)["accepted"] == 2
        assert len(server.bodies) == 1


@pytest.mark.parametrize("content", ["my notes, one line", '{"id": "p0", "problem": "?"}', "{}\ntwo"])
def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "dags.journal.jsonl"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        Journal(path)
    assert f"{path}:1: " in str(caught.value) and path.read_text() == content


def test_two_builds_cannot_share_a_journal(tmp_path):
    with Journal(tmp_path / "j"), pytest.raises(UserError, match="another process"):
        Journal(tmp_path / "j")


def test_disk_that_takes_half_a_line_leaves_the_journal_whole(tmp_path, monkeypatch):
    real, calls = os.write, []

    def short(file, data):
        calls.append(data)
        return real(file, data[: len(data) // 2] if len(calls) == 3 else data)

    monkeypatch.setattr(os, "write", short)
    with ChatServer(answer_well) as server, pytest.raises(UserError, match=r"wrote \d+ of \d+ bytes"):
        run(tmp_path, server, concurrency=1)
    monkeypatch.undo()
    assert (tmp_path / "dags.journal.jsonl").read_bytes().count(b"\n") == 2
    with ChatServer(answer_well) as server:
        assert run(tmp_path, server)["accepted"] == 1
        assert len(server.bodies) == 2
