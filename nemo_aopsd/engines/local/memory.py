"""Batches that fit into memory, and a GPU that has too little, in the words of the config."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from nemo_aopsd.errors import UserError, first_line

BYTES = "policy.precision to bfloat16"  # where weights themselves do not fit


@contextmanager
def gpu_memory(stage: str, keys: str) -> Iterator[None]:
    """Raise UserError with the `keys` that size `stage` where a GPU runs out of memory. Also a decorator."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        remedy = f"Lower {keys}, or end what else uses the card (`nvidia-smi`). A run continues with --resume."
        raise UserError(f"a GPU is out of memory while {stage}: {first_line(error)}. {remedy}") from error


def batches(
    indices: Sequence[int], lengths: Sequence[int], size: int, max_tokens: int | None = None
) -> Iterator[list[int]]:
    """`indices` in batches of about equal length, longest first, so that a lack of memory shows at once.

    A batch has `size` rows, or with `max_tokens` as many as fit, padded to the longest; at least one.
    """
    order = sorted(indices, key=lambda index: (-lengths[index], index))
    start = 0
    while start < len(order):
        rows = size if max_tokens is None else max(1, max_tokens // max(1, lengths[order[start]]))
        yield order[start : start + rows]
        start += rows
