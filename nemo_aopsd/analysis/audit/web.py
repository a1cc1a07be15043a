"""The labelling page: a small server for one labeller on this machine, and nobody else.

It listens on 127.0.0.1 only. A request under another host name, or a POST that is no JSON of this page's origin, is
refused, so that no other page in the labeller's browser can read events or label. Every label is on disk before the
page shows the next event.
"""

from __future__ import annotations

import json
import secrets
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from nemo_aopsd.analysis.audit.labels import LABELS, LabelBook
from nemo_aopsd.errors import UserError

_LONGEST_BODY = 4096  # bytes

Record = dict[str, Any]


class LabelServer(ThreadingHTTPServer):
    """Serves `events` in their order to one labeller. `port` 0 takes any free one; `url` says which."""

    daemon_threads = True

    def __init__(self, events: list[Record], book: LabelBook, name: str, port: int = 0):
        self.events, self.book, self.name = events, book, name
        self.changing = Lock()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror}. Choose another port, or 0 for any free one.") from error
        self.hosts = {f"{host}:{self.server_port}" for host in ("127.0.0.1", "localhost")}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def state(self) -> Record:
        """How far the labeller is, and the first event without a label, or None."""
        open_events = [event for event in self.events if event["id"] not in self.book.labels]
        return {
            "done": len(self.events) - len(open_events),
            "total": len(self.events),
            "event": open_events[0] if open_events else None,
        }

    def label(self, event: object, label: object) -> bool:
        """Keep a label for the event that is next; False for any other, from an outdated page say."""
        with self.changing:
            current = self.state()["event"]
            if not isinstance(label, str) or label not in LABELS or current is None or event != current["id"]:
                return False
            self.book.add(current["id"], label)
            return True

    def undo(self) -> bool:
        """Take the newest label back; False if there is none."""
        with self.changing:
            return self.book.undo() is not None


class _Handler(BaseHTTPRequestHandler):
    server: LabelServer  # pyright: ignore[reportIncompatibleVariableOverride]: only LabelServer makes one
    timeout = 60  # seconds for a request

    def do_GET(self) -> None:
        if not self._is_ours():
            self._refuse(HTTPStatus.FORBIDDEN)
        elif self.path == "/":
            self._send_page()
        elif self.path == "/state":
            self._send_state(HTTPStatus.OK)
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        body = self._body()
        if isinstance(body, HTTPStatus):
            self._refuse(body)
        elif self.path not in ("/label", "/undo"):
            self._refuse(HTTPStatus.NOT_FOUND)
        else:
            self._change(body)

    def _change(self, body: Record) -> None:
        server = self.server
        try:
            kept = server.undo() if self.path == "/undo" else server.label(body.get("event"), body.get("label"))
        except OSError as error:  # a full disk, say; the page must not go on as if the label were kept
            print(f"{server.book.path}: {error.strerror or error}. Not saved.", file=sys.stderr)
            self._refuse(HTTPStatus.INSUFFICIENT_STORAGE)
        else:
            self._send_state(HTTPStatus.OK if kept else HTTPStatus.CONFLICT)

    def log_message(self, format: str, *arguments: object) -> None:
        """The labeller's terminal stays quiet."""

    def _is_ours(self) -> bool:
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in self.server.hosts and (
            origin is None or origin.removeprefix("http://") in self.server.hosts
        )

    def _body(self) -> Record | HTTPStatus:
        """The JSON object that was posted, or why it is refused."""
        self.close_connection = True  # what a refused request goes on to send must not be read as the next one
        if not self._is_ours():
            return HTTPStatus.FORBIDDEN
        if self.headers.get_content_type() != "application/json":  # which no form of another page can send
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            return HTTPStatus.LENGTH_REQUIRED
        if int(length) > _LONGEST_BODY:
            return HTTPStatus(413)
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return HTTPStatus.BAD_REQUEST
        return body if isinstance(body, dict) else HTTPStatus.BAD_REQUEST

    def _send_page(self) -> None:
        nonce = secrets.token_urlsafe(16)
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
        )
        html = environment.get_template("page.html").render(name=self.server.name, labels=LABELS, nonce=nonce)
        inline = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'"
        policy = f"default-src 'none'; connect-src 'self'; img-src data:; {inline}"
        self._send(HTTPStatus.OK, "text/html", html, {"Content-Security-Policy": policy})

    def _send_state(self, status: HTTPStatus) -> None:
        self._send(status, "application/json", json.dumps(self.server.state()))

    def _refuse(self, status: HTTPStatus) -> None:
        self._send(status, "text/plain", f"{status.value} {status.phrase}\n")

    def _send(self, status: HTTPStatus, kind: str, text: str, headers: dict[str, str] | None = None) -> None:
        content = text.encode("utf-8")
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
