"""Changes to vLLM 0.20, so that a short suffix behind a long cached prefix can be scored.

vLLM does not read its cache for a request that wants prompt log-probs, because cached positions have none. If it is
made to read the cache, three things go wrong. It returns uninitialised memory for the cached positions. It makes a
Python object of each of them. And if the cached prefix ends on the first position that is wanted, that one is missing.

So a request names the first row that it wants (`FIRST_ROW` in its `extra_args`). The cache is read up to that row and
no further, and earlier rows are not returned.

Call `limit_prefix_hits` in the scheduler's process before the scheduler is created, and `keep_prompt_tails` in each of
vLLM's workers before the first request. `vllm_worker.py` does both, the second one through `vllm_extension.py`.
"""

from __future__ import annotations

from typing import Any

FIRST_ROW = "aopsd_first_row"  # row i predicts token i + 1 of the prompt


def limit_prefix_hits() -> None:
    """Make a request with a first row compute that row itself. Does nothing the second time."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    original = KVCacheManager.get_computed_blocks
    if getattr(original, "is_limited", False):
        return

    def get_computed_blocks(self: Any, request: Any) -> tuple[Any, int]:
        blocks, num_tokens = original(self, request)
        first = _first_row(request.sampling_params)
        if first is None or num_tokens <= first:
            return blocks, num_tokens
        # Asked again, not cut: layers with a sliding window or a state have another set of blocks at each length.
        shorter, num_tokens = self.coordinator.find_longest_cache_hit(request.block_hashes, first)
        return self.create_kv_cache_blocks(shorter), num_tokens

    get_computed_blocks.is_limited = True
    KVCacheManager.get_computed_blocks = get_computed_blocks


def keep_prompt_tails() -> None:
    """Drop the rows before a request's first row on the worker, before anything turns them into Python objects."""
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = GPUModelRunner._get_prompt_logprobs_dict
    if getattr(original, "keeps_tails", False):
        return

    def _get_prompt_logprobs_dict(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        found = original(self, *args, **kwargs)
        for request_id, rows in found.items():
            first = _first_row(self.requests[request_id].sampling_params)
            if first is not None and rows is not None:
                # Cloned, since a view pickles the whole tensor on its way from a worker process.
                columns = (rows.logprob_token_ids, rows.logprobs, rows.selected_token_ranks)
                ids, logprobs, ranks = (column[first:].clone() for column in columns)
                found[request_id] = LogprobsTensors(ids, logprobs, ranks)
        return found

    _get_prompt_logprobs_dict.keeps_tails = True
    GPUModelRunner._get_prompt_logprobs_dict = _get_prompt_logprobs_dict


def _first_row(sampling_params: Any) -> int | None:
    return ((sampling_params and sampling_params.extra_args) or {}).get(FIRST_ROW)
