"""Our code inside each vLLM worker, called by `collective_rpc`."""

from __future__ import annotations

import torch
from nemo_rl.models.generation.vllm.vllm_backend import VllmInternalWorkerExtension
from torch import Tensor

from nemo_aopsd.engines.nemo_rl import vllm_patches
from nemo_aopsd.engines.nemo_rl.teacher_mixin import OwnRefitSocket


class WeightBankExtension(OwnRefitSocket, VllmInternalWorkerExtension):
    """NeMo RL's extension, and a frozen teacher's weights in host memory that can take the student's place.

    Copies are made in place: captured CUDA graphs hold the addresses of the weights.
    """

    def keep_prompt_tails(self) -> None:
        vllm_patches.keep_prompt_tails()

    def seed_sampler(self, seed: int) -> None:
        torch.manual_seed(seed)

    def bank_teacher(self) -> None:
        """Remember the weights that the model has now as the teacher's."""
        self.teacher_bank = self._copy_to_host({})
        self.student_bank: dict[str, Tensor] = {}

    def show_teacher(self) -> None:
        """Give the model the teacher's weights, the student's kept aside."""
        self.student_bank = self._copy_to_host(self.student_bank)
        self._copy_to_model(self.teacher_bank)

    def show_student(self) -> None:
        """Give the model back the weights that it had before `show_teacher`."""
        self._copy_to_model(self.student_bank)

    @torch.no_grad()
    def _copy_to_host(self, bank: dict[str, Tensor]) -> dict[str, Tensor]:
        for name, weight in self.model_runner.model.named_parameters():
            if name not in bank:
                bank[name] = torch.empty(weight.shape, dtype=weight.dtype, pin_memory=weight.is_cuda)
            bank[name].copy_(weight, non_blocking=True)
        torch.cuda.synchronize()
        return bank

    @torch.no_grad()
    def _copy_to_model(self, bank: dict[str, Tensor]) -> None:
        for name, weight in self.model_runner.model.named_parameters():
            weight.copy_(bank[name], non_blocking=True)
        torch.cuda.synchronize()
