"""How close `aopsd dag build` comes to what its concurrency allows, with a local server of known delay.

    python -m benchmarks.dag_pipeline

Ideal = answers x delay / concurrency. The server is a process of its own on the same machine and takes its share.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from functools import partial
from pathlib import Path

from nemo_aopsd.chat.endpoint import parse_endpoint
from nemo_aopsd.graphs.pipeline.pipeline import Settings, build
from tests.chat_server import ChatServer
from tests.recorded import answer_well, write_problems

NUM_PROBLEMS, CONCURRENCY, DELAYS = 1000, 64, (0.05, 0.1, 0.2)


def serve(delay, port, stop) -> None:
    with ChatServer(partial(answer_well, delay=delay)) as server:
        port.value = server.port
        stop.wait()


def measure(url: str, count: int, delay: float, label: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        problems = write_problems(Path(folder) / "problems.jsonl", count)
        settings = Settings("m", concurrency=CONCURRENCY)
        cpu, started = time.process_time(), time.perf_counter()
        summary = build(problems, Path(folder) / "dags.jsonl", parse_endpoint(url, None), settings, lambda *_: None)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    answers = summary["tokens_this_run"]["requests"]
    ideal = answers * delay / CONCURRENCY
    print(
        f"{label}: {count} problems, {summary['accepted']} accepted, {answers} answers in {seconds:.2f} s; "
        f"ideal {ideal:.2f} s, ratio {seconds / ideal:.2f}; {1000 * cpu / answers:.2f} ms of CPU an answer"
    )


def main() -> None:
    context = multiprocessing.get_context("spawn")
    for delay in DELAYS:
        port, stop = context.Value("i", 0), context.Event()
        process = context.Process(target=serve, args=(delay, port, stop))
        process.start()
        while not port.value:
            time.sleep(0.05)
        url = f"http://127.0.0.1:{port.value}/v1"
        measure(url, CONCURRENCY, delay, "warm-up")
        measure(url, NUM_PROBLEMS, delay, f"{1000 * delay:.0f} ms")
        stop.set()
        process.join()


if __name__ == "__main__":
    main()
