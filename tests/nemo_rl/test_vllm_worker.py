"""The worker's methods on a scripted `vllm.LLM`, and on vLLM's own scheduler around a model done by hand."""

import inspect
import warnings
from types import SimpleNamespace

import pytest
import torch

from nemo_aopsd.engines.nemo_rl import branch_runner, vllm_patches
from nemo_aopsd.engines.nemo_rl.vllm_patches import SCORED, Scores, Wanted
from nemo_aopsd.types import Branch, Sampling
from tests.nemo_rl import toy_vllm as toy
from tests.nemo_rl.toy_vllm import BLOCK, ROW, VOCAB, GPUModelRunner, KVCacheManager, SamplingParams

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from nemo_rl.models.generation.vllm.vllm_worker import VllmGenerationWorkerImpl
    from vllm import LLM
    from vllm.inputs import TokensPrompt

    from nemo_aopsd.engines.nemo_rl.vllm_worker import EXTENSION, ProbingVllmWorkerImpl

END = 2


class ScriptedLLM:
    """Answers each request by `answer(prompt, params)` and remembers what it was asked."""

    def __init__(self, answer=None):
        self.answer, self.rpcs, self.batches, self.scores = answer, [], [], []

    def collective_rpc(self, method, args=(), kwargs=None):
        self.rpcs.append((method, *args, *(kwargs or {}).items()))
        return [["another pipeline stage"], self.scores]

    def generate(self, *args, **settings):
        call = inspect.signature(LLM.generate).bind(self, *args, **settings).arguments
        assert call["use_tqdm"] is False
        known = TokensPrompt.__required_keys__ | TokensPrompt.__optional_keys__
        assert all(set(prompt) <= known for prompt in call["prompts"])
        requests = list(zip(call["prompts"], call["sampling_params"], strict=True))
        assert requests, "vLLM takes no empty batch"
        self.batches.append(requests)
        return [self.answer(prompt["prompt_token_ids"], params) for prompt, params in requests]

    @property
    def requests(self):
        (batch,) = self.batches
        return batch


def make_worker(llm, longest=ROW):
    worker = object.__new__(ProbingVllmWorkerImpl)
    worker.llm, worker.SamplingParams = llm, SamplingParams
    worker.cfg = {"vllm_cfg": {"max_model_len": longest}}
    return worker


def sampled(tokens, reason="length"):
    """An output of `tokens`; the log-prob of token i is -i / 8."""
    values = SimpleNamespace(logprobs=[-token / 8 for token in tokens])
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, finish_reason=reason, logprobs=values)])


def test_sample_passes_its_settings_and_keeps_order():
    prompts = [[5, 6, 7], [8], [9, 9]]
    answers = {5: ([11, END], "stop"), 8: ([12, 13], "length"), 9: ([END], "stop")}
    llm = ScriptedLLM(lambda prompt, params: sampled(*answers[prompt[0]]))
    sampling = Sampling(max_new_tokens=6, temperature=0.7, top_p=0.9, top_k=4)
    results = make_worker(llm).sample(prompts, sampling, 123, [END, 3], "student")
    assert [(r.tokens, r.finished) for r in results] == [([11, END], True), ([12, 13], False), ([END], True)]
    assert [r.logprobs.tolist() for r in results] == [[-11 / 8, -END / 8], [-12 / 8, -13 / 8], [-END / 8]]
    assert all(r.logprobs.dtype == torch.float32 for r in results)
    assert [prompt for prompt, _ in llm.requests] == [{"prompt_token_ids": p, "cache_salt": "student"} for p in prompts]
    for _, params in llm.requests:
        assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.7, 0.9, 4, 6)
        assert params.stop_token_ids == [END, 3] and not params.ignore_eos
        assert (params.logprobs, params.flat_logprobs, params.prompt_logprobs) == (0, True, None)
        assert not params.skip_reading_prefix_cache and not params.extra_args
    assert llm.rpcs == [("seed_sampler", 123)]


