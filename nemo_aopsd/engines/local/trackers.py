"""The trackers of the `logger` block, through their own libraries; keys and folders as in NeMo RL v0.7.0."""

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nemo_aopsd.config.keys import flatten
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError, how_to_install

Log = Callable[[dict[str, float], int], None]  # numbers by name, and their step

_LIBRARIES = ("tensorboard", "wandb", "mlflow")  # each is also the extra that installs it


def check_trackers(logger: Mapping[str, Any]) -> None:
    """Raise UserError if one is on whose library is absent, or that this engine does not have."""
    absent = [name for name in _LIBRARIES if logger.get(f"{name}_enabled") and importlib.util.find_spec(name) is None]
    if absent:
        key, names = f"logger.{absent[0]}_enabled", ", ".join(absent)
        remedy = f"{how_to_install(*absent)}, or set {key}=false."
        raise UserError(f"config: {key} is true, but {names} cannot be imported. {remedy}")
    if logger.get("swanlab_enabled"):
        found = f"logger.swanlab_enabled is true; the local engine has {', '.join(_LIBRARIES)}"
        raise UserError(f"config: {found}. Set logger.swanlab_enabled=false, or aopsd.engine=nemo_rl.")


class Trackers:
    """Those that are on. They start with the first number, so that a refused or finished run makes none."""

    def __init__(self, config: Config):
        self._config, self._first_step = config, 1
        self._started: list[Log] | None = None

    def forget_after(self, step: int) -> None:
        """TensorBoard shows steps after `step` no longer; they come again."""
        self._first_step = step + 1

    def log(self, metrics: dict[str, float], step: int) -> None:
        if self._started is None:
            start = {"tensorboard": self._tensorboard, "wandb": self._wandb, "mlflow": self._mlflow}
            self._started = [start[name]() for name in _LIBRARIES if self._config.logger.get(f"{name}_enabled")]
        for log in self._started:
            log(metrics, step)

    def _folder(self, name: str) -> Path:
        folder = Path(self._config.logger["log_dir"]) / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder.absolute()

    def _tensorboard(self) -> Log:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(self._folder("tensorboard")), purge_step=self._first_step)
        settings = "\n".join(f"    {key}: {value}" for key, value in flatten(self._config.raw).items())
        writer.add_text("config", settings, self._first_step - 1)  # indented: Markdown shows it as it is

        def log(metrics: dict[str, float], step: int) -> None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)
            writer.flush()  # of the default two minutes, a kill would leave a hole before the checkpoint

        return log

    def _wandb(self) -> Log:
        import wandb

        options = self._config.logger.get("wandb") or {}
        run = wandb.init(**options, dir=str(self._folder("wandb")), config=self._config.raw)
        return lambda metrics, step: run.log(metrics, step=step)

    def _mlflow(self) -> Log:
        import mlflow

        options = self._config.logger.get("mlflow") or {}
        uri = options.get("tracking_uri") or os.environ.get("MLFLOW_TRACKING_URI")
        mlflow.set_tracking_uri(uri or f"sqlite:///{self._folder('mlflow')}/mlflow.db")
        if experiment := options.get("experiment_name"):
            mlflow.set_experiment(experiment)
        mlflow.start_run(run_name=options.get("run_name"))
        mlflow.log_dict(self._config.raw, "config.yaml")
        return lambda metrics, step: mlflow.log_metrics(metrics, step=step)
