"""Chat completions from the judge's servers: spread over them, bounded, retried, and never waiting for ever.

The judge is the policy's own vLLM (NeMo RL's OpenAI-compatible server, vllm_worker_async.py) or any other such server.
Written on aiohttp, which Ray brings along; the openai package is not part of NeMo RL's driver environment, where
environments run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import ray

from nemo_aopsd.chat.endpoint import Endpoint, parse_endpoint, read_key
from nemo_aopsd.engine import Message
from nemo_aopsd.errors import UserError

_WORKERS = "vllm_policy-"  # name_prefix of VllmGeneration (vllm_generation.py); worker_groups.py appends the place
_REPORT = "report_dp_openai_server_base_url"
_URLS = "env.aopsd_progress.judge.base_urls"
_KEY = "env.aopsd_progress.judge.api_key_env"
_DISCOVERY_SECONDS = 60
_PAUSES = (0.5, 1.0, 2.0)  # seconds between tries
_SWITCHES = "policy.generation.vllm_cfg.async_engine=true and policy.generation.vllm_cfg.expose_http_server=true"


@dataclass  # not frozen: OmegaConf fills no list or dict of a frozen one
class JudgeSettings:
    """`env.aopsd_progress.judge`. `timeout` and `connect_timeout` are seconds a try; only the former is not retried.

    NeMo RL's server refuses any `temperature` and `top_p` but `policy.generation`'s.
    """

    base_urls: list[str] | None = None  # http://HOST:PORT/v1; null: the servers of the policy's own vLLM
    model: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 512
    num_retries: int = 1  # of a verdict that cannot be read
    max_attempt_chars: int = 60000
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    concurrency: int = 256
    timeout: float = 600.0
    connect_timeout: float = 10.0
    api_key_env: str | None = None  # the environment variable that holds the key


@dataclass(frozen=True, slots=True)
class Answer:
    """What the judge wrote. `no_room`: prompt and answer do not fit into its context; `text` is then cut or empty."""

    text: str
    no_room: bool = False


class JudgeClient:
    """Belongs to the event loop of its first request. Environment proxies are used only for URLs that a user named."""

    def __init__(self, settings: JudgeSettings):
        self.settings = settings
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._opening = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._endpoints: Iterator[Endpoint] = iter(())  # come with the first request

    async def complete(self, messages: Sequence[Message]) -> Answer:
        """One answer, from the next server in turn.

        Raises UserError, naming the server, if it cannot be reached, goes on failing, or refuses the request; the
        first within four times `connect_timeout` and some seconds.
        """
        session = await self._open()
        settings = self.settings
        body = {"model": settings.model, "messages": list(messages), "max_tokens": settings.max_new_tokens}
        body |= {"temperature": settings.temperature, "top_p": settings.top_p}
        if settings.chat_template_kwargs:
            body["chat_template_kwargs"] = dict(settings.chat_template_kwargs)
        endpoint = next(self._endpoints)
        async with self._slots:
            return await self._retried(session, endpoint, body)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _open(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._session is None:
                settings = self.settings
                urls = settings.base_urls or await asyncio.to_thread(discover_servers)
                key = _key(settings.api_key_env)
                self._endpoints = itertools.cycle([parse_endpoint(url, key, option=_URLS) for url in urls])
                self._session = aiohttp.ClientSession(
                    headers={"Authorization": f"Bearer {key}"} if key else {},
                    timeout=aiohttp.ClientTimeout(total=settings.timeout, connect=settings.connect_timeout),
                    connector=aiohttp.TCPConnector(limit=0),  # `_slots` limits
                    trust_env=bool(settings.base_urls),
                )
        return self._session

    async def _retried(self, session: aiohttp.ClientSession, endpoint: Endpoint, body: dict[str, Any]) -> Answer:
        url, fault = f"{endpoint.url.rstrip('/')}/chat/completions", ""
        for pause in (*_PAUSES, None):
            try:
                async with session.post(url, json=body, headers=endpoint.headers) as response:
                    status, text = response.status, await response.text(errors="replace")
            except aiohttp.ClientError as error:  # a connection that timed out included
                fault = f"{type(error).__name__}: {error}"
            except TimeoutError:
                raise UserError(
                    f"{url}: the judge took longer than {self.settings.timeout:g} seconds for one answer. Raise "
                    "env.aopsd_progress.judge.timeout or lower .concurrency, or see whether the server hangs."
                ) from None
            else:
                answer = self._read(endpoint, status, text)
                if isinstance(answer, Answer):
                    return answer
                fault = answer
            if pause is not None:
                await asyncio.sleep(pause)
        raise UserError(
            f"{url}: no answer from the judge in {len(_PAUSES) + 1} tries; the last: {fault}. Check that the server "
            "runs and, if it is NeMo RL's own, that env.aopsd_progress.judge has temperature and top_p of "
            "policy.generation and its top_k is null: it answers any other with HTTP 500."
        )

    def _read(self, endpoint: Endpoint, status: int, text: str) -> Answer | str:
        """The answer, or what is wrong with it if another try may help."""
        quoted = endpoint.redact(text)[:300]  # some servers repeat the key that they refuse
        if status == 200:
            return _read_completion(text, self.settings.max_new_tokens) or f"no chat completion but {quoted!r}"
        if status == 400 and "maximum context length" in text:  # vLLM's words, vllm/renderers/params.py
            return Answer("", no_room=True)
        if status >= 500 or status in (408, 409, 429):
            return f"HTTP {status}: {quoted}"
        raise UserError(
            f"{endpoint.url}: the judge refused the request with HTTP {status}: {quoted} Check "
            f"env.aopsd_progress.judge (model {self.settings.model!r}, base_urls, api_key_env)."
        )


def discover_servers() -> list[str]:
    """Base URLs of the policy's own vLLM servers, one a data-parallel rank, in the order of their workers' names.

    An environment gets no handle of the policy, and is made before it. But every worker is a named actor of the job's
    namespace (worker_groups.py), and its leaders know their server. Raises UserError if there is none.
    """
    names = sorted(name for name in ray.util.list_named_actors() if name.startswith(_WORKERS))
    if not names:
        raise UserError(
            f"found no Ray actor named {_WORKERS}*, so the policy's own vLLM cannot judge. Use "
            "policy.generation.backend=vllm, or name another judge in env.aopsd_progress.judge.base_urls."
        )
    workers = [ray.get_actor(name) for name in names]
    if not all(hasattr(worker, _REPORT) for worker in workers):
        raise UserError(f"the policy's vLLM ({names[0]}) is not asynchronous and serves no HTTP. Set {_SWITCHES}.")
    try:
        reported = ray.get([getattr(worker, _REPORT).remote() for worker in workers], timeout=_DISCOVERY_SECONDS)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError) as error:
        raise UserError(
            f"the policy's vLLM workers ({', '.join(names)}) did not say where they serve: {type(error).__name__}. "
            "See their logs."
        ) from error
    urls = [url for url in reported if url]  # workers that own no model have none
    if not urls:
        raise UserError(f"the policy's vLLM ({names[0]}) serves no HTTP. Set {_SWITCHES}.")
    return urls


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = read_key(variable, option=_KEY)
    if not key:
        raise UserError(f"{_KEY}: the environment variable {variable} is not set or blank. Export it.")
    return key


def _read_completion(text: str, max_new_tokens: int) -> Answer | None:
    """None if it is no chat completion. NeMo RL's server shortens an answer for which the context has no room."""
    try:
        completion = json.loads(text)
        choice = completion["choices"][0]
        content = choice["message"].get("content") or ""
        written = (completion.get("usage") or {}).get("completion_tokens")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(content, str):
        return None
    cut = choice.get("finish_reason") == "length" and isinstance(written, int) and written < max_new_tokens
    return Answer(content, no_room=cut)
