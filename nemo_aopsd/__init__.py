"""Adaptive on-policy self-distillation for NeMo RL, and for one laptop.

The names of `PUBLIC` can be imported from here. Each is loaded at its first use, so `import nemo_aopsd` loads no torch.
"""

from importlib import import_module
from typing import Any

PUBLIC = {
    "load_config": "nemo_aopsd.config.load",
    "load_problems": "nemo_aopsd.data.problems",
    "train_step": "nemo_aopsd.method.step",
    "collect": "nemo_aopsd.method.step",
    "load_run": "nemo_aopsd.run.reader",
}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
