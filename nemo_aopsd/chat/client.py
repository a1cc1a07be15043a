"""The one border to the network: chat completions of an OpenAI-compatible server, retried and counted.

The `openai` package waits and retries (429 with Retry-After up to two minutes, 408, 409, 5xx, time-outs, dropped
connections). A time-out may have been paid for on the server's side; no client can know.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from nemo_aopsd.chat.endpoint import Endpoint
from nemo_aopsd.errors import UserError

_BODY_RETRIES = 3  # for an answer with status 200 that is no chat completion
_ALIKE_REFUSALS = 5  # before the first answer; then it is the server, the settings or a proxy, and not one problem
_MOST_TOKENS = 10**8  # of one request; more is no count
_QUOTED = 200  # characters of a body that is no completion
# What a server says of a 400, 413 or 422 that the next request need not meet.
_OF_THE_CONTENT = re.compile(
    r"context|too (?:long|large|many|big)|length|exceed|tokens|prompt|policy|filter|safety|moderat|flagged",
    re.IGNORECASE,
)
# Of httpx or of httpx2, whichever the openai package stands on: requests that break HTTP's rules before they are sent.
_UNSENDABLE = {"InvalidURL", "LocalProtocolError", "UnsupportedProtocol"}

# Headers about the machine and the package: no server needs them, and every layer below copies each header again.
_TELEMETRY = [
    f"X-Stainless-{name}" for name in ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version", "Async")
]
_REQUEST_TELEMETRY = ["X-Stainless-Retry-Count", "X-Stainless-Read-Timeout"]


class RequestRefused(Exception):
    """The server will never take this request, for example because it is too long. Concerns one problem."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class ServerUnavailable(Exception):
    """No answer after all retries. The request may be made again later."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. `schema` is the JSON schema of the answer, sent where the server knows structured output; None
    for an answer without one."""

    model: str
    messages: list[dict[str, str]]
    max_tokens: int
    temperature: float | None
    schema: dict[str, Any] | None

    def identity(self) -> dict[str, Any]:
        """What decides the answer. The schema goes with the wording of the prompt."""
        return {field: getattr(self, field) for field in self.__slots__ if field != "schema"}


@dataclass(frozen=True, slots=True)
class Completion:
    """`finish_reason` is `length` for an answer that ran out of tokens; token counts are None if not reported."""

    text: str
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None


