"""Our code inside each vLLM worker, called by `collective_rpc`."""

from collections.abc import Iterator
from typing import Any

import torch
from nemo_rl.models.generation.vllm.vllm_backend import VllmInternalWorkerExtension
from torch import Tensor

from nemo_aopsd.cluster import student_has_room
from nemo_aopsd.engines.nemo_rl import branch_forward, vllm_patches
from nemo_aopsd.engines.nemo_rl.branch_runner import Batch
from nemo_aopsd.engines.nemo_rl.teacher_mixin import OwnRefitSocket

_KNOWN = ("_parameters", "_buffers", "_modules", "kv_cache")


class WeightBankExtension(OwnRefitSocket, VllmInternalWorkerExtension):
    """NeMo RL's extension, and a frozen teacher's weights in host memory that can take the student's place.

    Copies are made in place: captured CUDA graphs hold the addresses of the weights. The student waits on the GPU where
    that has room, for as long as the teacher is shown: a copy within the GPU takes a twentieth of one to the host.
    """

    def score_rows(self) -> None:
        vllm_patches.score_rows()

    def take_scores(self) -> list[vllm_patches.Scores]:
        return vllm_patches.take_scores(self.model_runner)

    def why_no_branches(self) -> str | None:
        return branch_forward.why_not(self.model_runner)

    def grow_branches(self, batch: Batch) -> Tensor:
        return branch_forward.grow(self.model_runner, batch)

    def score_branches(self, batch: Batch) -> Tensor:
        return branch_forward.score(self.model_runner, batch)

    def seed_sampler(self, seed: int) -> None:
        torch.manual_seed(seed)

    def refit_is_enough(self) -> bool:
        """Whether parameters and buffers are all that the model has on the GPU, but for its cache of keys and values.

        Sleep level 2 brings buffers back and a refit parameters. What a model computes of its weights when it is loaded
        and keeps elsewhere, only level 1 brings back.
        """
        model = self.model_runner.model
        known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        others = (value for part in model.modules() for name, value in vars(part).items() if name not in _KNOWN)
        found = (tensor for value in others for tensor in _tensors(value))
        return all(not tensor.is_cuda or tensor.untyped_storage().data_ptr() in known for tensor in found)

    def bank_teacher(self) -> None:
        """Remember the weights that the model has now as the teacher's."""
        self.teacher_bank = self._copy_aside({}, on_gpu=False)
        self.student_bank: dict[str, Tensor] = {}
        self.student_on_gpu = False

    def show_teacher(self, beside_trainer: bool) -> None:
        """Give the model the teacher's weights, the student's kept aside: not on the GPU if the trainer works there
        meanwhile.
        """
        size = sum(weight.nbytes for weight in self.model_runner.model.parameters())
        self.student_on_gpu = not beside_trainer and student_has_room(size, torch.cuda.mem_get_info()[0])
        self.student_bank = self._copy_aside(self.student_bank, self.student_on_gpu)
        self._copy_to_model(self.teacher_bank)

    def show_student(self) -> None:
        """Give the model back the weights that it had before `show_teacher`."""
        self._copy_to_model(self.student_bank)
        self.let_student_go()

    def let_student_go(self) -> None:
        """Free what the student kept aside takes of the GPU. Pinned memory stays: it is slow to come by."""
        if self.student_on_gpu:
            self.student_bank, self.student_on_gpu = {}, False
            torch.cuda.empty_cache()

    @torch.no_grad()
    def _copy_aside(self, bank: dict[str, Tensor], on_gpu: bool) -> dict[str, Tensor]:
        """Into the tensors of `bank`, where it has any."""
        for name, weight in self.model_runner.model.named_parameters():
            if name not in bank:
                place = {"device": weight.device} if on_gpu else {"pin_memory": weight.is_cuda}
                bank[name] = torch.empty(weight.shape, dtype=weight.dtype, **place)
            bank[name].copy_(weight, non_blocking=True)
        torch.cuda.synchronize()
        return bank

    @torch.no_grad()
    def _copy_to_model(self, bank: dict[str, Tensor]) -> None:
        for name, weight in self.model_runner.model.named_parameters():
            weight.copy_(bank[name], non_blocking=True)
        torch.cuda.synchronize()


def _tensors(value: Any) -> Iterator[Tensor]:
    """Of an attribute of a module: itself, or in a list, dictionary or plain object."""
    if isinstance(value, (list, tuple)):
        inside = value
    elif isinstance(value, dict):
        inside = value.values()
    else:
        inside = [value] if isinstance(value, Tensor) else vars(value).values() if hasattr(value, "__dict__") else []
    yield from (each for each in inside if isinstance(each, Tensor))
