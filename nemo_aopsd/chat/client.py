"""The only network access: chat completions of an OpenAI-compatible server, with retries and counts.

Written on aiohttp, which Ray brings along: the same client serves the offline tools and NeMo RL's environments.
A time-out may have been paid for on the server's side; no client can know.
"""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from nemo_aopsd.chat.endpoint import Endpoint
from nemo_aopsd.chat.protocol import Completion, Request, read_completion
from nemo_aopsd.errors import UserError, how_to_install

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0  # seconds between tries; each pause is twice the one before
_LONGEST_RETRY_AFTER = 120.0  # seconds that a server may ask for
_LATER = {408, 409, 429}  # and 5xx: worth another try
_RETRIES_OF_NO_SERVER = 3  # within 3.5 s, before the first answer where nothing listens: nobody may have started it
_ALIKE_REFUSALS = 5  # before the first answer; so many mean that server, settings or proxy are wrong
_QUOTED = 500  # characters of what a server says
# What a server says in a 400, 413 or 422 that concerns this request alone.
_OF_THE_CONTENT = re.compile(
    r"context|too (?:long|large|many|big)|length|exceed|tokens|prompt|policy|filter|safety|moderat|flagged",
    re.IGNORECASE,
)

T = TypeVar("T")


class RequestRefused(Exception):
    """The server will never take this request, for example because it is too long. Concerns one problem."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class ServerUnavailable(Exception):
    """No answer after all tries. The request may be made again later."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """One try without an answer. `status` is 0 if there was no answer of the protocol; `pause` is what a server asked
    for in seconds."""

    what: str
    status: int = 0
    pause: float | None = None
    is_timeout: bool = False
    found_no_server: bool = False


class ChatClient:
    """At most `concurrency` requests at a time, all on one event loop. Use as an async context manager, or `close` it.

    `timeout` is in seconds without a byte, `connect_timeout` in seconds for a connection (None: as `timeout`).
    `retry_timeouts=False` gives up at the first answer that takes too long, and `use_proxies=False` ignores the
    proxies that the environment names. `sleep` makes the pauses between tries.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        concurrency: int,
        timeout: float,
        max_retries: int,
        connect_timeout: float | None = None,
        retry_timeouts: bool = True,
        use_proxies: bool = True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ):
        try:
            import aiohttp
        except ImportError as error:
            raise UserError(f"aiohttp is not installed. {how_to_install('data')}") from error
        self._aiohttp = aiohttp
        self.endpoint = endpoint
        self.num_requests = 0  # sent, retries included
        self.num_completions = 0
        self._max_retries = max_retries
        self._retry_timeouts = retry_timeouts
        self._sleep = sleep
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout or timeout, sock_read=timeout)
        self._proxy = _proxy(endpoint.url) if use_proxies else None
        self._slots = asyncio.Semaphore(concurrency)
        self._session: Any = None  # made with the first request, inside of its event loop
        self._refusals: Counter[int] = Counter()  # by status, those that are not about the content
        self._structured: dict[str, bool] = {}  # by model; unknown until the first answer, which no request waits for
        self._limit_name = "max_tokens"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def complete(self, request: Request) -> Completion:
        """One answer. Raises RequestRefused, ServerUnavailable, or UserError if all other requests would fail too."""
        try:
            return await self._complete(request)
        except RequestRefused as error:
            if self.num_completions or (error.status in (400, 413, 422) and _OF_THE_CONTENT.search(str(error))):
                raise
            self._refusals[error.status] += 1
            if self._refusals[error.status] < _ALIKE_REFUSALS:
                raise
            what = f"refused the first {_ALIKE_REFUSALS} requests with status {error.status}, the last time: {error}"
            remedy = f"Check {self.endpoint.settings}, and any proxy in between."
            raise UserError(f"{self.endpoint.url}: {what}. {remedy}") from None

    async def _complete(self, request: Request) -> Completion:
        if request.schema is None or not self._structured.get(request.model, True):
            return await self._send(request, structured=False)
        try:
            completion = await self._send(request, structured=True)
        except RequestRefused:
            if request.model in self._structured:
                raise
            completion = await self._send(request, structured=False)
            self._structured.setdefault(request.model, False)
        else:
            self._structured[request.model] = True
        return completion

    async def _send(self, request: Request, structured: bool) -> Completion:
        """The answer to one body, tried again as long as that may help."""
        limit_name = self._limit_name
        content = self._encode(request, structured, limit_name)
        attempt = 0
        while True:
            answer = await self._try(content)
            if isinstance(answer, Completion):
                self.num_completions += 1
                return answer
            if answer.status and limit_name == "max_tokens" and "max_completion_tokens" in answer.what:
                self._limit_name = limit_name = "max_completion_tokens"
                content = self._encode(request, structured, limit_name)
                continue
            if answer.status in (401, 403, 404):
                raise UserError(f"{self.endpoint.url}: {answer.what} Check {self.endpoint.settings}.")
            if 400 <= answer.status < 500 and answer.status not in _LATER:
                raise RequestRefused(answer.what, answer.status)
            absent = answer.found_no_server and not self.num_completions
            most = min(self._max_retries, _RETRIES_OF_NO_SERVER) if absent else self._max_retries
            if attempt >= most or (answer.is_timeout and not self._retry_timeouts):
                raise ServerUnavailable(f"{answer.what} (try {attempt + 1})")
            growing = min(_FIRST_PAUSE * 2.0 ** min(attempt, 10), _LONGEST_PAUSE)
            # Up to a quarter shorter by chance, so that requests which failed together do not come back together.
            await self._sleep(growing * random.uniform(0.75, 1.0) if answer.pause is None else answer.pause)
            attempt += 1

    async def _try(self, content: bytes) -> Completion | _Failure:
        """A slot is held from the request's head to the answer's end, and not in the pause before a retry."""
        aiohttp = self._aiohttp
        try:
            async with self._slots:
                self.num_requests += 1
                url = f"{self.endpoint.url.rstrip('/')}/chat/completions"
                async with self._open().post(url, data=content, proxy=self._proxy) as response:
                    status, headers, body = response.status, response.headers, await response.read()
        except aiohttp.SocketTimeoutError:
            return _Failure(f"took longer than {self._timeout.sock_read:g} seconds", is_timeout=True)
        except (aiohttp.ClientError, TimeoutError) as error:
            absent = isinstance(error, aiohttp.ClientConnectorError)  # refused, or no such host
            what = self.endpoint.redact(f"{type(error).__name__}: {error}")[:_QUOTED]
            return _Failure(what, found_no_server=absent)
        if status == 200 and (completion := read_completion(body)):
            return completion
        said = self.endpoint.redact(body.decode("utf-8", "replace"))[:_QUOTED]  # half a secret is one, too
        if status < 400:
            return _Failure(f"HTTP {status}, but the answer is no chat completion: {said}")
        return _Failure(f"HTTP {status}: {said}", status, _retry_after(headers.get("Retry-After")))

    def _open(self) -> Any:
        self._session = self._session or self._aiohttp.ClientSession(
            headers={"Content-Type": "application/json"} | self.endpoint.headers,
            skip_auto_headers=["User-Agent"],  # it tells of this machine's Python
            timeout=self._timeout,
            connector=self._aiohttp.TCPConnector(limit=0),  # `_slots` limits
            cookie_jar=self._aiohttp.DummyCookieJar(),
        )
        return self._session

    def _encode(self, request: Request, structured: bool, limit_name: str) -> bytes:
        body: dict[str, Any] = {"model": request.model, "messages": request.messages, limit_name: request.max_tokens}
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if structured:
            schema = {"name": "answer", "schema": request.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return json.dumps(body | request.options).encode()


async def first_readable(
    client: ChatClient, requests: Iterable[Request], read: Callable[[str | None], T | None]
) -> tuple[T | None, str]:
    """Send the requests in turn until `read` accepts a `Completion.answer`. Returns what it read, and the whole text.

    None and the last text if nothing can be read; None and the server's reason if it refuses one, too long perhaps.
    """
    text = ""
    for request in requests:
        try:
            completion = await client.complete(request)
        except RequestRefused as error:
            return None, f"(refused: {error})"
        text, found = completion.text, read(completion.answer)
        if found is not None:
            return found, text
    return None, text


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait; None for a date, nonsense, or more than two minutes."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if 0 < seconds <= _LONGEST_RETRY_AFTER else None


def _proxy(url: str) -> str | None:
    """The environment's proxy for a URL. aiohttp's own `trust_env` would also send passwords from ~/.netrc."""
    parts, proxies = urlsplit(url), getproxies()
    return None if proxy_bypass(parts.netloc) else proxies.get(parts.scheme) or proxies.get("all")
