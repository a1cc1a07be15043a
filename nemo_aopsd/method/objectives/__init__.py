"""Objectives: pure functions on per-token log-probs, one file each. An engine calls them inside its forward."""

from __future__ import annotations

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.engine import Objective


def build_objective(config: ObjectiveConfig) -> Objective:
    """The objective that the config names."""
    from nemo_aopsd.method.objectives.dash import Dash
    from nemo_aopsd.method.objectives.eopd import EntropyAware
    from nemo_aopsd.method.objectives.fkl import ForwardKL
    from nemo_aopsd.method.objectives.gkd import GeneralizedDistillation
    from nemo_aopsd.method.objectives.grpo import GroupRelative
    from nemo_aopsd.method.objectives.jsd import JensenShannon
    from nemo_aopsd.method.objectives.minillm import MiniLLM
    from nemo_aopsd.method.objectives.pg import PolicyGradient
    from nemo_aopsd.method.objectives.rkl import ReverseKL
    from nemo_aopsd.method.objectives.sft import SupervisedFineTuning
    from nemo_aopsd.method.objectives.topk_fkl import TopKForwardKL

    return {
        "pg": PolicyGradient,
        "sft": SupervisedFineTuning,
        "grpo": GroupRelative,
        "fkl": ForwardKL,
        "rkl": ReverseKL,
        "jsd": JensenShannon,
        "topk_fkl": TopKForwardKL,
        "dash": Dash,
        "eopd": EntropyAware,
        "gkd": GeneralizedDistillation,
        "minillm": MiniLLM,
    }[config.name](config)
