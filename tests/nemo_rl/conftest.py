"""These tests need nemo_rl to be importable (a checkout of NeMo RL v0.7.0 on PYTHONPATH); a GPU they do not need.

Without it none of them can even be imported: `test_needs_nemo_rl.py` alone is collected, and skips with the reason.
"""

import importlib.util
from pathlib import Path

collect_ignore = ["loss_on_ranks.py"]  # a program; what it imports of Megatron warns

if importlib.util.find_spec("nemo_rl") is None:
    names = {path.name for path in Path(__file__).parent.glob("*.py")}
    collect_ignore = sorted(names - {"test_needs_nemo_rl.py", "conftest.py", "__init__.py"})
