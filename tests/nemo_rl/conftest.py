"""These tests need nemo_rl to be importable (a checkout of NeMo RL v0.7.0 on PYTHONPATH); a GPU they do not need.

Without it none of them can even be imported: `test_needs_nemo_rl.py` alone is collected, and skips with the reason.
"""

import importlib.util
from pathlib import Path

import pytest

from nemo_aopsd.config.load import load_config
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.engines import nemo_rl

REPO = Path(__file__).parents[2]

collect_ignore = ["loss_on_ranks.py"]  # a program; what it imports of Megatron warns

if importlib.util.find_spec("nemo_rl") is None:
    names = {path.name for path in Path(__file__).parent.glob("*.py")}
    collect_ignore = sorted(names - {"test_needs_nemo_rl.py", "conftest.py", "__init__.py"})


@pytest.fixture
def one_process(tmp_path):
    import torch

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def overrides(tmp_path, monkeypatch):
    """A run of two steps on eight problems. The trainer scores, whose turns are most of what is tested here."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    problems = (REPO / "nemo_aopsd/builtin/data/train.jsonl").read_text().splitlines()[:8]
    (tmp_path / "problems.jsonl").write_text("\n".join(problems))
    return [
        f"data.train.data_path={tmp_path}/problems.jsonl",
        f"logger.log_dir={tmp_path}/run",
        *("aopsd.num_prompts_per_step=4", "aopsd.evaluation.data_path=null", "aopsd.probes.threshold=0.5"),
        *(
            "aopsd.scoring=trainer",
            "aopsd.curriculum.num_initial_attempts=1",
            "policy.generation.max_new_tokens=48",
            "aopsd.max_num_steps=2",
        ),
    ]


@pytest.fixture
def config(overrides):
    return load_config(REPO / "examples/configs/aopsd_tiny_h100.yaml", overrides)


@pytest.fixture
def problems(config):
    return load_problems(config.data["train"]["data_path"])


@pytest.fixture
def turns(monkeypatch):
    from tests.nemo_rl import fake_cluster

    return fake_cluster.install(monkeypatch)


@pytest.fixture
def engine(config, turns):
    return nemo_rl.build(config)
