"""Hidden states of whole responses, and the batches that they are computed in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from nemo_aopsd.engines.local.kv import LineKV
from nemo_aopsd.engines.local.network import Network
from nemo_aopsd.types import Tokens


def response_hidden(
    network: Network, prompts: list[Tokens], responses: list[Tokens], keep_kv: bool = False
) -> tuple[Tensor, Tensor, DynamicCache | LineKV | None]:
    """Of all responses in one list: the hidden state before each token [N, H], the tokens [N]; keys and values."""
    rows = list(zip(prompts, responses, strict=True))
    hidden, kv = network.prefill([prompt + response for prompt, response in rows], keep_kv)
    before = [states[len(p) - 1 : len(p) + len(r) - 1] for states, (p, r) in zip(hidden, rows, strict=True)]
    targets = torch.tensor([token for response in responses for token in response], dtype=torch.long)
    return torch.cat(before), targets.to(network.device), kv


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
