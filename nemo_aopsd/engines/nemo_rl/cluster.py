"""The workers of one run on one set of GPUs, and whose turn it is: the sampler's (vLLM) or the trainer's.

Each has the GPU's memory to itself during its turn. A change of turn takes time; the stages of a step are ordered so
that there are few. vLLM's prefix cache lasts for one turn. With `aopsd.probes.keep_cache` the trainer scores within the
sampler's turn, since scoring takes little memory.
"""

import atexit
import copy
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
import torch
from nemo_rl.algorithms.grpo import refit_policy_generation
from nemo_rl.algorithms.loss.interfaces import LossFunction
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY, USE_SYSTEM_EXECUTABLE
from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES, RayVirtualCluster, init_ray
from nemo_rl.models.generation import configure_generation_config
from nemo_rl.models.generation.vllm import VllmGeneration, vllm_generation
from nemo_rl.models.policy.lm_policy import Policy
from ray.exceptions import RayActorError, RayTaskError

from nemo_aopsd.clock import Clock
from nemo_aopsd.cluster import WORKERS
from nemo_aopsd.config.schema import Config
from nemo_aopsd.engines.nemo_rl.settings import Settings
from nemo_aopsd.errors import UserError

_UNBOUNDED = 1_000_000  # steps, for a schedule of a run without a limit of its own


class Role(Enum):
    """Whose weights answer. The value keeps what vLLM caches of one apart from the other's."""

    STUDENT = "student"
    TEACHER = "teacher"


