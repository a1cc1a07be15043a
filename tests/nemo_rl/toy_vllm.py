"""vLLM's own scheduler, KV blocks, prompt log-probs and front end on a CPU, around a model small enough to do by hand.

The model keeps one number a position in its KV slots: the token, and which weights wrote it. A state is a decaying sum
over the slots before it, read through the block table, so a wrong, stale or unwritten block changes every log-prob.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections import deque
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

with warnings.catch_warnings():  # pytest would make errors of what vLLM's imports warn of
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm", reason="needs vLLM 0.20, which NeMo RL v0.7.0 stands on")
    from vllm import SamplingParams
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.forward_context import get_forward_context
    from vllm.utils.hashing import sha256
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from nemo_aopsd.engines.nemo_rl import branch_forward, vllm_patches

BLOCK = 16
VOCAB = 40
ROW = 512  # max_model_len

init_none_hash(sha256)
# What a request's block hashes are made with; `init_none_hash` draws the root of all chains.
hash_blocks = get_request_block_hasher(BLOCK, sha256)


def install(monkeypatch, *, hits: bool = True, rows: bool = True) -> None:
    """The patches, until the end of the test."""
    for owner, name in ((KVCacheManager, "get_computed_blocks"), (GPUModelRunner, "_get_prompt_logprobs_dict")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that it is put back
    if hits:
        vllm_patches.limit_prefix_hits()
    if rows:
        vllm_patches.score_rows()


class ToyModel:
    """Next-token logits from a decaying sum of embeddings of the context; one table for each set of weights."""

    def __init__(self, num_weights: int = 2, width: int = 8):
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
        self.embeddings, self.heads = draw(num_weights, VOCAB, width), 0.1 * draw(num_weights, width, VOCAB)
        self.current = 0

    def states(self, slots: torch.Tensor, start: int) -> torch.Tensor:
        """States `[n - start, width]` of the last positions, from KV `slots` [n] = weights * VOCAB + token."""
        positions = torch.arange(len(slots))
        age = positions[start:, None] - positions[None]
        decay = torch.where(age >= 0, 0.98 ** age.clamp(min=0).double(), 0.0)
        return decay @ self.embeddings.flatten(0, 1)[slots]

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        return states @ self.heads[self.current]

    def logprobs(self, tokens: list[int], weights: int) -> torch.Tensor:
        """Reference, with no cache: `[len(tokens), VOCAB]` float64, row i for the token after `tokens[: i + 1]`."""
        states = self.states(torch.tensor(tokens) + weights * VOCAB, 0)
        return (states @ self.heads[weights]).log_softmax(-1)


def attention(sliding_window: int | None = None) -> FullAttentionSpec | SlidingWindowSpec:
    sizes = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    return SlidingWindowSpec(**sizes, sliding_window=sliding_window) if sliding_window else FullAttentionSpec(**sizes)


def kv_config(num_blocks: int, *specs) -> KVCacheConfig:
    groups = [KVCacheGroupSpec([f"layer{index}"], spec) for index, spec in enumerate(specs or [attention()])]
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


@cache
def _model_config(folder) -> ModelConfig:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": ROW}
    kind = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(sizes | heads | kind))
    return ModelConfig(model=str(folder), skip_tokenizer_init=True, max_model_len=ROW, dtype="float32")


def make_scheduler(folder, *, num_blocks: int, budget: int, is_async: bool) -> Scheduler:
    """`budget` tokens a step; prompts that are longer are prefilled in chunks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = VllmConfig(
            model_config=_model_config(folder),
            scheduler_config=SchedulerConfig(
                max_num_seqs=min(64, budget),
                max_num_batched_tokens=budget,
                max_model_len=ROW,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=is_async,
            ),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
            device_config=DeviceConfig("cpu"),
        )
    config.cache_config.num_gpu_blocks = num_blocks
    return (AsyncScheduler if is_async else Scheduler)(
        vllm_config=config,
        kv_cache_config=kv_config(num_blocks),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
    )


