"""The parent process: it sends requests to one process per GPU, and receives each response when it is complete.

CUDA is never touched here: a process that has opened a GPU cannot hand it over.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, Queue

from nemo_aopsd.console import counted, slow
from nemo_aopsd.engines.vllm_only.worker import Found, Gpu, Request, Task, work
from nemo_aopsd.errors import UserError, first_line
from nemo_aopsd.types import Generation, Sampling, Tokens

_STEP = 2048  # tokens by which the longest row of the processes grows, so that they seldom start anew
_LOOK = 1.0  # seconds between looks at whether the processes live
_GRACE = 10.0  # seconds to wait for a killed process; a hung driver can keep it for longer
_GO_ON = "vLLM's messages are above. Finished samples are kept: fix the cause, then run the same command again."
_SHARE = " Its gpu_memory_utilization is our option --gpu-memory."


@dataclass(frozen=True, slots=True)
class Worker:
    """The process of one GPU, and our end of its pipe.

    No queue of multiprocessing: such a queue makes the exit of this process wait until the other side has read all,
    and a process that is killed while it writes can hold the queue's lock for ever. A pipe ends with its process.
    """

    gpu: Gpu
    process: subprocess.Popen[bytes]
    pipe: Connection

    def exchange(self, task: Task, results: Results) -> None:
        """Hand over the task and pass on what comes, None if the process ends first. For a thread: either may wait."""
        try:
            with suppress(OSError):  # it has ended; what it said before is still to be read
                self.pipe.send(task)
            for _ in task.requests:
                results.put((self, self.pipe.recv()))
        except (EOFError, OSError):
            results.put((self, None))

    def kill(self) -> None:
        """The process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if it does not end."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None


Results = Queue[tuple[Worker, Found | str | None]]  # a response, a failure, or an end


class VLLMModel:
    """Processes start with the first responses asked for, and again only if longer rows come."""

    def __init__(
        self,
        path: Path,
        gpus: Sequence[Gpu],
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
        atexit.register(self.close)  # the GPUs are free when the command returns

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
        except BaseException:  # also if the consumer stops early: nobody needs the rest
            self.close()
            raise

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.kill()
        deadline = time.monotonic() + _GRACE
        for worker in self.workers:
            worker.wait(max(0.0, deadline - time.monotonic()))
        self.workers, self.length = [], 0

    def _answers(self, requests: list[Request], sampling: Sampling) -> Iterator[tuple[int, Generation]]:
        self._start(max(len(request.prompt) + request.max_new_tokens for request in requests))
        results: Results = Queue()
        for start, worker in enumerate(self.workers):
            task = Task(sampling, requests[start :: len(self.workers)])
            threading.Thread(target=worker.exchange, args=(task, results), daemon=True).start()
        with slow(f"starting vLLM on {counted(len(self.gpus), 'GPU')}, until the first response"):
            first = self._next(results)
        yield first
        for _ in requests[1:]:
            yield self._next(results)

    def _start(self, needed: int) -> None:
        if needed <= self.length:
            return
        self.close()
        self.length = min(self.longest_row, -(-needed // _STEP) * _STEP)
        for gpu in self.gpus:
            arguments = (gpu, str(self.path), self.length, self.memory_share, self.end_ids)
            self.workers.append(start_worker(gpu, self.target, arguments))

    def _next(self, results: Results) -> Found:
        while True:
            for worker in self.workers:
                if worker.process.poll() is not None:
                    worker.kill()  # what it started may hold the pipe open, which then would not end
            with suppress(Empty):
                worker, found = results.get(timeout=_LOOK)
                break
        if isinstance(found, tuple):
            return found
        end = f": {found.rstrip('.')}" if found else f" {_ending(worker.wait(_LOOK))} before all responses were there"
        share = _SHARE if found and re.search("gpu.memory.utilization", found, re.IGNORECASE) else ""
        raise UserError(f"vLLM on GPU {worker.gpu.name}{end}.{share} {_GO_ON}")


def start_worker(gpu: Gpu, target: Callable[..., None], arguments: tuple) -> Worker:
    """A process that calls `target(*arguments, pipe)`, in a session of its own, which is what `kill` ends."""
    ours, theirs = multiprocessing.Pipe()
    ours.send((target, arguments))  # small, so it lies in the pipe until the process is there
    with theirs:
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from nemo_aopsd.engines.vllm_only.worker import main; "
            f"main({theirs.fileno()}, {os.getpid()})"
        )
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],  # what it printed is there however it ends
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return Worker(gpu, process, ours)


def _ending(code: int | None) -> str:
    if code is None:
        return "stopped answering"
    hint = "; memory may have run out" if code == -signal.SIGKILL else ""
    return f"was ended by signal {-code}{hint}" if code < 0 else f"ended with exit code {code}"


def visible_gpus() -> list[Gpu]:
    """What CUDA_VISIBLE_DEVICES names (numbers, UUIDs or their beginnings, MIG names), else all that there are.

    Of a GPU that is split, "all" means its parts. Raises UserError if there is none, or a name is not there.
    """
    named, gpus = os.environ.get("CUDA_VISIBLE_DEVICES"), list[Gpu]()
    if named is None:
        present = _present()
        split = {gpu.index for gpu in present if gpu.name.startswith("MIG-")}
        gpus = [gpu for gpu in present if gpu.name.startswith("MIG-") or gpu.index not in split]
    for name in filter(None, map(str.strip, (named or "").split(","))):
        if name == "-1":
            break  # as CUDA, which looks no further
        present = [Gpu(name, name)] if name.isdecimal() else _present()
        found = [gpu for gpu in present if gpu.name.startswith(name)]
        if len(found) != 1:
            names = ", ".join(gpu.name for gpu in present) or "none"
            fits = f"CUDA_VISIBLE_DEVICES names {name!r}, which fits {len(found)} GPUs"
            raise UserError(f"--engine vllm: {fits}. Give numbers, or names of these: {names}.")
        gpus += found
    if not gpus:
        raise UserError("--engine vllm: no GPU is visible. Check CUDA_VISIBLE_DEVICES, or leave --engine out.")
    return gpus


def _present() -> list[Gpu]:
    """The driver's list: each GPU, followed by its parts if it is split."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"--engine vllm: nvidia-smi found no GPU ({first_line(error)}). Check the driver.") from error
    gpus: list[Gpu] = []
    for number, name in re.findall(r"^(?:GPU (\d+):|\s+MIG ).*\(UUID: (\S+)\)", listed, re.MULTILINE):
        gpus.append(Gpu(name, number or gpus[-1].index))
    return gpus
