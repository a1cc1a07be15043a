"""A step of NeMo RL's own `grpo_train` on the workers of our engine, for `step_cost_nemo.py --arm grpo`.

Groups of two, the smallest that have an advantage: with groups of one all gradients are 0, and Adam would take a step.
No reference model, whose pass the KL would need. The loop, its order of stages and its timers are NeMo RL's. The worker
classes are ours: their heap is frozen, which makes NeMo RL no slower; all else that we changed there is not called.
Its reports of Ray's memory, which take time too, are left out.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import ray
import torch
from nemo_rl.algorithms import grpo
from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossFn
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.interfaces import EnvironmentReturn

from nemo_aopsd.config.schema import Config
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import student_messages

GROUP = 2
NAME = "benchmark"  # of the task
STAGES = {
    "rollout": ("prepare_for_generation/total", "generation"),  # the refit; then sampling, rewards, and vLLM's sleep
    "student": ("logprob_inference_prep", "policy_and_reference_logprobs"),
    "update": ("training_prep", "policy_training"),
    "total": ("total_step_time",),
}


def take_step(engine: Any, config: Config, problems: Sequence[Problem]) -> tuple[dict[str, float], list[int]]:
    """Seconds by stage of our names, and the lengths of the responses, each once. Leaves the turn as a step of ours."""
    cluster = engine.cluster
    assert not cluster.sampler_has_turn, "the step before must have ended with an update"
    asked, master = prompts(engine, config, problems), master_config(config)
    logger, state = Recorder(), dict.fromkeys(("current_step", "total_steps", "current_epoch", "consumed_samples"), 0)
    silent = patch.object(grpo, "MemoryTracker", MagicMock)
    with silent, contextlib.redirect_stdout(io.StringIO()):  # it prints a page
        grpo.grpo_train(
            policy=cluster.policy,
            policy_generation=cluster.generation,
            wrapped_dataloader=[asked],
            val_dataloader=None,
            tokenizer=engine.hf_tokenizer,
            loss_fn=ClippedPGLossFn(master.loss_fn),
            task_to_env={NAME: Rewards()},
            val_task_to_env=None,
            logger=logger,
            checkpointer=None,
            grpo_save_state=state,
            master_config=master,
        )
    cluster.is_stale = True  # as `Cluster.train` leaves it
    cluster.take_seconds()  # of its workers, which are not of the next step
    times = logger.metrics["timing/train"]
    return {stage: sum(times.get(name, 0.0) for name in names) for stage, names in STAGES.items()}, logger.lengths


def prompts(engine: Any, config: Config, problems: Sequence[Problem]) -> BatchedDataDict:
    """Half of the problems as its data loader gives them. It repeats each."""
    if len(problems) % GROUP:
        raise UserError(f"--arm grpo answers in groups of {GROUP}: choose a multiple for --responses.")
    rows = [
        torch.tensor(engine.tokenizer.render(student_messages(problem, config.aopsd.prompts), None))
        for problem in problems[::GROUP]
    ]
    return BatchedDataDict(
        message_log=[[{"role": "user", "content": "", "token_ids": row}] for row in rows],
        length=torch.tensor([len(row) for row in rows]),
        loss_multiplier=torch.ones(len(rows)),
        extra_env_info=[None] * len(rows),
        task_name=[NAME] * len(rows),
        idx=list(range(len(rows))),
    )


def master_config(config: Config) -> grpo.MasterConfig:
    """NeMo RL's view of the file, for one step."""
    raw = copy.deepcopy(config.raw)
    raw["grpo"] |= {
        "num_prompts_per_step": config.aopsd.num_prompts_per_step // GROUP,
        "num_generations_per_prompt": GROUP,
        "max_num_steps": 1,
        "max_num_epochs": 1,
        "skip_reference_policy_logprobs_calculation": True,
        "overlong_filtering": False,
        "normalize_rewards": True,
    }
    raw["checkpointing"]["enabled"] = False
    return grpo.MasterConfig(**raw)


class Rewards:
    """An environment's actor: 0 and 1 in turn, so that every group has an advantage."""

    @property
    def step(self) -> Any:
        return SimpleNamespace(remote=self._step)

    def _step(self, logs: list[Any], infos: list[Any]) -> Any:
        count = len(logs)
        seen = [{"role": "environment", "content": ""}] * count
        rewards = torch.arange(count).remainder(GROUP).float()
        return ray.put(EnvironmentReturn(seen, infos, [None] * count, rewards, torch.ones(count), None))


class Recorder:
    """NeMo RL's `Logger` as the loop uses it; keeps the newest numbers by prefix."""

    def __init__(self) -> None:
        self.metrics: dict[str, dict[str, float]] = {}
        self.lengths: list[int] = []

    def log_metrics(self, metrics: dict[str, float], step: int, prefix: str = "", **_: Any) -> None:
        self.metrics[prefix] = dict(metrics)

    def log_batched_dict_as_jsonl(self, rows: dict[str, Any], name: str) -> None:
        self.lengths = sorted({int(sum(mask)) for mask in rows["token_loss_mask"]})

    def __getattr__(self, name: str) -> Any:
        """Plots and histograms are not drawn."""
        if name.startswith("log_"):
            return lambda *_, **__: None
        raise AttributeError(name)
