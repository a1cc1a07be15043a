"""One training step of AOPSD, top to bottom. Start reading here.

`collect` holds stages 1 to 5 and changes nothing; `train_step` adds the update. Lists are indexed by rollout (`_B`).
Not here: which problems come when (trainer, curriculum) and how an engine computes (engines/).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_aopsd.config.schema import CONTINUED, AOPSDConfig, Config
from nemo_aopsd.data import dag
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Engine, Tokenizer
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import derive_seed
from nemo_aopsd.grading import is_correct
from nemo_aopsd.method.context import student_messages, teacher_messages
from nemo_aopsd.method.demonstrations import demonstrations, takes_solutions
from nemo_aopsd.method.judge import Verdict, judge_attempts
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.probes import Probe, probe_weights, reweigh, run_probes
from nemo_aopsd.method.weighting import gap_weights
from nemo_aopsd.types import Generation, Signal, Tokens, TopK, TrainRow

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_aopsd.engine import Objective


@dataclass(frozen=True, slots=True)
class Rollout:
    """All that one rollout went through, in the order of the stages; None for what its objective does not read."""

    problem: Problem
    student_prompt: Tokens
    output: Generation
    verdict: Verdict | None  # None where neither context nor curriculum asks for progress
    reached: frozenset[str] | None
    teacher_prompt: Tokens | None
    student_logprobs: Tensor | None  # [T]
    teacher_logprobs: Tensor | None  # [T]
    probes: list[Probe]
    weights: Tensor | None = None  # w_t, [T]
    top_k: TopK | None = None
    dropped: bool = False  # no room for the teacher's row: not scored, not trained on
    is_demonstration: bool = False  # the data's solution, not the student's answer
    reward: float | None = None

    @property
    def progress(self) -> float | None:
        """r(y); None if there is no readable verdict."""
        if self.verdict is None or self.verdict.failed:
            return None
        return dag.progress(self.problem.dag, self.reached)

    @property
    def gap(self) -> Tensor | None:
        """g_t = log q - log p of the sampled tokens, [T] (eq:opsd-gap); None if it was not scored."""
        return None if self.teacher_logprobs is None else self.teacher_logprobs - self.student_logprobs


@dataclass(frozen=True, slots=True)
class StepResult:
    """Rollouts, the engine's training metrics, and seconds by stage."""

    rollouts: list[Rollout]
    train_metrics: dict[str, float]
    seconds: dict[str, float]


def train_step(
    problems: Sequence[Problem],
    engine: Engine,
    objective: Objective,
    config: Config,
    *,
    donors: dict[str, Problem],
    seed: int,
) -> StepResult:
    """Collect `num_generations_per_prompt` rollouts of each problem and take one optimizer step on them.

    `donors` maps a problem's id to the other problem that the context `other_problem` shows.
    """
    seconds: dict[str, float] = {}
    rollouts_B = collect(problems, engine, config, donors=donors, seed=seed, seconds=seconds)

    # 6. Update: the objective forms the clipped, weighted advantage anew in every forward (eq:weighted-advantage).
    with _timed(seconds, "update"):
        rows = [_train_row(rollout, config.aopsd, objective) for rollout in rollouts_B if not rollout.dropped]
        train_metrics = engine.train(objective.prepare(rows), objective)
    return StepResult(rollouts_B, train_metrics | _payload(rows, objective.signal), seconds)


