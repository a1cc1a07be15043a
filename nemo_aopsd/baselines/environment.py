"""A NeMo RL environment whose reward is an attempt's progress on its reasoning DAG, for stock recipes such as GRPO.

Importing this module registers it in this process, as `aopsd_progress`. NeMo RL's interface and its caller:
nemo_rl/environments/interfaces.py, and calculate_rewards in nemo_rl/experience/rollouts.py. With an asynchronous vLLM
NeMo RL calls `step` for each rollout by itself and at the same time, so everything here is a coroutine: the judge's
answers must not queue behind each other.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import ray
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn
from nemo_rl.environments.utils import ENV_REGISTRY, register_env
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_aopsd.baselines.judge_client import JudgeClient, JudgeSettings
from nemo_aopsd.chat.protocol import Completion
from nemo_aopsd.data import dag
from nemo_aopsd.data.problems import Problem, parse_problem
from nemo_aopsd.errors import UserError, first_line
from nemo_aopsd.grading import extract_answer, grade_async
from nemo_aopsd.method.judge import Verdict, judge_messages, parse_verdict, shorten

ENV_NAME = "aopsd_progress"
ACTOR = f"{__name__}.ProgressJudgeEnvironment"


@dataclass
class RewardSettings:
    """Weights of the two parts: r_i (eq:dag-progress), and 1 for a correct final answer."""

    progress: float = 1.0
    correct: float = 0.0


@dataclass
class EnvironmentSettings:
    """`env.aopsd_progress`; `prompts` is a folder of nemo_aopsd/prompts, or a path."""

    prompts: str = "default"
    reward: RewardSettings = field(default_factory=RewardSettings)
    judge: JudgeSettings = field(default_factory=JudgeSettings)


def read_settings(block: dict[str, Any]) -> EnvironmentSettings:
    """The typed block. Raises UserError on an unknown key, a wrong type, or a reward that is always zero."""
    try:
        merged = OmegaConf.merge(OmegaConf.structured(EnvironmentSettings), block)
        settings = cast(EnvironmentSettings, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        found = f"env.{ENV_NAME}.{error.full_key}: {first_line(error)}"
        raise UserError(f"{found}. The keys are in docs/nemo_rl_environment.md.") from error
    if not (settings.reward.progress or settings.reward.correct):
        raise UserError(f"env.{ENV_NAME}.reward: both weights are 0, so nothing would be learned. Raise one.")
    return settings


class ProgressJudgeEnvironmentImpl(EnvironmentInterface[dict[str, Any]]):
    """Without Ray. A rollout's metadata is its problem as `dataset.py` writes it: id, problem, answer, dag, where.

    Keeps no state but the judge's connections and the counters.
    """

    def __init__(self, cfg: dict[str, Any]):
        self.settings = read_settings(cfg)
        self.counters: Counter[str] = Counter()
        self._judge_client = JudgeClient(self.settings.judge)

    async def step(
        self, message_log_batch: Sequence[list[dict[str, str]]], metadata: list[dict[str, Any]]
    ) -> EnvironmentReturn[dict[str, Any]]:
        """Rewards [B] float32, all terminal, nothing observed; metadata gains `aopsd`, the outcome in plain values.

        Raises UserError if the judge cannot be reached, or a problem lacks the DAG that the reward needs.
        """
        attempts = [_attempt(messages) for messages in message_log_batch]
        outcomes = await asyncio.gather(*map(self._assess, metadata, attempts))
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": ""} for _ in attempts],
            metadata=[info | {"aopsd": outcome} for info, outcome in zip(metadata, outcomes, strict=True)],
            next_stop_strings=[None] * len(attempts),
            rewards=torch.tensor([outcome["reward"] for outcome in outcomes], dtype=torch.float32),
            terminateds=torch.ones(len(attempts)),
            answers=[extract_answer(attempt) for attempt in attempts],
        )

    def global_post_process_and_metrics(self, batch: BatchedDataDict) -> tuple[BatchedDataDict, dict[str, float]]:
        """The batch as it is, and all that was counted since the start, with the share of unreadable verdicts."""
        share = self.counters["judge_failed"] / max(1, self.counters["judged"])
        return batch, {**self.counters, "judge_failed_share": share}

    async def shutdown(self) -> None:
        """NeMo RL's asynchronous loop calls it before it stops the policy."""
        await self._judge_client.close()

    async def _assess(self, info: dict[str, Any], attempt: str) -> dict[str, Any]:
        weights = self.settings.reward
        problem = parse_problem(info, info["where"])
        outcome: dict[str, Any] = {"reward": 0.0}
        if weights.progress:
            outcome |= await self._progress(problem, attempt)
            outcome["reward"] += weights.progress * outcome["progress"]
        if weights.correct:
            graded = await grade_async(attempt, problem.answer)
            outcome |= {"correct": graded.correct, "grade": graded.reason}
            outcome["reward"] += weights.correct * graded.correct
            self._count(graded=True, correct=graded.correct, ungradable=graded.reason == "ungradable")
        return outcome

    async def _progress(self, problem: Problem, attempt: str) -> dict[str, Any]:
        if problem.dag is None:
            needs = f"no `dag`, which env.{ENV_NAME}.reward.progress needs"
            raise UserError(f"{problem.where}: problem {problem.id!r} has {needs}. Add it, or set that weight to 0.")
        verdict = await self._judge(problem, attempt)
        reached = dag.largest_closed_subset(problem.dag, verdict.judged)
        self._count_verdict(problem, verdict)
        return {
            "progress": dag.progress(problem.dag, reached),
            "judged": sorted(verdict.judged),
            "reached": sorted(reached),
            "failed": verdict.failed,
            "cut": verdict.cut,
        }

    async def _judge(self, problem: Problem, attempt: str) -> Verdict:
        """The first verdict that can be read, or the last one."""
        verdict = Verdict(frozenset(), True, False, "")
        for _ in range(1 + self.settings.judge.num_retries):
            completion, cut = await self._ask(problem, attempt)
            judged = parse_verdict(completion.answer, problem.graph)
            verdict = Verdict(judged or frozenset(), judged is None, cut, completion.text)
            if not verdict.failed:
                break
        return verdict

    async def _ask(self, problem: Problem, attempt: str) -> tuple[Completion, bool]:
        """What the judge wrote, and whether the attempt lost its middle: only the server knows what it has room for."""
        limit = self.settings.judge.max_attempt_chars
        while True:
            shown, cut = shorten(list(map(ord, attempt)), _text, limit)  # the server has the tokenizer
            answer = await self._judge_client.complete(judge_messages(problem, shown, self.settings.prompts))
            if answer is not None:
                return answer, cut
            if limit == 0:
                raise UserError(
                    f"{problem.where}: problem {problem.id!r}: the judge's context has no room for the prompt without "
                    f"any attempt and {self.settings.judge.max_new_tokens} new tokens. Raise "
                    f"policy.generation.vllm_cfg.max_model_len or lower env.{ENV_NAME}.judge.max_new_tokens."
                )
            limit = min(limit, len(attempt)) // 2

    def _count(self, **events: bool) -> None:
        self.counters.update({name: int(happened) for name, happened in events.items()})

    def _count_verdict(self, problem: Problem, verdict: Verdict) -> None:
        """NeMo RL's loops never ask an environment for metrics, so failures are printed: the 1st, 2nd, 4th, 8th, ..."""
        self._count(judged=True, judge_failed=verdict.failed, attempts_cut=verdict.cut)
        failed = self.counters["judge_failed"]
        if verdict.failed and failed.bit_count() == 1:
            print(
                f"[{ENV_NAME}] {failed} of {self.counters['judged']} verdicts so far cannot be read (reward 0); the "
                f"last, on problem {problem.id!r}: {verdict.text[-200:]!r}",
                flush=True,
            )


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class ProgressJudgeEnvironment(ProgressJudgeEnvironmentImpl):
    """The Ray actor. It claims no CPU: after its node is lost it starts again on any other, instead of waiting for room
    for ever, and the step that it was in is done again.
    """


def _text(code_points: list[int]) -> str:
    return "".join(map(chr, code_points))


def _attempt(messages: Sequence[dict[str, str]]) -> str:
    return "".join(str(message["content"]) for message in messages if message["role"] == "assistant")


ACTOR_ENVIRONMENT_REGISTRY.setdefault(ACTOR, PY_EXECUTABLES.SYSTEM)
if ENV_NAME not in ENV_REGISTRY:  # an actor imports this module under its own name as well
    register_env(ENV_NAME, ACTOR)
