"""One visible line for the whole folder where it cannot run."""

import pytest


def test_nemo_rl_is_importable():
    pytest.importorskip("nemo_rl", reason="tests/nemo_rl needs NeMo RL v0.7.0 on PYTHONPATH")
