"""Converts between ragged lists, one entry per rollout, and NeMo RL's padded batches. All on the CPU, without a model.

NeMo RL's convention (nemo_rl/models/policy/lm_policy.py, get_logprobs): every 2-D tensor of a batch has the width S
of `input_ids`; column t of a log-prob tensor belongs to token t, and column 0 is 0 since nothing predicts the first
token. So the token i of a response sits at column `len(prompt) + i`, whatever the prompt: a teacher row and its
student row differ only in that offset.
"""

import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from torch import Tensor

from nemo_aopsd.types import Tokens, TopK, TrainRow

# Column of a batch -> field of a row, and argument of an objective, that it holds.
COLUMNS = {
    "prev_logprobs": "old_logprobs",
    "teacher_logprobs": "teacher_logprobs",
    "probe_weights": "weights",
    "advantages": "advantages",
}


def scoring_batch(
    prompts: list[Tokens], responses: list[Tokens], *, pad_id: int, divisible_by: int, rows_multiple: int
) -> BatchedDataDict:
    """What `Policy.get_logprobs` takes: the rows in order, then dummy rows up to a multiple of `rows_multiple`.

    `input_ids` [B', S] int64, right-padded, S a multiple of `divisible_by`; `input_lengths` [B'] int32; `token_mask`
    [B', S] int64, 1 at response tokens; `sample_mask` [B'] float32, 0 for dummy rows. A dummy row is a copy of the
    shortest row, without any token in the mask: valid for every kernel, and cheap.
    """
    assert all(prompts), "the first token of a response needs a context"
    rows = [[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)]
    num_rows = len(rows)
    rows += [min(rows, key=len)] * (-num_rows % rows_multiple)
    longest = max(map(len, rows))
    width = longest + -longest % divisible_by

    input_ids = torch.full((len(rows), width), pad_id)
    for target, row in zip(input_ids, rows, strict=True):
        target[: len(row)] = torch.tensor(row)
    ones = [torch.ones(len(response), dtype=torch.int64) for response in responses]
    return BatchedDataDict(
        input_ids=input_ids,
        input_lengths=torch.tensor([len(row) for row in rows], dtype=torch.int32),
        token_mask=_response_columns(ones, prompts, input_ids.shape),
        sample_mask=(torch.arange(len(rows)) < num_rows).float(),
    )


def response_spans(logprobs: Tensor, prompts: list[Tokens], responses: list[Tokens]) -> list[Tensor]:
    """The log-probs of each response's own tokens, copies [T] float32 on the CPU, out of `logprobs` [B', S].

    Raises ValueError, naming the row, if one is not finite.
    """
    rows = enumerate(zip(prompts, responses, strict=True))
    return [_span(logprobs, index, len(prompt), len(response)) for index, (prompt, response) in rows]


def training_batch(rows: list[TrainRow], **layout: int) -> BatchedDataDict:
    """What `Policy.train` and a loss on sampled tokens take where the trainer has scored; `layout` as `scoring_batch`.

    That is `scoring_batch` of the rows with `token_mask` as they have it, and those of `COLUMNS` that the rows have,
    [B', S] float32, 0 wherever `token_mask` is. NeMo RL always reads `generation_logprobs` too, the log-probs as the
    sampler saw them: a row that does not know them (`sampler_logprobs` None) has `old_logprobs` there, so that its
    importance weight is 1.

    Raises ValueError, naming row and field, if a field is not finite at a token that counts.
    """
    columns = {name: [getattr(row, field) for row in rows] for name, field in COLUMNS.items()}
    columns["generation_logprobs"] = [
        row.old_logprobs if row.sampler_logprobs is None else row.sampler_logprobs for row in rows
    ]
    return _with_columns(rows, {name: values for name, values in columns.items() if values[0] is not None}, **layout)


def sampler_scored_batch(rows: list[TrainRow], trainer_logprobs: list[Tensor] | None, **layout: int) -> BatchedDataDict:
    """What `Policy.train` and `AOPSDLossFn` take where the sampler has scored: `training_batch` with other columns.

    `gaps`, the teacher's log-prob minus the student's, stands for `teacher_logprobs`: two log-probs of the sampler's
    kernels, of which neither may meet one of the trainer's. `prev_logprobs` are the `trainer_logprobs` of the student
    before the first update; None if there is one update only, in whose forward they are.
    """
    columns = {
        "gaps": [row.gap for row in rows],
        "generation_logprobs": [row.sampler_logprobs for row in rows],
        "probe_weights": [row.weights for row in rows],
    }
    if trainer_logprobs is not None:
        columns["prev_logprobs"] = list(trainer_logprobs)
    if rows[0].advantages is not None:
        columns["advantages"] = [row.advantages for row in rows]
    return _with_columns(rows, columns, **layout)


