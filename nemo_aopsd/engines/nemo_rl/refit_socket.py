"""Where the trainer hands its weights to vLLM: a socket of this run's Ray cluster.

NeMo RL v0.7.0 names the socket after the GPU alone (`base_policy_worker.py`, `vllm_backend.py`), so that two runs which
share a GPU read each other's weights without an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable


class OwnRefitSocket:
    """A mixin before either worker class. Both sides of a socket are on one node, under one raylet."""

    report_device_id: Callable[[], str]  # the worker's own

    def get_zmq_address(self) -> str:
        return f"ipc:///tmp/{os.environ['RAY_RAYLET_PID']}-{self.report_device_id()}.sock"
