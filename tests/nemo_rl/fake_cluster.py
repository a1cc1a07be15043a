"""NeMo RL's policy and vLLM on a CPU: a Hugging Face model behind their signatures, keeping track of whose turn it is.

Our own worker code runs for real (vllm_worker, vllm_extension, teacher_mixin); what is faked is what needs a GPU.
"""

from __future__ import annotations

import copy
import gc
import inspect
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.worker_groups import RayWorkerGroup
from nemo_rl.models.generation.vllm.vllm_generation import VllmGeneration
from nemo_rl.models.policy.lm_policy import Policy
from transformers import AutoModelForCausalLM
from vllm import SamplingParams
from vllm.logprobs import FlatLogprobs

from nemo_aopsd.engines.nemo_rl import vllm_patches
from nemo_aopsd.engines.nemo_rl.teacher_mixin import TeacherMixin
from nemo_aopsd.engines.nemo_rl.vllm_extension import WeightBankExtension
from nemo_aopsd.engines.nemo_rl.vllm_worker import ProbingVllmWorkerImpl


def check_call(function, *args, **kwargs):
    """Raise TypeError if NeMo RL's own function would not take these arguments."""
    inspect.signature(function).bind(None, *args, **kwargs)


def token_logprobs(model, ids):
    """[T] of `ids` from the second token on, column 0 is 0."""
    logits = model(torch.tensor([ids])).logits[0].float()
    picked = logits[:-1].log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    return torch.cat([torch.zeros(1), picked])


class FakeLLM:
    """vLLM's `LLM`: one model, asleep or awake, sampling row by row without a cache."""

    def __init__(self, model, turns):
        self.model, self.turns = model, turns
        self.extension = object.__new__(WeightBankExtension)
        self.extension.model_runner = SimpleNamespace(model=model)
        self.llm_engine = SimpleNamespace(reset_prefix_cache=lambda: None)
        self.lose_rows, self.scores = 0, []

    def collective_rpc(self, method, args=(), kwargs=None):
        assert self.turns["sampler"] == "awake", f"{method} of a vLLM that is asleep"
        if method == "take_scores":
            taken, self.scores = self.scores, []
            return [taken]
        if method == "why_no_branches":
            return ["no cache"]
        return [getattr(self.extension, method)(*args, **(kwargs or {}))]

    @torch.no_grad()
    def sleep(self, level):
        assert self.turns["shown"] == "student" or level == 2, "what sleeps is kept: it must be the student"
        self.turns.update(sampler="asleep", shown="student")
        if level == 2:
            for weight in self.model.parameters():
                weight.fill_(float("nan"))

    @torch.no_grad()
    def generate(self, requests, params, use_tqdm):
        assert self.turns["sampler"] == "awake", "vLLM was asked while asleep"
        assert {request["cache_salt"] for request in requests} == {self.turns["shown"]}
        return [self._answer(request["prompt_token_ids"], p) for request, p in zip(requests, params, strict=True)]

    def _answer(self, prompt, params):
        if found := (params.extra_args or {}).get(vllm_patches.SCORED):
            wanted = vllm_patches.Wanted(*found)
            logits = self.model(torch.tensor([prompt])).logits[0, wanted.first : wanted.end]
            logits = logits.expand(len(wanted.tokens), -1)  # one row, if it predicts them all
            columns = vllm_patches.score_chunk(logits, torch.tensor(wanted.tokens), wanted.top_k)
            lost = self.lose_rows
            self.scores.append(vllm_patches.Scores(wanted.key, lost, *(column[lost:] for column in columns)))
        tokens, sampled, reason = [], FlatLogprobs(), "length"
        while len(tokens) < params.max_tokens:
            logits = self.model(torch.tensor([prompt + tokens])).logits[0, -1].float()
            token = logits.argmax() if params.temperature == 0 else torch.multinomial(logits.softmax(-1), 1)[0]
            tokens.append(int(token))
            sampled.append_fast([int(token)], [logits.log_softmax(-1)[token].item()], iter([1]), [None])
            if tokens[-1] in (params.stop_token_ids or []):
                reason = "stop"
                break
        output = SimpleNamespace(token_ids=tokens, finish_reason=reason, logprobs=sampled)
        return SimpleNamespace(outputs=[output])


