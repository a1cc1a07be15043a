"""The process of one GPU: vLLM's engine, all requests at once, each response sent back when it is complete.

Written against vLLM 0.20.0: `LLMEngine.from_engine_args`, `add_request`, `step` (vllm/v1/engine/llm_engine.py).
"""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from queue import Empty
from typing import Any

from nemo_aopsd.config.keys import first_line
from nemo_aopsd.types import Sampling, Tokens

_PATIENCE = 5.0  # seconds between looks at whether the parent lives


@dataclass(frozen=True, slots=True)
class Request:
    index: int
    prompt: Tokens
    max_new_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Task:
    """Requests that share a way of decoding; `max_new_tokens` is each request's own."""

    sampling: Sampling
    requests: list[Request]


@dataclass(frozen=True, slots=True)
class Response:
    """`finished`: it ended with an end token, which is the last of `tokens`."""

    index: int
    tokens: Tokens
    finished: bool


@dataclass(frozen=True, slots=True)
class Failure:
    gpu: str
    message: str


def work(
    gpu: str, path: str, max_model_len: int, memory_share: float, end_ids: list[int], inbox: Any, out: Any
) -> None:
    """Answer each Task of the queue `inbox`: a Response for each request, or one Failure, into the queue `out`."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before vLLM looks for devices
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # no process of vLLM's own, which could outlive this one
    try:
        engine = open_engine(path, max_model_len, memory_share)
        while (task := next_task(inbox)) is not None:
            answer(engine, end_ids, task, out)
    except Exception as error:  # whatever it is, the parent must hear of it; the traceback is printed below
        out.put(Failure(gpu, f"{type(error).__name__}: {first_line(error)}"))
        raise


def next_task(inbox: Any) -> Task | None:
    """The next task, whenever it comes; None once the parent is gone, killed say."""
    while _parent_lives():
        try:
            return inbox.get(timeout=_PATIENCE)
        except Empty:
            continue
    return None


def open_engine(path: str, max_model_len: int, memory_share: float) -> Any:
    """vLLM's engine on the one visible GPU, in the precision of the model's own config."""
    from vllm import EngineArgs, LLMEngine

    return LLMEngine.from_engine_args(
        EngineArgs(
            model=path,
            max_model_len=max_model_len,
            gpu_memory_utilization=memory_share,
            generation_config="vllm",  # the model's own sampling defaults (a repetition penalty, say) must not creep in
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
    )


def answer(engine: Any, end_ids: list[int], task: Task, out: Any) -> None:
    """Add all requests, then step until none is left or the parent is gone."""
    for request in task.requests:
        params = sampling_params(task.sampling, request, end_ids)
        engine.add_request(str(request.index), {"prompt_token_ids": request.prompt}, params)
    while engine.has_unfinished_requests() and _parent_lives():
        for output in engine.step():
            if output.finished:
                completion = output.outputs[0]
                finished = completion.finish_reason == "stop"
                out.put(Response(int(output.request_id), list(completion.token_ids), finished))


def sampling_params(sampling: Sampling, request: Request, end_ids: list[int]) -> Any:
    """Exactly `sampling`; a greedy one ignores top-p and top-k, as in the local engine."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    cuts = {} if sampling.temperature == 0 else {"top_p": sampling.top_p, "top_k": sampling.top_k}
    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=request.max_new_tokens,
        seed=request.seed,
        stop_token_ids=end_ids,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        **cuts,
    )


def _parent_lives() -> bool:
    parent = multiprocessing.parent_process()
    return parent is None or parent.is_alive()
