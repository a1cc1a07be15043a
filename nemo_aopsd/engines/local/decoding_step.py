"""One token for every running row: eagerly, or on a GPU as a CUDA graph of fixed shape."""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_aopsd.engines.local.kv import FixedKVBuffer, KVBuffer
from nemo_aopsd.engines.local.network import Network
from nemo_aopsd.errors import UserError


class EagerStep:
    """Reads the columns written so far. Rows are dropped as soon as an eighth of them has ended."""

    buffer = KVBuffer
    min_running = 0.875

    def __init__(self, network: Network, kv: KVBuffer, mask: Tensor):
        """`mask` [R, 1, 1, columns + room] hides each prompt's padding."""
        self.network, self.kv, self.mask = network, kv, mask

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [R, H] of `tokens` [R] at `positions` [R]; the buffer grows by one column."""
        mask = self.mask[..., : self.kv.length + 1]
        return self.network.extend(tokens[:, None], mask, positions[:, None], self.kv)[:, 0]


class GraphStep:
    """Reads the whole buffer, so that one graph serves every step: a launch each instead of one per kernel.

    A graph is captured anew whenever the buffer changes, which costs about two eager steps: rows are dropped by half.
    """

    buffer = FixedKVBuffer
    min_running = 0.5

    def __init__(self, network: Network, kv: FixedKVBuffer, mask: Tensor):
        self.network, self.kv, self.mask = network, kv, mask
        self.hidden_value = torch.finfo(mask.dtype).min
        self.mask[..., kv.length :] = self.hidden_value
        num_rows, device = len(mask), mask.device
        self.tokens, self.positions = torch.zeros(2, num_rows, 1, dtype=torch.long, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.is_warm = False

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """As `EagerStep`. The first call runs eagerly, which a capture needs; the result is valid until the next."""
        column = self.kv.length
        self.mask[..., column] = 0
        self.kv.cursor.fill_(column)
        self.tokens.copy_(tokens[:, None])
        self.positions.copy_(positions[:, None])
        if not self.is_warm:
            self.hidden, self.is_warm = self._extend(), True
        else:
            if self.graph is None:
                self.graph = self._capture()
            self.graph.replay()
        self.kv.length = column + 1
        return self.hidden

    def _extend(self) -> Tensor:
        return self.network.extend(self.tokens, self.mask, self.positions, self.kv)[:, 0]

    def _capture(self) -> torch.cuda.CUDAGraph:
        # Not `torch.cuda.graph`, which empties the allocator's cache every time.
        pool = self.network.first_graph.pool()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    self.hidden = self._extend()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            raise UserError(
                f"{type(self.network.causal_lm).__name__}: a decoding step cannot be captured as a CUDA graph: "
                f"{str(error).splitlines()[0]}. Set policy.enforce_eager=true."
            ) from error
        torch.cuda.current_stream().wait_stream(stream)
        return graph