def test_sample_stops_at_the_longest_row():
    """10 tokens a row: a prompt of 3 has room for 6 (asked), of 8 for 2, of 9 for 1, of 10 and 11 for none."""
    lengths = [10, 3, 8, 11, 9]
    llm = ScriptedLLM(lambda prompt, params: sampled([7] * params.max_tokens))
    prompts = [[length] * length for length in lengths]
    results = make_worker(llm, longest=10).sample(prompts, Sampling(max_new_tokens=6), 0, [END], "student")
    assert [params.max_tokens for _, params in llm.requests] == [6, 2, 1]
    assert [prompt["prompt_token_ids"][0] for prompt, _ in llm.requests] == [3, 8, 9]
    assert [r.tokens for r in results] == [[], [7] * 6, [7] * 2, [], [7]]
    assert not any(r.finished for r in results)
    assert [len(r.logprobs) for r in results] == [0, 6, 2, 0, 1]
    assert results[0].logprobs.dtype == torch.float32


def test_continue_branches_grows_only_those_that_have_not_ended():
    prompts, responses = [[10, 11], [20], [30]], [[12, 13, 14, 15], [21, 22], [31]]
    branches = [
        [Branch(2, []), Branch(3, [15]), Branch(1, [40, END]), Branch(0, [END])],
        [],
        [Branch(0, [41, 42, 43, 44]), Branch(0, [45, 46, 47]), Branch(0, [END, 48])],
    ]
    answers = {13: [50, 51, 52, 53], 15: [54, END], 47: [55], 48: [56, 57]}
    llm = ScriptedLLM(lambda prompt, params: sampled(answers[prompt[-1]]))
    before = [list(row) for row in branches]
    grown = make_worker(llm).continue_branches(prompts, responses, branches, 4, [END, 3], "teacher")
    assert branches == before
    assert grown == [
        [Branch(2, [50, 51, 52, 53]), Branch(3, [15, 54, END]), Branch(1, [40, END]), Branch(0, [END])],
        [],
        [Branch(0, [41, 42, 43, 44]), Branch(0, [45, 46, 47, 55]), Branch(0, [END, 48, 56, 57])],
    ]
    asked = [[10, 11, 12, 13], [10, 11, 12, 13, 14, 15], [30, 45, 46, 47], [30, END, 48]]
    assert [prompt for prompt, _ in llm.requests] == [{"prompt_token_ids": p, "cache_salt": "teacher"} for p in asked]
    assert [params.max_tokens for _, params in llm.requests] == [4, 3, 1, 2]
    for _, params in llm.requests:
        assert (params.temperature, params.stop_token_ids) == (0.0, [END, 3])
        assert not params.ignore_eos and not params.skip_reading_prefix_cache


def scoring_llm(lose=0, stop=None):
    """Scores the wanted tokens in two parts, the first of them twice; the log-prob of token i is -i / 8."""

    def answer(prompt, params):
        wanted = Wanted(*params.extra_args[SCORED])
        assert len(prompt) == wanted.first + len(wanted.tokens)
        logprobs = torch.tensor(wanted.tokens)[:, None] / -8
        ids = torch.empty(len(wanted.tokens), 0)
        for start, end in ((lose, 1), (lose, 1), (1, stop)):
            llm.scores.append(Scores(wanted.key, start, logprobs[start:end], ids[start:end]))

    llm = ScriptedLLM(answer)
    return llm


def test_score_branches_asks_for_its_own_tokens():
    prompts, responses = [[10, 11], [20], [30]], [[12, 13, 14], [21, 22], [31]]
    branches = [[Branch(2, [40, 41, 42]), Branch(0, [43])], [], [Branch(1, [44, 45]), Branch(0, [])]]
    llm = scoring_llm()
    scores = make_worker(llm).score_branches(prompts, responses, branches, "student")
    assert [[score.tolist() for score in row] for row in scores] == [
        [[-40 / 8, -41 / 8, -42 / 8], [-43 / 8]],
        [],
        [[-44 / 8, -45 / 8], []],
    ]
    assert all(score.dtype == torch.float32 for row in scores for score in row)
    asked = [[10, 11, 12, 13, 40, 41], [10, 11], [30, 31, 44]]  # the last token need not be read
    assert [prompt for prompt, _ in llm.requests] == [{"prompt_token_ids": p, "cache_salt": "student"} for p in asked]
    wanted = [Wanted(0, 3, [40, 41, 42]), Wanted(1, 1, [43]), Wanted(2, 1, [44, 45])]
    assert [params.extra_args for _, params in llm.requests] == [{SCORED: each} for each in wanted]
    for _, params in llm.requests:
        assert (params.prompt_logprobs, params.logprobs, params.max_tokens) == (None, None, 1)
        assert not params.skip_reading_prefix_cache  # as it would be if prompt log-probs were wanted


