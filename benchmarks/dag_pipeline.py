"""How close `aopsd dag build` comes to what its concurrency allows, with a local server that answers in 50 ms.

    python -m benchmarks.dag_pipeline

Ideal = answers x 50 ms / concurrency. The server is a process of its own on the same machine and takes its share.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from functools import partial
from pathlib import Path

from nemo_aopsd.dag_pipeline.endpoint import parse_endpoint
from nemo_aopsd.dag_pipeline.pipeline import Settings, build
from tests.chat_server import ChatServer
from tests.recorded import answer_well, write_problems

NUM_PROBLEMS, DELAY, CONCURRENCY = 1000, 0.05, 64


def serve(port, stop) -> None:
    with ChatServer(partial(answer_well, delay=DELAY)) as server:
        port.value = server.port
        stop.wait()


def main() -> None:
    context = multiprocessing.get_context("spawn")
    port, stop = context.Value("i", 0), context.Event()
    process = context.Process(target=serve, args=(port, stop))
    process.start()
    while not port.value:
        time.sleep(0.05)
    endpoint = parse_endpoint(f"http://127.0.0.1:{port.value}/v1", None)
    settings = Settings("m", concurrency=CONCURRENCY)
    with tempfile.TemporaryDirectory() as folder:
        for run, count in (("warm-up", 64), ("measured", NUM_PROBLEMS)):
            problems = write_problems(Path(folder) / f"{run}.jsonl", count)
            cpu = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            started = time.perf_counter()
            summary = build(problems, Path(folder) / f"{run}-dags.jsonl", endpoint, settings, lambda *_: None)
            seconds = time.perf_counter() - started
            cpu = resource.getrusage(resource.RUSAGE_SELF).ru_utime - cpu
            answers = summary["tokens_this_run"]["requests"]
            ideal = answers * DELAY / CONCURRENCY
            print(
                f"{run}: {count} problems, {summary['accepted']} accepted, {answers} answers in {seconds:.2f} s; "
                f"ideal {ideal:.2f} s, ratio {seconds / ideal:.2f}; {1000 * cpu / answers:.2f} ms of CPU an answer"
            )
    stop.set()
    process.join()


if __name__ == "__main__":
    main()