class FakeGeneration:
    """`VllmGeneration` with `num_engines` engines that share one model."""

    def __init__(self, turns, num_engines, cluster, config):
        check_call(VllmGeneration.__init__, cluster=cluster, config=config)
        self.turns, self.dp_size = turns, num_engines
        turns.update(sampler="awake", shown="student")
        model = AutoModelForCausalLM.from_pretrained(config["model_name"], dtype=torch.float32).eval()
        for weight in model.parameters():
            weight.data.normal_()  # `load_format: dummy`
        self.llm = FakeLLM(model, turns)
        self.workers = []
        for _ in range(num_engines):
            worker = object.__new__(ProbingVllmWorkerImpl)
            worker.cfg, worker.llm, worker.SamplingParams = config, self.llm, SamplingParams
            self.workers.append(worker)
        self.worker_group = self

    def run_all_workers_single_data(self, method_name, **kwargs):
        check_call(RayWorkerGroup.run_all_workers_single_data, method_name, **kwargs)
        assert kwargs.pop("run_rank_0_only_axes") == ["tensor_parallel", "pipeline_parallel"]
        if kwargs.get("method", "").startswith("show_"):
            self.turns["shown"] = kwargs["method"].removeprefix("show_")
        return [getattr(worker, method_name)(**kwargs) for worker in self.workers[:1]]  # they share one model

    def run_all_workers_sharded_data(self, method_name, *, in_sharded_axes, common_kwargs, **shards):
        check_call(RayWorkerGroup.run_all_workers_sharded_data, method_name, common_kwargs=common_kwargs, **shards)
        assert in_sharded_axes == ["data_parallel"]
        assert all(len(shard) == self.dp_size for shard in shards.values())
        return [
            getattr(worker, method_name)(**common_kwargs, **{name: shard[rank] for name, shard in shards.items()})
            for rank, worker in enumerate(self.workers)
        ]

    def get_all_worker_results(self, futures):
        return futures

    def prepare_refit_info(self, info):
        assert info == _shapes(self.llm.model)

    def prepare_for_generation(self, tags=None):
        assert tags or self.turns["trainer"] == "cpu", "the whole of vLLM woken beside a trainer on the GPU"
        self.turns["sampler"] = "awake"
        return True

    def finish_generation(self):
        self.workers[0].sleep()  # they share one model
        return True

    def shutdown(self, force=False):
        return True


class FakeTrainerBase:
    """What NeMo RL's worker class brings to `TeacherMixin`: a context that forgets the student if something fails."""

    @contextmanager
    def use_reference_model(self):
        kept = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self.reference)
        yield
        self.model.load_state_dict(kept)

    def stream_weights_via_ipc_zmq(self, buffer_size_bytes, kv_scales=None):
        self.stream_to.load_state_dict(self.model.state_dict())


class FakeTrainer(TeacherMixin, FakeTrainerBase):
    def __init__(self, model):
        self.times_frozen, self.student_bytes = 0, None
        self.model, self.reference = model, copy.deepcopy(model.state_dict())
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def freeze_heap(self):
        self.times_frozen += 1

    def keep_optimizer(self, student_bytes):
        self.student_bytes = student_bytes

    def named_weights(self):
        yield from self.model.named_parameters()


