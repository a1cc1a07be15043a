"""The labelling page: its server by plain HTTP requests, and the page itself in a headless browser, if there is one."""

import asyncio
import base64
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from nemo_aopsd.analysis.audit import labels
from nemo_aopsd.analysis.audit.labels import LabelBook, labels_path, read_labels
from nemo_aopsd.analysis.audit.web import LabelServer
from nemo_aopsd.errors import UserError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCREENSHOTS = os.environ.get("AOPSD_SCREENSHOTS")  # a folder to look at afterwards
EVIL = '</script><img src=x onerror="document.title=1"> & "q"'
JSON_TYPE = {"Content-Type": "application/json"}


def event(number, **fields):
    """One event as `events.jsonl` has it."""
    return {
        "id": f"e{number}",
        "problem_id": f"p{number}",
        "problem": f"Find x_{number} < 3.",
        "teacher_read": "[1] x = 2",
        "before": "So x is",
        "before_omitted": 0,
        "token": " three",
        "anchor": " two",
        "suffix": ", as the DAG says",
    } | fields


@contextmanager
def serving(tmp_path, events, name="ada"):
    with LabelBook(labels_path(tmp_path, name), {"kind": "hand"}) as book, LabelServer(events, book, name) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path, body=None, headers=JSON_TYPE, method=None):
    """`(status, headers, text)` of one request; a `body` is posted as JSON unless it is bytes."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data=data, headers=dict(headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def state(answer):
    return json.loads(answer[2])


def test_label_undo_and_go_on(tmp_path):
    events = [event(1), event(2)]
    with serving(tmp_path, events) as server:
        assert state(ask(server, "state")) == {"done": 0, "total": 2, "event": events[0]}
        assert state(ask(server, "label", {"event": "e1", "label": "useful"}))["event"] == events[1]
        assert read_labels(server.book.path)[1] == {"e1": "useful"}  # on disk before the answer
        assert state(ask(server, "undo", {})) == {"done": 0, "total": 2, "event": events[0]}
        status, *_ = ask(server, "undo", {})
        assert status == 409
        ask(server, "label", {"event": "e1", "label": "leakage"})
    with serving(tmp_path, events) as server:  # started again
        assert state(ask(server, "state"))["done"] == 1
        answer = ask(server, "label", {"event": "e2", "label": "redundant"})
        assert state(answer) == {"done": 2, "total": 2, "event": None}
        assert state(ask(server, "undo", {}))["event"] == events[1]
    assert read_labels(labels_path(tmp_path, "ada"))[1] == {"e1": "leakage"}


@pytest.mark.parametrize(
    "body",
    [
        {"event": "e2", "label": "useful"},  # not its turn: an outdated page
        {"event": "e1", "label": "splendid"},
        {"event": ["e1"], "label": "useful"},
        {"event": "e1", "label": ["useful"]},
        {},
    ],
)
def test_what_is_no_label_of_the_shown_event_changes_nothing(tmp_path, body):
    with serving(tmp_path, [event(1), event(2)]) as server:
        status, _, text = ask(server, "label", body)
        assert status == 409 and json.loads(text)["done"] == 0
        assert not server.book.path.read_bytes()


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("", None, {"Host": "evil.example"}, 403),  # a foreign name that resolves to this machine
        ("state", None, {"Host": "127.0.0.1"}, 403),
        ("state", None, {"Origin": "https://evil.example"}, 403),
        ("label", b"{}", JSON_TYPE | {"Origin": "null"}, 403),
        ("label", b"{}", {"Content-Type": "text/plain"}, 415),
        ("undo", b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ("label", b"no JSON", JSON_TYPE, 400),
        ("label", b"[" * 4000, JSON_TYPE, 400),
        ("label", b"[]", JSON_TYPE, 400),
        ("label", b" " * 5000, JSON_TYPE, 413),
        ("key.jsonl", None, {}, 404),
        ("../key.jsonl", None, {}, 404),
        ("elsewhere", b"{}", JSON_TYPE, 404),
    ],
)
def test_requests_that_the_page_would_not_make_are_refused(tmp_path, path, body, headers, status):
    with serving(tmp_path, [event(1)]) as server:
        answer = ask(server, path, body, headers)
        assert answer[0] == status and "Find x_1" not in answer[2]
        assert not server.book.labels
        assert ask(server, "state")[0] == 200  # and the server goes on


def test_full_disk_is_told_and_leaves_no_half_line(tmp_path, monkeypatch, capfd):
    def half(path, record):
        with path.open("a") as file:
            file.write(json.dumps(record)[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with serving(tmp_path, [event(1)]) as server:
        with monkeypatch.context() as patch:
            patch.setattr(labels, "append_jsonl", half)
            assert ask(server, "label", {"event": "e1", "label": "useful"})[0] == 507
        assert state(ask(server, "state"))["done"] == 0
        assert ask(server, "label", {"event": "e1", "label": "leakage"})[0] == 200
    assert read_labels(labels_path(tmp_path, "ada"))[1] == {"e1": "leakage"}
    assert "No space left on device. Not saved." in capfd.readouterr().err


def test_listens_on_this_machine_only(tmp_path):
    with serving(tmp_path, [event(1)]) as server:
        assert server.server_address[0] == "127.0.0.1"
        with pytest.raises(UserError, match="another port"):
            LabelServer([], server.book, "ada", server.server_port)


def test_length_must_be_known(tmp_path):
    with serving(tmp_path, [event(1)]) as server, socket.create_connection(server.server_address, timeout=10) as raw:
        host = f"127.0.0.1:{server.server_port}"
        raw.sendall(f"POST /undo HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\r\n".encode())
        assert b" 411 " in raw.recv(1000)


def test_page_escapes_and_brings_everything_along(tmp_path):
    with serving(tmp_path, [event(1)], name="ada@x") as server:
        server.name = EVIL  # no name that the command takes, but the page must not depend on that
        _, headers, html = ask(server, "")
    assert EVIL not in html and "&lt;/script&gt;&lt;img" in html
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!data:)", html) and "http" not in html
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "Find x_1" not in html  # events come as JSON and are shown as text


def test_a_kill_loses_no_label(tmp_path):
    """The command itself, killed without warning after two labels; started again it goes on with the third event."""
    run = tmp_path / "run"
    (run / "audit").mkdir(parents=True)
    numbers = dict.fromkeys(("seed", "count", "by_bin", "edges", "population_per_bin", "num_empty", "last_file"), 0)
    (run / "audit/sample.json").write_text(json.dumps({**numbers, "drawn_per_bin": [3]}))
    (run / "audit/events.jsonl").write_text("".join(json.dumps(event(number)) + "\n" for number in (1, 2, 3)))
    with command(run) as (_, url):
        for number in (1, 2):
            post(url + "label", {"event": f"e{number}", "label": "leakage"})
        with pytest.raises(subprocess.CalledProcessError):  # one process a labeller
            subprocess.run(label_command(run), check=True, capture_output=True, timeout=60)
    with labels_path(run, "ada").open("ab") as file:
        file.write(b'{"event": "e3", "lab')  # a line that the kill cut short
    with command(run, signal.SIGINT) as (said, url):
        with urllib.request.urlopen(url + "state", timeout=10) as answer:
            assert json.load(answer)["event"]["id"] == "e3"
        post(url + "label", {"event": "e3", "label": "useful"})
    assert "3 of 3 labelled in" in said[0]
    assert read_labels(labels_path(run, "ada"))[1] == {"e1": "leakage", "e2": "leakage", "e3": "useful"}


def label_command(run):
    return [
        sys.executable,
        "-c",
        "from nemo_aopsd.cli import main; main()",
        "audit",
        "label",
        str(run),
        "--name",
        "ada",
    ]


@contextmanager
def command(run, end=signal.SIGKILL):
    """`aopsd audit label` as a process, ended by the signal `end`: what it says then, and its URL."""
    process, said = subprocess.Popen(label_command(run), stdout=subprocess.PIPE, text=True), []
    try:
        yield said, re.search(r"http://\S+", process.stdout.readline())[0]
    finally:
        process.send_signal(end)
        said.append(process.communicate(timeout=20)[0])


def post(url, body):
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), JSON_TYPE), timeout=10).close()


class Browser:
    """A page in headless Chromium, driven by real key strokes through the DevTools protocol."""

    def __init__(self, socket):
        self.socket, self.last, self.messages, self.loaded = socket, 0, [], False

    async def open(self, url):
        await self.call("Page.navigate", url=url)
        while not self.loaded:
            self.note(await self.socket.receive_json(timeout=60))

    def note(self, message):
        """Keep what the console says, and that the page is there."""
        if message["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(message["params"])
        self.loaded |= message["method"] == "Page.loadEventFired"

    async def call(self, method, **params):
        self.last += 1
        await self.socket.send_json({"id": self.last, "method": method, "params": params})
        while True:
            message = await self.socket.receive_json(timeout=60)
            if message.get("id") == self.last:
                assert "error" not in message, message
                return message["result"]
            self.note(message)

    async def run(self, script):
        """The value of a JavaScript expression, awaited if it is a promise."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script):
        for _ in range(1500):
            if await self.run(script):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"never true: {script}")

    async def press(self, key):
        text = {"Enter": "\r", "Tab": ""}.get(key, key)
        code = {"Enter": 13, "Tab": 9}.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            down = {"text": text} if text and kind == "keyDown" else {}
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **down)

    async def picture(self, name, *, width, height, dark=False):
        if SCREENSHOTS:
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            await self.call("Emulation.setDeviceMetricsOverride", **size)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            await self.call("Emulation.setEmulatedMedia", features=[scheme])
            png = await self.call("Page.captureScreenshot")
            (Path(SCREENSHOTS) / f"{name}.png").write_bytes(base64.b64decode(png["data"]))


