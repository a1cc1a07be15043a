"""The strict `aopsd:` block. Defaults live here and nowhere else; docs/choices.md gives the reason for each.

NeMo RL's own blocks (`policy`, `data`, `logger`, `checkpointing`, `cluster`) stay as NeMo RL defines them and
are read by the engine that needs them; see `config_files.py` for loading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nemo_aopsd.types import Sampling

CONTEXTS = ("none", "solution", "plan", "subproblems", "dag_full", "dag_frontier", "other_problem")
CONTINUED = ("continuation", "shuffled", "constant")  # weightings that ask the teacher for continuations
WEIGHTING_CONTROLS = ("shuffled", "constant", "gap_only", "zero_triggered")
CHOICES: dict[str, tuple[str, ...]] = {
    "engine": ("local", "nemo_rl"),
    "objective.name": ("pg", "sft", "grpo", "fkl", "rkl", "jsd", "topk_fkl", "dash", "eopd", "gkd", "minillm"),
    "objective.top_k_form": ("none", "renorm", "teacher_renorm", "tail"),
    "objective.divergence": ("fkl", "rkl", "jsd"),
    "objective.aggregation": ("token_mean", "seq_mean"),
    "context.kind": CONTEXTS,
    "context.on_overlong": ("error", "drop"),
    "judge.model": ("student", "teacher"),
    "weighting": ("uniform", "continuation", *WEIGHTING_CONTROLS),
    "curriculum.name": ("shuffle", "competence", "competence_reversed", "global_terciles"),
    "teacher.weights": ("frozen", "ema", "live"),
}


WITHOUT_TEACHER = ("sft", "grpo")  # objectives to which a teacher, and so its context, means nothing


@dataclass(frozen=True)
class ObjectiveConfig:
    """What the update minimises: `name` is a file of method/objectives, whose docstring says what it reads here.

    The advantage clip is C of eq:weighted-advantage; the ratio clips are PPO's epsilon below and above 1.
    """

    name: str = "pg"
    aggregation: str = "token_mean"  # or the mean over responses of their token means
    advantage_clip: float = 10.0
    ratio_clip_min: float = 0.2
    ratio_clip_max: float = 0.2
    token_clip: float | None = None  # fkl, dash: tau, the most that one vocabulary entry may add
    support: int | None = None  # fkl, dash: compare the teacher's so many likeliest words and the rest; null: all
    jsd_beta: float = 0.5  # jsd, gkd: weight of the teacher in the mixture
    top_k: int = 16  # topk_fkl, eopd
    top_k_form: str = "none"  # topk_fkl: how teacher and student are normalised over the top k
    dash_kappa: float = 5.0
    entropy_threshold: float = 0.8  # eopd: nats of the teacher from which on its forward KL counts
    entropy_weight: float = 1.0  # eopd: alpha, the weight of that term
    on_policy_rate: float = 0.5  # gkd: lambda, the share of steps on the student's own responses
    divergence: str = "jsd"  # gkd
    whiten: bool = False  # minillm: advantages of the step to mean 0 and deviation 1

    @property
    def top_k_key(self) -> str | None:
        """The key of this block that says how many of the teacher's likeliest words are read; None where none are."""
        return {"fkl": "support", "dash": "support", "topk_fkl": "top_k", "eopd": "top_k"}.get(self.name)

    @property
    def reads_teacher(self) -> bool:
        return self.name not in WITHOUT_TEACHER

    @property
    def reads_solutions(self) -> bool:
        """Are some of the responses the data's solutions?"""
        return self.name == "sft" or (self.name == "gkd" and self.on_policy_rate < 1)


@dataclass(frozen=True)
class ContextConfig:
    """What the teacher sees. An over-long teacher row is an error, or dropped from the update and counted."""

    kind: str = "dag_frontier"
    mark_frontier: bool = True
    on_overlong: str = "error"


