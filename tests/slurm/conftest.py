import os

import pytest

from tests.slurm.scripts import FAKES, fake


@pytest.fixture
def cluster(tmp_path):
    """Environment in which Slurm's commands are fakes; sbatch notes its calls in tmp_path/calls."""
    for name, body in FAKES.items():
        fake(tmp_path, name, body)
    return {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "AOPSD_LOGS": str(tmp_path / "logs"),
    }
