"""The parent's side: requests go to the process of one GPU each, responses come back as they are complete.

CUDA is never touched here: a process that has opened a GPU cannot hand it over.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from nemo_aopsd.config_schema import first_line
from nemo_aopsd.engines.vllm_only.worker import Failure, Request, Response, work
from nemo_aopsd.errors import UserError
from nemo_aopsd.hf_tokenizer import HFTokenizer
from nemo_aopsd.types import Generation, Sampling, Tokens

_STEP = 2048  # tokens by which the longest row of the processes grows, so that they seldom start anew
_PATIENCE = 5.0  # seconds between looks at whether the processes live


@dataclass(slots=True)
class VLLMModel:
    """`longest_row`: tokens of prompt and response that the model was made for."""

    path: Path
    gpus: Sequence[str]
    longest_row: int
    end_ids: list[int]
    target: Any = work  # what a process runs; tests put another one here

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
        if requests:
            yield from self._run(requests, sampling)

    def _run(self, requests: list[Request], sampling: Sampling) -> Iterator[tuple[int, Generation]]:
        needed = max(len(request.prompt) + request.max_new_tokens for request in requests)
        length = min(self.longest_row, -(-needed // _STEP) * _STEP)
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        shares = [share for start in range(len(self.gpus)) if (share := requests[start :: len(self.gpus)])]
        processes = [
            context.Process(  # no daemon, for vLLM starts a process of its own
                target=self.target,
                args=(gpu, str(self.path), length, self.end_ids, sampling, share, results),
                name=f"vllm on GPU {gpu}",
            )
            for gpu, share in zip(self.gpus, shares, strict=False)  # fewer requests than GPUs
        ]
        try:
            for process in processes:
                process.start()
            for _ in requests:
                response = _next(results, processes)
                yield response.index, Generation(response.tokens, response.finished)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.terminate()
                    process.join()


def _next(results: Any, processes: Sequence[Any]) -> Response:
    while True:
        failed = [process for process in processes if process.exitcode not in (None, 0)]
        try:
            found = results.get(timeout=_PATIENCE)
        except Empty:
            if failed or all(process.exitcode == 0 for process in processes):
                codes = ", ".join(f"{process.name}: exit code {process.exitcode}" for process in processes)
                raise UserError(
                    f"vLLM stopped before all responses were there ({codes}); its own messages are above. What is "
                    "sampled is kept; start the same command to go on."
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
