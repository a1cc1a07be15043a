"""Where NeMo RL's versions differ, and the two places where it has to be told of our workers.

Written against v0.7.0; `main` of autumn 2026 keeps the names used here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY, USE_SYSTEM_EXECUTABLE
from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
from nemo_rl.models.generation.vllm import vllm_generation


def register_worker(ours: str, parent: str) -> str:
    """Let Ray start the class named `ours` with the interpreter of `parent`; returns `ours`.

    A name of its own would get a virtual environment of its own, several GB built at start. In the container the
    parent's is there already, in NEMO_RL_VENV_DIR. NEMO_RL_PY_EXECUTABLES_SYSTEM=1 holds for DTensor's worker too,
    which NeMo RL leaves out.
    """
    if USE_SYSTEM_EXECUTABLE:
        ACTOR_ENVIRONMENT_REGISTRY[ours] = PY_EXECUTABLES.SYSTEM
        return ours
    prebuilt = Path(os.environ.get("NEMO_RL_VENV_DIR", "/opt/ray_venvs"), parent, "bin", "python")
    uses_venv = ACTOR_ENVIRONMENT_REGISTRY[parent].startswith("uv")
    ACTOR_ENVIRONMENT_REGISTRY[ours] = (
        str(prebuilt) if uses_venv and prebuilt.is_file() else ACTOR_ENVIRONMENT_REGISTRY[parent]
    )
    return ours


@contextmanager
def generation_worker(name: str) -> Iterator[None]:
    """While this lasts, a new `VllmGeneration` starts workers of the class `name`.

    `VllmGeneration.__init__` names its class itself and lets only ModelOpt's resolver change it.
    """
    resolver = vllm_generation.resolve_generation_worker_cls
    vllm_generation.resolve_generation_worker_cls = lambda default, config: name
    try:
        yield
    finally:
        vllm_generation.resolve_generation_worker_cls = resolver