def _with_columns(rows: list[TrainRow], columns: dict[str, list[Tensor | None]], **layout: int) -> BatchedDataDict:
    batch, prompts = _with_masks(rows, **layout), [row.prompt for row in rows]
    for name, values in columns.items():
        counted = [_counted(f"row {index}: {name}", *pair) for index, pair in enumerate(zip(values, rows, strict=True))]
        batch[name] = _response_columns(counted, prompts, batch["input_ids"].shape)
    return batch


def top_k_batch(rows: list[TrainRow], **layout: int) -> BatchedDataDict:
    """What `Policy.train` and `TopKLossFn` take: `scoring_batch` of the rows, with `token_mask` as they have it.

    `teacher_topk_indices` [B', S, K] int64 and `teacher_topk_logits` [B', S, K] float32, log-probs of the whole
    softmax. NeMo RL's convention for these: column t predicts token t + 1. Raises ValueError, naming the row, if a
    log-prob is not finite.
    """
    batch, ids, logprobs = _with_masks(rows, **layout), [], []
    for index, row in enumerate(rows):
        top_k = row.top_k
        assert top_k is not None, "the objective's signal asks for the teacher's top k"
        ids.append(top_k.ids.cpu().long())
        logprobs.append(top_k.logprobs.detach().to("cpu", torch.float32))
        _check_finite(logprobs[-1], f"row {index}: the teacher's top-k log-probs")
    before = [row.prompt[:-1] for row in rows]
    shape = torch.Size([*batch["input_ids"].shape, ids[0].shape[-1]])
    batch["teacher_topk_indices"] = _response_columns(ids, before, shape)
    batch["teacher_topk_logits"] = _response_columns(logprobs, before, shape)
    return batch


def _with_masks(rows: list[TrainRow], **layout: int) -> BatchedDataDict:
    """A `scoring_batch` of the rows with their own `token_mask`."""
    prompts = [row.prompt for row in rows]
    batch = scoring_batch(prompts, [row.response for row in rows], **layout)
    masks = [row.mask.to("cpu", torch.int64) for row in rows]
    batch["token_mask"] = _response_columns(masks, prompts, batch["input_ids"].shape)
    return batch


def top_k_spans(batch: BatchedDataDict, prompts: list[Tokens], responses: list[Tokens]) -> list[TopK]:
    """Each response's own positions out of what `top_k.top_k_and_norm` made: [B', S, K + 2].

    Raises ValueError, naming the row, if a value is not finite.
    """
    spans = []
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        start, end = len(prompt) - 1, len(prompt) - 1 + len(response)
        span = _span(batch["topk_logits"], index, start, len(response))
        logits, norm, entropy = span[:, :-2], span[:, -2:-1], span[:, -1]
        spans.append(TopK(batch["topk_indices"][index, start:end, :-2].to("cpu", torch.int32), logits - norm, entropy))
    return spans


def _span(values: Tensor, index: int, start: int, length: int) -> Tensor:
    """A checked copy on the CPU, float32, of `length` columns of a row from `start` on."""
    span = values[index, start : start + length].detach().to("cpu", torch.float32, copy=True)
    _check_finite(span, f"row {index}: what was scored")
    return span


def _counted(what: str, values: Tensor | None, row: TrainRow) -> Tensor:
    """`values` as float32 on the CPU, checked, with 0 at tokens that the row does not count."""
    assert values is not None, f"{what} are missing: the policy gradient's signal asks for them"
    kept = torch.where(row.mask.cpu(), values.detach().to("cpu", torch.float32), 0.0)
    _check_finite(kept, what)
    return kept


def _check_finite(values: Tensor, what: str) -> None:
    """Of one value a response token, or several."""
    broken = (~values.isfinite()).nonzero()
    if len(broken):
        value = values[tuple(broken[0])].item()
        raise ValueError(f"{what} at response token {broken[0][0]} is {value}; expected a finite number")


def _response_columns(values: list[Tensor], prompts: list[Tokens], shape: torch.Size) -> Tensor:
    """[B', S, ...] of the values' type: row i holds `values[i]` from column `len(prompts[i])` on, and 0 elsewhere."""
    columns = torch.zeros(shape, dtype=values[0].dtype)
    for target, prompt, value in zip(columns, prompts, values, strict=False):  # no values for dummy rows
        target[len(prompt) : len(prompt) + len(value)] = value
    return columns