def test_nothing_is_asked_where_there_is_nothing_to_do():
    worker = make_worker(ScriptedLLM(), longest=10)
    (found,) = worker.sample([[1] * 10], Sampling(max_new_tokens=6), 0, [END], "student")
    assert (found.tokens, found.finished, len(found.logprobs)) == ([], False, 0)
    row = [Branch(0, [END]), Branch(0, [4, 5])]
    assert worker.continue_branches([[1]], [[2]], [row], 2, [END], "teacher") == [row]
    assert worker.score_branches([[1], [2]], [[3], [4]], [[], []], "student") == [[], []]
    assert not worker.llm.batches


@pytest.mark.parametrize(("llm", "lost"), [(scoring_llm(lose=1), 1), (scoring_llm(stop=2), 1), (ScriptedLLM(), 3)])
def test_a_row_that_vllm_did_not_score_raises(llm, lost):
    llm.answer = llm.answer or (lambda prompt, params: None)
    with pytest.raises(RuntimeError, match=f"left out {lost} of 3 rows"):
        make_worker(llm).score_branches([[1, 2, 3]], [[4]], [[Branch(0, [5, 6, 7])]], "student")


def test_the_engine_starts_with_patches_and_extension(monkeypatch):
    toy.install(monkeypatch, hits=False, rows=False)
    worker, llm, seen = make_worker(None), ScriptedLLM(), {}

    def create(self, llm_kwargs):
        assert KVCacheManager.get_computed_blocks.is_limited  # before the scheduler is built
        seen.update(llm_kwargs)
        self.llm = llm

    monkeypatch.setattr(VllmGenerationWorkerImpl, "_create_engine", create)
    kwargs = {"model": "m", "worker_extension_cls": "nemo_rl.theirs"}
    worker._create_engine(kwargs)
    assert seen == {"model": "m", "worker_extension_cls": EXTENSION}
    assert kwargs["worker_extension_cls"] == "nemo_rl.theirs"
    assert llm.rpcs == [("score_rows",)]
    worker.call_extension("show_teacher", beside_trainer=True)
    assert llm.rpcs[1:] == [("show_teacher", ("beside_trainer", True))]
    assert not hasattr(GPUModelRunner._get_prompt_logprobs_dict, "scores_rows")  # that one is the extension's to do


def draw(length, seed):
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


