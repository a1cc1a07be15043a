"""Our additions to workers, as mixins in front of NeMo RL's classes.

They give each run its own socket between trainer and vLLM. A trainer loads the initial weights as NeMo RL's
`reference`. Here this reference is the teacher, and it can be streamed to vLLM and hashed. Its garbage collections skip
what lives as long as the worker, and what they, copies and swaps cost is counted.
"""

import gc
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from nemo_aopsd.clock import Clock
from nemo_aopsd.profiling import profiled

_PAGE = 4096  # bytes


class OwnRefitSocket:
    """Where the trainer hands its weights to vLLM. Both sides are on one node, under one raylet of this Ray cluster.

    NeMo RL v0.7.0 names the socket after the GPU alone (`base_policy_worker.py`, `vllm_backend.py`), so that two runs
    which share a GPU read each other's weights without an error.
    """

    report_device_id: Callable[[], str]  # the worker's own

    def get_zmq_address(self) -> str:
        return f"ipc:///tmp/{os.environ['RAY_RAYLET_PID']}-{self.report_device_id()}.sock"


class TeacherMixin(OwnRefitSocket):
    """Stands before a worker class with `use_reference_model()` and `stream_weights_via_ipc_zmq(...)`."""

    @cached_property
    def clock(self) -> Clock:
        """Seconds since `take_seconds`: `collect` (the garbage collector), `swap_teacher`, moves between devices."""
        clock, started = Clock(), 0.0

        def on_collection(phase: str, _info: dict[str, int]) -> None:
            nonlocal started
            if phase == "start":
                started = time.perf_counter()
            else:
                clock.add("collect", time.perf_counter() - started)

        gc.callbacks.append(on_collection)
        return clock

    def take_seconds(self) -> dict[str, float]:
        return self.clock.take()

    def freeze_heap(self) -> None:
        """Leave all objects that are alive out of later collections.

        NeMo RL collects about seven times a step, and each one walks through all modules that were ever imported.
        """
        gc.collect()
        gc.freeze()

    @profiled("update")
    def train(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return cast(Any, super()).train(*args, **kwargs)

    @contextmanager
    def use_reference_model(self) -> Iterator[None]:
        """As NeMo RL's, but the student also comes back after an error."""
        swap = cast(Any, super()).use_reference_model()
        with self.clock("swap_teacher"):
            swap.__enter__()
        try:
            yield
        finally:
            with self.clock("swap_teacher"):
                swap.__exit__(None, None, None)

    def stream_reference_weights_via_ipc_zmq(self, **kwargs: Any) -> None:
        """Send the teacher's weights where `stream_weights_via_ipc_zmq` sends the student's."""
        with self.use_reference_model():
            cast(Any, self).stream_weights_via_ipc_zmq(**kwargs)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Whole Hugging Face tensors of the weights that the model has now, in the same order on every rank."""
        raise NotImplementedError

    def weight_digests(self, teacher: bool) -> dict[str, str]:
        """SHA-256 of name, shape and bytes of this rank's share of the weights, which is every world_size-th one."""
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        with self.use_reference_model() if teacher else nullcontext():
            weights = enumerate(self.named_weights())
            return {name: _digest(name, weight) for i, (name, weight) in weights if i % size == rank}

    def export_weights(self, directory: str) -> None:
        """Write the student as safetensors; one rank writes, all take part."""
        from huggingface_hub import save_torch_state_dict

        is_writer = torch.distributed.get_rank() == 0
        weights = {}
        for name, weight in self.named_weights():  # a collective operation: every rank goes through all of it
            if is_writer:
                weights[name] = weight.cpu()
        if is_writer:
            save_torch_state_dict(weights, Path(directory))


def _digest(name: str, weight: Tensor) -> str:
    digest = hashlib.sha256(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
    digest.update(weight.detach().flatten().cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def move_states(states: Iterable[dict[str, Any]], device: str, kept: dict[tuple[int, str], Tensor]) -> None:
    """Move the tensors of an optimizer to `cuda` or `cpu`; `kept` is the host memory where each of them waits."""
    for place, state in enumerate(states):
        for name, value in state.items():
            if not torch.is_tensor(value) or value.is_cuda == (device == "cuda"):
                continue
            if device == "cuda":
                state[name] = value.to("cuda", non_blocking=True)
                continue
            host = kept.get((place, name))
            if host is None or (host.shape, host.dtype) != (value.shape, value.dtype):
                host = kept[place, name] = _page_locked_like(value)
            host.copy_(value, non_blocking=True)
            state[name] = host
    torch.cuda.synchronize()


def _page_locked_like(value: Tensor) -> Tensor:
    """An uninitialised host tensor on pages of its own, which are locked if the driver can.

    Torch's own pinned memory is of powers of two, up to twice the size: too much for an optimizer.
    """
    size = value.nbytes + -value.nbytes % _PAGE
    raw = torch.empty(size + _PAGE, dtype=torch.uint8)
    start = -raw.data_ptr() % _PAGE
    if size:
        runtime: Any = torch.cuda.cudart()
        runtime.cudaHostRegister(raw.data_ptr() + start, size, 0)  # unlocked pages are only slower
    return raw[start : start + value.nbytes].view(value.dtype).view(value.shape)
