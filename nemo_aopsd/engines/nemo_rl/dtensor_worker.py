"""NeMo RL's DTensor training worker (version 1) with our teacher (see `teacher_mixin`)."""

from collections.abc import Iterator

import ray
from nemo_rl.models.policy.utils import get_runtime_env_for_policy_worker
from nemo_rl.models.policy.workers.dtensor_policy_worker import DTensorPolicyWorkerImpl
from torch import Tensor
from torch.distributed.tensor import DTensor

from nemo_aopsd.engines.nemo_rl.teacher_mixin import TeacherMixin


class TeacherDTensorWorkerImpl(TeacherMixin, DTensorPolicyWorkerImpl):
    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self.model.state_dict().items():
            yield name, weight.full_tensor() if isinstance(weight, DTensor) else weight


@ray.remote(runtime_env=get_runtime_env_for_policy_worker("dtensor_policy_worker"))
class TeacherDTensorWorker(TeacherDTensorWorkerImpl):
    pass
