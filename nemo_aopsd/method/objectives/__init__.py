"""Objectives: pure functions on per-token log-probs, which an engine calls inside its forward.

`build_objective` says which class a name of the config is, and so in which file: `rkl` and `jsd` are in `gkd.py`,
`topk_fkl` is in `fkl.py`, each other one in the file of its name.
"""

from nemo_aopsd.config.extension import fresh, is_own
from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.engine import Objective


def build_objective(config: ObjectiveConfig) -> Objective:
    """The objective that the config names."""
    if is_own(config.name):
        return fresh("objective.name", config.name, config)
    from nemo_aopsd.method.objectives.dash import Dash
    from nemo_aopsd.method.objectives.eopd import EntropyAware
    from nemo_aopsd.method.objectives.fkl import ForwardKL, TopKForwardKL
    from nemo_aopsd.method.objectives.gkd import GeneralizedDistillation
    from nemo_aopsd.method.objectives.grpo import GroupRelative
    from nemo_aopsd.method.objectives.minillm import MiniLLM
    from nemo_aopsd.method.objectives.pg import PolicyGradient
    from nemo_aopsd.method.objectives.sft import SupervisedFineTuning

    return {
        "pg": PolicyGradient,
        "sft": SupervisedFineTuning,
        "grpo": GroupRelative,
        "fkl": ForwardKL,
        **dict.fromkeys(("gkd", "rkl", "jsd"), GeneralizedDistillation),
        "topk_fkl": TopKForwardKL,
        "dash": Dash,
        "eopd": EntropyAware,
        "minillm": MiniLLM,
    }[config.name](config)