class Cluster:
    """vLLM and the trainer on the same GPUs. `checkpoint` is a folder that `save` wrote."""

    def __init__(self, config: Config, settings: Settings, tokenizer: Any, end_ids: list[int], checkpoint: Path | None):
        if not ray.is_initialized():  # a second cluster of one process, after `stop`
            _start_ray()
        policy = copy.deepcopy(config.policy)
        self.nodes = RayVirtualCluster(
            name="aopsd",
            bundle_ct_per_node_list=[settings.gpus_per_node] * settings.num_nodes,
            num_gpus_per_node=settings.gpus_per_node,
            max_colocated_worker_groups=2,
        )
        # vLLM first: it measures free memory when it starts.
        self.generation = _start_sampler(self.nodes, policy, tokenizer, end_ids)
        self._must(self.generation.finish_generation(), "put vLLM to sleep")
        self.policy = _start_trainer(self.nodes, policy, settings, tokenizer, config.aopsd.max_num_steps, checkpoint)
        info: dict[str, tuple[torch.Size, torch.dtype]] = self.policy.prepare_refit_info()
        self.generation.prepare_refit_info(info)
        self.keeps_cache = config.aopsd.keeps_cache
        self.sampler_has_turn = False
        self.is_stale = True  # vLLM's student is older than the trainer's
        self.has_teacher = False
        self.shown = Role.STUDENT
        self.has_trained = False
        self.clock = Clock()
        atexit.register(self._kill)  # before Ray's exit handler; NeMo RL's clean-up would fail after it
        if config.aopsd.keep_optimizer_on_gpu:
            size = sum(shape.numel() * dtype.itemsize for shape, dtype in info.values())
            sampler_tp = config.policy["generation"]["vllm_cfg"]["tensor_parallel_size"]
            self.train_everywhere("keep_optimizer", student_bytes=size / sampler_tp)
        self.train_everywhere("freeze_heap")

    def let_sample(self, role: Role) -> None:
        """The sampler's turn, with the weights of `role`."""
        if not self.sampler_has_turn:
            with cluster_errors():
                self._wake_sampler()
            self.sampler_has_turn = True
        if role is not self.shown:
            with self.clock(f"show_{role.value}"):
                if role is Role.TEACHER:
                    self.tell_sampler("show_teacher", beside_trainer=self.keeps_cache)
                else:
                    self.tell_sampler("show_student")
            self.shown = role

    def let_score(self) -> None:
        """The trainer's turn, forward only; within the sampler's, if that is to keep its cache."""
        if not self.keeps_cache and self.sampler_has_turn:
            self.let_sample(Role.STUDENT)  # what sleeps is kept, and must be the student
            self._end_sampling()
        with cluster_errors(), self.clock("to_scoring"):
            self.policy.prepare_for_lp_inference()

    def let_train(self) -> None:
        """The trainer's turn, with optimizer and gradients."""
        if self.sampler_has_turn:
            # An update makes vLLM's student stale, so its weights are neither restored nor kept.
            self._ask_sampler("let_weights_go")
            self.is_stale, self.shown = True, Role.STUDENT
            self._end_sampling()
        with cluster_errors(), self.clock("to_training"):
            self.policy.prepare_for_training()

    def train(self, batch: BatchedDataDict, loss: LossFunction, batch_size: int) -> dict[str, Any]:
        """NeMo RL's results of one pass over `batch`, an update for each `batch_size` rows."""
        self.let_train()
        with cluster_errors(), self.clock("train"):
            results = self.policy.train(batch, loss, gbs=batch_size)
        self.is_stale = True
        if not self.has_trained:  # the optimizer has its state now, and kernels are compiled
            self.train_everywhere("freeze_heap")
            self.has_trained = True
        return results

    def take_seconds(self) -> dict[str, float]:
        """Where the time has gone since the last call: `turn/...` here, `worker/...` in the slowest training worker."""
        seconds = {f"turn/{name}": value for name, value in self.clock.take().items()}
        for by_name in self.train_everywhere("take_seconds"):
            for name, value in by_name.items():
                seconds[f"worker/{name}"] = max(value, seconds.get(f"worker/{name}", 0.0))
        return seconds

    def tell_sampler(self, method: str, **kwargs: Any) -> None:
        """Call `method` of the extension of every vLLM worker."""
        self._ask_sampler("call_extension", method=method, **kwargs)

    def sample_shards(self, method: str, common: dict[str, Any], **shards: list[Any]) -> list[Any]:
        """Call `method` of each vLLM engine with its shard of every argument; results by engine."""
        group = self.generation.worker_group
        with cluster_errors():
            futures = group.run_all_workers_sharded_data(
                method, in_sharded_axes=["data_parallel"], common_kwargs=common, **shards
            )
            return group.get_all_worker_results(futures)

    def train_everywhere(self, method: str, **kwargs: Any) -> list[Any]:
        """Call `method` of every training worker with the same arguments; results by rank."""
        with cluster_errors():
            return self.policy.run_all_workers_single_data(method, **kwargs)

    def save(self, folder: Path) -> None:
        """Weights, optimizer and tokenizer under `folder/policy`, where NeMo RL's tools look for them."""
        self.let_train()
        policy = folder.absolute() / "policy"  # workers of a running Ray cluster have another working directory
        with cluster_errors():
            self.policy.save_checkpoint(*(str(policy / kind) for kind in ("weights", "optimizer", "tokenizer")))

    def stop(self) -> None:
        """End all workers and give their GPUs back."""
        self.policy.shutdown()
        self.generation.shutdown()
        self._kill()  # those that the two gave up on, since one of them was dead
        self.nodes.shutdown()
        atexit.unregister(self._kill)

    def _kill(self) -> None:
        for workers in (self.policy, self.generation):
            workers.worker_group.shutdown(force=True)

    def _wake_sampler(self) -> None:
        if not self.has_teacher:
            self._bring_teacher()
        if self.is_stale:
            with self.clock("refit"):
                self._refit()
            self.is_stale = False
        else:
            with self.clock("wake"):
                self.policy.offload_after_refit()
                self._must(self.generation.prepare_for_generation(), "wake vLLM")

    def _ask_sampler(self, method: str, /, **kwargs: Any) -> None:
        """Call `method` of the worker of every vLLM engine."""
        with cluster_errors():
            ray.get(
                self.generation.worker_group.run_all_workers_single_data(
                    method, run_rank_0_only_axes=["tensor_parallel", "pipeline_parallel"], **kwargs
                )
            )

    def _end_sampling(self) -> None:
        with self.clock("sleep"):
            self._must(self.generation.finish_generation(), "put vLLM to sleep")
        self.sampler_has_turn = False

    def _bring_teacher(self) -> None:
        """Once: through the ordinary refit, but from the trainer's reference weights, so after a resume too."""
        send = partial(self.policy.worker_group.run_all_workers_single_data, "stream_reference_weights_via_ipc_zmq")
        with patch.object(self.policy, "stream_weights_via_ipc_zmq", send):
            self._refit()
        self.tell_sampler("bank_teacher")
        self._must(self.generation.finish_generation(), "put vLLM to sleep")
        self.policy.prepare_for_lp_inference()
        self.has_teacher = True

    def _refit(self) -> None:
        buffer, wake = self.policy.cfg.get("refit_buffer_size_gb"), self.generation.prepare_for_generation
        must_wake = lambda **kwargs: self._must(wake(**kwargs), "wake vLLM")  # noqa: E731  NeMo RL goes on all the same
        try:
            with patch.object(self.generation, "prepare_for_generation", must_wake):
                refit_policy_generation(self.policy, self.generation, True, _refit_buffer_size_gb=buffer)
        except (RuntimeError, RayTaskError):
            self._ask_sampler("is_alive")  # the trainer does not see that vLLM is dead, only that no message comes
            raise

    def _must(self, succeeded: bool, what: str) -> None:
        """NeMo RL prints such failures, a worker's death among them, and goes on."""
        if not succeeded:
            self._ask_sampler("is_alive")
            raise UserError(f"NeMo RL could not {what}, as it says above. Fix that, then continue with --resume.")


