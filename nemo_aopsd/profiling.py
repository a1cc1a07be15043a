"""Where an update's time goes: `AOPSD_PROFILE=DIR aopsd train ...` profiles each update of each training process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

FOLDER = "AOPSD_PROFILE"


@contextmanager
def profiled(stage: str) -> Iterator[None]:
    """Write a table of operations and a trace (https://ui.perfetto.dev reads it) of what is inside; also a decorator.

    Files are `STAGE_rankR_N.txt` and `.json.gz`, N the first that is free. Nothing happens without the variable.
    Tracing makes the stage longer, by a third say where it launches many small kernels.
    """
    if not (folder := os.environ.get(FOLDER)):
        yield
        return
    import torch
    from torch.profiler import profile

    with profile(acc_events=True) as seen:
        yield
    distributed = torch.distributed
    rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    Path(folder).mkdir(parents=True, exist_ok=True)
    names = (Path(folder, f"{stage}_rank{rank}_{number}.txt") for number in count(1))
    table = next(path for path in names if not path.exists())
    order = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    table.write_text(seen.key_averages().table(sort_by=order, row_limit=60), encoding="utf-8")
    seen.export_chrome_trace(str(table.with_suffix(".json.gz")))
