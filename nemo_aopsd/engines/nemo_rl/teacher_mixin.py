"""Our addition to a training worker of either backend: a teacher that is always swapped out, streamed and hashed.

A mixin in front of NeMo RL's worker classes, which load the initial weights as `reference` and can take them in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from nemo_aopsd.engines.nemo_rl.refit_socket import OwnRefitSocket


class TeacherMixin(OwnRefitSocket):
    """Stands before a worker class with `use_reference_model()` and `stream_weights_via_ipc_zmq(...)`."""

    @contextmanager
    def use_reference_model(self) -> Iterator[None]:
        """NeMo RL's, which puts the student back only if nothing fails in between; this one always does."""
        swap = cast(Any, super()).use_reference_model()
        swap.__enter__()
        try:
            yield
        finally:
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
        if not teacher:
            return self._digests()
        with self.use_reference_model():
            return self._digests()

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

    def _digests(self) -> dict[str, str]:
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return {
            name: _digest(name, weight) for i, (name, weight) in enumerate(self.named_weights()) if i % size == rank
        }


def _digest(name: str, weight: Tensor) -> str:
    digest = hashlib.sha256(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
    digest.update(weight.detach().flatten().cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()
