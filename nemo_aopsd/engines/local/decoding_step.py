"""One token for every running row: eagerly, or on a GPU as a CUDA graph of fixed shape."""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nemo_aopsd.engines.local.kv import FixedKVBuffer, KVBuffer
from nemo_aopsd.engines.local.network import Network
from nemo_aopsd.errors import UserError

# Elsewhere cuDNN is off: it plans 70 ms for every shape that it meets, and keeps all plans. Here shapes recur.
ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
SPARE = 2**28  # bytes of the card that a capture may need: it cannot take back what the allocator caches


class EagerStep:
    """Reads the columns written so far. Rows are dropped as soon as an eighth of them has ended."""

    buffer = KVBuffer
    room = 256  # columns by which the buffer grows at least
    min_running = 0.875
    few = 1  # rows, of which fewer take as long
    looks_every = 1  # steps from one look at who has ended to the next
    merges_attention = False

    def __init__(self, network: Network, kv: KVBuffer, mask: Tensor):
        """`mask` [R, 1, 1, columns + room] hides each prompt's padding."""
        self.network, self.kv, self.mask = network, kv, mask

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [R, H] of `tokens` [R] at `positions` [R]; the buffer grows by one column."""
        mask = self.mask[..., : self.kv.length + 1]
        return self.network.extend(tokens[:, None], mask, positions[:, None], self.kv)[:, 0]


class GraphStep:
    """Reads the whole buffer, so that one graph serves every step: a launch each instead of one per kernel.

    A graph is captured anew whenever the buffer changes, which takes an eager step's time: rows are dropped by half.
    """

    buffer = FixedKVBuffer
    room = 64  # all of it is read
    min_running = 0.5
    few = 16  # bound by its number of kernels, a step of fewer takes about as long; dropping leaves a multiple of it
    looks_every = 8  # the device is not waited for in between
    merges_attention = True

    def __init__(self, network: Network, kv: FixedKVBuffer, mask: Tensor):
        """As `EagerStep`. The mask here hides the columns that are not written yet, too."""
        self.network, self.kv, self.mask = network, kv, mask.clone()
        self.mask[..., kv.length :] = torch.finfo(mask.dtype).min
        self.tokens, self.positions = torch.zeros(2, len(mask), 1, dtype=torch.long, device=mask.device)
        self.hidden = torch.empty(0, device=mask.device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """As `EagerStep`; the result is valid until the next call."""
        column = self.kv.length
        self.mask[..., column] = 0
        self.kv.cursor.fill_(column)
        self.tokens.copy_(tokens[:, None])
        self.positions.copy_(positions[:, None])
        if self.mask.shape not in self.network.warmed_up:  # as a capture needs all libraries to be for its shapes
            self.network.warmed_up.add(self.mask.shape)
            self.hidden = self._extend()
        else:
            self.graph = self.graph or self._capture()
            self.graph.replay()
        self.kv.length = column + 1
        return self.hidden

    def _extend(self) -> Tensor:
        with sdpa_kernel(ATTENTION, set_priority=True):
            return self.network.extend(self.tokens, self.mask, self.positions, self.kv)[:, 0]

    def _capture(self) -> torch.cuda.CUDAGraph:
        # Not `torch.cuda.graph`, which empties the allocator's cache every time.
        if torch.cuda.mem_get_info(self.mask.device)[0] < SPARE:
            torch.cuda.empty_cache()
        owner, stream = self.network.graph_memory
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=owner.pool(), capture_error_mode="thread_local")
                try:
                    self.hidden = self._extend()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            reason = error.__context__ or error  # ending a capture that has failed raises again, and says less
            if isinstance(reason, torch.OutOfMemoryError):
                raise reason from None
            what = f"a decoding step cannot be captured as a CUDA graph: {str(reason).splitlines()[0]}"
            remedy = "Set policy.enforce_eager=true, or evaluate with --engine vllm."
            raise UserError(f"{type(self.network.causal_lm).__name__}: {what}. {remedy}") from error
        torch.cuda.current_stream().wait_stream(stream)
        return graph


Step = EagerStep | GraphStep
