"""`Engine` on one machine: the student's optimizer step, the frozen or updated teacher, save and load."""

import copy
import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from nemo_aopsd.config.extension import source_of_gradient
from nemo_aopsd.engine import Objective
from nemo_aopsd.engines.local.loss import micro_batch_loss
from nemo_aopsd.engines.local.memory import BYTES, batches, gpu_memory
from nemo_aopsd.engines.local.model import LocalModel
from nemo_aopsd.engines.local.optimizer import MasterOptimizer
from nemo_aopsd.engines.local.settings import Settings
from nemo_aopsd.engines.local.trackers import Trackers
from nemo_aopsd.files import naming
from nemo_aopsd.models.tokenizer import HFTokenizer
from nemo_aopsd.profiling import profiled
from nemo_aopsd.types import TrainRow


class LocalEngine:
    """Teacher weights: `frozen` and `ema` own a copy made before any update, `live` is the student's network."""

    @gpu_memory("copying weights for teacher and optimizer", BYTES)
    def __init__(
        self,
        causal_lm: PreTrainedModel,
        tokenizer: HFTokenizer,
        settings: Settings,
        trackers: Trackers | None = None,
        judge: tuple[LocalModel, HFTokenizer] | None = None,
    ):
        self.settings, self.tokenizer, self.trackers, self.judge = settings, tokenizer, trackers, judge
        is_live = settings.teacher.weights == "live"
        teacher_lm = causal_lm if is_live else copy.deepcopy(causal_lm).requires_grad_(False)
        self.student = LocalModel(causal_lm, settings, tokenizer.end_ids)
        self.teacher = LocalModel(teacher_lm, settings, tokenizer.end_ids)
        self.optimizer = MasterOptimizer(causal_lm, settings.optimizer, settings.max_grad_norm)
        self.ema: dict[str, Tensor] = {}  # float32, so that small moves survive bfloat16
        if settings.teacher.weights == "ema":
            self.ema = {name: weight.detach().clone() for name, weight in self.optimizer.masters.items()}

    @profiled("update")
    def train(self, rows: list[TrainRow], objective: Objective) -> dict[str, float]:
        """One optimizer step on all `rows`; none, and `train/skipped` 1, if no token counts."""
        self._forget_prefixes()
        rows = [row for row in rows if row.mask.any()]
        if not rows:
            return {"train/loss": 0.0, "train/grad_norm": 0.0, "train/skipped": 1.0}
        totals = self._accumulate(rows, objective)
        totals["train/grad_norm"] = self.optimizer.step(source_of_gradient(objective, totals["train/loss"]))
        self._move_teacher()
        return {**totals, "train/skipped": 0.0}

    def gradient(self, rows: list[TrainRow], objective: Objective) -> list[Tensor]:
        """What `train` would step along before clipping, float32, a tensor for each parameter; nothing is updated."""
        self._accumulate([row for row in rows if row.mask.any()], objective)
        return self.optimizer.take_gradients()

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        if self.trackers:
            self.trackers.log(metrics, step)

    def forget_metrics_after(self, step: int) -> None:
        """docs/trackers.md says what each tracker does with a step that comes again."""
        if self.trackers:
            self.trackers.forget_after(step)

    def teacher_checksum(self) -> str:
        """SHA-256 over names, shapes and bytes of the teacher's weights, by name."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.teacher.network.causal_lm.named_parameters()):
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def save(self, directory: Path) -> None:
        """Student, optimizer and an EMA teacher; of a frozen one the run keeps the checksum."""
        _save_tensors(directory / "student.safetensors", self.optimizer.masters)
        _save_tensors(directory / "optimizer.safetensors", self.optimizer.state())
        if self.ema:
            _save_tensors(directory / "teacher.safetensors", self.ema)

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote, bit by bit."""
        self._forget_prefixes()
        student = load_file(directory / "student.safetensors")
        self.optimizer.restore(student, load_file(directory / "optimizer.safetensors"))
        if self.ema:
            for name, weight in load_file(directory / "teacher.safetensors").items():
                self.ema[name].copy_(weight)
            self._copy_ema()

    def export(self, directory: Path) -> None:
        """The student as a Hugging Face directory, tokenizer included."""
        with naming(directory):
            self.student.network.causal_lm.save_pretrained(directory)
            self.tokenizer.hf.save_pretrained(directory)

    @gpu_memory("updating", "policy.dynamic_batching.train_mb_tokens or policy.train_micro_batch_size")
    def _accumulate(self, rows: list[TrainRow], objective: Objective) -> dict[str, float]:
        """Add the gradient of all `rows`, by micro-batches; returns the summed loss and metrics."""
        num_tokens = float(sum(row.mask.sum().item() for row in rows))
        lengths = [len(row.prompt) + len(row.response) for row in rows]
        parts = list[dict[str, Tensor]]()  # read behind the last one: each reading waits for the device
        limits = self.settings.train_micro_batch_size, self.settings.train_mb_tokens
        for batch in batches(range(len(rows)), lengths, *limits):
            part, counts = [rows[index] for index in batch], (num_tokens, float(len(rows)))
            loss, metrics = micro_batch_loss(self.student.network, self.teacher.network, part, objective, *counts)
            loss.backward()
            self.optimizer.accumulate()
            parts.append({key: value.detach() for key, value in {"train/loss": loss, **metrics}.items()})
        totals: dict[str, float] = {}
        for key, value in (pair for part in parts for pair in part.items()):
            totals[key] = totals.get(key, 0.0) + float(value)
        return totals

    @torch.no_grad()
    def _move_teacher(self) -> None:
        """EMA after the step: teacher <- decay * teacher + (1 - decay) * student."""
        for name, weight in self.ema.items():
            weight.lerp_(self.optimizer.masters[name], 1 - self.settings.teacher.ema_decay)
        self._copy_ema()

    @torch.no_grad()
    def _copy_ema(self) -> None:
        teacher = dict(self.teacher.network.causal_lm.named_parameters())
        for name, weight in self.ema.items():
            teacher[name].copy_(weight)

    def _forget_prefixes(self) -> None:
        self.student.prefixes.clear()
        self.teacher.prefixes.clear()


def _save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    with naming(path):
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
