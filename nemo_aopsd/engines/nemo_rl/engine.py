"""`Engine` on a cluster: NeMo RL's trainer with our loss; checkpoints where NeMo RL's tools look for them."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from nemo_rl.algorithms.loss.interfaces import LossFunction
from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig
from nemo_rl.algorithms.utils import get_tokenizer
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.utils.logger import Logger
from transformers import AutoConfig

from nemo_aopsd.config.extension import is_own, source_of_gradient
from nemo_aopsd.config.schema import Config
from nemo_aopsd.engine import Objective
from nemo_aopsd.engines.nemo_rl.batches import sampler_scored_batch, top_k_batch, training_batch
from nemo_aopsd.engines.nemo_rl.cluster import Cluster, Role
from nemo_aopsd.engines.nemo_rl.loss import AOPSDLossFn
from nemo_aopsd.engines.nemo_rl.models import ClusterModel
from nemo_aopsd.engines.nemo_rl.own_loss import OwnLossFn
from nemo_aopsd.engines.nemo_rl.settings import Settings
from nemo_aopsd.engines.nemo_rl.top_k_loss import TopKLossFn
from nemo_aopsd.engines.nemo_rl.trackers import start_trackers
from nemo_aopsd.errors import UserError, first_line
from nemo_aopsd.models.limits import check_has_tokenizer
from nemo_aopsd.models.tokenizer import UNREADABLE, HFTokenizer, generation_end_ids
from nemo_aopsd.types import TrainRow

_MEANS = ("lr", "wd", "global_valid_seqs", "global_valid_toks")  # the same in every micro-batch; the rest are shares


class NemoRLEngine:
    """Workers start at the first use. `load` comes before it, because Megatron loads weights only when it starts."""

    def __init__(self, config: Config, settings: Settings):
        self.config, self.settings = config, settings
        self.hf_tokenizer = _open_tokenizer(config.policy["tokenizer"])
        self.tokenizer = HFTokenizer(self.hf_tokenizer, generation_end_ids(config.policy["model_name"]))
        self.judge = None  # a model of its own is refused
        self.checkpoint: Path | None = None
        self.last_step = 0  # of the metrics that stay

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster(self.config, self.settings, self.hf_tokenizer, self._end_ids, self.checkpoint)

    @cached_property
    def student(self) -> ClusterModel:
        return self._model(Role.STUDENT)

    @cached_property
    def teacher(self) -> ClusterModel:
        return self._model(Role.TEACHER)

    @cached_property
    def trackers(self) -> Logger | None:
        return start_trackers(self.config, self.last_step + 1)

    def train(self, rows: list[TrainRow], objective: Objective) -> dict[str, float]:
        """An update for each `policy.train_global_batch_size` of `rows`; of n updates each sees every n-th row.

        If no token counts, no step is taken and `train/skipped` is 1. NeMo RL's batches of a call are of one size, and
        the schedule counts rows: masked rows fill each batch, and updates differ by one row at most.
        """
        rows = [row for row in rows if row.mask.any()]
        if not rows:
            return {"train/loss": 0.0, "train/grad_norm": 0.0, "train/skipped": 1.0}
        size = self.settings.train_global_batch_size
        num_updates = -(-len(rows) // size)
        batch, loss = self._batch_and_loss(rows, objective, num_updates)  # the rows, then what fills the last batch
        order = [row for first in range(num_updates) for row in range(first, batch.size, num_updates)]
        results = self.cluster.train(batch.select_indices(order), loss, size)
        numbers = {**_summed(results["all_mb_metrics"]), **_finite(results, objective), "train/skipped": 0.0}
        return numbers | self.cluster.take_seconds()

    def _batch_and_loss(
        self, rows: list[TrainRow], objective: Objective, num_updates: int
    ) -> tuple[BatchedDataDict, LossFunction]:
        layout = {
            "pad_id": self.hf_tokenizer.pad_token_id,
            "divisible_by": self.settings.divisible_by,
            "rows_multiple": self.settings.train_global_batch_size,
        }
        if is_own(objective.config.name):
            return training_batch(rows, **layout), OwnLossFn(objective)
        if objective.signal.top_k:
            return top_k_batch(rows, **layout), TopKLossFn(objective.config)
        assert objective.config.name == "pg", "config/rules.py lets no other of our objectives pass"
        loss = AOPSDLossFn(ClippedPGLossConfig(**self.config.raw["loss_fn"]), objective.config)
        if self.settings.scoring == "trainer":
            return training_batch(rows, **layout), loss
        prompts, responses = [row.prompt for row in rows], [row.response for row in rows]
        old = self.student.trainer_logprobs(prompts, responses) if num_updates > 1 else None
        return sampler_scored_batch(rows, old, **layout), loss

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        if self.trackers:
            self.trackers.log_metrics(metrics, step)

    def forget_metrics_after(self, step: int) -> None:
        """TensorBoard drops later steps. docs/trackers.md says what other trackers do with a repeated step."""
        self.last_step = step

    def teacher_checksum(self) -> str:
        """SHA-256 over names, shapes and bytes of the teacher's Hugging Face tensors, whatever the parallel layout."""
        return self._checksum(teacher=True)

    def student_checksum(self) -> str:
        """The same over the student's."""
        return self._checksum(teacher=False)

    def save(self, directory: Path) -> None:
        """Student and optimizer; a checksum stands for the frozen teacher."""
        self.cluster.save(directory)

    def load(self, directory: Path) -> None:
        """Start with what `save` wrote."""
        self.stop()
        self.checkpoint = directory.absolute()

    def export(self, directory: Path) -> None:
        """The student as a Hugging Face directory, tokenizer included."""
        directory.mkdir(parents=True, exist_ok=True)
        self.cluster.let_score()
        self.cluster.train_everywhere("export_weights", directory=str(directory.absolute()))
        AutoConfig.from_pretrained(self.config.policy["model_name"]).save_pretrained(directory)
        self.hf_tokenizer.save_pretrained(directory)

    def stop(self) -> None:
        """Give the GPUs back."""
        if "cluster" in self.__dict__:
            self.cluster.stop()
        for name in ("cluster", "student", "teacher"):
            self.__dict__.pop(name, None)

    def _model(self, role: Role) -> ClusterModel:
        return ClusterModel(role, self.cluster, self.settings, self._end_ids, self.hf_tokenizer.pad_token_id)

    def _checksum(self, teacher: bool) -> str:
        self.cluster.let_score()
        shares = self.cluster.train_everywhere("weight_digests", teacher=teacher)
        digests = {name: digest for share in shares for name, digest in share.items()}
        return hashlib.sha256("\n".join(f"{name} {digests[name]}" for name in sorted(digests)).encode()).hexdigest()

    @property
    def _end_ids(self) -> list[int]:
        return sorted(self.tokenizer.end_ids)


