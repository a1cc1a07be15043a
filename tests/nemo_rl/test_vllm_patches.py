"""The patches on vLLM's own KV cache, model runner and front end; vLLM's kernels are not needed for any of it."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_aopsd.engines.nemo_rl import vllm_patches
from nemo_aopsd.engines.nemo_rl.vllm_patches import SCORED, Wanted
from tests.nemo_rl import toy_vllm as toy
from tests.nemo_rl.toy_vllm import BLOCK, ROW, VOCAB, GPUModelRunner, KVCacheManager, Request, SamplingParams

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.v1.kv_cache_interface import MambaSpec

PROMPT, RESPONSE = 37, 100  # 136 tokens are computed: the last one was sampled and never read. 8 blocks are full
STOCK_HITS = KVCacheManager.get_computed_blocks
STOCK_ROWS = GPUModelRunner._get_prompt_logprobs_dict


@pytest.fixture(autouse=True)
def patches(monkeypatch):
    toy.install(monkeypatch)


def draw(length, seed):
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


ROLLOUT = draw(PROMPT + RESPONSE, seed=1)


def scoring(first, tokens=(0,), top_k=0):
    wanted = Wanted(0, first, list(tokens), top_k)
    return SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, extra_args={SCORED: tuple(wanted)})


def make_request(tokens, params=None, salt="student", request_id="probe", hasher=toy.hash_blocks):
    params = params or SamplingParams(temperature=0.0, max_tokens=1)
    return Request(request_id, list(tokens), params, None, cache_salt=salt, block_hasher=hasher)


def make_manager(*specs, **settings):
    sizes = {"max_model_len": ROW, "hash_block_size": BLOCK, "enable_caching": True}
    return KVCacheManager(toy.kv_config(256, *specs), **sizes | settings)


def compute(manager, request):
    """Prefill `request` as the scheduler does. Returns the length of the hit."""
    blocks, hit = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - hit, hit, blocks) is not None
    request.num_computed_tokens = request.num_tokens
    return hit


def roll_out(manager, tokens, prompt_length=PROMPT, salt="student"):
    """Prefill and decode `tokens`, then free them. Returns the block ids of each group, by place."""
    request = make_request(tokens[:prompt_length], salt=salt, request_id="rollout")
    compute(manager, request)
    seen = [{} for _ in manager.get_block_ids("rollout")]
    for token in tokens[prompt_length:]:
        for ids, places in zip(manager.get_block_ids("rollout"), seen, strict=True):
            for place, block in enumerate(ids):
                places.setdefault(place, block)  # a sliding window swaps blocks behind it for the null block
        request.append_output_token_ids(token)
        if request.num_tokens < len(tokens):
            assert manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
    manager.free(request)
    return seen


def shared(tokens, others):
    """The length of the longest prefix of `tokens` that one of `others` has as well."""
    prefixes = [next((i for i, (a, b) in enumerate(zip(tokens, o, strict=False)) if a != b), len(o)) for o in others]
    return min(len(tokens), max(prefixes))


@given(st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_first_row_of_any_prompt(data):
    manager = make_manager()
    tokens = data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=120))
    roll_out(manager, tokens, prompt_length=1)
    length = data.draw(st.integers(1, len(tokens)))
    more = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=20))
    probe = tokens[:length] + more
    first = data.draw(st.integers(0, len(probe) - 1))
    _, hit = manager.get_computed_blocks(make_request(probe, scoring(first)))
    computed = tokens[: (len(tokens) - 1) // BLOCK * BLOCK]
    assert hit == min(shared(probe, [computed]), len(probe) - 1, first) // BLOCK * BLOCK


def test_other_requests_are_as_before():
    manager = make_manager(log_stats=True)
    roll_out(manager, ROLLOUT)
    tokens = ROLLOUT[:120]
    greedy = {"temperature": 0.0, "max_tokens": 4}
    hits = {
        "no extra arguments": (SamplingParams(**greedy), 112),
        "extra arguments of others": (SamplingParams(**greedy, extra_args={"other": 1}), 112),
        "prompt log-probs as vLLM has them": (SamplingParams(**greedy, prompt_logprobs=0), 0),
        "a first row behind the hit": (scoring(119), 112),
        "a first row": (scoring(64), 64),
    }
    for name, (params, expected) in hits.items():
        assert manager.get_computed_blocks(make_request(tokens, params))[1] == expected, name
    pooled = make_request(tokens)
    pooled.sampling_params = None
    assert manager.get_computed_blocks(pooled)[1] == 112
    assert make_manager(enable_caching=False).get_computed_blocks(make_request(tokens, scoring(64)))[1] == 0


def test_the_other_salt_hits_nothing():
    manager = make_manager()
    roll_out(manager, ROLLOUT, salt="teacher")
    assert manager.get_computed_blocks(make_request(ROLLOUT[:120], scoring(100)))[1] == 0
    assert manager.get_computed_blocks(make_request(ROLLOUT[:120], scoring(100), salt="teacher"))[1] == 96


@pytest.mark.parametrize("windows", [(32,), (None, 32), (None, 48, 32)])
def test_layers_with_a_window_keep_the_blocks_that_the_first_row_reads(windows):
    """Blocks before a window are not looked up: a hit cut short afterwards would have none in the shorter window."""
    for position in range(0, RESPONSE, 7):
        manager = make_manager(*(toy.attention(sliding_window=window) for window in windows))
        rollout = roll_out(manager, ROLLOUT)
        first = PROMPT + position - 1
        request = make_request(ROLLOUT[: PROMPT + position + 8], scoring(first))
        blocks, hit = manager.get_computed_blocks(request)
        assert hit == first // BLOCK * BLOCK
        for window, ids, places in zip(windows, blocks.get_block_ids(), rollout, strict=True):
            assert len(ids) == hit // BLOCK
            oldest = 0 if window is None else max(0, hit - window + 1) // BLOCK  # the next token reads from here on
            assert ids[oldest:] == [places[place] for place in range(oldest, hit // BLOCK)]
        num_free = manager.block_pool.get_num_free_blocks()
        compute(manager, request)
        manager.free(request)
        assert manager.block_pool.get_num_free_blocks() == num_free


@pytest.mark.parametrize(("mode", "num_stateless"), [("all", 0), ("align", 2)])
def test_layers_with_a_state_start_from_the_state_at_the_hit(mode, num_stateless):
    """One block is one state there; mode "align" keeps none inside a prefill, here of two full blocks and a bit."""
    state = MambaSpec(block_size=BLOCK, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode=mode)
    for position in range(0, RESPONSE, 7):
        manager = make_manager(toy.attention(), state)
        attended, states = roll_out(manager, ROLLOUT)
        first = PROMPT + position - 1
        blocks, hit = manager.get_computed_blocks(make_request(ROLLOUT[: PROMPT + position + 8], scoring(first)))
        num_hit = first // BLOCK if first // BLOCK > num_stateless else 0
        assert hit == num_hit * BLOCK
        ids, state_ids = blocks.get_block_ids()
        assert ids == [attended[place] for place in range(num_hit)]
        assert state_ids == [0] * (num_hit - 1) + [states[place] for place in range(num_hit)][-1:]


def test_installed_once():
    hits, rows = KVCacheManager.get_computed_blocks, GPUModelRunner._get_prompt_logprobs_dict
    vllm_patches.limit_prefix_hits()
    vllm_patches.score_rows()
    assert KVCacheManager.get_computed_blocks is hits is not STOCK_HITS
    assert GPUModelRunner._get_prompt_logprobs_dict is rows is not STOCK_ROWS


class Counted(toy.ToyModel):
    """How many rows went through the output head at a time."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def compute_logits(self, states):
        self.rows.append(len(states))
        return super().compute_logits(states)


