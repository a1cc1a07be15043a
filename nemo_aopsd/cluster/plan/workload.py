"""What one step has to do, in rows and tokens: from the config, its data file, and a run if there is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from nemo_aopsd.cluster.plan.constants import Constants
from nemo_aopsd.config.schema import CONTINUED, AOPSDConfig, Config
from nemo_aopsd.data.problems import Problem, load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.objectives import build_objective


@dataclass(frozen=True)
class Workload:
    """Means of one step; tokens a row unless named otherwise. `sources` says where each number is from.

    `missing` is the data file where it is not there, so that what it would tell is assumed.
    """

    problems: int
    prompts: int  # problems a step
    rows: int  # rollouts a step
    question: float
    context: str  # what the teacher sees
    teacher_prompt: float
    response: float
    longest: float  # response of the step, which the sampler waits for
    judge_prompt: float
    judge_answer: float
    probes: float  # of all rows together
    probe_length: int
    judge_rate: float  # share of steps that judge their responses
    teacher_judges: bool
    on_policy_rate: float  # share of steps whose responses are sampled
    scores_student: bool  # at collection
    scores_teacher: bool  # at collection
    teaches_in_update: bool  # the teacher's forward is within the update: it needs the whole vocabulary
    initial_attempts: int  # a problem, before the first epoch
    sources: dict[str, str]
    missing: Path | None

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return -(-self.problems // self.prompts)

    def scaled(self, rows: int) -> Workload:
        """The same with `rows` rollouts a step, one a problem."""
        return replace(self, rows=rows, prompts=rows, probes=self.probes * rows / self.rows)


def from_config(config: Config, constants: Constants) -> Workload:
    """Lengths from the problems file where it is there, else the assumptions of `constants.yaml`."""
    aopsd, assumed = config.aopsd, constants.workload
    path = Path(config.data["train"]["data_path"])
    problems = load_problems(path) if path.is_file() else None
    sources = {name: f"assumed: {source}" for name, source in constants.workload_sources.items()}
    lengths = {name: assumed[f"{name}_tokens"] for name in ("question", "solution", "graph")}
    if problems:
        sources["problems"] = str(path)
        for name, found in _lengths(problems, assumed["characters_per_token"]).items():
            lengths[name] = found
            sources[f"{name}_tokens"] = f"{path}, at {assumed['characters_per_token']} characters a token"
    limit = config.rollout.max_new_tokens
    objective, wording = build_objective(aopsd.objective), assumed["instruction_tokens"]
    signal = objective.signal
    question, response = lengths["question"], assumed["response_share"] * limit
    rows = aopsd.num_prompts_per_step * aopsd.num_generations_per_prompt
    probed = signal.sampled and aopsd.weighting in CONTINUED
    return Workload(
        problems=len(problems) if problems else int(assumed["problems"]),
        prompts=aopsd.num_prompts_per_step,
        rows=rows,
        question=question,
        context=aopsd.shown_context,
        teacher_prompt=question + _context_tokens(aopsd.shown_context, lengths, wording),
        response=response,
        longest=limit,
        judge_prompt=question + lengths["graph"] + wording + min(response, aopsd.judge.max_attempt_tokens),
        judge_answer=min(assumed["judge_tokens"], aopsd.judge.max_new_tokens),
        probes=assumed["trigger_rate"] * response * rows if probed else 0.0,
        probe_length=aopsd.probes.length,
        judge_rate=_judge_rate(aopsd, objective.on_policy_rate),
        teacher_judges=aopsd.judge.model == "teacher",
        on_policy_rate=objective.on_policy_rate,
        scores_student=objective.needs_old_logprobs or signal.sampled,
        scores_teacher=signal.sampled or signal.top_k > 0,
        teaches_in_update=signal.full,
        initial_attempts=aopsd.curriculum.num_initial_attempts if aopsd.curriculum.name != "shuffle" else 0,
        sources=sources,
        missing=None if problems else path,
    )


def from_rollouts(
    workload: Workload, records: Iterable[dict[str, Any]], steps: int, where: str, run: AOPSDConfig
) -> Workload:
    """`workload` with the lengths of `records`, the rollouts of `steps` steps of a run with the settings `run`.

    Another context's prompts tell only how long the question is, and a run's probes nothing where one of both has
    none: the plan's own context and trigger rate stay. Raises UserError if there are no rollouts.
    """
    rows = list(records)
    if not rows:
        raise UserError(f"{where}: no rollouts in it. Expected a run that has done at least two steps.")
    response = mean(len(row["response"]) for row in rows)
    characters = mean(len(row["response_text"]) for row in rows) / max(response, 1)
    question = mean(len(row["student_prompt"]) for row in rows)
    prompts = [len(row["teacher_prompt"]) for row in rows if row["teacher_prompt"] is not None]
    same_context = bool(prompts) and run.shown_context == workload.context
    both_probe = workload.probes > 0 and run.weighting in CONTINUED
    judged = [len(row["judge_text"]) / characters for row in rows if row["judge_text"] is not None]
    by_step: dict[int, int] = {}
    for row in rows:
        by_step[row["step"]] = max(by_step.get(row["step"], 0), len(row["response"]))
    measured = [
        *("response_share", "question_tokens"),
        *(("solution_tokens", "graph_tokens") if same_context else ()),
        *(("trigger_rate",) if both_probe else ()),
        *(("judge_tokens",) if judged else ()),
    ]
    wording = workload.judge_prompt - workload.question - workload.response  # graph and instructions, as planned
    num_rows = round(len(rows) / steps)
    return replace(
        workload,
        question=question,
        teacher_prompt=mean(prompts) if same_context else question + workload.teacher_prompt - workload.question,
        response=response,
        longest=mean(by_step.values()),
        judge_prompt=question + response + wording,
        judge_answer=mean(judged) if judged else workload.judge_answer,
        rows=num_rows,
        probes=sum(len(row["probes"]) for row in rows) / steps
        if both_probe
        else workload.scaled(num_rows).probes * response / workload.response,
        sources=workload.sources | dict.fromkeys(measured, where),
    )


def _judge_rate(aopsd: AOPSDConfig, on_policy_rate: float) -> float:
    """A frontier needs every response judged, a curriculum only the student's own (step.py, stage 2)."""
    if not aopsd.needs_progress:
        return 0.0
    return 1.0 if aopsd.shown_context == "dag_frontier" else on_policy_rate


def _context_tokens(kind: str, lengths: dict[str, float], wording: float) -> float:
    """What the teacher reads beside the question. Plans and subproblems are taken to be as long as a graph."""
    shown = {
        "none": 0.0,
        "solution": lengths["solution"],
        "other_problem": lengths["solution"] + lengths["question"],
        "dag_frontier": lengths["graph"] / 2,  # half of the way, on average
    }
    return 0.0 if kind == "none" else shown.get(kind, lengths["graph"]) + wording


def _lengths(problems: list[Problem], characters: float) -> dict[str, float]:
    """Mean tokens of what the problems have."""
    found = {"question": mean(len(problem.problem) for problem in problems) / characters}
    solutions = [len(problem.solution) for problem in problems if problem.solution]
    graphs = [
        sum(len(data["statement"]) for _, data in problem.dag.nodes(data=True))
        for problem in problems
        if problem.dag is not None
    ]
    if solutions:
        found["solution"] = mean(solutions) / characters
    if graphs:
        found["graph"] = mean(graphs) / characters
    return found
