"""Changes to vLLM 0.20, so that tokens behind a long cached prefix can be scored, and many of them at little cost.

vLLM does not read its cache for a request that wants prompt log-probs, because cached positions have none; it forms the
logits of all other positions of a request at once, and a Python object of each. So our requests want no log-probs of
vLLM. One names the tokens that it wants scored (`SCORED` in its `extra_args`). The cache is read up to the row that
predicts the first of them and no further, and the model runner scores the wanted rows of a step together, `CHUNK` at a
time. Scores stay on the GPU until they are taken.

Call `limit_prefix_hits` in the scheduler's process before the scheduler is created, and `score_rows` in each of vLLM's
workers before the first request. `vllm_worker.py` does both, the second one through `vllm_extension.py`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_aopsd.cluster import SCORED_ROWS

SCORED = "aopsd_scored"
CHUNK = SCORED_ROWS  # whose logits exist at the same time; `aopsd doctor` counts them


class Wanted(NamedTuple):
    """What a request wants scored: row `first + i` of its prompt predicts `tokens[i]`."""

    key: int  # unique among the requests between two `take_scores`
    first: int
    tokens: list[int]
    top_k: int = 0  # also the most likely tokens
    is_choice: bool = False  # row `first` predicts each of `tokens`

    @property
    def end(self) -> int:
        """Behind the last row that is wanted."""
        return self.first + (1 if self.is_choice else len(self.tokens))


class Scores(NamedTuple):
    """Of `n` wanted tokens of the request `key`, from `start` on."""

    key: int
    start: int
    logprobs: Tensor  # [n, 1 + K (+ 1)] float32: the wanted token, the K most likely, with K > 0 the entropy
    ids: Tensor  # [n, K] int32


def limit_prefix_hits() -> None:
    """Make a request compute its first wanted row itself. Does nothing the second time."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    original = KVCacheManager.get_computed_blocks
    if getattr(original, "is_limited", False):
        return

    def get_computed_blocks(self: Any, request: Any) -> tuple[Any, int]:
        blocks, num_tokens = original(self, request)
        wanted = _wanted(request.sampling_params)
        if wanted is None or num_tokens <= wanted.first:
            return blocks, num_tokens
        # Asked again, not cut: layers with a sliding window or a state have another set of blocks at each length.
        shorter, num_tokens = self.coordinator.find_longest_cache_hit(request.block_hashes, wanted.first)
        return self.create_kv_cache_blocks(shorter), num_tokens

    get_computed_blocks.is_limited = True
    KVCacheManager.get_computed_blocks = get_computed_blocks


def score_rows() -> None:
    """Make the model runner score the wanted rows of each of its steps. Does nothing the second time."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = GPUModelRunner._get_prompt_logprobs_dict
    if getattr(original, "scores_rows", False):
        return

    def _get_prompt_logprobs_dict(self: Any, hidden_states: Tensor, num_scheduled_tokens: dict[str, int]) -> Any:
        _score(self, hidden_states, list(_rows_of_step(self, num_scheduled_tokens)))
        return original(self, hidden_states, num_scheduled_tokens)

    _get_prompt_logprobs_dict.scores_rows = True
    GPUModelRunner._get_prompt_logprobs_dict = _get_prompt_logprobs_dict


def take_scores(runner: Any) -> list[Scores]:
    """What `runner` has scored since the last call, in order, on the CPU. A preempted request's rows come twice."""
    steps = runner.__dict__.pop("aopsd_scores", [])
    taken = []
    for parts, logprobs, ids in steps:
        sizes = [size for *_, size in parts]
        split = zip(parts, torch.split(logprobs.cpu(), sizes), torch.split(ids.cpu(), sizes), strict=True)
        taken += [Scores(key, start, *columns) for (key, start, _), *columns in split]
    return taken


def _rows_of_step(runner: Any, num_scheduled_tokens: dict[str, int]) -> Iterator[tuple[Wanted, int, list[int]]]:
    """Of each request in this step that wants rows of it: the first wanted token, and the row of it and of the next."""
    for request_id, count in num_scheduled_tokens.items():
        request = runner.requests[request_id]
        if (wanted := _wanted(request.sampling_params)) is None:
            continue
        begin = max(request.num_computed_tokens, wanted.first)
        end = min(request.num_computed_tokens + count, wanted.end)
        if begin < end:
            place = runner.query_start_loc.np[runner.input_batch.req_id_to_index[request_id]].item()
            places = range(place + begin - request.num_computed_tokens, place + end - request.num_computed_tokens)
            start, rows = begin - wanted.first, [*places]
            yield wanted, start, rows * len(wanted.tokens) if wanted.is_choice else rows


def _score(runner: Any, hidden_states: Tensor, parts: list[tuple[Wanted, int, list[int]]]) -> None:
    if not parts:
        return
    places = [place for *_, rows in parts for place in rows]
    tokens = [token for wanted, start, rows in parts for token in wanted.tokens[start : start + len(rows)]]
    top_k = max(wanted.top_k for wanted, *_ in parts)
    chunks = [
        score_chunk(runner.model.compute_logits(hidden_states[rows]), targets, top_k)
        for rows, targets in torch.tensor([places, tokens], device=hidden_states.device).split(CHUNK, dim=1)
    ]
    logprobs, ids = (torch.cat(column) for column in zip(*chunks, strict=True))
    named = [(wanted.key, start, len(rows)) for wanted, start, rows in parts]
    runner.__dict__.setdefault("aopsd_scores", []).append((named, logprobs, ids))


def score_chunk(logits: Tensor, tokens: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """See `Scores`, of logits [n, V]."""
    logits = logits.float()
    norm = logits.logsumexp(-1, keepdim=True)
    columns = [logits.gather(-1, tokens[:, None]) - norm]
    top, ids = logits.topk(top_k, -1)
    if top_k:
        logprobs = logits - norm
        columns += [top - norm, -(logprobs.exp().mul_(logprobs)).sum(-1, keepdim=True)]
    return torch.cat(columns, dim=-1), ids.int()


def _wanted(sampling_params: Any) -> Wanted | None:
    found = ((sampling_params and sampling_params.extra_args) or {}).get(SCORED)
    return found and Wanted(*found)
