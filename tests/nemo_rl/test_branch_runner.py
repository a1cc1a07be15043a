"""Branches in batches against forwards of whole texts: a small transformer, keys and values in vLLM's own blocks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from nemo_aopsd.engines.nemo_rl import branch_forward, branch_runner
from nemo_aopsd.engines.nemo_rl.branch_runner import Ask
from tests.nemo_rl import toy_vllm as toy
from tests.nemo_rl.toy_vllm import BLOCK, VOCAB, SamplingParams, hash_blocks

LENGTH = 8
WIDTH, HEADS, LAYERS = 16, 2, 2


class Transformer:
    """Two layers of attention with rotary positions, in float64."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
        self.embeddings, self.head = draw(VOCAB, WIDTH), draw(WIDTH, VOCAB)
        self.projections = draw(LAYERS, 3, WIDTH, WIDTH) / WIDTH**0.5
        self.mixers = draw(LAYERS, WIDTH, WIDTH) / WIDTH**0.5

    def compute_logits(self, states):
        return states @ self.head

    def forward(self, tokens, positions, attend):
        """States; `attend(layer, q, k, v)` are of `[N, HEADS, WIDTH / HEADS]`."""
        states = self.embeddings[tokens]
        for layer in range(LAYERS):
            normed = states / states.square().mean(-1, keepdim=True).sqrt()
            q, k, v = ((normed @ w).view(len(tokens), HEADS, -1) for w in self.projections[layer])
            states = states + attend(layer, rotate(q, positions), rotate(k, positions), v).flatten(1)
            states = states + torch.tanh(states @ self.mixers[layer])
        return states

    def logprobs(self, tokens):
        """Row i is of the token after `tokens[: i + 1]`."""

        def attend(layer, q, k, v):
            q, k, v = (x.transpose(0, 1) for x in (q, k, v))
            return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)

        states = self.forward(torch.tensor(tokens), torch.arange(len(tokens)), attend)
        return self.compute_logits(states).log_softmax(-1)


def rotate(x, positions):
    angle = positions[:, None, None] * torch.tensor([1.0, 0.3, 0.1, 0.03], dtype=torch.float64)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


