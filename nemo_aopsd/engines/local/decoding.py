"""Sampling a batch of responses with one growing key-value buffer."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nemo_aopsd.engines.local.decoding_step import EagerStep, Step
from nemo_aopsd.engines.local.merged_attention import merged_attention
from nemo_aopsd.engines.local.network import Network, at_least_float32, logprobs_of
from nemo_aopsd.types import Generation, Sampling, Tokens

BLOCK = 128  # tokens whose probabilities are summed at once
SMALL = 512  # tokens of a vocabulary that needs no blocks


def uniforms(seed: int, row: int, count: int) -> np.ndarray:
    """The row's own random numbers [count] in [0, 1), so that a row's sample does not depend on its batch."""
    return np.random.Generator(np.random.PCG64([seed, row])).random(count)


def sample(logits: Tensor, sampling: Sampling, uniform: Tensor) -> Tensor:
    """Next tokens [R] of `logits` [R, V]: greedy, or by inverting the (cut) distribution at `uniform` [R] float64."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    if sampling.temperature != 1:
        logits = logits.to(at_least_float32(logits.dtype)) / sampling.temperature
    num_tokens = logits.shape[-1]
    if not _is_cut(sampling, num_tokens):
        return _invert_cdf(_probs(logits), uniform)
    kept, ids = logits.topk(min(sampling.top_k or num_tokens, num_tokens))  # descending
    probs = _probs(kept)
    before = probs.cumsum(-1) - probs
    before[:, 0] = 0  # the first token always stays
    probs = torch.where(before < sampling.top_p, probs, 0.0)
    return ids.gather(-1, _invert_cdf(probs, uniform)[:, None])[:, 0]


