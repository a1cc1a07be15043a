"""Implementations of the protocols in `engine.py`; none imports another, and only the command line picks one."""

from types import ModuleType

from nemo_aopsd.config.schema import Config


def pick(config: Config) -> ModuleType:
    """The engine's `check(config)` and `build(config)`; NeMo RL is imported by no other setting."""
    if config.aopsd.engine == "local":
        from nemo_aopsd.engines import local as chosen
    else:
        from nemo_aopsd.engines import nemo_rl as chosen
    return chosen


def pick_vllm() -> ModuleType:
    """Bare vLLM on all GPUs of one machine, for evaluation."""
    from nemo_aopsd.engines import vllm_only

    return vllm_only
