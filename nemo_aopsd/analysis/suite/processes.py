"""`aopsd train` in separate processes, a few at a time. A failed one does not affect the others."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nemo_aopsd.analysis.suite.folder import Run, current_config, share_evaluation
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_write

# The parent holds the other end of the child's stdin: it closes however the parent ends, and the child ends with it.
CHILD = """\
import os, signal, threading
from nemo_aopsd.cli import main
def end_with_the_parent():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end_with_the_parent, daemon=True).start()
main()
"""
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class Failure:
    """`reason` is the last line of the log that says something."""

    run: Run
    reason: str


@dataclass(slots=True)
class Active:
    """A process at work."""

    run: Run
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    started: float
    slot: int


class Pool:
    """Up to `jobs` runs at a time; `threads` each. `base` finds the run whose first evaluation a run may share.

    `tell` gets a line when a run is started, done or has failed.
    """

    def __init__(self, jobs: int, threads: int, base: Callable[[Run], Run | None], tell: Callable[[str], None]):
        self.jobs, self.threads, self.base, self.tell = jobs, threads, base, tell
        self.gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        self.active: list[Active] = []

    def work(self, runs: Sequence[Run]) -> list[Failure]:
        """All runs, those that others wait for first; a run that fails is told and left. Ends with no process alive."""
        waiting, failures, num_ended = list(runs), [], 0
        try:
            while waiting or self.active:
                ended: list[tuple[Run, str | None]] = []
                for run in self._startable(waiting):
                    waiting.remove(run)
                    try:
                        self._start(run)
                        self.tell(f"started {run.label}")
                    except UserError as error:
                        ended.append((run, str(error)))
                time.sleep(0.1)
                for active in [active for active in self.active if active.process.poll() is not None]:
                    ended.append((active.run, self._end(active)))
                for run, reason in ended:
                    num_ended += 1
                    failures += [] if reason is None else [Failure(run, reason)]
                    self.tell(
                        f"{num_ended}/{len(runs)} {'done' if reason is None else 'failed'} {run.label}"
                        + (f": {reason}" if reason else "")
                    )
        finally:
            self._stop()
        return failures

    def _startable(self, waiting: Sequence[Run]) -> list[Run]:
        pending = {*waiting, *(active.run for active in self.active)}
        free = [run for run in waiting if self.base(run) in {None, run} or self.base(run) not in pending]
        return free[: self.jobs - len(self.active)]

    def _start(self, run: Run) -> None:
        config = current_config(run)
        base = self.base(run)
        if base not in (None, run):
            share_evaluation(base, run, config)
        run.log.parent.mkdir(parents=True, exist_ok=True)
        log = run.log.open("ab")
        arguments = run.arguments()
        log.write(f"$ aopsd {shlex.join(arguments)}\n".encode())
        log.flush()
        slot = next(slot for slot in itertools.count() if slot not in {active.slot for active in self.active})
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | self._environment(slot),
        )
        self.active.append(Active(run, process, log, time.monotonic(), slot))

    def _environment(self, slot: int) -> dict[str, str]:
        own = {"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
        return own | ({"CUDA_VISIBLE_DEVICES": self.gpus[slot % len(self.gpus)]} if self.gpus else {})

    def _end(self, active: Active) -> str | None:
        """Why the run failed; None if it is done."""
        self._release(active)
        code = active.process.returncode
        if code:
            return last_words(active.run.log, code)
        record = {"seconds": time.monotonic() - active.started}  # since it was started, or resumed
        atomic_write(active.run.finished_file, json.dumps(record) + "\n")
        return None

    def _release(self, active: Active) -> None:
        self.active.remove(active)
        assert active.process.stdin, "it was opened as a pipe"
        active.process.stdin.close()
        active.log.close()

    def _stop(self) -> None:
        for active in self.active:
            active.process.terminate()
        for active in list(self.active):
            try:
                active.process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                active.process.kill()
                active.process.wait()
            self._release(active)


def last_words(log: Path, code: int) -> str:
    """Why a process with this exit code ended: a signal, and the last line of its log."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = lines[-1] if lines and not lines[-1].startswith("$ aopsd") else "nothing in its log"
    return f"killed by signal {-code}; {said}" if code < 0 else said
