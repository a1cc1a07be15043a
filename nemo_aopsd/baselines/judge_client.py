"""Chat completions from the judge's servers: requests go to each server in turn.

The judge is the policy's own vLLM (NeMo RL's OpenAI-compatible server, vllm_worker_async.py) or any other such server.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from nemo_aopsd.chat.client import ChatClient, RequestRefused, ServerUnavailable
from nemo_aopsd.chat.endpoint import parse_endpoint, read_key
from nemo_aopsd.chat.protocol import Completion, Request
from nemo_aopsd.engine import Message
from nemo_aopsd.errors import UserError

_WORKERS = "vllm_policy-"  # name_prefix of VllmGeneration (vllm_generation.py); worker_groups.py appends the place
_REPORT = "report_dp_openai_server_base_url"
_URLS = "env.aopsd_progress.judge.base_urls"
_KEY = "env.aopsd_progress.judge.api_key_env"
_DISCOVERY_SECONDS = 60
_MAX_RETRIES = 3
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


class JudgeClient:
    """Belongs to the event loop of its first request. Environment proxies are used only for URLs that a user named."""

    def __init__(self, settings: JudgeSettings):
        self.settings = settings
        self._slots = asyncio.Semaphore(settings.concurrency)  # of all servers together
        self._opening = asyncio.Lock()
        self._clients: list[ChatClient] = []  # made with the first request
        self._turns: Iterator[ChatClient] = iter(())

    async def complete(self, messages: Sequence[Message]) -> Completion | None:
        """One answer, from the next server in turn; None if prompt and answer do not fit into its context.

        Raises UserError, naming the server, if it cannot be reached, goes on failing, or refuses the request; the
        first within four times `connect_timeout` and some seconds.
        """
        await self._open()
        settings, client = self.settings, next(self._turns)
        options: dict[str, Any] = {"top_p": settings.top_p}
        if settings.chat_template_kwargs:
            options["chat_template_kwargs"] = dict(settings.chat_template_kwargs)
        request = Request(settings.model, list(messages), settings.max_new_tokens, settings.temperature, None, options)
        try:
            async with self._slots:
                completion = await client.complete(request)
        except RequestRefused as error:
            if "maximum context length" in str(error):  # vLLM's words, vllm/renderers/params.py
                return None
            url, remedy = client.endpoint.url, client.endpoint.settings
            raise UserError(f"{url}: the judge refused the request: {error} Check {remedy}.") from None
        except ServerUnavailable as error:
            own = "env.aopsd_progress.judge has temperature and top_p of policy.generation and its top_k is null"
            check = f"Check that the server runs and, if it is NeMo RL's own, that {own}: else it answers with HTTP 500"
            slow = "If it was too slow, raise .timeout or lower .concurrency."
            raise UserError(f"{client.endpoint.url}: no answer from the judge: {error}. {check}. {slow}") from None
        # NeMo RL's server shortens an answer for which the context has no room.
        written = completion.usage[1] if completion.usage else None
        is_short = written is not None and written < settings.max_new_tokens
        return None if completion.finish_reason == "length" and is_short else completion

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def _open(self) -> None:
        async with self._opening:
            if self._clients:
                return
            settings = self.settings
            urls = settings.base_urls or await asyncio.to_thread(discover_servers)
            key = _key(settings.api_key_env)
            remedy = f"env.aopsd_progress.judge (model {settings.model!r}, base_urls, api_key_env)"
            self._clients = [
                ChatClient(
                    parse_endpoint(url, key, option=_URLS, settings=remedy),
                    concurrency=settings.concurrency,
                    timeout=settings.timeout,
                    connect_timeout=settings.connect_timeout,
                    max_retries=_MAX_RETRIES,
                    retry_timeouts=False,
                    use_proxies=bool(settings.base_urls),
                )
                for url in urls
            ]
            self._turns = itertools.cycle(self._clients)


def discover_servers() -> list[str]:
    """Base URLs of the policy's own vLLM servers, one a data-parallel rank, in the order of their workers' names.

    An environment gets no handle of the policy, and is made before it. But every worker is a named actor of the job's
    namespace (worker_groups.py), and its leaders know their server. Raises UserError if there is none.
    """
    names = sorted(name for name in ray.util.list_named_actors() if name.startswith(_WORKERS))
    if not names:
        remedy = "Use policy.generation.backend=vllm, or name another judge in env.aopsd_progress.judge.base_urls."
        raise UserError(f"found no Ray actor named {_WORKERS}*, so the policy's own vLLM cannot judge. {remedy}")
    reports = [getattr(ray.get_actor(name), _REPORT, None) for name in names]  # none of a synchronous vLLM
    try:
        reported = ray.get([report.remote() for report in reports if report], timeout=_DISCOVERY_SECONDS)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError) as error:
        found = f"the policy's vLLM workers ({', '.join(names)}) did not say where they serve"
        raise UserError(f"{found}: {type(error).__name__}. See their logs.") from error
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
