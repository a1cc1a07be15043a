"""Stand-ins for the process of a GPU: what it does is decided by the prompts. Top level, for `spawn` imports it."""

import os
import time

from nemo_aopsd.engines.vllm_only.worker import Failure, Response, next_task

DIE, FAIL, SLOW = 666, 667, 668


def work(gpu, path, max_model_len, memory_share, end_ids, inbox, out):
    """Answers with [number of the GPU, longest row, seed, prompt..., end], the last request first."""
    while (task := next_task(inbox)) is not None:
        for request in reversed(task.requests):
            if DIE in request.prompt:
                os._exit(9)
            if FAIL in request.prompt:
                out.put(Failure(gpu, "ValueError: no room for the KV cache."))
                raise SystemExit(1)
            if SLOW in request.prompt:
                time.sleep(60)
            tokens = [int(gpu), max_model_len, request.seed, *request.prompt, *end_ids]
            out.put(Response(request.index, tokens[: request.max_new_tokens], True))
