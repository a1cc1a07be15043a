"""NeMo RL's Megatron training worker with our teacher (see `teacher_mixin`).

What is patched for a call NeMo RL looks up by name in its module, and has no argument for.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any
from unittest.mock import patch

import ray
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.megatron import train
from nemo_rl.models.policy.utils import get_runtime_env_for_policy_worker
from nemo_rl.models.policy.workers.megatron_policy_worker import MegatronPolicyWorkerImpl
from torch import Tensor

from nemo_aopsd.cluster import student_has_room
from nemo_aopsd.engines.nemo_rl import packed_rope
from nemo_aopsd.engines.nemo_rl.teacher_mixin import TeacherMixin, move_states
from nemo_aopsd.engines.nemo_rl.top_k import top_k_and_norm
from nemo_aopsd.engines.nemo_rl.top_k_loss import prepare


class TeacherMegatronWorkerImpl(TeacherMixin, MegatronPolicyWorkerImpl):
    student_bytes: float | None = None  # of vLLM's weights on this GPU; None where the optimizer always moves

    def __init__(self, *args: Any, **kwargs: Any):
        packed_rope.use()
        super().__init__(*args, **kwargs)

    @cached_property
    def pinned(self) -> dict[tuple[int, str], Tensor]:
        """Where each tensor of the optimizer waits while it is off the GPU."""
        return {}

    def move_model(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock("move_model"):
            return super().move_model(*args, **kwargs)

    def move_optimizer(self, device: str) -> None:
        """NeMo RL's, but through page-locked host memory, which is kept: a copy is several times as fast."""
        states = [state for _, state in self.optimizer.state.items()]
        on_gpu = any(torch.is_tensor(value) and value.is_cuda for state in states for value in state.values())
        with self.clock("move_optimizer"):
            if not (device == "cpu" and on_gpu and self.optimizer_stays):
                move_states(states, device, self.pinned)

    def keep_optimizer(self, student_bytes: float) -> None:
        """From now on it stays on the GPU, if vLLM and its student aside, of so many bytes, have room beside it."""
        self.student_bytes = student_bytes

    @cached_property
    def optimizer_stays(self) -> bool:
        """Decided once, with the whole state on the GPU, no gradients and vLLM asleep, by each rank for itself.

        The weights may still be there. They leave before vLLM takes all of its share, but not before its own weights.
        """
        if self.student_bytes is None:
            return False
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        share = self.cfg["generation"]["vllm_cfg"]["gpu_memory_utilization"] * total
        moved = (buffer.param_data for buffer in (*self.model.buffers, *self.model.expert_parallel_buffers))
        weights = sum(data.untyped_storage().nbytes() for data in moved if data is not None)  # 0 once they are gone
        left = free - max(share - weights, 0)
        stays = student_has_room(self.student_bytes, left)
        where = "stays on the GPU" if stays else "moves to host memory"
        print(f"aopsd.keep_optimizer_on_gpu: the state {where}; {left / 1e9:.1f} GB are left beside it and vLLM")
        return stays

    def stream_weights_via_ipc_zmq(self, **kwargs: Any) -> None:
        self.gather_weights()
        super().stream_weights_via_ipc_zmq(**kwargs)

    def gather_weights(self) -> None:
        """Give every rank all of the last update, before weights are read without a forward.

        With overlap_param_gather a data-parallel rank has only its own share of an update, and old weights otherwise,
        until the next forward gathers them. NeMo RL v0.7.0 refits vLLM before that (its pull request 4086).
        """
        if self._forward_pre_hook_enabled():
            self.disable_forward_pre_hook()  # it gathers, once and at once
            self.enable_forward_pre_hook()

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        self.gather_weights()
        yield from self.megatron_bridge.export_hf_weights([self.model], show_progress=False)

    def train(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        with patch.object(train, "prepare_loss_input", prepare):
            return super().train(*args, **kwargs)

    def get_topk_logits(self, **kwargs: Any) -> BatchedDataDict:
        """NeMo RL's, of the teacher, with what `top_k_and_norm` puts into the last two of its k columns."""
        with patch.object(train, "distributed_vocab_topk", top_k_and_norm), self.use_reference_model():
            return super().get_topk_logits(**kwargs)


@ray.remote(runtime_env=get_runtime_env_for_policy_worker("megatron_policy_worker"))
class TeacherMegatronWorker(TeacherMegatronWorkerImpl):
    pass
