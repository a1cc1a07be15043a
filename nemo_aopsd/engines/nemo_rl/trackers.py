"""NeMo RL's own trackers (W&B, TensorBoard, MLflow, SwanLab), enabled by the `logger` block."""

from nemo_rl.utils.logger import Logger, TensorboardLogger
from torch.utils.tensorboard import SummaryWriter

from nemo_aopsd.config.schema import Config
from nemo_aopsd.engines.nemo_rl.refusals import TRACKERS


def start_trackers(config: Config, first_step: int) -> Logger | None:
    """The trackers that are on, told the whole config; None if none is. With `monitor_gpus`, Ray must run.

    TensorBoard no longer shows what an earlier process logged of `first_step` and later: those steps come again.
    """
    absent = {f"{name}_enabled": False for name in TRACKERS} | {"monitor_gpus": False, "tensorboard": {}}
    logger = absent | config.logger
    if not any(logger[f"{name}_enabled"] for name in TRACKERS):
        return None
    started = Logger(logger)
    for tracker in started.loggers:
        if isinstance(tracker, TensorboardLogger):
            _start_at(tracker.writer, first_step)
    started.log_hyperparams(config.raw)
    return started


def _start_at(writer: SummaryWriter, first_step: int) -> None:
    """NeMo RL passes no `purge_step`. A writer opens its file anew after `close`, and heeds it then."""
    writer.close()
    writer.purge_step = first_step
    writer.flush_secs = 1  # of the default two minutes, a kill would leave a hole before the checkpoint