@dataclass(frozen=True)
class ThinkingConfig:
    """`enable_thinking` of the chat template by role; null leaves the template's own default."""

    student: bool | None = None
    teacher: bool | None = None


@dataclass(frozen=True)
class JudgeConfig:
    """Greedy, one call a rollout. `teacher` judges with the teacher's weights, so apart from learning."""

    model: str = "student"
    max_new_tokens: int = 512
    num_retries: int = 1
    max_attempt_tokens: int = 16384


@dataclass(frozen=True)
class ProbeConfig:
    """eq:continuation-nll and eq:continuation-weight; `threshold` in nats, `length` k in tokens, anchor included.

    `keep_cache`, on NeMo RL: vLLM stays in GPU memory while the trainer scores, and with it the student's prefixes.
    """

    threshold: float = 2.0
    length: int = 8
    beta_positive: float = 1.0
    beta_negative: float = 2.5
    max_per_rollout: int | None = None
    keep_cache: bool = False


@dataclass(frozen=True)
class CurriculumConfig:
    """eq:dynamic-competence; `ema` is lambda, `num_initial_attempts` is K."""

    name: str = "competence"
    num_initial_attempts: int = 8
    ema: float = 0.5


@dataclass(frozen=True)
class TeacherConfig:
    weights: str = "frozen"
    ema_decay: float = 0.999


@dataclass(frozen=True)
class EvaluationConfig:
    """pass@k on held-out problems: before training and after every `period` epochs; no `data_path`, no evaluation."""

    data_path: str | None = None
    num_samples: int = 8
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    max_new_tokens: int = 12288
    period: int = 1


@dataclass(frozen=True)
class AOPSDConfig:
    """Everything that the method adds to a NeMo RL config."""

    engine: str = "local"
    seed: int = 0
    prompts: str = "default"  # a folder of nemo_aopsd/prompts, or a path
    num_prompts_per_step: int = 32
    num_generations_per_prompt: int = 1
    max_num_epochs: int = 3
    max_num_steps: int | None = None
    max_response_tokens: int | None = None  # of all training steps; the step that reaches it is the last
    max_train_seconds: float | None = None  # the same, of the steps' time: no start-up, no evaluation
    mask_truncated: bool = False
    weighting: str = "continuation"
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    thinking: ThinkingConfig = field(default_factory=ThinkingConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    probes: ProbeConfig = field(default_factory=ProbeConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    @property
    def keeps_cache(self) -> bool:
        """Whether vLLM stays awake between rollout and probes (NeMo RL)."""
        return self.probes.keep_cache and self.weighting in CONTINUED

    @property
    def shown_context(self) -> str:
        """`context.kind`, or none where no teacher would read it."""
        return self.context.kind if self.objective.reads_teacher else "none"

    @property
    def needs_progress(self) -> bool:
        """Whether the judge is asked: the frontier shows progress, and any order but `shuffle` learns from it."""
        return self.shown_context == "dag_frontier" or self.curriculum.name != "shuffle"


@dataclass(frozen=True)
class Config:
    """One run: our typed block, and NeMo RL's blocks as plain nested dicts."""

    aopsd: AOPSDConfig
    policy: dict[str, Any]
    data: dict[str, Any]
    logger: dict[str, Any]
    checkpointing: dict[str, Any]
    raw: dict[str, Any]  # the whole resolved tree, as written to the run folder

    @property
    def rollout(self) -> Sampling:
        """How the student answers: `policy.generation`, in NeMo RL's keys."""
        generation = self.policy["generation"]
        return Sampling(
            max_new_tokens=generation["max_new_tokens"],
            temperature=generation.get("temperature", 1.0),
            top_p=1.0 if generation.get("top_p") is None else generation["top_p"],
            top_k=generation.get("top_k") or 0,
        )

    @property
    def max_row_tokens(self) -> int:
        """The longest prompt + response that the engine takes, the teacher's longer prompts included."""
        return self.policy["max_total_sequence_length"]