def collect(
    problems: Sequence[Problem],
    engine: Engine,
    config: Config,
    *,
    donors: dict[str, Problem],
    seed: int,
    seconds: dict[str, float],
) -> list[Rollout]:
    """Stages 1 to 5: everything that the update needs, without the update. Adds to `seconds` by stage."""
    aopsd, tokenizer = config.aopsd, engine.tokenizer
    objective = build_objective(aopsd.objective)
    signal, has_teacher = objective.signal, aopsd.objective.reads_teacher
    problems_B = [problem for problem in problems for _ in range(aopsd.num_generations_per_prompt)]

    # 1. Rollout: the student answers the bare question, or the data does.
    with _timed(seconds, "rollout"):
        prompts_B = [
            tokenizer.render(student_messages(problem, aopsd.prompts), aopsd.thinking.student) for problem in problems_B
        ]
        from_data = takes_solutions(objective.on_policy_rate, seed)
        if from_data:
            outputs_B = demonstrations(problems_B, prompts_B, tokenizer, config)
        else:
            outputs_B = engine.student.generate(prompts_B, config.rollout, derive_seed(seed, "rollout"))
        responses_B = [output.tokens for output in outputs_B]
    rewards_B = _rewards(problems_B, outputs_B, tokenizer) if objective.needs_reward else [None] * len(problems_B)

    # 2. Progress: the judge names established checkpoints; closure gives R (eq:dag-progress).
    with _timed(seconds, "judge"):
        verdicts_B: list[Verdict | None] = [None] * len(problems_B)
        if aopsd.needs_progress and (aopsd.shown_context == "dag_frontier" or not from_data):
            verdicts_B = judge_rollouts(problems_B, responses_B, engine, config, seed)
        reached_B = [
            dag.largest_closed_subset(problem.dag, verdict.judged) if verdict else None
            for problem, verdict in zip(problems_B, verdicts_B, strict=True)
        ]

    # 3. Disclosure: the teacher sees R and its frontier, or what the context says (eq:local-disclosure).
    teacher_prompts_B = [
        tokenizer.render(_teacher_messages(problem, reached, donors, aopsd), aopsd.thinking.teacher)
        if has_teacher
        else None
        for problem, reached in zip(problems_B, reached_B, strict=True)
    ]
    fits_B = [
        prompt is None or _fits(problem, prompt, response, config)
        for problem, prompt, response in zip(problems_B, teacher_prompts_B, responses_B, strict=True)
    ]

    # 4. Gap: the same response ids under both prompts (eq:opsd-gap). K: the rollouts with room for the teacher.
    kept = [index for index, fits in enumerate(fits_B) if fits]
    rows_K = [[rows[index] for index in kept] for rows in (prompts_B, teacher_prompts_B, responses_B)]
    student_prompts_K, teacher_prompts_K, responses_K = rows_K
    student_K = teacher_K = top_K = [None] * len(kept)
    with _timed(seconds, "student"):
        if objective.needs_old_logprobs:
            student_K = engine.student.logprobs(student_prompts_K, responses_K)
    with _timed(seconds, "teacher"):
        if signal.sampled:
            teacher_K = engine.teacher.logprobs(teacher_prompts_K, responses_K)
        if signal.top_k:
            top_K = engine.teacher.top_logprobs(teacher_prompts_K, responses_K, signal.top_k)

    _check_lengths(responses_K, student_K, teacher_K, [top and top.ids for top in top_K])

    # 5. Probes: teacher continuations at high-gap tokens, scored by the student (eq:continuation-nll).
    with _timed(seconds, "probes"):
        probes_K: list[list[Probe]] = [[] for _ in kept]
        gaps_K = [_gap(*scores) for scores in zip(teacher_K, student_K, responses_K, strict=True)]
        if aopsd.weighting in CONTINUED:
            probes_K = run_probes(engine.student, engine.teacher, *rows_K, gaps_K, aopsd.probes)
            probes_K = reweigh(probes_K, aopsd.weighting, derive_seed(seed, "weights"))
            weights_K = [probe_weights(probes, len(gap)) for probes, gap in zip(probes_K, gaps_K, strict=True)]
        else:
            weights_K = [gap_weights(gap, aopsd.weighting, aopsd.probes) for gap in gaps_K]

    scored = dict(zip(kept, zip(student_K, teacher_K, probes_K, weights_K, top_K, strict=True), strict=True))
    unscored = (None, None, [], None, None)  # no room for the teacher
    stages_B = zip(problems_B, prompts_B, outputs_B, verdicts_B, reached_B, teacher_prompts_B, strict=True)
    return [
        Rollout(*stages, *scored.get(index, unscored), not fits_B[index], from_data, rewards_B[index])
        for index, stages in enumerate(stages_B)
    ]


def judge_rollouts(
    problems: Sequence[Problem], responses: list[Tokens], engine: Engine, config: Config, seed: int
) -> list[Verdict]:
    """A verdict on each response by the model that the config names."""
    aopsd = config.aopsd
    return judge_attempts(
        engine.student if aopsd.judge.model == "student" else engine.teacher,
        engine.tokenizer,
        problems,
        responses,
        config=aopsd.judge,
        prompts=aopsd.prompts,
        thinking=aopsd.thinking.student,
        max_row_tokens=config.max_row_tokens,
        seed=derive_seed(seed, "judge"),
    )


