"""NeMo RL's Megatron training worker with our teacher (see `teacher_mixin`)."""

from __future__ import annotations

from collections.abc import Iterator

import ray
from nemo_rl.models.policy.utils import get_runtime_env_for_policy_worker
from nemo_rl.models.policy.workers.megatron_policy_worker import MegatronPolicyWorkerImpl
from torch import Tensor

from nemo_aopsd.engines.nemo_rl.teacher_mixin import TeacherMixin


class TeacherMegatronWorkerImpl(TeacherMixin, MegatronPolicyWorkerImpl):
    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.megatron_bridge.export_hf_weights([self.model], show_progress=False)


@ray.remote(runtime_env=get_runtime_env_for_policy_worker("megatron_policy_worker"))
class TeacherMegatronWorker(TeacherMegatronWorkerImpl):
    pass