class FakePolicy:
    """`Policy` with one worker."""

    scores_beside_sampler = False  # what a test says of aopsd.probes.keep_cache

    def __init__(self, turns, stream_to, **kwargs):
        check_call(Policy.__init__, **kwargs)
        assert kwargs["init_reference_model"]
        self.turns, self.cfg = turns, kwargs["config"]
        model = AutoModelForCausalLM.from_pretrained(self.cfg["model_name"], dtype=torch.float32).eval()
        self.worker = FakeTrainer(model)
        self.worker.stream_to = stream_to
        if kwargs["weights_path"]:
            model.load_state_dict(torch.load(kwargs["weights_path"]))
            self.worker.optimizer.load_state_dict(torch.load(kwargs["optimizer_path"]))
        turns["trainer"] = "train"
        self.worker_group = SimpleNamespace(
            run_all_workers_single_data=self._single, shutdown=lambda force: self.killed.append(force)
        )
        self.killed = []
        self.batches = []

    def _single(self, method_name, *args, **kwargs):
        assert self.turns["trainer"] != "cpu", f"{method_name} of a trainer whose weights are on the CPU"
        return [getattr(self.worker, method_name)(*args, **kwargs)]

    def run_all_workers_single_data(self, method_name, *args, **kwargs):
        check_call(Policy.run_all_workers_single_data, method_name, *args, **kwargs)
        return self._single(method_name, *args, **kwargs)

    def stream_weights_via_ipc_zmq(self, buffer_size_bytes, kv_scales=None):
        return self._single("stream_weights_via_ipc_zmq", buffer_size_bytes=buffer_size_bytes)

    @torch.no_grad()
    def get_logprobs(self, data):
        assert (self.turns["trainer"], self.turns["shown"]) == ("score", "student")
        assert self.turns["sampler"] == "asleep" or self.scores_beside_sampler
        scores = torch.zeros(data["input_ids"].shape)
        for row, ids, length in zip(scores, data["input_ids"], data["input_lengths"].tolist(), strict=True):
            row[:length] = token_logprobs(self.worker.model, ids[:length].tolist())
        return BatchedDataDict(logprobs=scores)

    def get_reference_policy_logprobs(self, data):
        with self.worker.use_reference_model():
            return BatchedDataDict(reference_logprobs=self.get_logprobs(data)["logprobs"])

    def train(self, data, loss_fn, eval_mode=False, gbs=None, mbs=None):
        check_call(Policy.train, data, loss_fn, eval_mode=eval_mode, gbs=gbs, mbs=mbs)
        assert (self.turns["trainer"], self.turns["sampler"]) == ("train", "asleep")
        assert data.size % gbs == 0 and (eval_mode or gbs == self.cfg["train_global_batch_size"])
        self.batches.append(data)
        updates = [self._update(data.slice(i, i + gbs), loss_fn, eval_mode) for i in range(0, data.size, gbs)]
        losses, norms, metrics, tokens = zip(*updates, strict=True)
        shares = {key: 1 if "_min" in key or "_max" in key else len(updates) for key in metrics[0]}
        metrics = {key: [each[key] / share for each in metrics] for key, share in shares.items()}
        metrics |= {"lr": [1e-3], "wd": [0.0], "global_valid_seqs": [1.0], "global_valid_toks": tokens}
        return {
            "loss": torch.stack(losses) / len(updates),
            "grad_norm": norms[-1][None],
            "all_mb_metrics": metrics,
        }

    def _update(self, data, loss_fn, eval_mode):
        """Loss, gradient's norm, metrics and counted tokens of one global batch, as the worker's loop."""
        logits = self.worker.model(data["input_ids"]).logits[:, :-1].float()
        logprobs = logits.log_softmax(-1).gather(-1, data["input_ids"][:, 1:, None])[..., 0]
        mask = data["token_mask"][:, 1:] * data["sample_mask"][:, None]
        loss, metrics = loss_fn(logprobs, data, data["sample_mask"].sum(), mask.sum())
        norm = torch.zeros(())
        if not eval_mode:
            self.worker.optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.worker.model.parameters(), 1.0)
            self.worker.optimizer.step()
        return loss.detach(), norm, metrics, float(mask.sum())

    def save_checkpoint(self, weights_path, optimizer_path, tokenizer_path):
        assert self.turns["trainer"] == "train"
        torch.save(self.worker.model.state_dict(), _with_parent(weights_path))
        torch.save(self.worker.optimizer.state_dict(), _with_parent(optimizer_path))

    def prepare_refit_info(self):
        return _shapes(self.worker.model)

    def offload_before_refit(self):
        assert self.turns["trainer"] != "cpu", "a refit needs the trainer's weights on the GPU"

    def offload_after_refit(self):
        self.turns["trainer"] = "cpu"

    def prepare_for_lp_inference(self):
        assert self.turns["sampler"] == "asleep" or self.scores_beside_sampler
        self.turns["trainer"] = "score"

    def prepare_for_training(self):
        assert self.turns["sampler"] == "asleep"
        self.turns["trainer"] = "train"

    def shutdown(self):
        return True


def _shapes(model):
    return {name: (weight.shape, weight.dtype) for name, weight in model.named_parameters()}


def _with_parent(path):
    from pathlib import Path

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return path


def fake_refit(policy, generation, colocated, _refit_buffer_size_gb=None):
    """The order of NeMo RL's `refit_policy_generation`."""
    policy.offload_before_refit()
    generation.prepare_for_generation(tags=["weights"])
    policy.stream_weights_via_ipc_zmq(buffer_size_bytes=1)
    policy.offload_after_refit()
    generation.prepare_for_generation(tags=["kv_cache"])


def install(monkeypatch, num_engines=2):
    """Replace what needs a GPU in `nemo_aopsd.engines.nemo_rl.cluster`; returns whose turn it is, as it changes."""
    from nemo_aopsd.engines.nemo_rl import cluster

    turns, made = {}, {}

    def generation(cluster, config):
        made["generation"] = FakeGeneration(turns, num_engines, cluster, config)
        return made["generation"]

    def policy(**kwargs):
        return FakePolicy(turns, made["generation"].llm.model, **kwargs)

    monkeypatch.setattr(cluster, "init_ray", lambda: None)
    monkeypatch.setattr(
        cluster, "RayVirtualCluster", lambda **kwargs: SimpleNamespace(**kwargs, shutdown=lambda: turns.clear())
    )
    monkeypatch.setattr(cluster, "VllmGeneration", generation)
    monkeypatch.setattr(cluster, "Policy", policy)
    monkeypatch.setattr(cluster, "refit_policy_generation", fake_refit)
    monkeypatch.setattr(cluster.ray, "get", lambda refs: refs)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**40, 2**40))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(gc, "collect", lambda *_: 0)  # NeMo RL's workers do it often
    return turns
