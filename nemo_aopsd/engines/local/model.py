"""`LanguageModel` on one network: batching, order, and the key-value prefixes shared by log-probs and probes."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from nemo_aopsd.engines.local import branches as tree
from nemo_aopsd.engines.local.branches import BranchRow
from nemo_aopsd.engines.local.decoding import Decoder, uniforms
from nemo_aopsd.engines.local.decoding_step import EagerStep, GraphStep, Step
from nemo_aopsd.engines.local.kv import Prefix, PrefixCache
from nemo_aopsd.engines.local.memory import batches, gpu_memory
from nemo_aopsd.engines.local.network import Network
from nemo_aopsd.engines.local.settings import Settings
from nemo_aopsd.types import Branch, Generation, Sampling, Tokens, TopK

Result = TypeVar("Result")
SCORING = "policy.dynamic_batching.logprob_mb_tokens or policy.logprob_batch_size"


class LocalModel:
    """Student and teacher are each one of these, be it on one network (a live teacher) or on two."""

    def __init__(self, causal_lm: PreTrainedModel, settings: Settings, end_ids: frozenset[int]):
        self.network = Network(causal_lm)
        self.settings = settings
        self.end_ids = end_ids
        self.prefixes = PrefixCache(settings.prefix_cache_gb * 1e9)

    @gpu_memory("sampling", "policy.generation_batch_size")
    @torch.inference_mode()
    def generate(self, prompts: list[Tokens], sampling: Sampling, seed: int) -> list[Generation]:
        """Sample one response a prompt. A row stops at `max_total_sequence_length`, then unfinished."""
        longest = self.settings.max_total_sequence_length
        limits = [min(sampling.max_new_tokens, longest - len(prompt)) for prompt in prompts]
        results = [Generation([], False, torch.zeros(0) if sampling.with_logprobs else None)] * len(prompts)
        with_room = [index for index, limit in enumerate(limits) if limit > 0]
        for batch in batches(with_room, [len(prompt) for prompt in prompts], self.settings.generation_batch_size):
            batch_limits = [limits[index] for index in batch]
            batch_prompts = [prompts[index] for index in batch]
            decoder = Decoder(self.network, batch_prompts, batch_limits, self.end_ids, self._step_class)
            numbers = torch.stack([torch.from_numpy(uniforms(seed, index, max(batch_limits))) for index in batch])
            for index, generation in zip(batch, decoder.run(sampling, numbers.to(self.network.device)), strict=True):
                results[index] = generation
        return results

    @gpu_memory("scoring responses", f"{SCORING}, or policy.prefix_cache_gb")
    @torch.no_grad()
    def logprobs(self, prompts: list[Tokens], responses: list[Tokens]) -> list[Tensor]:
        """Log-probs `[T]` of each response; keeps the prefixes for the probes of the same rows."""
        rows = list(zip(prompts, responses, strict=True))
        assert all(prompts), "the first token of a response needs a context"
        self.prefixes.clear()
        results: dict[int, Tensor] = {}
        for batch in self._batches(rows):
            sides = [prompts[index] for index in batch], [responses[index] for index in batch]
            keeps = not self.prefixes.is_full
            hidden, targets, kv = self.network.response_hidden(*sides, keeps)
            if keeps:
                self.prefixes.put(Prefix(kv, [rows[index] for index in batch]))
            logprobs = self.network.token_logprobs(hidden, targets).cpu()
            results |= zip(batch, logprobs.split([len(rows[index][1]) for index in batch]), strict=True)
        return [results[index] for index in range(len(rows))]

    @gpu_memory("scoring responses", SCORING)
    @torch.no_grad()
    def top_logprobs(self, prompts: list[Tokens], responses: list[Tokens], k: int) -> list[TopK]:
        rows = list(zip(prompts, responses, strict=True))
        results: dict[int, TopK] = {}
        for batch in self._batches(rows):
            sides = [prompts[index] for index in batch], [responses[index] for index in batch]
            hidden, _, _ = self.network.response_hidden(*sides)
            top = self.network.top(hidden, k)
            lengths = [len(rows[index][1]) for index in batch]
            columns = [column.cpu().split(lengths) for column in (top.ids, top.logprobs, top.entropy)]
            results |= zip(batch, map(TopK, *columns), strict=True)
        return [results[index] for index in range(len(rows))]

    def continue_greedily(
        self, prompts: list[Tokens], responses: list[Tokens], branches: list[list[Branch]], length: int
    ) -> list[list[Branch]]:
        extend = partial(tree.continue_rows, self.network, length=length, end_ids=self.end_ids)
        return self._on_branches(prompts, responses, branches, partial(tree.split, extra=length), extend)

    def branch_logprobs(
        self, prompts: list[Tokens], responses: list[Tokens], branches: list[list[Branch]]
    ) -> list[list[Tensor]]:
        score = partial(tree.score_rows, self.network)
        split = partial(tree.split, extra=0, max_tokens=tree.MAX_TOKENS)
        return self._on_branches(prompts, responses, branches, split, score)

    def next_logprobs(
        self, prompts: list[Tokens], responses: list[Tokens], branches: list[list[Branch]], choices: Tokens
    ) -> list[list[Tensor]]:
        choose = partial(tree.choose_rows, self.network, choices=choices)
        split = partial(tree.split, extra=1, max_tokens=tree.MAX_TOKENS)
        return self._on_branches(prompts, responses, branches, split, choose)

    @property
    def _step_class(self) -> type[Step]:
        is_graphed = self.network.device.type == "cuda" and not self.settings.enforce_eager
        return GraphStep if is_graphed else EagerStep

    @gpu_memory("reading branches", f"{SCORING}, or policy.prefix_cache_gb")
    def _on_branches(
        self,
        prompts: list[Tokens],
        responses: list[Tokens],
        branches: list[list[Branch]],
        split: Callable[[list[BranchRow]], Iterator[list[BranchRow]]],
        work: Callable[[Prefix, list[BranchRow]], list[list[Result]]],
    ) -> list[list[Result]]:
        """`work` on the branches of each micro-batch, behind a kept prefix or, once, one computed now."""
        rows = list(zip(prompts, responses, strict=True))
        results: list[list[Result]] = [[] for _ in rows]
        for prefix, places in self._prefixes_of(rows, [index for index, row in enumerate(branches) if row]):
            group = [BranchRow(place, index, *rows[index], branches[index]) for place, index in places]
            for part in split(group):
                for row, row_results in zip(part, work(prefix, part), strict=True):
                    results[row.index] += row_results
            del prefix  # or it would live on while the next one is computed
        return results

    def _prefixes_of(
        self, rows: list[tuple[Tokens, Tokens]], wanted: list[int]
    ) -> Iterator[tuple[Prefix, list[tuple[int, int]]]]:
        """Prefixes that cover the `wanted` rows, with pairs (row in the prefix, index in `rows`)."""
        taken = self.prefixes.take(rows, wanted)
        missing = set(wanted) - {index for _, places in taken for _, index in places}
        while taken:
            yield taken.pop()
        for batch in self._batches(rows, sorted(missing)):
            yield self._read_prefix([rows[index] for index in batch]), list(enumerate(batch))

    def _batches(self, rows: list[tuple[Tokens, Tokens]], wanted: Sequence[int] | None = None) -> Iterator[list[int]]:
        """Indices of `rows`, or of the `wanted` ones, in the batches of one forward each."""
        lengths = [len(prompt) + len(response) for prompt, response in rows]
        limits = self.settings.logprob_batch_size, self.settings.logprob_mb_tokens
        return batches(range(len(rows)) if wanted is None else wanted, lengths, *limits)

    @torch.no_grad()
    def _read_prefix(self, rows: list[tuple[Tokens, Tokens]]) -> Prefix:
        _, kv = self.network.prefill([prompt + response for prompt, response in rows], keep_kv=True)
        return Prefix(kv, rows)