def sample_with_logprobs(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Next tokens as `sample` has them, and their log-probs [R] at temperature 1, of one softmax if it is theirs."""
    if sampling.temperature != 1 or _is_cut(sampling, logits.shape[-1]):
        choice = sample(logits, sampling, uniform)
        return choice, logprobs_of(logits, choice)
    probs = _probs(logits)
    choice = _invert_cdf(probs, uniform)
    return choice, probs.gather(-1, choice[:, None])[:, 0].log()


def _is_cut(sampling: Sampling, num_tokens: int) -> bool:
    return sampling.top_p < 1 or 0 < sampling.top_k < num_tokens


def _probs(logits: Tensor) -> Tensor:
    """In float32, or float64 if the logits are."""
    return logits.softmax(-1, dtype=at_least_float32(logits.dtype))


def _invert_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """The first token whose cumulated probability exceeds `uniform`, in float64.

    Of a large vocabulary found in two levels, the block and the token in it: a float64 sum over every token would take
    longer than all attention of the step. Blocks are summed as they are, for the whole would be copied to float64.
    """
    num_tokens = probs.shape[-1]
    if num_tokens <= SMALL:
        return _first_above(probs.double(), uniform * probs.sum(-1, dtype=torch.float64))[0]
    if missing := -num_tokens % BLOCK:  # or it would be copied
        probs = torch.nn.functional.pad(probs, (0, missing))
    probs = probs.unflatten(-1, (-1, BLOCK))
    sums = probs.sum(-1).double()
    target = uniform * sums.sum(-1)
    block, before = _first_above(sums, target)
    inside = probs[torch.arange(len(probs), device=probs.device), block].double()
    token, _ = _first_above(inside, target - before)
    return (block * BLOCK + token).clamp(max=num_tokens - 1)  # only NaN reaches the padding


def _first_above(masses: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Index [R] of the first of `masses` [R, N] up to which more than `target` [R] has come, and what came before it.

    Rounding may leave `target` at the whole sum or above: then it is the last one with any mass.
    """
    ends = masses.cumsum(-1)
    target = torch.minimum(target, ends[:, -1].nextafter(torch.zeros_like(target)))
    index = torch.searchsorted(ends, target[:, None], right=True)
    index = index.clamp(max=masses.shape[-1] - 1)  # of NaN it is past the end; the update's norm tells of it
    # The very sum that `target` has reached; ends - masses may round above it, and the rest would be negative.
    before = torch.nn.functional.pad(ends, (1, 0)).gather(-1, index)
    return index[:, 0], before[:, 0]


class Decoder:
    """One batch of prompts being answered. Rows that have ended leave the buffer; `self.rows` names those left."""

    def __init__(
        self,
        network: Network,
        prompts: list[Tokens],
        limits: list[int],
        end_ids: frozenset[int],
        step_class: type[Step] = EagerStep,
    ):
        """`limits` are tokens each row may have, all at least 1."""
        self.network, self.step_class, device = network, step_class, network.device
        self.limits = torch.tensor(limits, device=device)
        self.end_ids = torch.tensor(sorted(end_ids), device=device)
        self.prompt_lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self.rows = torch.arange(len(prompts), device=device)
        self.tokens = torch.zeros(len(prompts), max(limits), dtype=torch.long, device=device)
        self.lengths = torch.zeros_like(self.limits)  # 0 while running
        distinct = list(dict.fromkeys(map(tuple, prompts)))  # equal prompts are read once
        hidden, prefix = network.prefill(distinct, keep_kv=True)
        sources = torch.tensor([distinct.index(tuple(prompt)) for prompt in prompts], device=device)
        self.last_hidden = torch.stack([states[-1] for states in hidden])[sources]
        self.num_columns = max(map(len, distinct))
        self.kv: Any = step_class.buffer(prefix, sources, self.num_columns, min(step_class.room, max(limits)))
        self.extend = self._fit_step()

    def run(self, sampling: Sampling, uniform: Tensor) -> list[Generation]:
        """Decode to the end; `uniform` [R, max limit] float64. Log-probs are at temperature 1, whatever is sampled."""
        self.logprobs = torch.zeros(self.tokens.shape, device=self.tokens.device) if sampling.with_logprobs else None
        with merged_attention(self.network.causal_lm) if self.step_class.merges_attention else nullcontext():
            self._decode(sampling, uniform)
        return self._results()

    def _decode(self, sampling: Sampling, uniform: Tensor) -> None:
        for step in range(self.tokens.shape[1]):
            given = self.network.head(self.last_hidden), sampling, uniform[self.rows, step]
            if self.logprobs is None:
                choice = sample(*given)
            else:
                choice, logprobs = sample_with_logprobs(*given)
                self.logprobs[self.rows, step] = logprobs.float()
            self.tokens[self.rows, step] = choice
            ends = torch.isin(choice, self.end_ids) | (self.limits[self.rows] == step + 1)
            lengths = self.lengths[self.rows]
            self.lengths[self.rows] = torch.where(ends & (lengths == 0), step + 1, lengths)
            if self.kv.room == 0 or step % self.step_class.looks_every == 0:
                running = self.lengths[self.rows] == 0
                num_running = int(running.sum())  # waits for the device
                if num_running == 0:
                    break
                choice = self._make_room(choice, running, num_running)
            self.last_hidden = self.extend(choice, self.prompt_lengths[self.rows] + step)

    def _make_room(self, choice: Tensor, running: Tensor, num_running: int) -> Tensor:
        """Drop ended rows once there are enough of them, and where the buffer is full and must grow."""
        kind, num_rows = self.step_class, len(self.rows)
        is_worth_it = num_rows > kind.few and num_running <= kind.min_running * num_rows
        if not is_worth_it and self.kv.room:
            return choice
        num_kept = -(-num_running // kind.few) * kind.few  # rows that have ended fill it up, and say no more
        keep = running.int().argsort(descending=True, stable=True)[:num_kept]
        self.kv.rebuild(keep, max(self.kv.room, kind.room, self.kv.length // 8))
        self.rows = self.rows[keep]
        self.extend = self._fit_step()
        return choice[keep]

    def _fit_step(self) -> Step:
        """The step for the buffer as it is, with an additive mask [R, 1, 1, columns + room] over prompts' padding."""
        width = self.kv.length + self.kv.room
        columns = torch.arange(width, device=self.rows.device)
        padding = (columns >= self.prompt_lengths[self.rows, None]) & (columns < self.num_columns)
        return self.step_class(self.network, self.kv, self.network.additive(~padding)[:, None, None])

    def _results(self) -> list[Generation]:
        is_end = torch.isin(self.tokens, self.end_ids)
        finished = is_end.gather(1, self.lengths[:, None] - 1)[:, 0].tolist()
        said = [None] * len(finished) if self.logprobs is None else self.logprobs.cpu()
        rows = zip(self.tokens.tolist(), self.lengths.tolist(), finished, said, strict=True)
        return [
            Generation(tokens[:length], done, None if logprobs is None else logprobs[:length].clone())
            for tokens, length, done, logprobs in rows
        ]
