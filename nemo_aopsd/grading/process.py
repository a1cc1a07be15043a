"""Grading processes with a kill timer, kept for reuse: no main thread, no signal, no importable `__main__` needed.

A thread or an alarm in the caller could not stop a computation in C, and an alarm works only in the main thread. The
processes are plain children with pipes and not `multiprocessing`'s, which daemonic processes may not have.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

SECONDS = 60.0  # for one comparison; the process is killed then. Its budget ends it long before, on any machine
_START_SECONDS = 120.0  # for loading sympy on a busy machine
_MOST_IDLE = 4


class GradingTimeout(Exception):
    """The comparison took longer than SECONDS; its process was killed."""


class GradingCrash(Exception):
    """The grading process died, or the comparison raised."""


class GradingProcess:
    """One child. Not to be used by two threads at a time."""

    def __init__(self) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; from nemo_aopsd.grading.worker import main; main()"
        self._child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdin and self._child.stdout  # they are pipes
        self._requests, self._replies = self._child.stdin, self._child.stdout
        os.set_blocking(self._replies.fileno(), False)
        self._ready = False

    def ask(self, request: dict[str, str], seconds: float) -> Any:
        """The verdict on one request. Raises GradingTimeout or GradingCrash; after the former the child is dead."""
        if not self._ready:
            self._read(_START_SECONDS)
            self._ready = True
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        except OSError as error:
            self.kill()
            raise GradingCrash(f"the grading process has ended: {error}") from error
        reply = self._read(seconds)
        if "error" in reply:
            raise GradingCrash(reply["error"])
        return reply["verdict"]

    def is_alive(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._requests, self._replies):
            with suppress(BrokenPipeError):  # a request that the child no longer reads; it is closed all the same
                pipe.close()

    def forget(self) -> None:
        """In a forked copy of the owner: close the inherited ends, or the child would outlive its owner."""
        for pipe in (self._requests, self._replies):
            os.close(pipe.fileno())
        self._child.returncode = 0

    def _read(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        descriptor = self._replies.fileno()
        poll = select.poll()  # not `select`, which fails on descriptors above 1023
        poll.register(descriptor, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self.kill()
                raise GradingTimeout(f"no verdict within {seconds:g} s")
            piece = os.read(descriptor, 65536)
            if not piece:
                self.kill()
                raise GradingCrash(f"the grading process ended with code {self._child.returncode}")
            line += piece
        return json.loads(line)


class GradingPool:
    """Idle children for any number of threads. A thread that finds none idle starts one, so none waits for another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[GradingProcess] = []
        self._all: set[GradingProcess] = set()

    def ask(self, operation: str, predicted: str, gold: str, seconds: float = SECONDS) -> bool | None:
        """One verdict. Raises GradingTimeout or GradingCrash, after which the pool goes on working."""
        child = self._take()
        try:
            return child.ask({"operation": operation, "predicted": predicted, "gold": gold}, seconds)
        except GradingCrash:
            raise
        except BaseException:  # also an interrupt: a late reply must not be taken for that to the next request
            child.kill()
            raise
        finally:
            self._give_back(child)

    def close(self) -> None:
        with self._lock:
            children, self._all, self._idle = self._all, set(), []
        for child in children:
            child.kill()

    def forget(self) -> None:
        """Start anew in a forked copy of the owner, whose lock may have been held by a thread that is gone."""
        children, self._lock, self._all, self._idle = self._all, threading.Lock(), set(), []
        for child in children:
            child.forget()

    def _take(self) -> GradingProcess:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.is_alive():
                    return child
                self._all.discard(child)
            child = GradingProcess()
            self._all.add(child)
            return child

    def _give_back(self, child: GradingProcess) -> None:
        with self._lock:
            if child in self._all and child.is_alive() and len(self._idle) < _MOST_IDLE:
                self._idle.append(child)
                return
            self._all.discard(child)
        child.kill()


POOL = GradingPool()
atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL.forget)
