"""The process of one GPU: vLLM's engine, all requests at once, each response sent back when it is complete.

Written against vLLM 0.20.0: `LLMEngine.from_engine_args`, `add_request`, `step` (vllm/v1/engine/llm_engine.py).
"""

import ctypes
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from nemo_aopsd.errors import first_line
from nemo_aopsd.types import Generation, Sampling, Tokens

Found = tuple[int, Generation]  # a request's index and its response

_LOOK = 0.5  # seconds between looks at whether the parent lives


@dataclass(frozen=True, slots=True)
class Gpu:
    """`name` is for CUDA_VISIBLE_DEVICES; `index` is the driver's number, of the whole GPU if this is a part (MIG)."""

    name: str
    index: str


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


def main(descriptor: int, parent: int) -> None:
    """A worker from start to end, the leader of its own process group, with `descriptor` its end of the pipe.

    What comes first through the pipe says what to do. Any failure is sent back, as text; nothing outlives it or the
    `parent`.
    """
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    pipe = Connection(descriptor)
    try:
        target, arguments = pipe.recv()
        target(*arguments, pipe)
    except BaseException as error:  # any error, also sys.exit: the parent must be told
        traceback.print_exc()
        pipe.send(f"{type(error).__name__}: {first_line(error)}")
    finally:
        _end()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:  # also a killed parent, and while the main thread loads a model
        time.sleep(_LOOK)
    _end()


def _end() -> None:
    os.killpg(0, signal.SIGKILL)  # this process and all that it started, without exit handlers that could wait


def work(gpu: Gpu, path: str, max_model_len: int, memory_share: float, end_ids: list[int], pipe: Connection) -> None:
    """Answer each Task that comes through `pipe` with what `Found` says for each request."""
    show(gpu)  # before vLLM looks for devices
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process is enough, and starts sooner
    engine = open_engine(path, max_model_len, memory_share)
    with suppress(EOFError):  # the parent is gone
        while True:
            answer(engine, end_ids, pipe.recv(), pipe.send)


def show(gpu: Gpu) -> None:
    """Let this process see one GPU. CUDA takes numbers, UUIDs and MIG names, but vLLM 0.20 reads numbers alone.

    So vLLM always finds a number. CUDA reads the variable once, when it starts: a part of a GPU is opened by its name
    before. vLLM asks the number for the kind of GPU and the size by which it chooses batches, CUDA for free memory.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu.name
    if gpu.name == gpu.index:
        return
    if gpu.name.startswith("MIG-") and (code := ctypes.CDLL("libcuda.so.1").cuInit(0)):
        raise RuntimeError(f"CUDA cannot open {gpu.name} (cuInit gives {code})")
    os.environ |= {"CUDA_VISIBLE_DEVICES": gpu.index, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as the driver counts


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


def answer(engine: Any, end_ids: list[int], task: Task, send: Callable[[Found], None]) -> None:
    """Add all requests, then step until none is left."""
    for request in task.requests:
        params = sampling_params(task.sampling, request, end_ids)
        engine.add_request(str(request.index), {"prompt_token_ids": request.prompt}, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                completion = output.outputs[0]
                response = Generation(list(completion.token_ids), completion.finish_reason == "stop")
                send((int(output.request_id), response))


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