def in_browser(url, folder, act):
    """Run the coroutine `act(browser)` on the page at `url`; returns everything that the console said."""
    import aiohttp

    line = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    line += [f"--user-data-dir={folder / 'profile'}", "--window-size=1200,900", "about:blank"]

    async def drive(port):
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                pages = [target for target in await answer.json() if target["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=1 << 26) as socket:
                browser = Browser(socket)
                for domain in ("Runtime", "Log", "Page"):
                    await browser.call(f"{domain}.enable")
                await browser.open(url)
                await act(browser)
                return browser.messages

    with subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            port = next(found[1] for line in process.stderr if (found := re.search(r"ws://127\.0\.0\.1:(\d+)/", line)))
            return asyncio.run(drive(port))
        finally:
            process.terminate()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page with")
def test_page_in_a_browser(tmp_path):
    """Keys, undo, focus and Enter, escaping, a server that is gone; and a silent console up to there."""
    long = event(1, problem="x" * 300 + " and y. " * 200, before="\\frac{1}{2} word " * 400, before_omitted=812)
    events = [long, event(2, before=EVIL, suffix=EVIL, problem=EVIL), event(3), event(4)]
    shown = "document.getElementById('count')?.textContent"

    async def act(browser):
        await browser.until(f"{shown} === '0 of 4 labelled'")
        await browser.picture("first", width=1280, height=900)
        await browser.picture("dark", width=1280, height=900, dark=True)
        await browser.picture("narrow", width=390, height=800)
        assert await browser.run("document.documentElement.scrollWidth <= innerWidth")
        await browser.press("3")
        await browser.until(f"{shown} === '1 of 4 labelled'")
        assert await browser.run("document.images.length") == 0 and await browser.run("document.title") == "Audit: ada"
        assert await browser.run("at('before').textContent") == EVIL + " three"
        assert await browser.run("at('continuation').textContent") == " two" + EVIL
        await browser.picture("escaped", width=1280, height=900)
        await browser.press("u")
        await browser.until(f"{shown} === '0 of 4 labelled'")
        await browser.press("1")
        await browser.until(f"{shown} === '1 of 4 labelled'")
        await browser.press("x")  # no key of the page
        await browser.press("4")
        await browser.run("document.querySelector('[data-label=redundant]').focus()")
        await browser.press("Enter")
        await browser.until(f"{shown} === '2 of 4 labelled'")
        for _ in range(3):  # faster than the server answers: the event that is not yet shown must not be labelled
            await browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: '2'}))")
            await browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: '2', repeat: true}))")
            await browser.until("!busy")
        await browser.until(f"{shown} === '4 of 4 labelled'")
        assert await browser.run("at('event').hidden") is True
        await browser.picture("finished", width=1280, height=900)
        assert browser.messages == []
        server.shutdown()
        server.server_close()
        await browser.press("u")
        await browser.until("at('said').className === 'bad'")
        assert "Nothing was saved" in await browser.run("at('said').textContent")
        await browser.picture("gone", width=1280, height=900)

    with serving(tmp_path, events) as server:
        in_browser(server.url, tmp_path, act)
    assert read_labels(labels_path(tmp_path, "ada"))[1] == {
        "e1": "useful",
        "e2": "redundant",
        "e3": "redundant",
        "e4": "redundant",
    }
