"""The work of one step in rows and tokens: from the config, with assumptions for what it leaves open."""

from dataclasses import dataclass
from pathlib import Path

from nemo_aopsd.config.schema import Config, ProbeRunner, Scoring
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.objectives import build_objective


@dataclass(frozen=True)
class Assumed:
    """What nothing else says. Tokens, unless named otherwise."""

    problems: int = 725  # the paper's training set
    response_share: float = 0.6  # of policy.generation.max_new_tokens
    question: float = 150  # competition problems with a chat template
    solution: float = 1500
    graph: float = 700  # a compressed reasoning graph of some ten statements
    wording: float = 250  # the judge's and the teacher's own
    verdict: float = 120
    trigger_rate: float = 0.0115  # the paper's Figure 1b: 1.15 % of tokens at |gap| >= 2


@dataclass(frozen=True)
class Workload:
    """Means of one step; tokens a row unless named otherwise."""

    problems: int
    prompts: int  # problems a step
    rows: int  # rollouts a step
    question: float
    teacher_prompt: float
    response: float
    longest: float  # response of the step, which the sampler waits for
    judge_prompt: float
    judge_answer: float
    probes: float  # of all rows together
    probe_length: int
    probe_runner: ProbeRunner
    is_judged: bool
    teacher_judges: bool
    scores_student: bool  # at collection, beside the sampling; the teacher scores always
    scoring: Scoring
    initial_attempts: int  # a problem, before the first epoch
    missing: Path | None  # the data file, if it is not there

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return -(-self.problems // self.prompts)


def from_config(config: Config, response: float | None = None, assumed: Assumed = Assumed()) -> Workload:
    """`response` is the mean length of a response. All else is assumed, the number of problems if there is no file."""
    aopsd, path = config.aopsd, Path(config.data["train"]["data_path"])
    problems = len(load_problems(path)) if path.is_file() else assumed.problems
    objective, limit = build_objective(aopsd.objective), config.rollout.max_new_tokens
    if response and response > limit:
        raise UserError(f"--response {response:g}: more than policy.generation.max_new_tokens={limit}. Lower it.")
    question, response = assumed.question, response or assumed.response_share * limit
    rows = min(aopsd.num_prompts_per_step, problems) * aopsd.num_generations_per_prompt
    probed = objective.signal.sampled and aopsd.continues
    return Workload(
        problems=problems,
        prompts=min(aopsd.num_prompts_per_step, problems),
        rows=rows,
        question=question,
        teacher_prompt=question + _context_tokens(aopsd.shown_context, assumed),
        response=response,
        longest=limit,
        judge_prompt=question + assumed.graph + assumed.wording + min(response, aopsd.judge.max_attempt_tokens),
        judge_answer=min(assumed.verdict, aopsd.judge.verdict_tokens),
        probes=assumed.trigger_rate * response * rows if probed else 0.0,
        probe_length=aopsd.probes.length,
        probe_runner=aopsd.probes.runner,
        is_judged=aopsd.needs_progress,
        teacher_judges=aopsd.judge.model == "teacher",
        scores_student=(objective.needs_old_logprobs or objective.signal.sampled) and aopsd.scoring != "sampler",
        scoring=aopsd.scoring,
        initial_attempts=aopsd.curriculum.initial_attempts,
        missing=None if path.is_file() else path,
    )


def _context_tokens(kind: str, assumed: Assumed) -> float:
    """What the teacher reads beside the question. Plans, subproblems and a context of one's own count as a graph."""
    shown = {
        "solution": assumed.solution,
        "dag_frontier": assumed.graph / 2,  # half of the way, on average
        "other_problem": assumed.solution + assumed.question,
    }
    return 0.0 if kind == "none" else shown.get(kind, assumed.graph) + assumed.wording
