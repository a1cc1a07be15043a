"""The engine for a cluster: NeMo RL's Ray workers, vLLM to sample and probe, Megatron-core (or DTensor) to train.

Not covered: an asynchronous or apart vLLM, an EMA or live teacher, LoRA.
"""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from nemo_aopsd.cluster.tree import Tree
from nemo_aopsd.config.extension import is_own
from nemo_aopsd.config.schema import Config
from nemo_aopsd.engines.nemo_rl.refusals import refuse_stock_recipe
from nemo_aopsd.engines.nemo_rl.settings import read_settings
from nemo_aopsd.errors import UserError, tell_all

if TYPE_CHECKING:
    from nemo_aopsd.engines.nemo_rl.engine import NemoRLEngine


def check(config: Config, *, elsewhere: bool = False) -> None:
    """All that can be checked before a GPU is taken. Raises UserError; imports neither torch nor NeMo RL.

    `elsewhere` leaves out this machine's packages and environment: the run will be on another one.
    """
    refuse_stock_recipe(Tree(config.raw))
    if elsewhere:
        read_settings(config, {"TORCH_CUDA_ARCH_LIST": "the other machine's"})
    else:
        tell_all(_check_packages, lambda: read_settings(config), lambda: _check_reach(config.aopsd.objective.name))


def _check_packages() -> None:
    if missing := [name for name in ("nemo_rl", "ray", "torch") if importlib.util.find_spec(name) is None]:
        where = "Run inside the NeMo RL container (README, `On a cluster`), or set aopsd.engine=local"
        here = "`--check --mounts /:/` checks the config here"
        told = f"aopsd.engine=nemo_rl needs {', '.join(missing)}, which this Python cannot import"
        raise UserError(f"{told}. {where}; {here}.")


def _check_reach(objective: str) -> None:
    """A module goes to the workers by name, and they have a Python of their own: only PYTHONPATH is the same there."""
    module = objective.partition(":")[0]
    package = module.partition(".")[0]
    if not is_own(objective) or module.endswith(".py"):
        return
    shared = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(folder)]
    if PathFinder.find_spec(package, shared) is None:
        looked = f"they look in PYTHONPATH={os.pathsep.join(shared) or 'nothing'}"
        found = f"aopsd.objective.name={objective}: the workers of NeMo RL find no module `{module}`; {looked}"
        remedy = f"Put the absolute path of the folder that holds `{package}` on it, or name a file: FILE.py:CLASS"
        raise UserError(f"{found}. {remedy}.")


def build(config: Config) -> NemoRLEngine:
    """The engine, with no GPU taken yet: workers start at the first call, or with a checkpoint's weights in `load`."""
    settings = read_settings(config)

    from nemo_aopsd.engines.nemo_rl.engine import NemoRLEngine

    return NemoRLEngine(config, settings)
