"""The NeMo RL engine on Hopper GPUs, one parallel layout a process, which these variables of the environment choose.

AOPSD_GPU_CONFIG     a config file; default examples/configs/aopsd_tiny_h100.yaml
AOPSD_GPU_OVERRIDES  over it, such as `cluster.gpus_per_node=2 policy.megatron_cfg.tensor_model_parallel_size=2`
AOPSD_GPU_REPORT     a file that gets one JSON line a measured figure
AOPSD_GPU_RUN        the run folder; default a temporary one
AOPSD_GPU_STEPS      steps to train before the resume; default 5
AOPSD_GPU_KILL       whose last worker is killed: `generation`, the sampler's (default), or `policy`, the trainer's
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
from pathlib import Path

import pytest
import torch

REPO = Path(__file__).parents[2]
CONFIG = REPO / os.environ.get("AOPSD_GPU_CONFIG", "examples/configs/aopsd_tiny_h100.yaml")
STEPS = int(os.environ.get("AOPSD_GPU_STEPS", "5"))
KILLED = os.environ.get("AOPSD_GPU_KILL", "generation")


def pytest_collection_modifyitems(items):
    reason = None
    if importlib.util.find_spec("nemo_rl") is None:
        reason = "nemo_rl cannot be imported"
    elif not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        reason = "needs a Hopper GPU"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))  # those of NeMo RL, vLLM and Megatron are not ours
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def overrides(tmp_path_factory):
    run = Path(os.environ.get("AOPSD_GPU_RUN", tmp_path_factory.mktemp("gpu") / "run"))
    ours = [f"logger.log_dir={run}", "aopsd.evaluation.data_path=null", "aopsd.max_num_epochs=1000"]
    return [*shlex.split(os.environ.get("AOPSD_GPU_OVERRIDES", "")), *ours]


@pytest.fixture(scope="session")
def config(overrides):
    from nemo_aopsd.config.load import load_config

    return load_config(CONFIG, overrides)


@pytest.fixture(scope="session")
def engine(config):
    from nemo_aopsd.engines import nemo_rl

    nemo_rl.check(config)
    return nemo_rl.build(config)


@pytest.fixture
def note(request):
    """Say a figure: on the terminal, and as a line of AOPSD_GPU_REPORT."""

    def say(**figures):
        line = json.dumps({"test": request.node.name, **figures})
        print(f"\n{line}")
        if path := os.environ.get("AOPSD_GPU_REPORT"):
            with Path(path).open("a") as file:
                file.write(f"{line}\n")

    return say
