"""Stand-ins for the process of a GPU: what it does is decided by the prompts; at top level, where it finds it."""

import os
import signal
import subprocess
import time

from nemo_aopsd.types import Generation

FAIL, DIE, KILLED, SLOW, PARENT = 666, 667, 668, 669, 670


def work(gpu, path, max_model_len, memory_share, end_ids, pipe):
    """Answers with [number of the GPU, longest row, seed, prompt..., end], the last request first."""
    while True:
        try:
            requests = reversed(pipe.recv().requests)
        except EOFError:
            return
        for request in requests:
            if FAIL in request.prompt:
                raise ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.")
            if DIE in request.prompt:
                os._exit(9)
            if KILLED in request.prompt:  # in the middle of a long message
                os.write(pipe.fileno(), (1_000_000).to_bytes(4, "big") + b"half")
                os.kill(os.getpid(), signal.SIGKILL)
            if SLOW in request.prompt:
                time.sleep(600)
            tokens = [int(gpu.name), max_model_len, request.seed, *request.prompt, *end_ids]
            if PARENT in request.prompt:
                tokens = [os.getpid(), child_holding(pipe)]
            pipe.send((request.index, Generation(tokens[: request.max_new_tokens], True)))


def child_holding(pipe):
    """A process that outlives its parent if it is let, as an engine's own may, and keeps the pipe open."""
    return subprocess.Popen(["sleep", "600"], pass_fds=[pipe.fileno()]).pid


def fail_before_reading(gpu, *_):
    """As vLLM 0.20 does when the GPU has a name that is no number."""
    raise ValueError(f"invalid literal for int() with base 10: '{gpu.name}'")


def hang_beside_a_failure(gpu, *_):
    """GPU 1 fails at once, GPU 0 loads for ever and takes no hint."""
    if gpu.name == "1":
        raise SystemExit("no model here")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