class AttentionGroup:
    """Of vLLM's model runner; the metadata is what it is made of."""

    kv_cache_spec, layer_names = attention(), ["layer0"]

    def get_metadata_builder(self) -> AttentionGroup:
        return self

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata) -> FlashAttentionMetadata:
        common, names = common_attn_metadata, {field.name for field in dataclasses.fields(FlashAttentionMetadata)}
        taken = {name: value for name, value in vars(common).items() if name in names}
        nothing = dict.fromkeys(("cu_prefix_query_lens", "prefix_kv_lens", "suffix_kv_lens"))
        table = common.block_table_tensor
        return FlashAttentionMetadata(
            **taken, **nothing, block_table=table, use_cascade=False, common_prefix_len=common_prefix_len
        )


COMPILATION = SimpleNamespace(
    static_forward_context={"layer0": SimpleNamespace(impl=SimpleNamespace(alibi_slopes=None, sliding_window=(-1, -1)))}
)


def step_of(runner) -> tuple[list[tuple[int, int, torch.Tensor]], torch.Tensor]:
    """Of the checked metadata of the step that a model is to do: first token, end and block table by branch; slots."""
    context, limits = get_forward_context(), runner.vllm_config.scheduler_config
    (meta,), (slots,) = context.attn_metadata.values(), context.slot_mapping.values()
    assert slots.dtype == torch.int64 and slots is meta.slot_mapping
    assert len(slots) == meta.num_actual_tokens == meta.query_start_loc[-1] <= limits.max_num_batched_tokens
    assert len(meta.seq_lens) <= limits.max_num_seqs
    assert meta.max_query_len == meta.query_start_loc.diff().max()
    ends = meta.seq_lens
    if meta.use_cascade:  # as flash_attn.py's `cascade_attention` reads it
        prefix_table, own_table = meta.block_table[:1], meta.block_table[:, meta.common_prefix_len // BLOCK :]
        assert (meta.prefix_kv_lens % BLOCK == 0).all() and (meta.prefix_kv_lens > 0).all()
        assert meta.prefix_kv_lens.max() == meta.common_prefix_len and len(prefix_table) == len(meta.prefix_kv_lens)
        assert (
            meta.suffix_kv_lens.max() == meta.max_seq_len - meta.common_prefix_len and (meta.suffix_kv_lens > 0).all()
        )
        group = torch.bucketize(meta.query_start_loc[:-1], meta.cu_prefix_query_lens, right=True) - 1
        prefixes = meta.prefix_kv_lens[group]
        assert (meta.cu_prefix_query_lens[0], meta.cu_prefix_query_lens[-1]) == (0, len(slots))
        assert set(meta.cu_prefix_query_lens.tolist()) <= set(meta.query_start_loc.tolist())
        assert (prefixes + meta.suffix_kv_lens).tolist() == ends.tolist()
        tables = [
            torch.cat([prefix_table[g][: n // BLOCK], own])
            for g, n, own in zip(group, prefixes, own_table, strict=True)
        ]
    else:
        assert meta.max_seq_len == ends.max()
        tables = list(meta.block_table)
    for tensor in (meta.query_start_loc, ends, *tables):
        assert tensor.dtype == torch.int32 and tensor.is_contiguous()
    return list(zip(meta.query_start_loc.tolist(), ends.tolist(), tables, strict=False)), slots


class FakeRunner:
    """What `GPUModelRunner._get_prompt_logprobs_dict` reads of its `self`, and a forward over KV slots."""

    _get_prompt_logprobs_dict = property(lambda self: GPUModelRunner._get_prompt_logprobs_dict.__get__(self))

    def __init__(self, model: ToyModel, num_blocks: int):
        self.model, self.sampler, self.device = model, Sampler(), torch.device("cpu")
        self.requests: dict[str, SimpleNamespace] = {}
        self.num_prompt_logprobs: dict[str, int] = {}
        self.input_batch = SimpleNamespace(in_progress_prompt_logprobs_cpu={}, req_id_to_index={})
        self.query_start_loc = SimpleNamespace(np=np.zeros(1, dtype=np.int32))
        self.slots = torch.full((num_blocks * BLOCK,), -1)
        self.generator = torch.Generator().manual_seed(0)

    pin_memory, compilation_config = False, COMPILATION
    attn_groups = property(lambda self: [[AttentionGroup()]])

    def _model_forward(self, *, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """As of vLLM, for a batch that `branch_runner` has laid out: write all KV, then read."""
        spans, slots = step_of(self)
        assert (input_ids.dtype, positions.dtype) == (torch.int32, torch.int64)
        assert all(self.is_scratch(slot // BLOCK) for slot in slots.tolist()), "writes into a block that is not its own"
        self.slots[slots] = input_ids.long() + self.model.current * VOCAB
        states = []
        for (first, end, table), last in zip(spans, [*(first for first, *_ in spans[1:]), len(slots)], strict=True):
            where = torch.arange(end)
            start = end - (last - first)
            assert positions[first:last].tolist() == where[start:].tolist()
            where = table[where // BLOCK].long() * BLOCK + where % BLOCK
            assert slots[first:last].tolist() == where[start:].tolist()
            assert (self.slots[where] >= 0).all(), "read a KV slot that nobody wrote"
            states.append(self.model.states(self.slots[where], start))
        return torch.cat(states)

    def add(self, request_id: str, prompt: list[int], params: SamplingParams, num_computed: int = 0, blocks=()) -> None:
        self.requests[request_id] = SimpleNamespace(
            prompt_token_ids=prompt,
            tokens=list(prompt),
            sampling_params=params,
            num_computed_tokens=num_computed,
            blocks=list(blocks),
        )
        if params.prompt_logprobs is not None:
            self.num_prompt_logprobs[request_id] = params.prompt_logprobs

    def place(self, num_scheduled: dict[str, int]) -> None:
        """Lay the step's tokens out one request behind the other."""
        self.input_batch.req_id_to_index = {request_id: index for index, request_id in enumerate(num_scheduled)}
        self.query_start_loc.np = np.cumsum([0, *num_scheduled.values()]).astype(np.int32)

    def execute(self, scheduled) -> ModelRunnerOutput:
        """One step of a `SchedulerOutput`: write all KV, then read, score prompts and sample."""
        self._update(scheduled)
        counts = scheduled.num_scheduled_tokens
        self.place(counts)
        for request_id, count in counts.items():
            request = self.requests[request_id]
            start = request.num_computed_tokens
            new = torch.tensor(request.tokens[start : start + count])
            assert len(new) == count, "the scheduler is ahead of the tokens that exist"
            self.slots[self._where(request, start + count)[start:]] = new + self.model.current * VOCAB
        states = [self._read(request_id, count) for request_id, count in counts.items()]
        prompt_logprobs = self._get_prompt_logprobs_dict(torch.cat(states), counts)
        samples = [self._sample(i, s[-1], counts[i]) for i, s in zip(counts, states, strict=True)]
        values = np.array([[value] for _, value in samples], dtype=np.float32)
        ids = np.array([[token] for token, _ in samples])
        return ModelRunnerOutput(
            req_ids=list(counts),
            req_id_to_index=dict(self.input_batch.req_id_to_index),
            sampled_token_ids=[[] if token < 0 else [token] for token, _ in samples],
            logprobs=LogprobsLists(ids, values, np.ones(len(ids), dtype=np.int64)),
            prompt_logprobs_dict=prompt_logprobs,
        )

    def _update(self, scheduled) -> None:
        for request_id in scheduled.finished_req_ids:
            self.requests.pop(request_id, None)
            self.num_prompt_logprobs.pop(request_id, None)
        for new in scheduled.scheduled_new_reqs:
            blocks, params = new.block_ids[0], new.sampling_params
            self.add(new.req_id, new.prompt_token_ids, params, new.num_computed_tokens, blocks)
        old = scheduled.scheduled_cached_reqs
        for request_id, blocks, computed in zip(old.req_ids, old.new_block_ids, old.num_computed_tokens, strict=True):
            request = self.requests[request_id]
            kept = [] if request_id in old.resumed_req_ids else request.blocks
            request.blocks = kept + (blocks[0] if blocks else [])
            request.num_computed_tokens = computed

    def _where(self, request: SimpleNamespace, end: int) -> torch.Tensor:
        positions = torch.arange(end)
        return torch.tensor(request.blocks)[positions // BLOCK] * BLOCK + positions % BLOCK

    def _read(self, request_id: str, count: int) -> torch.Tensor:
        request = self.requests[request_id]
        slots = self.slots[self._where(request, request.num_computed_tokens + count)]
        assert (slots >= 0).all(), "read a KV slot that nobody wrote"
        return self.model.states(slots, request.num_computed_tokens)

    def _sample(self, request_id: str, state: torch.Tensor, count: int) -> tuple[int, float]:
        """Sampled token and its processed log-prob; -1 while tokens of the prompt remain."""
        request = self.requests[request_id]
        if request.num_computed_tokens + count < len(request.tokens):
            return -1, 0.0
        temperature = request.sampling_params.temperature
        logprobs = (self.model.compute_logits(state) / (temperature or 1)).log_softmax(-1)
        draw = torch.multinomial(logprobs.exp(), 1, generator=self.generator)
        token = int(draw if temperature else logprobs.argmax())
        request.tokens.append(token)
        return token, logprobs[token].item()


class ToyLLM:
    """The part of `vllm.LLM` that a worker uses. Steps are those of vLLM's engine core, one in flight if async."""

    def __init__(self, scheduler: Scheduler, model: ToyModel):
        self.scheduler, self.runner = scheduler, FakeRunner(model, scheduler.kv_cache_config.num_blocks)
        blocks = scheduler.kv_cache_manager.block_pool.blocks
        self.runner.vllm_config = scheduler.vllm_config
        self.runner.is_scratch = lambda number: blocks[number].ref_cnt == 1 and blocks[number].block_hash is None
        core = SimpleNamespace(scheduler=scheduler, request_block_hasher=hash_blocks)
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(engine_core=core))
        self.why_not: str | None = None
        self.calls: list[tuple] = []  # collective_rpc
        self.num_tokens: list[int] = []  # computed in each step
        self.requests: dict[str, Request] = {}
        self._num_requests = 0

    def collective_rpc(self, method: str, args: tuple = ()) -> list:
        self.calls.append((method, *args))
        if method == "seed_sampler":
            self.runner.generator.manual_seed(*args)
        if method == "why_no_branches":
            return [self.why_not]
        if method in ("grow_branches", "score_branches"):
            return [getattr(branch_forward, method.removesuffix("_branches"))(self.runner, *args)]
        return [vllm_patches.take_scores(self.runner) if method == "take_scores" else None]

    @torch.compiler.set_stance("force_eager")  # a rank is counted by a compiled function
    def generate(self, prompts: list[dict], sampling_params: list[SamplingParams], *, use_tqdm: bool) -> list:
        processor = OutputProcessor(tokenizer=None, log_stats=False)
        ids = [self._add(processor, *each) for each in zip(prompts, sampling_params, strict=True)]
        outputs = {output.request_id: output for output in self._outputs(processor)}
        return [outputs[request_id] for request_id in ids]

    def _add(self, processor: OutputProcessor, prompt: dict, params: SamplingParams) -> str:
        request_id = str(self._num_requests)
        self._num_requests += 1
        core = EngineCoreRequest(
            request_id=request_id,
            external_req_id=request_id,
            prompt_token_ids=list(prompt["prompt_token_ids"]),
            cache_salt=prompt.get("cache_salt"),
            sampling_params=params.clone(),
            arrival_time=float(self._num_requests),
            **dict.fromkeys(("mm_features", "pooling_params", "lora_request", "data_parallel_rank")),
        )
        processor.add_request(core, None)
        self.requests[request_id] = Request.from_engine_core_request(core, hash_blocks)
        self.scheduler.add_request(self.requests[request_id])
        return request_id

    def _outputs(self, processor: OutputProcessor):
        in_flight: deque = deque()
        depth = 2 if isinstance(self.scheduler, AsyncScheduler) else 1
        while self.scheduler.has_unfinished_requests() or in_flight:
            scheduled = self.scheduler.schedule()
            if scheduled.total_num_scheduled_tokens:
                self.num_tokens.append(scheduled.total_num_scheduled_tokens)
                in_flight.append((scheduled, self.runner.execute(scheduled)))
            if in_flight and (len(in_flight) == depth or not scheduled.total_num_scheduled_tokens):
                for outputs in self.scheduler.update_from_output(*in_flight.popleft()).values():
                    yield from processor.process_outputs(outputs.outputs).request_outputs