class ChatClient:
    """At most `concurrency` requests at a time. Use as an async context manager."""

    def __init__(self, endpoint: Endpoint, *, concurrency: int, timeout: float, max_retries: int):
        openai = _import_openai()
        self.endpoint = endpoint
        self.num_requests = 0  # sent, retries included
        self.num_completions = 0
        self._refusals: Counter[int] = Counter()  # by status, those that are not about the content
        self._structured: dict[str, bool] = {}  # by model; unknown until the first answer, which no request waits for
        self._limit_name = "max_tokens"
        self._slots = asyncio.Semaphore(concurrency)
        self._openai = openai
        omitted = dict.fromkeys(_REQUEST_TELEMETRY, openai.Omit())
        self._options = {"headers": omitted, "timeout": timeout, "max_retries": max_retries}
        try:
            self._client = _alike(openai.AsyncOpenAI)(
                base_url=endpoint.url,
                api_key=endpoint.api_key,
                default_headers=dict.fromkeys(_TELEMETRY, openai.Omit()) | endpoint.headers,
                http_client=self._http_client(timeout),
            )
        except Exception as error:  # a broken URL is no ValueError here
            if type(error).__name__ not in _UNSENDABLE:
                raise
            raise self._unsendable(self._describe(error)) from None

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._client.close()

    async def complete(self, request: Request) -> Completion:
        """One answer. Raises RequestRefused, ServerUnavailable, or UserError for what no other request would pass."""
        try:
            return await self._complete(request)
        except RequestRefused as error:
            self._count_refusal(error)
            raise

    def _count_refusal(self, error: RequestRefused) -> None:
        """Raises UserError once so many were refused alike, before any was answered, that all of them will be."""
        if self.num_completions or (error.status in (400, 413, 422) and _OF_THE_CONTENT.search(str(error))):
            return
        self._refusals[error.status] += 1
        if self._refusals[error.status] >= _ALIKE_REFUSALS:
            raise UserError(
                f"{self.endpoint.url}: refused the first {_ALIKE_REFUSALS} requests with status {error.status} and "
                f"answered none; the last time: {error}. Check --base-url, --model, and the server or proxy in between."
            ) from None

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
        for _ in range(1 + _BODY_RETRIES):
            content = await self._post(self._body(request, structured))
            completion = _read_completion(content)
            if completion:
                self.num_completions += 1
                return completion
        text = self.endpoint.redact(content.decode("utf-8", "replace"))[:_QUOTED]
        raise ServerUnavailable(f"the server's answer is no chat completion: {text}")

    async def _post(self, body: dict[str, Any]) -> bytes:
        openai = self._openai
        try:
            # `cast_to=bytes` skips a third of the work of `chat.completions.create`; and what fails in here is the
            # request or the connection, never the reading of an answer.
            return await self._client.post("/chat/completions", cast_to=bytes, body=body, options=self._options)
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            raise UserError(self._explain(error)) from None
        except (openai.RateLimitError, openai.InternalServerError, openai.ConflictError) as error:
            raise ServerUnavailable(self._describe(error)) from None
        except openai.APIStatusError as error:
            if "max_completion_tokens" in str(error) and "max_tokens" in body:
                self._limit_name = "max_completion_tokens"
                limit = body.pop("max_tokens")
                return await self._post({**body, self._limit_name: limit})
            if error.status_code == 408:
                raise ServerUnavailable(self._describe(error)) from None
            raise RequestRefused(self._describe(error), error.status_code) from None
        except openai.APIConnectionError as error:  # time-outs included
            fault = self._describe_connection(error)
            if type(error.__cause__).__name__ not in _UNSENDABLE:
                raise ServerUnavailable(fault) from None
        except ValueError as error:  # no header, host name or body can be made of what was given
            fault = self._describe(error)
        raise self._unsendable(fault)  # out here, so that it carries no error that holds the key

    def _body(self, request: Request, structured: bool) -> dict[str, Any]:
        body: dict[str, Any] = {"model": request.model, "messages": request.messages}
        body[self._limit_name] = request.max_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if structured:
            schema = {"name": "answer", "schema": request.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def _http_client(self, timeout: float) -> Any:
        """The aiohttp transport of the openai package, with a slot held from the request's head to the answer's end.

        Neither the making of a request nor the pause before a retry takes a slot from those that are ready. Only a
        redirect goes through httpx's own `send`, which also knows authentication flows, hooks and cookies.
        """
        chat = self

        class SlottedClient(self._openai.DefaultAioHttpClient):
            async def send(self, request: Any, **options: Any) -> Any:
                async with chat._slots:
                    chat.num_requests += 1
                    transport = self._transport_for_url(request.url)  # one of the environment's proxies, maybe
                    async with aclosing(await transport.handle_async_request(request)) as response:
                        if not response.has_redirect_location:
                            await response.aread()
                            return response
                    return await super().send(request, **options)

        client = SlottedClient(timeout=timeout)
        for header in ("Accept", "Connection", "User-Agent"):  # the openai package brings its own to each request
            del client.headers[header]
        return client

    def _unsendable(self, fault: str) -> UserError:
        return UserError(
            f"{self.endpoint.url}: the request cannot be sent ({fault}). Check --base-url, --model, and the key in the "
            "environment variable that --api-key-env names."
        )

    def _describe(self, error: Exception) -> str:
        cause = f" ({type(error.__cause__).__name__}: {error.__cause__})" if error.__cause__ else ""
        return self.endpoint.redact(f"{type(error).__name__}: {error}{cause}")[:500]  # half a secret is one, too

    def _describe_connection(self, error: Exception) -> str:
        """The transport calls every failure to connect a time-out; the system knows better."""
        causes = [error]
        while causes[-1].__cause__:
            causes.append(causes[-1].__cause__)
        reason = causes[-1]
        if not isinstance(reason, OSError) or isinstance(reason, TimeoutError) or len(causes) < 2:
            return self._describe(error)
        return self.endpoint.redact(f"the connection failed: {type(reason).__name__}: {causes[-2]}")[:500]

    def _explain(self, error: Exception) -> str:
        remedy = {
            "AuthenticationError": "Check the key in the environment variable that --api-key-env names.",
            "PermissionDeniedError": "Check what the key may use.",
            "NotFoundError": "Check --base-url (it usually ends in /v1) and the model's name.",
        }[type(error).__name__]
        return f"{self.endpoint.url}: {self._describe(error)} {remedy}"


def _alike(client: type) -> type:
    """`client` of the openai package, for requests that differ in their bodies only.

    Making URL, headers and limits anew for each took a seventh of the CPU of a build.
    """

    class AlikeRequests(client):
        _first: Any = None

        def _build_request(self, options: Any, **attempt: Any) -> Any:
            if self._first is None:
                self._first = super()._build_request(options, **attempt)
                self._common = self._first.headers.copy()
                del self._common["Content-Length"]
                return self._first
            first, content = self._first, json.dumps(options.json_data).encode()
            return type(first)(
                first.method, first.url, headers=self._common, content=content, extensions=first.extensions
            )

    return AlikeRequests


def _read_completion(content: bytes) -> Completion | None:
    """None if it is not what the protocol promises: a body that was cut off, or a proxy's error page."""
    try:
        answer = json.loads(content)
        choice = answer["choices"][0]
        text = choice["message"].get("content")
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError):
        return None
    if not isinstance(text, str | None):
        return None
    text = (text or "").encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be stored
    return Completion(text, str(choice.get("finish_reason")), *_read_usage(answer.get("usage"), text))


def _read_usage(usage: object, text: str) -> tuple[int, int] | tuple[None, None]:
    """Prompt and answer tokens, however they are spelled; both None if one of them cannot be.

    An answer is worth more than the count that comes with it, so nothing in here makes it unreadable.
    """
    usage = usage if isinstance(usage, dict) else {}
    prompt, completion = (_read_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    usable = prompt and completion is not None and (completion or not text)
    return (prompt, completion) if usable else (None, None)


def _read_count(value: object) -> int | None:
    """A whole number of tokens.

    >>> _read_count(" 9 "), _read_count(9.0), _read_count(-9), _read_count("many"), _read_count(True)
    (9, 9, None, None, None)
    """
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,12}(?:\.0*)?\s*", value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _MOST_TOKENS and value == int(value) else None


def _import_openai() -> Any:
    try:
        import aiohttp  # noqa: F401  the faster transport of the openai package
        import openai
    except ImportError as error:
        raise UserError(f"{error.name} is not installed. Run: pip install 'nemo_aopsd[data]'") from error
    return openai