class Engine:
    """What `branch_runner` touches of `vllm.LLM` and of its model runner: vLLM's block pool, and slots to write to."""

    pin_memory, device, compilation_config = False, torch.device("cpu"), toy.COMPILATION
    attn_groups = property(lambda self: [[toy.AttentionGroup()]])

    def __init__(self, folder, num_blocks=256, budget=4096):
        self.scheduler = toy.make_scheduler(folder, num_blocks=num_blocks, budget=budget, is_async=False)
        self.vllm_config = self.scheduler.vllm_config
        self.pool = self.scheduler.kv_cache_manager.block_pool
        core = SimpleNamespace(scheduler=self.scheduler, request_block_hasher=hash_blocks)
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(engine_core=core))
        self.model = Transformer()
        self.slots = torch.full((LAYERS, 2, num_blocks * BLOCK, HEADS, WIDTH // HEADS), torch.nan, dtype=torch.float64)
        self.batches, self.read_rows = [], []

    def collective_rpc(self, method, args):
        self.batches.append(args[0])
        return [getattr(branch_forward, method.removesuffix("_branches"))(self, *args)]

    def _model_forward(self, *, input_ids, positions):
        spans, slots = toy.step_of(self)
        return self.forward(input_ids.long(), positions, slots, spans)

    def forward(self, tokens, positions, slots, spans):
        lasts = [*(first for first, *_ in spans[1:]), len(tokens)]

        def attend(layer, q, k, v):
            self.slots[layer, :, slots] = torch.stack([k, v])
            found = []
            for (first, end, table), last in zip(spans, lasts, strict=True):
                where = torch.arange(end)
                keys, values = self.slots[layer, :, table[where // BLOCK].long() * BLOCK + where % BLOCK].transpose(
                    1, 2
                )
                mask = positions[first:last, None] >= where
                query = q[first:last].transpose(0, 1)
                found.append(scaled_dot_product_attention(query, keys, values, attn_mask=mask).transpose(0, 1))
            return torch.cat(found)

        return self.model.forward(tokens, positions, attend)

    def read(self, rows, salt="salt"):
        """As vLLM prefills a request, then frees it."""
        for row in rows:
            self.read_rows.append(row)
            num_full = len(row) // BLOCK
            blocks = self.pool.get_new_blocks(-(-len(row) // BLOCK))
            table, where = torch.tensor([block.block_id for block in blocks]), torch.arange(len(row))
            slots = table[where // BLOCK] * BLOCK + where % BLOCK
            self.forward(torch.tensor(row), where, slots, [(0, len(row), table)])
            params = SamplingParams(max_tokens=1)
            request = toy.Request("r", row, params, None, cache_salt=salt, block_hasher=hash_blocks)
            self.pool.cache_full_blocks(request, blocks, 0, num_full, BLOCK, 0)
            self.pool.free_blocks(reversed(blocks))

    def run(self, rows, asks, read=None):
        return branch_runner.run(self, rows, asks, "salt", read or self.read)

    def free_blocks(self):
        """Each once."""
        free = [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]
        assert len(set(free)) == len(free) == self.pool.get_num_free_blocks()
        return set(free)


def draw(length, seed):
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


PROMPT = draw(21, seed=0)
ROWS = [PROMPT + draw(60, seed=1), PROMPT + draw(40, seed=2), draw(33, seed=3), draw(50, seed=4)]
PLACES = [
    *((0, shared) for shared in range(30, 50)),  # at every place of a block
    *((1, shared) for shared in (1, 15, 61)),  # of a row that shares a block with the first; 2 has no branch
    *((3, shared) for shared in (33, 48, 50)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("model")


def growing():
    """With none, one, and all but one of the tokens given."""
    return [
        Ask(row, shared, draw(given, seed=shared), LENGTH - given)
        for row, shared in PLACES
        for given in (0, 1, LENGTH - 1)
    ]


def to_score():
    return [Ask(row, shared, draw(1 + shared % LENGTH, seed=shared)) for row, shared in PLACES]


def check(asks, found):
    """Against forwards of whole texts."""
    model = Transformer()
    for ask, result in zip(asks, found, strict=True):
        context = ROWS[ask.row][: ask.shared]
        logprobs = model.logprobs(context + ask.tokens + (result if ask.new else []))
        first = len(context) + (len(ask.tokens) if ask.new else 0) - 1
        if ask.new:
            assert result == logprobs[first:-1].argmax(-1).tolist()
        else:
            expected = logprobs[first:-1].gather(1, torch.tensor(ask.tokens)[:, None])[:, 0]
            torch.testing.assert_close(result, expected.float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("budget", [4096, 24])  # 24 tokens and branches at most in a batch, or 64 branches
@pytest.mark.parametrize("asks", [growing(), to_score()], ids=["grow", "score"])
def test_batches_equal_forwards_of_whole_texts(folder, asks, budget):
    engine = Engine(folder, budget=budget)
    before = engine.free_blocks()
    check(asks, engine.run(ROWS, asks))
    assert engine.free_blocks() == before
    assert list(map(len, engine.read_rows)) == [48, 48, 48]  # as much as their branches share
    assert max(len(batch.tokens) for batch in engine.batches) <= budget
    num_batches = len(engine.batches)
    assert num_batches >= len(asks) / min(64, budget)
    check(asks, engine.run(ROWS, asks))
    assert len(engine.read_rows) == 3 and len(engine.batches) == 2 * num_batches  # from the cache the second time


def test_few_tokens_are_read_again(folder):
    """What is left of a block, at most 15 tokens, and 16 where the branch itself has none to read."""
    engine = Engine(folder)
    asks = growing()
    engine.run(ROWS, asks)
    (lengths,) = ([int(n) for batch in engine.batches for n in batch.lengths],)
    left = [ask.shared % BLOCK if ask.tokens else (ask.shared - 1) % BLOCK + 1 for ask in asks]
    assert lengths == [n + len(ask.tokens) for n, ask in zip(left, asks, strict=True)]


@pytest.mark.parametrize("reads", [True, False])
def test_a_row_that_was_evicted_is_read_once_or_left(folder, reads):
    engine = Engine(folder)
    asks = [ask for ask in growing() if ask.shared > BLOCK]
    before = engine.run(ROWS, asks)
    (row,) = (row for row in engine.read_rows if row == ROWS[3][:48])
    name = toy.Request("r", row, SamplingParams(max_tokens=1), None, cache_salt="salt", block_hasher=hash_blocks)
    (block,) = engine.pool.get_cached_block(name.block_hashes[1], [0])
    engine.pool.evict_blocks({block.block_id})
    engine.read_rows.clear()
    after = engine.run(ROWS, asks, None if reads else engine.read_rows.extend)
    assert engine.read_rows == [row]
    assert after == (before if reads else [None if ask.row == 3 else r for ask, r in zip(asks, before, strict=True)])


def test_more_rows_than_the_cache_holds_are_run_in_turn(folder):
    """Nine blocks: one row of 81 tokens has five, and its branches two each."""
    engine = Engine(folder, num_blocks=10)
    asks = growing()
    check(asks, engine.run(ROWS, asks))
    assert len(engine.free_blocks()) == 9


def test_what_fits_into_no_batch_is_left(folder):
    engine = Engine(folder, budget=24)
    row = draw(toy.ROW, seed=9)
    engine.model = SimpleNamespace(forward=engine.model.forward, compute_logits=engine.model.compute_logits)
    asks = [
        Ask(0, toy.ROW - 8, [], 8),  # its last token would be the row's last, and none is left to read
        Ask(0, toy.ROW - 7, [], 8),
        Ask(0, 32, draw(25, seed=5)),
        Ask(0, 32, draw(26, seed=5)),
        Ask(0, 32, []),
    ]
    engine.read([row[: toy.ROW - 16]])
    left = [result is None for result in engine.run([row], asks)]
    assert left == [False, True, True, True, True]
    asks[2] = Ask(0, 33, draw(24, seed=5))
    assert engine.run([row], asks)[2] is not None


def test_blocks_are_given_back_after_an_error(folder):
    engine = Engine(folder)
    before = engine.free_blocks()
    engine.collective_rpc = lambda method, args: 1 / 0
    with pytest.raises(ZeroDivisionError):
        engine.run(ROWS, growing())
    assert engine.free_blocks() == before


def plain_runner():
    """A dense model on one GPU, as vLLM's settings are then."""
    group = SimpleNamespace(backend=SimpleNamespace(get_name=lambda: "FLASH_ATTN"))
    parallel = dict.fromkeys(
        ("pipeline", "data", "decode_context", "prefill_context"),
        1,
    )
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{f"{kind}_parallel_size": size for kind, size in parallel.items()}),
        cache_config=SimpleNamespace(enable_prefix_caching=True, kv_sharing_fast_prefill=False),
        compilation_config=SimpleNamespace(pass_config=SimpleNamespace(enable_sp=False)),
        kv_cache_config=toy.kv_config(16),
        attn_groups=[[group]],
        input_batch=SimpleNamespace(block_table=SimpleNamespace(block_tables=[SimpleNamespace(blocks_per_kv_block=1)])),
        kv_cache_dtype=torch.bfloat16,
        dtype=torch.bfloat16,
        vllm_config=SimpleNamespace(kv_transfer_config=None),
        speculative_config=None,
        lora_config=None,
        supports_mm_inputs=False,
        enable_prompt_embeds=False,
        uses_mrope=False,
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("parallel_config.pipeline_parallel_size", 2),
        ("parallel_config.data_parallel_size", 2),
        ("parallel_config.prefill_context_parallel_size", 2),
        ("parallel_config.decode_context_parallel_size", 2),
        ("compilation_config.pass_config.enable_sp", True),
        ("cache_config.enable_prefix_caching", False),
        ("cache_config.kv_sharing_fast_prefill", True),
        ("kv_cache_dtype", torch.float8_e4m3fn),
        ("kv_cache_config", toy.kv_config(16, toy.attention(), toy.attention(sliding_window=32))),
        ("kv_cache_config", toy.kv_config(16, toy.attention(sliding_window=32))),
        ("attn_groups", [[SimpleNamespace(backend=SimpleNamespace(get_name=lambda: "FLASHMLA"))]]),
        ("input_batch.block_table.block_tables", [SimpleNamespace(blocks_per_kv_block=2)]),
        ("speculative_config", object()),
        ("lora_config", object()),
        ("vllm_config.kv_transfer_config", object()),
        ("supports_mm_inputs", True),
        ("enable_prompt_embeds", True),
        ("uses_mrope", True),
    ],
)
def test_what_batches_were_not_written_for_is_found(path, value):
    runner = plain_runner()
    assert branch_forward.why_not(runner) is None
    *owners, name = path.split(".")
    owner = runner
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, name, value)
    assert branch_forward.why_not(runner)


def test_neighbours_of_a_row_read_what_they_share_once():
    """Nine branches of one row and two of another that has the same first block; a group has eight at most."""
    blocks = torch.tensor([[1, 2, 3, 90 + i] for i in range(9)] + [[1, 7, 8, 99]] * 2).numpy()
    shared = torch.tensor([2, 2, 3, 3, 3, 3, 3, 3, 3, 2, 3]).numpy()
    assert branch_forward._groups(blocks, shared) == [0, 8, 9]
    shared[4] = 1  # it lacks the second block of its group's first, and begins a group with a block that all have
    assert branch_forward._groups(blocks, shared) == [0, 4]
    shared[0] = 0  # nothing to share, which vLLM's cascade cannot do: each for itself
    assert branch_forward._groups(blocks, shared) == list(range(11))