def _start_ray() -> None:
    """NeMo RL's way; but Ray takes SIGTERM for itself, and ends a command that has something to say then."""
    # vLLM wants it so, but says it when it is imported: too late where a worker has imported torch's compiler before.
    # One then waited for the compiler's processes for good.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    before = signal.getsignal(signal.SIGTERM)
    init_ray()
    if callable(before):
        signal.signal(signal.SIGTERM, before)


def _start_sampler(
    nodes: RayVirtualCluster, policy: dict[str, Any], tokenizer: Any, end_ids: list[int]
) -> VllmGeneration:
    generation = policy["generation"]
    generation["model_name"] = policy["model_name"]
    generation["stop_token_ids"] = end_ids
    generation.setdefault("vllm_kwargs", {})["hf_overrides"] = policy.get("hf_config_overrides") or {}
    policy["generation"] = configure_generation_config(generation, tokenizer)
    ours = register_worker(*WORKERS["vllm"])
    # `VllmGeneration.__init__` fixes the worker class; only this resolver, meant for ModelOpt, can replace it.
    with patch.object(vllm_generation, "resolve_generation_worker_cls", lambda *_: ours), cluster_errors():
        return VllmGeneration(cluster=nodes, config=policy["generation"])


def _start_trainer(
    nodes: RayVirtualCluster,
    policy: dict[str, Any],
    settings: Settings,
    tokenizer: Any,
    max_num_steps: int | None,
    checkpoint: Path | None,
) -> Policy:
    if settings.backend == "megatron":
        policy["megatron_cfg"].setdefault("train_iters", max_num_steps or _UNBOUNDED)
        # A resumed run may be longer; the schedule is that of its start. Megatron would refuse the difference.
        scheduler = policy["megatron_cfg"]["scheduler"]
        overrides = scheduler.get("override_opt_param_scheduler", False)
        scheduler.setdefault("use_checkpoint_opt_param_scheduler", not overrides)
    folder = checkpoint / "policy" if checkpoint else None
    with cluster_errors():
        return Policy(
            cluster=nodes,
            config=policy,
            tokenizer=tokenizer,
            weights_path=folder and str(folder / "weights"),
            # Megatron keeps the optimizer beside the weights. Any path here makes it load the optimizer too.
            optimizer_path=folder and str(folder / "optimizer"),
            init_reference_model=True,
            worker_extension_cls_fqn=register_worker(*WORKERS[settings.backend]),
        )


def register_worker(ours: str, parent: str) -> str:
    """Let Ray start the class named `ours` with the interpreter of `parent`; returns `ours`.

    For an unknown class NeMo RL would build another virtual environment at start, of several GB. The container already
    has the parent's, in NEMO_RL_VENV_DIR. NEMO_RL_PY_EXECUTABLES_SYSTEM=1 applies to DTensor's worker too, which NeMo
    RL itself leaves out.
    """
    executable = ACTOR_ENVIRONMENT_REGISTRY[parent]
    prebuilt = Path(os.environ.get("NEMO_RL_VENV_DIR", "/opt/ray_venvs"), parent, "bin", "python")
    if USE_SYSTEM_EXECUTABLE:
        executable = PY_EXECUTABLES.SYSTEM
    elif executable.startswith("uv") and prebuilt.is_file():
        executable = str(prebuilt)
    ACTOR_ENVIRONMENT_REGISTRY[ours] = executable
    return ours


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn Ray's long report into a line or two: of a dead worker, of missing memory, or of what a user can fix, such
    as an objective of their own. It stays as the cause.
    """
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from error
        if not isinstance(error.cause, torch.OutOfMemoryError):
            raise
        found = f"a GPU is out of memory: {str(error.cause).splitlines()[0]} `aopsd doctor CONFIG` shows why"
        keys = "policy.generation.vllm_cfg.gpu_memory_utilization or the *_mb_tokens of policy.sequence_packing"
        raise UserError(f"{found}. Lower {keys}, or set aopsd.probes.keep_cache=false if it is true.") from error
    except RayActorError as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        told = " ".join(dict.fromkeys(line.strip() for line in (lines[0], lines[-1])))  # that it died, and of what
        log = "ray/session_latest/logs of its node's /tmp; a job of slurm/ keeps it beside driver.log, in ray-of-HOST"
        goes_on = "The last checkpoint is complete. Fix the cause, then continue with --resume."
        raise UserError(f"a worker died: {told} Its log is in {log}. {goes_on}") from error
