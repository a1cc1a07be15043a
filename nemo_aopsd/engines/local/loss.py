"""From a micro-batch of rows to its loss. Where the objective compares whole distributions, both sides' logits exist
for one chunk of positions at a time, and the backward forms each chunk's anew: no [T, V] tensor of a row is ever made.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from nemo_aopsd.engine import Objective
from nemo_aopsd.engines.local.network import Network, log_softmax
from nemo_aopsd.types import TopK, TrainRow

# A comparison holds more values over the vocabulary than the sampled path does, so it takes this many times fewer
# positions a chunk. Not still fewer: glibc keeps freed blocks below 32 MiB, and was seen to pile up gigabytes of them.
_SIDES = 3


def micro_batch_loss(
    student: Network, teacher: Network, rows: list[TrainRow], objective: Objective, num_tokens: float, num_rows: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The objective's loss, with gradient, and its metrics."""
    logprobs, divergence = _score(student, teacher, rows, objective)
    columns = _columns(rows, student.device)
    return objective(logprobs, divergence=divergence, **columns, num_tokens=num_tokens, num_rows=num_rows)


def _score(
    student: Network, teacher: Network, rows: list[TrainRow], objective: Objective
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of the response tokens [B, S], and the objective's divergences [B, S] if it reads distributions."""
    responses = [row.response for row in rows]
    signal = objective.signal
    teacher_side: list[Tensor] = []
    if signal.full:  # before the student's forward, whose activations stay
        with torch.no_grad():
            prompts = [prompt for row in rows if (prompt := row.teacher_prompt) is not None]
            assert len(prompts) == len(rows), "a full signal needs the teacher's prompt of every row"
            teacher_side = [teacher.response_hidden(prompts, responses)[0]]
    elif signal.top_k:
        names = ("ids", "logprobs", "entropy")
        teacher_side = [torch.cat([getattr(row.top_k, name) for row in rows]).to(student.device) for name in names]
    hidden, targets, _ = student.response_hidden([row.prompt for row in rows], responses)
    if teacher_side:
        logprobs, divergence = _compare(student, teacher.head, hidden, targets, teacher_side, objective)
    else:
        logprobs, divergence = student.token_logprobs(hidden, targets), None
    lengths = [len(response) for response in responses]

    def padded(values: Tensor) -> Tensor:
        return pad_sequence(list(values.split(lengths)), batch_first=True)

    return padded(logprobs), None if divergence is None else padded(divergence)


def _compare(
    student: Network, head: nn.Module, hidden: Tensor, targets: Tensor, teacher_side: list[Tensor], objective: Objective
) -> tuple[Tensor, Tensor]:
    """Log-probs of `targets` [N] after `hidden` [N, H], and the objective's divergences there, both [N].

    `teacher_side` is the teacher's hidden states [N, H], for its `head`, or the columns of a `TopK`.
    """

    def one(part: Tensor, part_targets: Tensor, *part_teacher: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = log_softmax(student.head, part)
        with torch.no_grad():
            teacher = log_softmax(head, *part_teacher) if objective.signal.full else TopK(*part_teacher)
        chosen = logprobs.gather(-1, part_targets.unsqueeze(-1)).squeeze(-1)
        return chosen, objective.divergence(logprobs, teacher)

    size = max(1, student.chunk // _SIDES)
    chunks = zip(*(tensor.split(size) for tensor in (hidden, targets, *teacher_side)), strict=True)
    logprobs, divergences = zip(*(checkpoint(one, *chunk, use_reentrant=False) for chunk in chunks), strict=True)
    return torch.cat(logprobs), torch.cat(divergences)


def _columns(rows: list[TrainRow], device: torch.device) -> dict[str, Any]:
    """The supervision of `rows`, padded to [B, S] with zeros that the mask leaves out; None for what is not there."""
    names = ("old_logprobs", "teacher_logprobs", "weights", "advantages", "mask")
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    columns["entropy"] = [None if row.top_k is None else row.top_k.entropy for row in rows]
    return {
        name: None if values[0] is None else pad_sequence(values, batch_first=True).to(device)
        for name, values in columns.items()
    }
