"""Logits of both sides for tests of objectives, in float64 and by seed."""

import torch

from nemo_aopsd.config.schema import CHOICES, ObjectiveConfig
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.types import TopK

NAMES = CHOICES["objective.name"]
FORMS = CHOICES["objective.top_k_form"]
V = 7


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def float64(values: list) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def top_of(logprobs: torch.Tensor, k: int) -> TopK:
    values, ids = logprobs.topk(k, -1)
    return TopK(ids.int(), values, -(logprobs.exp() * logprobs).sum(-1))


class Batch:
    """Two responses of up to four tokens over V words: logits of both sides, and every column an objective may read."""

    def __init__(self, rows: int = 2, width: int = 4, seed: int = 0):
        self.logits = draw(rows, width, V, seed=seed)
        self.teacher = (1.5 * draw(rows, width, V, seed=seed + 1)).log_softmax(-1)
        self.tokens = torch.randint(V, (rows, width, 1), generator=torch.Generator().manual_seed(seed))
        self.mask = torch.ones(rows, width, dtype=torch.bool)
        self.mask[-1, -1] = False
        self.old = self.chosen(self.logits) + 0.15 * draw(rows, width, seed=seed + 2)
        self.weights = torch.rand(rows, width, generator=torch.Generator().manual_seed(seed)).double()
        self.advantages = draw(rows, width, seed=seed + 3)

    def chosen(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.log_softmax(-1).gather(-1, self.tokens).squeeze(-1)

    def loss(self, objective, logits=None, rows=slice(None), counts=None):
        logits = self.logits if logits is None else logits
        num_tokens, num_rows = counts or (float(self.mask.sum()), float(len(self.mask)))
        student = logits.log_softmax(-1)[rows].flatten(0, 1)
        teacher = self.teacher[rows].flatten(0, 1)
        divergence = None
        if objective.signal.full or objective.signal.top_k:
            seen = teacher if objective.signal.full else top_of(teacher, objective.signal.top_k)
            divergence = objective.divergence(student, seen).view(self.mask[rows].shape)
        return objective(
            self.chosen(logits)[rows],
            divergence=divergence,
            old_logprobs=self.old[rows] if objective.needs_old_logprobs else None,
            teacher_logprobs=self.teacher.gather(-1, self.tokens).squeeze(-1)[rows],
            weights=self.weights[rows],
            advantages=self.advantages[rows],
            entropy=-(self.teacher.exp() * self.teacher).sum(-1)[rows],
            mask=self.mask[rows],
            num_tokens=num_tokens,
            num_rows=num_rows,
        )


def objective(name: str, **changes):
    return build_objective(ObjectiveConfig(name=name, **{"top_k": 4, "advantage_clip": 3.0} | changes))
