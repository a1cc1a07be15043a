"""Where an update's time goes: `AOPSD_PROFILE=DIR aopsd train ...` profiles one update of each training process."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = "AOPSD_PROFILE"
PROFILED = 3  # the first compiles and allocates, and what follows it may still
_calls = Counter[str]()  # of each stage, in this process


@contextmanager
def profiled(stage: str) -> Iterator[None]:
    """Write a table of operations and a trace (https://ui.perfetto.dev reads it) of what is inside; also a decorator.

    Of the third time alone, into `STAGE_rankR.txt` and `.json.gz`: tracing makes it longer, by a third say where it
    launches many small kernels. Nothing happens without the variable.
    """
    folder = os.environ.get(FOLDER)
    _calls[stage] += folder is not None
    if not folder or _calls[stage] != PROFILED:
        yield
        return
    import torch
    from torch.profiler import profile

    with profile(acc_events=True) as seen:
        yield
    distributed = torch.distributed
    rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    Path(folder).mkdir(parents=True, exist_ok=True)
    table = Path(folder, f"{stage}_rank{rank}.txt")
    order = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    table.write_text(seen.key_averages().table(sort_by=order, row_limit=60), encoding="utf-8")
    seen.export_chrome_trace(str(table.with_suffix(".json.gz")))
