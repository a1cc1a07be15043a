"""The patches on vLLM's own KV cache, model runner and front end; vLLM's kernels are not needed for any of it."""

import pickle
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_aopsd.engines.nemo_rl import vllm_patches
from nemo_aopsd.engines.nemo_rl.vllm_patches import FIRST_ROW
from tests.nemo_rl import toy_vllm as toy
from tests.nemo_rl.toy_vllm import BLOCK, ROW, VOCAB, GPUModelRunner, KVCacheManager, Request, SamplingParams

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.v1.kv_cache_interface import MambaSpec

PROMPT, RESPONSE = 37, 100  # 136 tokens are computed: the last one was sampled and never read. 8 blocks are full
STOCK_HITS = KVCacheManager.get_computed_blocks
STOCK_TAILS = GPUModelRunner._get_prompt_logprobs_dict


@pytest.fixture(autouse=True)
def patches(monkeypatch):
    toy.install(monkeypatch)


def draw(length, seed):
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


ROLLOUT = draw(PROMPT + RESPONSE, seed=1)


def scoring(first, **settings):
    fixed = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0, "flat_logprobs": True, "detokenize": False}
    return SamplingParams(**fixed | {"skip_reading_prefix_cache": False, "extra_args": {FIRST_ROW: first}} | settings)


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
        "a first row, and no leave to read": (scoring(64, skip_reading_prefix_cache=None), 0),
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
    hits, tails = KVCacheManager.get_computed_blocks, GPUModelRunner._get_prompt_logprobs_dict
    vllm_patches.limit_prefix_hits()
    vllm_patches.keep_prompt_tails()
    assert KVCacheManager.get_computed_blocks is hits is not STOCK_HITS
    assert GPUModelRunner._get_prompt_logprobs_dict is tails is not STOCK_TAILS


def score_in_chunks(runner, request_id, tokens, sizes, start=0):
    """Prompt log-probs as the chunks of `sizes` leave the runner, None where a step returned none."""
    request = runner.requests[request_id]
    request.num_computed_tokens = start
    for size in sizes:
        end = request.num_computed_tokens + size
        states = runner.model.states(torch.tensor(tokens[:end]), request.num_computed_tokens)
        runner.place({request_id: size})
        with torch.compiler.set_stance("force_eager"):
            yield runner._get_prompt_logprobs_dict(states, {request_id: size}).get(request_id)
        request.num_computed_tokens = end


def expected_rows(tokens, start=0):
    """Log-probs of `tokens[start + 1 :]`, the row before each token."""
    logprobs = toy.ToyModel().logprobs(tokens[:-1], weights=0)
    return logprobs.gather(1, torch.tensor(tokens[1:])[:, None]).flatten()[start:]


@pytest.mark.parametrize("sizes", [[29], [1] * 29, [16, 13], [10, 10, 9]])
@pytest.mark.parametrize("hit", [0, 16])
def test_tails_are_the_wanted_rows_whatever_the_chunks(sizes, hit):
    tokens = draw(hit + 29, seed=2)
    for first in range(hit, len(tokens) - 1):
        runner = toy.FakeRunner(toy.ToyModel(), num_blocks=1)
        runner.add("probe", tokens, scoring(first))
        *before, rows = score_in_chunks(runner, "probe", tokens, sizes, start=hit)
        assert before == [None] * (len(sizes) - 1)
        length = len(tokens) - 1 - first
        assert [column.shape for column in rows[:3]] == [(length, 1), (length, 1), (length,)]
        assert rows.logprob_token_ids.flatten().tolist() == tokens[first + 1 :]
        torch.testing.assert_close(rows.logprobs.flatten().double(), expected_rows(tokens, first), atol=1e-5, rtol=0)
        assert runner.num_synced == 1  # the rows are copied before they are cut
        assert not runner.num_prompt_logprobs


def test_tails_travel_without_the_rest_of_the_prompt():
    tokens = draw(400, seed=3)
    runner = toy.FakeRunner(toy.ToyModel(), num_blocks=1)
    runner.add("probe", tokens, scoring(391))
    (rows,) = score_in_chunks(runner, "probe", tokens, [400])
    assert all(column.untyped_storage().nbytes() == 8 * 4 for column in rows[:3])
    assert len(pickle.dumps(rows.logprobs)) < len(pickle.dumps(torch.zeros(400)))
