"""A causal language model taken apart: hidden states first, the output head only where it is needed.

Rows stand in one line, for padding costs what tokens cost, or right-padded where that cannot be (in float32 on a GPU):
either way plain causal attention is exact and needs no mask. Only tokens that follow a prefix (decoding, branches)
carry one.
"""

import inspect
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import rms_norm
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedModel

from nemo_aopsd.engines.local import attention
from nemo_aopsd.engines.local.kv import KVBuffer, LineKV
from nemo_aopsd.models.limits import MAX_LOGITS, chunk_size
from nemo_aopsd.types import Tokens, TopK

FUSED_ON = ("cuda",)  # and on a CPU in float32, where the fused norm is the same to the bit


class Network:
    """Shapes: R rows, S padded length, H hidden size, N tokens of several rows in one list."""

    def __init__(self, causal_lm: PreTrainedModel):
        causal_lm.set_attn_implementation(attention.NAME)
        if causal_lm.device.type in FUSED_ON or causal_lm.dtype == torch.float32:
            fuse_norms(causal_lm)
        self.causal_lm = causal_lm
        self.body = causal_lm.base_model
        # Later releases of transformers 5 renamed the argument.
        self.cache_name = "cache" if "cache" in inspect.signature(self.body.forward).parameters else "past_key_values"
        self.head = cast(torch.nn.Linear, causal_lm.get_output_embeddings())
        self.in_line = (self.device.type == "cpu" or causal_lm.dtype == torch.bfloat16) and self._stands_in_line()
        self.warmed_up: set[torch.Size] = set()  # shapes of masks with which a decoding step has run eagerly

    @property
    def device(self) -> torch.device:
        return self.causal_lm.device

    @cached_property
    def graph_memory(self) -> tuple[torch.cuda.CUDAGraph, torch.cuda.Stream]:
        """What this network's CUDA graphs share one after the other: a graph that owns the pool, the capture stream.

        A pool is lost with its last graph, and the allocator gives a freed block only to the stream that had it.
        """
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self.device)
        with torch.cuda.graph(graph, stream=stream):
            torch.zeros(1, device=self.device)
        return graph, stream

    def prefill(
        self, rows: Sequence[Sequence[int]], keep_kv: bool = False
    ) -> tuple[list[Tensor], DynamicCache | LineKV]:
        """Hidden states [T, H] of each of `rows`, and their keys and values [R, heads, S, head size] if kept."""
        return self._prefill_line(rows, keep_kv) if self.in_line else self._prefill_padded(rows, keep_kv)

    def _prefill_line(self, rows: Sequence[Sequence[int]], keep_kv: bool) -> tuple[list[Tensor], LineKV]:
        lengths = [len(row) for row in rows]
        kv = LineKV(lengths, self.device)
        hidden = self.body(
            input_ids=torch.tensor([[token for row in rows for token in row]]).to(self.device),
            position_ids=torch.cat([torch.arange(length) for length in lengths])[None].to(self.device),
            attention_mask=attention.line_mask(lengths),
            use_cache=keep_kv,
            **{self.cache_name: kv if keep_kv else None},
        ).last_hidden_state
        return list(hidden[0].split(lengths)), kv

    def _prefill_padded(self, rows: Sequence[Sequence[int]], keep_kv: bool) -> tuple[list[Tensor], DynamicCache]:
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
        cache = DynamicCache()
        given = {"use_cache": keep_kv, self.cache_name: cache if keep_kv else None}
        output = self.body(input_ids=ids.to(self.device), **given)
        hidden = output.last_hidden_state.unbind()
        return [states[: len(row)] for states, row in zip(hidden, rows, strict=True)], cache

    @torch.no_grad()
    def _stands_in_line(self) -> bool:
        """Whether rows in one line have the hidden states that they have padded: not where attention is not ours."""
        rows = [[0, 1, 2], [0, 1]]
        expected = torch.cat(self._prefill_padded(rows, keep_kv=False)[0])
        try:
            found = torch.cat(self._prefill_line(rows, keep_kv=False)[0])
        except (TypeError, ValueError, RuntimeError):
            return False
        return bool((found - expected).abs().max() <= 0.05 * expected.abs().max())

    def response_hidden(
        self, prompts: list[Tokens], responses: list[Tokens], keep_kv: bool = False
    ) -> tuple[Tensor, Tensor, DynamicCache | LineKV]:
        """Of all responses in one list: the hidden state before each token [N, H], the tokens [N]; keys and values."""
        rows = list(zip(prompts, responses, strict=True))
        hidden, kv = self.prefill([prompt + response for prompt, response in rows], keep_kv)
        before = [states[len(p) - 1 : len(p) + len(r) - 1] for states, (p, r) in zip(hidden, rows, strict=True)]
        targets = torch.tensor([token for response in responses for token in response], dtype=torch.long)
        return torch.cat(before), targets.to(self.device), kv

    def extend(self, tokens: Tensor, mask: Tensor, positions: Tensor, kv: KVBuffer) -> Tensor:
        """Hidden states [R, Q, H] of `tokens` [R, Q] at `positions` [R, Q] after what `kv` holds; `kv` grows by Q.

        `mask` [R or 1, 1, Q, columns that `kv.update` returns] is added to the attention scores.
        """
        behind = {"position_ids": positions, "use_cache": True, self.cache_name: kv}
        hidden = self.body(input_ids=tokens, attention_mask=mask, **behind).last_hidden_state
        kv.length += tokens.shape[1]
        return hidden

    def additive(self, visible: Tensor) -> Tensor:
        """What to add to attention scores so that only `visible` (bool, any shape) is seen."""
        zeros = torch.zeros(visible.shape, dtype=self.causal_lm.dtype, device=visible.device)
        return zeros.masked_fill_(~visible, torch.finfo(zeros.dtype).min)

    def greedy(self, hidden: Tensor) -> Tensor:
        """The most likely next token [N] of hidden states [N, H]."""
        return torch.cat([self.head(part).argmax(-1) for part in hidden.split(self.chunk)])

    def token_logprobs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Log-probs [N] of `targets` [N] after `hidden` [N, H].

        Logits over the vocabulary exist for one chunk at a time; of several, the backward forms each chunk's anew.
        """
        parts = list(zip(hidden.split(self.chunk), targets.split(self.chunk), strict=True))
        if torch.is_grad_enabled() and len(parts) > 1:
            return torch.cat([checkpoint(_logprobs, self.head, *part, use_reentrant=False) for part in parts])
        return torch.cat([_logprobs(self.head, *part) for part in parts])

    def top(self, hidden: Tensor, k: int) -> TopK:
        """The `k` most likely next tokens of hidden states [N, H], without gradient."""
        parts = [_top(self.head, part, k) for part in hidden.split(self.chunk)]
        return TopK(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    @property
    def chunk(self) -> int:
        """Positions whose logits may exist at once."""
        return chunk_size(self.head.weight.shape[0], self.device.type == "cuda", MAX_LOGITS)


@torch.no_grad()
def fuse_norms(causal_lm: torch.nn.Module) -> int:
    """Give modules that are exactly an RMS norm one kernel in place of six; returns how many.

    Decoding is bound by the number of kernels. The kernel rounds once, so in bfloat16 it is the more exact.
    """
    count = 0
    for module in causal_lm.modules():
        weight = getattr(module, "weight", None)
        if type(module).__name__.endswith("RMSNorm") and isinstance(weight, Tensor) and weight.dim() == 1:
            eps: Any = getattr(module, "variance_epsilon", None) or module.eps
            fused = partial(rms_norm, normalized_shape=weight.shape, weight=weight, eps=eps)
            sample = torch.linspace(-1, 2, 3 * len(weight), device=weight.device, dtype=weight.dtype).view(3, -1)
            if torch.allclose(fused(sample), module(sample), rtol=0.02, atol=1e-3):  # some multiply by 1 + weight
                module.forward = fused
                count += 1
    return count


def log_softmax(head: torch.nn.Module, hidden: Tensor) -> Tensor:
    """Log-probs [N, V] of few hidden states [N, H]."""
    return _upcast(head(hidden)).log_softmax(-1)


def _top(head: torch.nn.Module, hidden: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    logprobs = log_softmax(head, hidden)
    values, ids = logprobs.topk(k, -1)
    return ids.int(), values.float(), torch.special.entr(logprobs.exp()).sum(-1).float()


def _logprobs(head: torch.nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    return logprobs_of(head(hidden), targets)


def logprobs_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probs [N] of `targets` [N] in `logits` [N, V]."""
    return -torch.nn.functional.cross_entropy(_upcast(logits), targets, reduction="none")


def _upcast(logits: Tensor) -> Tensor:
    return logits.to(at_least_float32(logits.dtype))


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """What probabilities over a vocabulary are computed in; float64 stays."""
    return torch.promote_types(dtype, torch.float32)
