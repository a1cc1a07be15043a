"""The parent's side: requests go to the process of one GPU each, responses come back as they are complete.

CUDA is never touched here: a process that has opened a GPU cannot hand it over.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from nemo_aopsd.config.keys import first_line
from nemo_aopsd.engines.vllm_only.worker import Failure, Request, Response, Task, work
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.tokenizer import HFTokenizer
from nemo_aopsd.types import Generation, Sampling, Tokens

_STEP = 2048  # tokens by which the longest row of the processes grows, so that they seldom start anew
_PATIENCE = 5.0  # seconds between looks at whether the processes live


@dataclass(frozen=True, slots=True)
class Worker:
    process: Any  # multiprocessing.Process
    inbox: Any  # its queue of tasks


class VLLMModel:
    """Processes start with the first responses asked for, and again only if longer rows come."""

    def __init__(
        self,
        path: Path,
        gpus: Sequence[str],
        longest_row: int,
        end_ids: list[int],
        memory_share: float,
        target: Callable[..., None] = work,
    ):
        """`longest_row`: tokens of prompt and response that the model was made for; `memory_share` is of each GPU.

        `target` is what a process runs.
        """
        self.path, self.gpus, self.longest_row, self.end_ids = path, gpus, longest_row, end_ids
        self.memory_share, self.target = memory_share, target
        self.workers: list[Worker] = []
        self.length = 0  # tokens of the longest row that the workers take
        self.context = multiprocessing.get_context("spawn")
        self.results: Any = None

    def stream(self, prompts: list[Tokens], sampling: Sampling, seeds: list[int]) -> Iterator[tuple[int, Generation]]:
        """(index, response) as they end; row i goes to GPU i modulo their number.

        A row stops at `longest_row`, then unfinished. Raises UserError if a process fails or dies.
        """
        room = [min(sampling.max_new_tokens, self.longest_row - len(prompt)) for prompt in prompts]
        yield from ((index, Generation([], False)) for index, tokens in enumerate(room) if tokens <= 0)
        requests = [
            Request(index, prompt, tokens, seed)
            for index, (prompt, tokens, seed) in enumerate(zip(prompts, room, seeds, strict=True))
            if tokens > 0
        ]
        try:
            if requests:
                yield from self._answers(requests, sampling)
        except BaseException:  # also a consumer that stops early: what the workers still do is for nobody
            self.close()
            raise

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join()
        self.workers, self.length = [], 0

    def _answers(self, requests: list[Request], sampling: Sampling) -> Iterator[tuple[int, Generation]]:
        self._start(max(len(request.prompt) + request.max_new_tokens for request in requests))
        for start, worker in enumerate(self.workers):
            worker.inbox.put(Task(sampling, requests[start :: len(self.workers)]))
        for _ in requests:
            response = self._next()
            yield response.index, Generation(response.tokens, response.finished)

    def _start(self, needed: int) -> None:
        if needed <= self.length:
            return
        self.close()
        self.length = min(self.longest_row, -(-needed // _STEP) * _STEP)
        self.results = self.context.Queue()
        for gpu in self.gpus:
            inbox = self.context.Queue()
            arguments = (gpu, str(self.path), self.length, self.memory_share, self.end_ids, inbox, self.results)
            process = self.context.Process(target=self.target, args=arguments, name=f"vllm on GPU {gpu}", daemon=True)
            process.start()
            self.workers.append(Worker(process, inbox))

    def _next(self) -> Response:
        while True:
            dead = [worker.process for worker in self.workers if not worker.process.is_alive()]
            try:
                found = self.results.get(timeout=_PATIENCE)
            except Empty:
                if dead:  # before the wait, so whatever it had put into the queue would have come
                    raise UserError(
                        f"{dead[0].name} ended with exit code {dead[0].exitcode} before all responses were there; its "
                        "own messages are above. What is sampled is kept; start the same command to go on."
                    ) from None
                continue
            if isinstance(found, Failure):
                raise UserError(f"vLLM on GPU {found.gpu}: {found.message} Its own messages are above.")
            return found


def check_installed() -> None:
    """Raise UserError without vLLM."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "--engine vllm: vLLM is not installed. Run: pip install 'vllm==0.20.0', or leave --engine out for the "
            "local engine."
        )


def visible_gpus() -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES, one a GPU: the variable's own, or the driver's list. UserError if none."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [name.strip() for name in named.split(",") if name.strip()] if named is not None else _all_gpus()
    if not gpus:
        raise UserError(
            "--engine vllm: no GPU to be seen. Check CUDA_VISIBLE_DEVICES and nvidia-smi, or leave --engine out for "
            "the local engine."
        )
    return gpus


def _all_gpus() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"--engine vllm: nvidia-smi found no GPU ({first_line(error)}). Check the driver.") from error
    return listed.split()


def load_tokenizer(path: Path) -> HFTokenizer:
    """The tokenizer with the model's end tokens. Raises UserError if there is none."""
    from transformers import AutoTokenizer, GenerationConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no usable tokenizer: {first_line(error)}. Check the folder.") from error
    ends = None
    if (path / "generation_config.json").is_file():
        ends = GenerationConfig.from_pretrained(str(path)).eos_token_id
    return HFTokenizer(tokenizer, [] if ends is None else ends if isinstance(ends, list) else [ends])
