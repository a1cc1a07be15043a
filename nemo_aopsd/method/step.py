"""One training step of AOPSD, top to bottom. Start reading here.

`collect` holds stages 1 to 5 and changes nothing; `train_step` adds the update. A rollout goes through as a `Draft`,
then as `Scored` (rollout.py). Not here: which problems come when (trainer, curriculum), how an engine computes
(engines/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nemo_aopsd.clock import Clock
from nemo_aopsd.config.rules import probe_room
from nemo_aopsd.config.schema import Config
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Engine
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import derive_seed
from nemo_aopsd.method.context import shown_messages, student_prompts
from nemo_aopsd.method.demonstrations import demonstrations, takes_solutions
from nemo_aopsd.method.judge import Verdict, judge_attempts
from nemo_aopsd.method.probes import run_probes
from nemo_aopsd.method.reward import with_rewards
from nemo_aopsd.method.rollout import Collection, Draft, Scored, StepResult
from nemo_aopsd.method.weighting import UNSURPRISED, Surprise, constant_negative, weighed
from nemo_aopsd.types import Tokens

if TYPE_CHECKING:
    from nemo_aopsd.engine import Objective


def train_step(
    problems: Sequence[Problem],
    engine: Engine,
    objective: Objective,
    config: Config,
    *,
    donors: dict[str, Problem],
    seed: int,
    past: Surprise = UNSURPRISED,
) -> StepResult:
    """Collect `num_generations_per_prompt` rollouts of each problem and train on them: one update, or several on
    NeMo RL with a smaller `policy.train_global_batch_size`.

    `donors` maps a problem's id to the other problem that the context `other_problem` shows. `past` is how surprising
    the steps before have found continuations, for `probes.betas=auto`.
    """
    clock = Clock()
    collected = collect(problems, engine, objective, config, donors=donors, seed=seed, past=past)

    # 6. Update: `engine.train` calls the objective in every forward. There the weighted advantage
    #    A_t = clip(w_t (log q - log p), -C, C) is formed (eq:weighted-advantage): method/objectives/pg.py.
    with clock("update"):
        rows = [row.train_row(config.aopsd, objective) for row in collected.scored]
        if config.aopsd.weighting == "constant_negative":
            rows = constant_negative(rows)
        metrics = engine.train(objective.prepare(rows), objective)
    if objective.signal.payload and any(row.response for row in rows):
        metrics["train/supervision_bytes_per_token"] = float(objective.signal.payload)
    return StepResult(collected.drafts, collected.scored, collected.seconds | clock.seconds, metrics)


def collect(
    problems: Sequence[Problem],
    engine: Engine,
    objective: Objective,
    config: Config,
    *,
    donors: dict[str, Problem],
    seed: int,
    past: Surprise = UNSURPRISED,
) -> Collection:
    """Stages 1 to 5: everything that the update needs, without the update."""
    import torch

    aopsd, tokenizer, signal, clock = config.aopsd, engine.tokenizer, objective.signal, Clock()

    # 1. Rollout: the student answers the bare question, or the data does.
    with clock("rollout"):
        from_data = takes_solutions(objective.on_policy_rate, seed)
        repeated = [problem for problem in problems for _ in range(aopsd.num_generations_per_prompt)]  # one a rollout
        drafts = _answer(repeated, engine, config, seed, from_data=from_data)
        if objective.needs_reward:
            drafts = with_rewards(drafts, tokenizer)

    # 2. Progress: the judge names established checkpoints; closure gives R (eq:dag-progress).
    with clock("judge"):
        if aopsd.needs_progress and (aopsd.shows_progress or not from_data):
            verdicts = judge_rollouts(repeated, [draft.output.tokens for draft in drafts], engine, config, seed)
            drafts = [draft.judged(verdict) for draft, verdict in zip(drafts, verdicts, strict=True)]

    # 3. Disclosure: the teacher sees R and its frontier, or what the context says (eq:local-disclosure).
    if aopsd.objective.reads_teacher:
        shown = [shown_messages(draft.problem, aopsd, draft.reached or frozenset(), donors) for draft in drafts]
        disclosures = tokenizer.render_all(shown, aopsd.thinking.teacher)
        drafts = [
            replace(draft, teacher_prompt=prompt, fits=_fits(draft, prompt, config))
            for draft, prompt in zip(drafts, disclosures, strict=True)
        ]

    # 4. Gap: the same response ids under both prompts, where there is room for the teacher (eq:opsd-gap).
    scored = [Scored(draft, weights=torch.ones(len(draft.output.tokens))) for draft in drafts if draft.fits]
    responses = [row.draft.output.tokens for row in scored]
    prompts = [row.draft.student_prompt for row in scored]
    teacher_prompts = [prompt for row in scored if (prompt := row.draft.teacher_prompt) is not None]
    with clock("student"):
        if objective.needs_old_logprobs:
            if aopsd.scoring == "sampler" and not from_data:  # which has said them already
                log_p = [row.draft.output.logprobs for row in scored]
            else:
                log_p = engine.student.logprobs(prompts, responses)
            scored = [replace(row, student_logprobs=values) for row, values in zip(scored, log_p, strict=True)]
    with clock("teacher"):
        if signal.sampled:
            log_q = engine.teacher.logprobs(teacher_prompts, responses)
            scored = [replace(row, teacher_logprobs=values) for row, values in zip(scored, log_q, strict=True)]
        if signal.top_k:
            tops = engine.teacher.top_logprobs(teacher_prompts, responses, signal.top_k)
            scored = [replace(row, top_k=top) for row, top in zip(scored, tops, strict=True)]

    # 5. Probes: teacher continuations at high-gap tokens, scored by the student (eq:continuation-nll), and weights.
    with clock("probes"):
        if signal.sampled and aopsd.continues:
            gaps = [gap for row in scored if (gap := row.gap) is not None]
            read = engine.student, engine.teacher, prompts, teacher_prompts, responses, gaps
            in_loss = [row.draft.in_loss(aopsd) for row in scored]
            probes_B = run_probes(*read, aopsd.probes, past, in_loss=in_loss)
            scored = [replace(row, probes=probes) for row, probes in zip(scored, probes_B, strict=True)]
        if signal.sampled:
            scored = weighed(scored, aopsd, derive_seed(seed, "weights"))
    return Collection(drafts, scored, clock.seconds)


def judge_rollouts(
    problems: Sequence[Problem], responses: list[Tokens], engine: Engine, config: Config, seed: int
) -> list[Verdict]:
    """A verdict on each response by the model that the config names."""
    seed = derive_seed(seed, "judge")
    if config.aopsd.judge.has_own_model:
        assert engine.judge is not None, "config/rules.py lets no other engine pass"
        model, tokenizer = engine.judge
        responses = [tokenizer.encode(engine.tokenizer.decode(tokens)) for tokens in responses]
        return judge_attempts(model, tokenizer, problems, responses, config, seed)
    model = engine.student if config.aopsd.judge.model == "student" else engine.teacher
    return judge_attempts(model, engine.tokenizer, problems, responses, config, seed)


def _answer(problems: list[Problem], engine: Engine, config: Config, seed: int, *, from_data: bool) -> list[Draft]:
    """A response to each problem: the data's solution, or what the student says."""
    tokenizer, aopsd = engine.tokenizer, config.aopsd
    prompts = student_prompts(problems, tokenizer, aopsd.prompts, aopsd.thinking.student)
    if from_data:
        outputs = demonstrations(problems, prompts, tokenizer, config)
    else:
        outputs = engine.student.generate(prompts, config.rollout, derive_seed(seed, "rollout"))
    return [Draft(*row, is_demonstration=from_data) for row in zip(problems, prompts, outputs, strict=True)]


def _fits(draft: Draft, teacher_prompt: Tokens, config: Config) -> bool:
    """Whether the engine has room for the teacher's row and a probe at its end.

    Raises UserError if not, unless such a rollout may be dropped.
    """
    problem, response = draft.problem, draft.output.tokens
    probe = probe_room(config.aopsd)
    needed = len(teacher_prompt) + len(response) + probe
    if needed > config.max_row_tokens and config.aopsd.context.on_overlong == "error":
        parts = f"teacher prompt {len(teacher_prompt)} + response {len(response)} + probe {probe} = {needed} tokens"
        limit = f"policy.max_total_sequence_length={config.max_row_tokens}"
        drop = "Set aopsd.context.on_overlong=drop, behind --resume too, to leave such rollouts out"
        remedy = f"{drop}, or raise the limit for a new run."
        raise UserError(f"{problem.where}: problem {problem.id!r}: {parts} exceed {limit}. {remedy}")
    return needed <= config.max_row_tokens
