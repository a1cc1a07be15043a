"""An OpenAI-compatible server on a free port of this machine that answers what a function says, with faults."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Reply:
    """One answer. `text` becomes the message; `body` replaces the whole body; `drop` closes the connection after
    that many bytes of the response; `delay` is in seconds."""

    text: str | None = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: int | None = None
    body: bytes | None = None
    finish_reason: str = "stop"
    usage: dict[str, int] | None = field(default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 50})

    def to_bytes(self) -> bytes:
        body = self.body
        if body is None:
            message = {"role": "assistant", "content": self.text}
            choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
            answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
            body = json.dumps(answer | ({"usage": self.usage} if self.usage else {})).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))} | self.headers
        head = f"HTTP/1.1 {self.status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return head.encode() + b"\r\n" + body


Answer = Callable[[dict[str, Any], dict[str, str]], Reply]  # (body of the request, its headers) -> reply


class ChatServer:
    """`with ChatServer(answer) as server:`; `server.url`; `server.bodies` are the requests in order of arrival."""

    def __init__(self, answer: Answer, port: int = 0):
        self.answer, self.port = answer, port
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_a_time = self.at_a_time = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await self._loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()


class _Connection(asyncio.Protocol):
    def __init__(self, server: ChatServer):
        self.server, self.received = server, b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, rest = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self.received = rest[length:]
        body = json.loads(rest[:length])
        self.server.bodies.append(body)
        self.server.headers.append(headers)
        self.server.at_a_time += 1
        self.server.most_at_a_time = max(self.server.most_at_a_time, self.server.at_a_time)
        reply = self.server.answer(body, headers)
        asyncio.get_running_loop().call_later(reply.delay, self._send, reply)

    def _send(self, reply: Reply) -> None:
        self.server.at_a_time -= 1
        content = reply.to_bytes()
        self.transport.write(content if reply.drop is None else content[: reply.drop])
        if reply.drop is not None:
            self.transport.close()