STUDENT, TEACHER = 0, 1
PROMPTS = [draw(length, seed=length) for length in (21, 32, 37, 48, 50)]
TEACHER_PROMPTS = [draw(60, seed=60) + PROMPTS[0], *PROMPTS[1:4], draw(33, seed=33) + PROMPTS[4]]  # three are the same
SAMPLING = Sampling(max_new_tokens=70, temperature=0.5)
LENGTH = 8
ENGINES = [(False, 4096, 512), (True, 24, 512), (True, 64, 24)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("model")


def make_toy_worker(folder, is_async=False, budget=4096, num_blocks=512):
    scheduler = toy.make_scheduler(folder, num_blocks=num_blocks, budget=budget, is_async=is_async)
    return make_worker(toy.ToyLLM(scheduler, toy.ToyModel()))


def read(tokens, start, weights):
    """Reference log-probs of `tokens[start:]`."""
    logprobs = toy.ToyModel().logprobs(tokens[:-1], weights)
    return logprobs.gather(1, torch.tensor(tokens[1:])[:, None]).flatten()[start - 1 :]


def grow(context, tokens):
    """Reference greedy continuation of `tokens` under the teacher, to LENGTH tokens or an end."""
    model, grown = toy.ToyModel(), list(tokens)
    while len(grown) < LENGTH and grown[-1:] != [END]:
        grown.append(int(model.logprobs(context + grown, TEACHER)[-1].argmax()))
    return grown


def collect(worker, prompts=PROMPTS, teacher_prompts=TEACHER_PROMPTS, salts=("student", "teacher"), runner="requests"):
    """Rollouts, teacher branches at every second position, by turns at the student's token, and their scores."""
    model = worker.llm.runner.model
    rollouts = worker.sample(prompts, SAMPLING, 1, [END], salts[0])
    responses = [rollout.tokens for rollout in rollouts]
    starts = [[Branch(t, [response[t]] if t % 4 else []) for t in range(0, len(response), 2)] for response in responses]
    model.current = TEACHER
    branches = worker.continue_branches(teacher_prompts, responses, starts, LENGTH, [END], salts[1], runner)
    model.current = STUDENT
    worker.llm.num_tokens.clear()
    return rollouts, branches, worker.score_branches(prompts, responses, branches, salts[0], runner)


@pytest.mark.parametrize("runner", ["requests", "batched"])
@pytest.mark.parametrize(("is_async", "budget", "num_blocks"), ENGINES)
def test_a_step_on_the_scheduler_equals_the_reference(folder, monkeypatch, is_async, budget, num_blocks, runner):
    toy.install(monkeypatch)
    worker = make_toy_worker(folder, is_async, budget, num_blocks)
    rollouts, branches, scores = collect(worker, runner=runner)
    assert {rollout.finished for rollout in rollouts} == {True, False}
    computed = 0
    for prompt, teacher_prompt, rollout, row, row_scores in zip(
        PROMPTS, TEACHER_PROMPTS, rollouts, branches, scores, strict=True
    ):
        logits = toy.ToyModel().logprobs(prompt + rollout.tokens[:-1], STUDENT)[len(prompt) - 1 :] / 0.5
        expected = logits.log_softmax(-1).gather(1, torch.tensor(rollout.tokens)[:, None]).flatten()
        torch.testing.assert_close(rollout.logprobs.double(), expected, atol=1e-5, rtol=0)
        assert rollout.finished == (rollout.tokens[-1] == END) and (rollout.finished or len(rollout.tokens) == 70)
        for branch, score in zip(row, row_scores, strict=True):
            prefix, anchor = rollout.tokens[: branch.position], branch.tokens[: branch.position % 4 > 0]
            assert branch.tokens == grow(teacher_prompt + prefix, anchor)
            whole = prompt + prefix + branch.tokens
            start = len(whole) - len(branch.tokens)
            torch.testing.assert_close(score.double(), read(whole, start, STUDENT), atol=1e-5, rtol=0)
            computed += len(whole) - 1 - (start - 1) // BLOCK * BLOCK
    pool = worker.llm.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1  # none is still held; one is vLLM's null block
    asked = [method for method, *_ in worker.llm.calls]
    if runner == "batched":
        assert ("grow_branches" in asked, "score_branches" in asked) == (True, True)
        assert num_blocks < 512 or not worker.llm.num_tokens  # no request was made
        return
    assert "why_no_branches" not in asked
    # All that was cached is used; where the pool is too small for that, more is computed, never less.
    assert sum(worker.llm.num_tokens) == computed or (num_blocks < 512 and sum(worker.llm.num_tokens) > computed)


@pytest.mark.parametrize(("is_async", "budget", "num_blocks"), ENGINES)
def test_choices_are_all_of_the_row_behind_a_branch(folder, monkeypatch, is_async, budget, num_blocks):
    """As a judge's yes and no; a chunk of 5 rows holds the choices of several branches."""
    toy.install(monkeypatch)
    monkeypatch.setattr(vllm_patches, "CHUNK", 5)
    worker = make_toy_worker(folder, is_async, budget, num_blocks)
    choices, response = [7, 3, 11], draw(20, seed=5)
    branches = [[Branch(0, draw(length, seed=length)) for length in (30, 1, 17)], [Branch(4, [9])], []]
    rows = PROMPTS[:3], [[], response, []], branches
    found = worker.score_choices(*rows, choices, "student")
    assert [len(row) for row in found] == [3, 1, 0]
    for prompt, answer, row, scores in zip(*rows, found, strict=True):
        for branch, score in zip(row, scores, strict=True):
            expected = toy.ToyModel().logprobs(prompt + answer[: branch.position] + branch.tokens, STUDENT)[-1][choices]
            torch.testing.assert_close(score.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("missing", ["hits", "rows"])
@pytest.mark.parametrize("is_async", [False, True])
def test_scores_without_a_patch_raise(folder, monkeypatch, missing, is_async):
    toy.install(monkeypatch, **{missing: False})
    with pytest.raises(RuntimeError, match="does not fit this version of vLLM"):
        collect(make_toy_worker(folder, is_async))


@pytest.mark.parametrize(("is_async", "budget", "num_blocks"), ENGINES)
def test_whole_responses_and_their_top_k_in_one_prefill(folder, monkeypatch, is_async, budget, num_blocks):
    """As the teacher's rows are scored; a chunk of 5 rows holds the ends of some requests and the starts of others."""
    toy.install(monkeypatch)
    monkeypatch.setattr(vllm_patches, "CHUNK", 5)
    worker = make_toy_worker(folder, is_async, budget, num_blocks)
    responses = [draw(length, seed=100 + length) for length in (1, 40, 17, 0, 33)]
    tops = worker.score_top_k(PROMPTS, responses, 4, "teacher")
    whole = [[Branch(0, response)] for response in responses]
    again = worker.score_branches(PROMPTS, responses, whole, "teacher")
    for prompt, response, top, (score,) in zip(PROMPTS, responses, tops, again, strict=True):
        logprobs = toy.ToyModel().logprobs(prompt + response[:-1], STUDENT)[len(prompt) - 1 :][: len(response)]
        expected, ids = logprobs.topk(4, -1)
        assert top.ids.tolist() == ids.tolist() and top.ids.dtype == torch.int32
        torch.testing.assert_close(top.logprobs.double(), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(top.entropy.double(), -(logprobs.exp() * logprobs).sum(-1), atol=1e-5, rtol=0)
        wanted = logprobs.gather(1, torch.tensor(response, dtype=torch.int64)[:, None])[:, 0]
        torch.testing.assert_close(score.double(), wanted, atol=1e-5, rtol=0)


def test_a_vllm_that_batches_were_not_written_for_is_asked_once_and_gets_requests(folder, monkeypatch, capsys):
    toy.install(monkeypatch)
    worker = make_toy_worker(folder)
    worker.llm.why_not = "LoRA"
    _, branches, _ = collect(worker, runner="batched")
    assert branches == collect(make_toy_worker(folder))[1]
    asked = [method for method, *_ in worker.llm.calls]
    assert asked.count("why_no_branches") == 1 and "grow_branches" not in asked
    assert capsys.readouterr().out.count("LoRA") == 1


def test_probes_that_go_by_requests_after_all_are_counted(folder, monkeypatch, capsys):
    """Rows that cannot be read again; an empty branch is not one of them."""
    toy.install(monkeypatch)
    worker = make_toy_worker(folder)
    run = branch_runner.run
    monkeypatch.setattr(branch_runner, "run", lambda *args: run(*args[:-1], lambda rows: None))
    prompts, responses = [PROMPTS[0], PROMPTS[1]], [draw(20, seed=1), draw(20, seed=2)]
    branches = [[Branch(3, [5, 6]), Branch(4, [])], [Branch(t, [7]) for t in range(3)]]
    found = worker.score_branches(prompts, responses, branches, "student", "batched")
    assert worker.num_left == 4 and "4 of 5 probes" in capsys.readouterr().out
    expected = worker.score_branches(prompts, responses, branches, "student")
    assert [[score.tolist() for score in row] for row in found] == [[s.tolist() for s in row] for row in expected]
    assert worker.num_left == 4


def test_one_salt_for_both_models_would_read_the_other_ones_cache(folder, monkeypatch):
    """Shows that the toy tells them apart: with equal prompts the teacher then continues from the student's KV."""
    toy.install(monkeypatch)
    _, apart, _ = collect(make_toy_worker(folder), teacher_prompts=PROMPTS)
    _, mixed, _ = collect(make_toy_worker(folder), teacher_prompts=PROMPTS, salts=("same", "same"))
    assert apart != mixed
