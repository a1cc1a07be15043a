"""A GPU without enough memory, in the words of the config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nemo_aopsd.errors import UserError, first_line


@contextmanager
def gpu_memory(stage: str, keys: str) -> Iterator[None]:
    """Raise UserError with the `keys` that size `stage` where a GPU runs out of memory. Also a decorator."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"a GPU is out of memory while {stage}: {first_line(error)} Lower {keys}, or end what else uses the card "
            "(`nvidia-smi`). A run that has saved a checkpoint continues with --resume."
        ) from error
