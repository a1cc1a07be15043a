"""Seconds: by name, and as people say them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """`with clock("judge"): ...` adds to `clock.seconds["judge"]`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """The seconds so far, and begin anew."""
        taken, self.seconds = self.seconds, {}
        return taken


def duration(seconds: float) -> str:
    """4.2 s, 42 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