def _summed(metrics: dict[str, list[float]]) -> dict[str, float]:
    """NeMo RL's metrics of all micro-batches, which are shares of the whole (as algorithms/grpo.py reduces them)."""
    reduced = {}
    for key, values in metrics.items():
        reduce = min if key.endswith("_min") else max if key.endswith("_max") else sum
        reduced[f"train/{key}"] = sum(values) / len(values) if key in _MEANS else float(reduce(values))
    return reduced


def _finite(results: dict[str, torch.Tensor], objective: Objective) -> dict[str, float]:
    """Loss and gradient norm. Raises UserError if one is not finite."""
    loss, norm = float(results["loss"].sum()), float(results["grad_norm"].max())
    if not (torch.isfinite(results["loss"]).all() and torch.isfinite(results["grad_norm"]).all()):
        if source := source_of_gradient(objective, loss):
            raise UserError(f"the gradient norm is {norm}: {source}")
        found = f"the loss is {loss}, the gradient norm {norm}: training has diverged"
        raise UserError(f"{found}. Start a new run with a lower learning rate, in another logger.log_dir.")
    return {"train/loss": loss, "train/grad_norm": norm}


def _open_tokenizer(settings: dict[str, Any]) -> Any:
    """The first that a run asks the hub for."""
    check_has_tokenizer(Path(settings["name"]))
    try:
        return get_tokenizer(settings)
    except UNREADABLE as error:
        name = settings["name"]
        found = f"no usable tokenizer, neither in a folder nor from the hub or its cache: {first_line(error)}"
        remedy = f"Check the name; or, where there is a network, hf download {name}, with HF_HOME at the same cache."
        raise UserError(f"policy.tokenizer.name: {name}: {found}. {remedy}") from error