def score_in_chunks(tokens, first, sizes, start=0, top_k=0):
    """Scores of the tokens behind row `first`, as chunks of `sizes` go through the runner, and the runner's model."""
    runner = toy.FakeRunner(Counted(), num_blocks=1)
    runner.add("probe", tokens[:-1], scoring(first, tokens[first + 1 :], top_k))
    request = runner.requests["probe"]
    request.num_computed_tokens = start
    for size in sizes:
        end = request.num_computed_tokens + size
        states = runner.model.states(torch.tensor(tokens[:end]), request.num_computed_tokens)
        runner.place({"other": 0, "probe": size})
        runner.requests["other"] = SimpleNamespace(sampling_params=None)
        assert runner._get_prompt_logprobs_dict(states, {"other": 0, "probe": size}) == {}
        request.num_computed_tokens = end
    return vllm_patches.take_scores(runner), runner


@pytest.mark.parametrize("sizes", [[29], [1] * 29, [16, 13], [10, 10, 9]])
@pytest.mark.parametrize("hit", [0, 16])
@pytest.mark.parametrize("chunk", [4, 1024])
def test_the_wanted_rows_and_no_others_are_scored_whatever_the_chunks(sizes, hit, chunk, monkeypatch):
    monkeypatch.setattr(vllm_patches, "CHUNK", chunk)
    tokens = draw(hit + 30, seed=2)
    logprobs = toy.ToyModel().logprobs(tokens[:-1], weights=0)
    for first in range(hit, len(tokens) - 1):
        scores, runner = score_in_chunks(tokens, first, sizes, hit, top_k=3)
        assert [key for key, *_ in scores] == [0] * len(scores)
        assert [start for _, start, *_ in scores] == [0, *torch.tensor([len(s.ids) for s in scores]).cumsum(0)[:-1]]
        found, ids = torch.cat([s.logprobs for s in scores]), torch.cat([s.ids for s in scores])
        rows = logprobs[first:]
        top = rows.topk(3, -1)
        expected = [rows.gather(1, torch.tensor(tokens[first + 1 :])[:, None]), top.values]
        expected.append(-(rows.exp() * rows).sum(-1, keepdim=True))
        torch.testing.assert_close(found.double(), torch.cat(expected, dim=-1), atol=1e-5, rtol=0)
        assert torch.equal(ids.long(), top.indices)
        assert sum(runner.model.rows) == len(rows) and max(runner.model.rows) <= chunk
        assert vllm_patches.take_scores(runner) == []


def test_the_logits_of_a_long_row_never_exist_at_once():
    tokens = draw(3000, seed=3)
    scores, runner = score_in_chunks(tokens, 100, [2999])
    assert runner.model.rows == [1024, 1024, 2899 - 2048]
    assert sum(len(s.logprobs) for s in scores) == 2899
    assert all(s.logprobs.untyped_storage().nbytes() <= 4 * 2899 for s in scores)


def test_prompt_log_probs_that_others_ask_for_are_vllm_s_own():
    tokens = draw(29, seed=4)
    runner = toy.FakeRunner(toy.ToyModel(), num_blocks=1)
    runner.add("other", tokens, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0))
    runner._sync_device = lambda: None
    runner.place({"other": 29})
    with torch.compiler.set_stance("force_eager"):  # a rank is counted by a compiled function
        found = runner._get_prompt_logprobs_dict(runner.model.states(torch.tensor(tokens), 0), {"other": 29})["other"]
    expected = toy.ToyModel().logprobs(tokens[:-1], weights=0).gather(1, torch.tensor(tokens[1:])[:, None])
    torch.testing.assert_close(found.logprobs.double(), expected, atol=1e-5, rtol=0)
    assert vllm_patches.take_scores(runner) == []
