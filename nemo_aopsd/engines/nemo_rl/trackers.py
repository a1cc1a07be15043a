"""NeMo RL's own trackers (W&B, TensorBoard, MLflow, SwanLab), as the `logger` block turns them on."""

from __future__ import annotations

from nemo_rl.utils.logger import Logger

from nemo_aopsd.config import Config
from nemo_aopsd.engines.nemo_rl.refusals import TRACKERS


def start_trackers(config: Config) -> Logger | None:
    """The trackers that are on, told the whole config; None if none is. With `monitor_gpus`, Ray must run."""
    absent = {f"{name}_enabled": False for name in TRACKERS} | {"monitor_gpus": False, "tensorboard": {}}
    logger = absent | config.logger
    if not any(logger[f"{name}_enabled"] for name in TRACKERS):
        return None
    started = Logger(logger)
    started.log_hyperparams(config.raw)
    return started
