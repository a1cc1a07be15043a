"""`aopsd train` in separate processes, a few at a time. A failed one does not affect the others."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from nemo_aopsd.analysis.suite.folder import Run, current_config, share_evaluation
from nemo_aopsd.clock import duration
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
_PAUSE = 0.1  # seconds between two looks at the processes
_EVERY = 300.0  # seconds between two lines on what is running


@dataclass(frozen=True, slots=True)
class Failure:
    """`reason` is the last line of the log that says something."""

    run: Run
    reason: str


class Pool:
    """Up to `jobs` runs at a time; `threads` each. `base` finds the run whose first evaluation a run may share.

    `tell` gets a line when a run starts, is done or has failed, and now and then one on what is running. Once a run
    that trains is done, the line of an ended one says how long the rest takes.
    """

    def __init__(
        self,
        jobs: int,
        threads: int,
        base: Callable[[Run], Run | None],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.jobs, self.threads, self.base, self.tell, self.clock = jobs, threads, base, tell, clock
        self.told = clock()
        self.gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        self.active: dict[int, tuple[Run, subprocess.Popen[bytes]]] = {}  # by slot, of which there are `jobs`
        self.begun: dict[Run, float] = {}  # by the clock
        self.took: list[float] = []  # seconds of runs that are done, without those that only evaluate the base

    def work(self, runs: Sequence[Run]) -> list[Failure]:
        """All runs, those that others wait for first. A failed run is told. Ends with no process alive."""
        waiting, failures, num_ended = list(runs), [], 0
        try:
            while waiting or self.active:
                ended: list[tuple[Run, str | None]] = []
                for run in self._startable(waiting):
                    waiting.remove(run)
                    try:
                        self._start(run)
                        self.begun[run] = self.clock()
                        self.tell(f"started {run.label}")
                    except UserError as error:
                        ended.append((run, str(error)))
                time.sleep(_PAUSE)
                self._tell_running()
                ended += self._ended()
                for run, reason in ended:
                    num_ended += 1
                    failures += [] if reason is None else [Failure(run, reason)]
                    if reason is None and self.base(run) != run:
                        self.took.append(self.clock() - self.begun[run])
                    outcome = f"done {run.label}" if reason is None else f"failed {run.label}: {reason}"
                    self.tell(f"{num_ended}/{len(runs)} {outcome}{self._left(len(waiting))}")
        finally:
            self._stop()
        return failures

    def _left(self, num_waiting: int) -> str:
        """How long the other runs take, each the mean of those that are done; empty if none is done or left."""
        if not self.took:
            return ""
        mean, now = fmean(self.took), self.clock()
        each = [max(0.0, mean - (now - self.begun[run])) for run, _ in self.active.values()] + [mean] * num_waiting
        seconds = max([sum(each) / self.jobs, *each])
        return f"; about {duration(seconds)} left, at {duration(mean)} a run" if seconds else ""

    def _startable(self, waiting: Sequence[Run]) -> list[Run]:
        pending = {*waiting, *(run for run, _ in self.active.values())}
        free = [run for run in waiting if self.base(run) in {None, run} or self.base(run) not in pending]
        return free[: self.jobs - len(self.active)]

    def _start(self, run: Run) -> None:
        config, base = current_config(run), self.base(run)
        if base not in (None, run):
            share_evaluation(base, run, config)
        slot = min(set(range(self.jobs)) - self.active.keys())
        own = {"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
        if self.gpus:
            own["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        arguments = run.arguments()
        with run.log.open("ab") as log:
            log.write(f"$ aopsd {shlex.join(arguments)}\n".encode())
            log.flush()
            command, env = [sys.executable, "-c", CHILD, *arguments], os.environ | own
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=env)
        self.active[slot] = run, process

    def _tell_running(self) -> None:
        if self.clock() - self.told >= _EVERY:
            self.told = self.clock()
            for run, _ in self.active.values():
                self.tell(f"running {run.label}: {last_words(run.log, 0)}")

    def _ended(self) -> Iterator[tuple[Run, str | None]]:
        """The runs whose processes have ended, and why one failed; None if it is done."""
        for slot, (run, process) in list(self.active.items()):
            if process.poll() is None:
                continue
            process.communicate()  # closes the pipe
            del self.active[slot]
            if not process.returncode:
                atomic_write(run.finished_file, "{}\n")
            yield run, last_words(run.log, process.returncode) if process.returncode else None

    def _stop(self) -> None:
        for _, process in self.active.values():
            process.terminate()
        for _, process in self.active.values():
            try:
                process.communicate(timeout=_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        self.active.clear()


def last_words(log: Path, code: int) -> str:
    """Why a process with this exit code ended: a signal, and the last line of its log, or its error's first one."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    lines = lines[max((at for at, line in enumerate(lines) if line.startswith("$ aopsd")), default=-1) + 1 :]
    errors = [line for line in lines if line.startswith("error: ")] if code == 2 else []
    said = [*lines, *errors][-1] if lines else "nothing in its log"
    return f"killed by signal {-code}; {said}" if code < 0 else said