def _teacher_messages(
    problem: Problem, reached: frozenset[str] | None, donors: dict[str, Problem], aopsd: AOPSDConfig
) -> list[dict[str, str]]:
    return teacher_messages(
        problem,
        aopsd.context.kind,
        aopsd.prompts,
        reached=reached or frozenset(),
        mark_frontier=aopsd.context.mark_frontier,
        donor=donors.get(problem.id),
    )


def _fits(problem: Problem, teacher_prompt: Tokens, response: Tokens, config: Config) -> bool:
    probe = config.aopsd.probes.length if config.aopsd.weighting in CONTINUED else 0
    needed = len(teacher_prompt) + len(response) + probe
    if needed > config.max_row_tokens and config.aopsd.context.on_overlong == "error":
        raise UserError(
            f"{problem.where}: problem {problem.id!r}: teacher prompt {len(teacher_prompt)} + response {len(response)} "
            f"+ probe {probe} = {needed} tokens exceed policy.max_total_sequence_length="
            f"{config.max_row_tokens}. Raise it, or set aopsd.context.on_overlong=drop to leave such rollouts out."
        )
    return needed <= config.max_row_tokens


def _gap(teacher: Tensor | None, student: Tensor | None, response: Tokens) -> Tensor:
    """g_t, [T]; zeros for an objective that reads no log-probs of the sampled tokens, and so has no use for weights."""
    import torch

    return torch.zeros(len(response)) if teacher is None or student is None else teacher - student


def _rewards(problems: list[Problem], outputs: list[Generation], tokenizer: Tokenizer) -> list[float]:
    """1 for a finished answer that is right, else 0."""
    return [
        float(output.finished and is_correct(tokenizer.decode(output.tokens), problem.answer))
        for problem, output in zip(problems, outputs, strict=True)
    ]


def _check_lengths(responses: list[Tokens], *scores: list[Tensor | None]) -> None:
    """A missing log-prob must stop the step: broadcast or padded, it would pass for a gap."""
    wanted = [len(response) for response in responses]
    for rows in scores:
        if any(row is not None for row in rows) and [len(row) for row in rows] != wanted:
            raise ValueError("an engine returned another number of log-probs than the responses have tokens")


def _train_row(rollout: Rollout, aopsd: AOPSDConfig, objective: Objective) -> TrainRow:
    import torch

    counted = rollout.output.finished or rollout.is_demonstration or not aopsd.mask_truncated
    return TrainRow(
        prompt=rollout.student_prompt,
        response=rollout.output.tokens,
        old_logprobs=rollout.student_logprobs,
        teacher_logprobs=rollout.teacher_logprobs,
        weights=rollout.weights,
        mask=torch.full((len(rollout.output.tokens),), counted),
        sampler_logprobs=rollout.output.logprobs,
        teacher_prompt=rollout.teacher_prompt if objective.signal.full else None,
        top_k=rollout.top_k,
        reward=rollout.reward,
    )


def _payload(rows: list[TrainRow], signal: Signal) -> dict[str, float]:
    """Bytes of supervision a token, by the types that the rows have; absent where they do not hold all of it.

    So without a teacher, and for a full signal: its distributions are formed within the update and sent nowhere.
    """
    import torch

    num_tokens = sum(len(row.response) for row in rows)
    if not num_tokens or signal.full or not (signal.sampled or signal.top_k):
        return {}
    num_bytes = 0
    for row in rows:
        if signal.sampled:  # the sampled id, as int32 like those of the top k
            num_bytes += torch.int32.itemsize * len(row.response)
            num_bytes += row.teacher_logprobs.nbytes + row.weights.nbytes + row.mask.nbytes
        if signal.top_k:
            num_bytes += row.top_k.ids.nbytes + row.top_k.logprobs.nbytes
        if signal.entropy:
            num_bytes += row.top_k.entropy.nbytes
    return {"train/supervision_bytes_per_token": num_bytes / num_tokens}


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
