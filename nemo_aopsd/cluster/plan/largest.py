"""The largest batch: tokens of a micro-batch that training memory takes, rows of a step that vLLM's caches hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nemo_aopsd.cluster.doctor import memory
from nemo_aopsd.cluster.doctor.fit import FULL
from nemo_aopsd.cluster.plan.stages import Setup
from nemo_aopsd.cluster.plan.workload import Workload

_FINEST = 1024  # tokens


@dataclass(frozen=True)
class Largest:
    """`pack_tokens` is 0 where not even the smallest pack fits. Both are None on the local engine: not counted."""

    pack_tokens: int | None
    rows: int | None


def find_largest(setup: Setup, work: Workload) -> Largest:
    """More rows than these still run: vLLM lets the rest wait, and probes read pushed-out prefixes again."""
    if setup.is_local:
        return Largest(None, None)
    return Largest(_pack_tokens(setup), setup.engines * setup.rows_at_once)


def _pack_tokens(setup: Setup) -> int:
    """By bisection: training memory grows with the pack."""

    def fits(tokens: int) -> bool:
        layout = replace(setup.layout, pack_tokens=tokens)
        return memory.total(memory.items(setup.size, layout), "gpu", memory.TRAIN) <= FULL * setup.gpu.memory

    low, high = 0, 1024  # in units of _FINEST
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * _FINEST) else (low, middle - 1)
    return low * _FINEST
