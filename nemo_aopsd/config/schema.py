"""The strict `aopsd:` block: each key with its type, range, default, and the reason for the default.

The text under a key is its entry in docs/config.md (`python docs/make_config.py`), and its first sentence
ends the message about a wrong value. pydantic reads these classes when a config is loaded (`checks.py`); here they are
plain dataclasses, so that importing them costs nothing. What we read of NeMo RL's own blocks is in `nemo_rl_keys.py`.
"""

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from annotated_types import Ge, Interval, Predicate

from nemo_aopsd.config.extension import is_own, made, own_class
from nemo_aopsd.types import Sampling, Signal

ObjectiveName = Literal["pg", "sft", "grpo", "fkl", "rkl", "jsd", "topk_fkl", "dash", "eopd", "gkd", "minillm"]
ContextKind = Literal["none", "solution", "plan", "subproblems", "dag_full", "dag_frontier", "other_problem"]
JudgeKind = Literal["list", "log_odds", "evidence"]
Scoring = Literal["auto", "trainer", "sampler", "prefill"]
ProbeRunner = Literal["requests", "batched"]
Weighting = Literal[
    "uniform", "continuation", "normalised", "shuffled", "constant", "gap_matched", "gap_only", "zero_triggered",
    "constant_negative",
]  # fmt: skip

ADAPTIVE = ("dag_frontier",)  # contexts that depend on how far the response has come, so that the judge is asked
# Weightings that ask the teacher for continuations.
CONTINUED = ("continuation", "normalised", "shuffled", "constant", "gap_matched")
UNIFORM = ("uniform", "constant_negative")  # weightings with weight 1 at every token
WITHOUT_TEACHER = ("sft", "grpo")  # objectives to which a teacher, and so its context, means nothing
# Objectives that read the teacher's K likeliest words, and the key of `objective` that is K.
TOP_K_KEYS = {"topk_fkl": "top_k", "eopd": "top_k", "fkl": "support", "dash": "support"}

SINGLE_PRECISION = 1e38  # larger numbers overflow float32
Count = Annotated[int, Ge(1)]
Several = Annotated[int, Interval(ge=1, le=100_000)]  # lists of so many are made: a slip of the finger fills the memory
CountOrZero = Annotated[int, Ge(0)]
Positive = Annotated[float, Interval(gt=0, lt=SINGLE_PRECISION)]
NonNegative = Annotated[float, Interval(ge=0, lt=SINGLE_PRECISION)]
Share = Annotated[float, Interval(ge=0, le=1)]
# FILE.py:CLASS or MODULE:CLASS, a part of the user's own: extension.py.
Own = Annotated[str, Predicate(is_own)]
Name = Annotated[str, Predicate(lambda text: bool(text.strip()) and "\0" not in text)]


@dataclass(frozen=True)
class ReadBy:
    """Marks a key of `objective` that only these objectives read. Keys without the mark are read by all."""

    names: tuple[str, ...]


_SURROGATE = ReadBy(("pg", "eopd", "minillm"))
_RATIO = ReadBy(("pg", "grpo", "eopd", "minillm"))
_FULL = ReadBy(("fkl", "dash"))


@dataclass(frozen=True)
class Strict:
    """A block that refuses keys it does not know."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "allow_inf_nan": False,
        "use_attribute_docstrings": True,
    }


@dataclass(frozen=True)
class ObjectiveConfig(Strict):
    """What the update minimises; `method/objectives/__init__.py` says in which file each name is."""

    name: ObjectiveName | Own = "pg"
    """The loss. `pg` is the paper's "clipped policy-gradient objective", read as PPO's two-sided clip with the
    advantage recomputed in every forward pass."""
    aggregation: Literal["token_mean", "seq_mean"] = "token_mean"
    """The mean over tokens, or over responses of their token means. Every method uses the same mean, so that a
    comparison does not depend on it. `seq_mean` is the published choice of OPSD, GKD, DASH and GRPO."""
    advantage_clip: Annotated[Positive, _SURROGATE] = 10.0
    """C, the largest advantage, in nats. The bound that published on-policy distillation recipes use for the same
    quantity; it acts only where weight times gap exceeds it. `train/frac_clipped` counts that."""
    ratio_clip_min: Annotated[Positive, _RATIO] = 0.2
    """PPO's epsilon below 1, at its usual value. With one update per batch the ratio is 1 up to numerics, so the clip
    is only a safeguard."""
    ratio_clip_max: Annotated[Positive, _RATIO] = 0.2
    """PPO's epsilon above 1, as below 1."""
    token_clip: Annotated[Positive | None, _FULL] = None
    """tau, the most that one vocabulary entry may add. Off, so that `fkl` is the KL. The configs of OPSD, OP²SD and
    DASH set 0.05, as OPSD and DASH do."""
    sum_clip: Annotated[Positive | None, ReadBy(("fkl", "topk_fkl"))] = None
    """The most that one position may add, after the sum over the vocabulary. A position above it has no gradient.
    Unlike `token_clip`, this makes no position negative. Off, for no published method has it; `opsd_clipped_sum` sets
    1 nat."""
    support: Annotated[Count | None, _FULL] = None
    """Compare so many of the teacher's likeliest words, and the rest as one; null compares the whole vocabulary, as
    published. NeMo RL needs a number: [methods.md](methods.md) describes the effect."""
    jsd_beta: Annotated[float, Interval(gt=0, lt=1), ReadBy(("jsd", "gkd"))] = 0.5
    """The teacher's weight in the mixture. Its limits correspond to fkl and rkl. GKD's usual value."""
    top_k: Annotated[Count, ReadBy(("topk_fkl", "eopd"))] = 16
    """K, the teacher's likeliest words that are compared. The smaller K of the paper's time table."""
    top_k_form: Annotated[Literal["none", "renorm", "teacher_renorm", "tail"], ReadBy(("topk_fkl",))] = "none"
    """How teacher and student are normalised over the top k. `none` is the plain truncated sum, which needs exactly
    the ids and log-probs that the payload counts. Other code clamps a negative sum to 0; here `train/frac_negative`
    counts it."""
    dash_kappa: Annotated[Positive, ReadBy(("dash",))] = 5.0
    """DASH's kappa, at its value."""
    entropy_threshold: Annotated[NonNegative, ReadBy(("eopd",))] = 0.8
    """The forward KL counts where the teacher's entropy is at least so many nats. EOPD's value, for an external
    teacher. A teacher that sees a solution is more confident: `train/gate_rate` shows how often the gate opens."""
    entropy_weight: Annotated[NonNegative, ReadBy(("eopd",))] = 1.0
    """EOPD's alpha, the weight of that forward KL."""
    on_policy_rate: Annotated[Share, ReadBy(("gkd",))] = 0.5
    """GKD's lambda, the share of steps on the student's own responses."""
    divergence: Annotated[Literal["fkl", "rkl", "jsd"], ReadBy(("gkd",))] = "jsd"
    """GKD's usual choice; with `fkl` and a rate of 1 it would be `fkl` again."""
    reward: Annotated[Literal["none", "added", "direction"], ReadBy(("pg",))] = "none"
    """Whether the final answer counts beside the teacher, by GRPO's advantage. `added`: the two advantages are summed,
    as KDRL and SDPG do. `direction`: the reward says which way a response goes, the teacher how much each of its
    tokens counts, as in RLSD. Both need several answers a problem. Off, as in the paper."""
    reward_weight: Annotated[Positive, ReadBy(("pg",))] = 1.0
    """What GRPO's advantage is multiplied by with `reward=added`. It is some 1 at each token of a problem that is
    answered both rightly and wrongly; a teacher's is its gap, often below 0.1 nats, and may still be most of the
    gradient, for it points the same way in every answer: look at `train/grad_norm` beside that of `grpo`."""
    evidence_clip: Annotated[float, Interval(gt=0, lt=1), ReadBy(("pg",))] = 0.2
    """With `reward=direction`, how far a token's factor may be from 1. RLSD's symbol is epsilon_w."""
    whiten: Annotated[bool, ReadBy(("minillm",))] = False
    """Scale the advantages of a step to mean 0 and deviation 1. MiniLLM's code does this, its paper does not."""

    @property
    def top_k_key(self) -> str | None:
        """The key of this block that says how many of the teacher's likeliest words are read; None where none are."""
        return TOP_K_KEYS.get(self.name)

    @property
    def reads_teacher(self) -> bool:
        if is_own(self.name):
            signal = self.own_signal
            return bool(signal.sampled or signal.full or signal.top_k)
        return self.name not in WITHOUT_TEACHER

    @property
    def weighs_gaps(self) -> bool:
        """Whether the loss reads the weights of sampled tokens' gaps."""
        return self.own_signal.sampled if is_own(self.name) else self.name == "pg"

    @property
    def own_signal(self) -> Signal:
        """What a class of the user's own reads of the teacher: of the object, since it may depend on this block."""
        return self.own_object.signal

    @property
    def own_object(self) -> Any:
        """The object of the user's own class."""
        return made("objective.name", self.name, self)

    @property
    def reads_solutions(self) -> bool:
        """Are some of the responses the data's solutions?"""
        return self.name == "sft" or (self.name == "gkd" and self.on_policy_rate < 1)


@dataclass(frozen=True)
class ContextConfig(Strict):
    """What the teacher sees beside the problem."""

    kind: ContextKind | Own = "dag_frontier"
    """The privileged context. Paper."""
    mark_frontier: bool = True
    """Lines of the disclosed graph say `reached` or `next`. Our addition: the teacher need not infer it."""
    on_overlong: Literal["error", "drop"] = "error"
    """What happens to a teacher row that does not fit: it is never cut. `drop` leaves the rollout out of the update
    and counts it."""


@dataclass(frozen=True)
class ThinkingConfig(Strict):
    """`enable_thinking` of the chat template, by role."""

    student: bool | None = None
    """null is the chat template's own default. Student and teacher are set separately because a mismatch is a known
    cause of failed runs."""
    teacher: bool | None = None
    """As for the student."""


@dataclass(frozen=True)
class JudgeConfig(Strict):
    """Who says which checkpoints a response has reached, and how it is asked: [judge.md](judge.md)."""

    kind: JudgeKind | Own = "list"
    """`list`: the model writes a list of ids, greedily, one call a rollout. Paper. `log_odds`: it is asked for one
    checkpoint at a time, and the log-odds of yes against no as its first token decide; nothing is sampled. Small models
    judge better that way, once the threshold is calibrated. `evidence`: it quotes, for each checkpoint, what
    establishes it; a quote that does not stand in the attempt counts for nothing."""
    threshold: float = 0.0
    """`log_odds` claims a checkpoint above so many nats. 0 is even odds; `aopsd judge eval --calibrate` fits the value
    for a model."""

    model: Name = "student"
    """Whose weights judge: `student`, `teacher`, or the path of another model, on the local engine only. Paper: the
    student's. `teacher` separates judging from learning; another model helps where the student cannot judge."""
    max_new_tokens: Count = 512
    """Tokens of a verdict of kind `list` or `evidence`. `log_odds` needs room for one."""
    num_retries: CountOrZero = 1
    """Further tries by sampling, where a verdict is unreadable. A verdict that stays unreadable is counted and left out
    of the competence: otherwise parse failures would look like weak problems."""
    max_attempt_tokens: Count = 16384
    """Of a longer attempt the middle is left out. Longer than a training rollout, so cuts are rare unless
    `policy.max_total_sequence_length` forces them; counted in `judge/cut`."""

    @property
    def has_own_model(self) -> bool:
        """Whether neither student nor teacher judges."""
        return self.model not in ("student", "teacher")

    @property
    def verdict_tokens(self) -> int:
        """Room that a verdict takes behind the judge's prompt."""
        return 1 if self.kind == "log_odds" else self.max_new_tokens


@dataclass(frozen=True)
class ProbeConfig(Strict):
    """Where the teacher is asked for a continuation, and what its surprise is worth (eq:continuation-weight)."""

    threshold: Positive = 2.0
    """A probe starts where the gap is at least so many nats. Paper: delta."""
    length: Annotated[int, Ge(2)] = 8
    """Tokens of a continuation: the anchor and at least one token of suffix. Paper: k."""
    beta_positive: Positive = 1.0
    """Width of the band-pass weight where the teacher finds the token likelier. Paper."""
    beta_negative: Positive = 2.5
    """Width where it finds the token less likely. Paper. Note that a negative-gap probe of 4 nats keeps a weight of
    0.88, although the paper labels most continuations of 4 nats and more as leakage (both signs pooled)."""
    betas: Literal["fixed", "auto"] = "fixed"
    """`auto` puts the surprise that is usual for this student in place of the two numbers: by sign, the median over
    the last 32 steps of each step's median L, the running step included, at least 0.1. Paper: `fixed`, which fits a
    student whose L is near them."""
    score_anchor: bool = False
    """Count the anchor's own surprise in L, as one more token of the continuation. The paper leaves it out; a
    correction of one token then has almost no effect, since the tokens after it are often certain."""
    max_weight: Positive = 5.0
    """The largest weight that `normalised` gives, so that few surprising tokens do not make the step."""
    untriggered_weight: Share = 1.0
    """The weight of tokens without a probe. Paper: 1. Below 1, probed tokens get a larger share of the update; not read
    by `uniform`, `zero_triggered` and `constant_negative`."""
    max_per_rollout: Count | None = None
    """The paper probes every position over the threshold. With a limit the largest gaps are probed; the others keep
    `untriggered_weight`. `gap_only` and `zero_triggered` change the weights of the same tokens."""
    keep_cache: bool = False
    """On NeMo RL only, where the trainer scores (`scoring`): vLLM stays awake meanwhile, so that its cache keeps the
    student's prefixes and a step has two switches fewer. It needs GPU memory for both: see `aopsd doctor`."""
    runner: ProbeRunner = "batched"
    """How vLLM computes probes, on NeMo RL. `requests`: a request each. `batched`: in batches of our own on its prefix
    cache, in a third of the time; where model or settings do not allow it, the log says why, and requests are made."""


@dataclass(frozen=True)
class CurriculumConfig(Strict):
    """The order of the problems (eq:dynamic-competence)."""

    name: Literal["shuffle", "competence", "competence_reversed", "global_terciles"] | Own = "competence"
    """Paper; the others are controls: [methods.md](methods.md)."""
    num_initial_attempts: Several = 8
    """K, attempts at each problem before the first epoch. The paper's motivation study makes 8 on the same problems."""
    ema: Share = 0.5
    """lambda, the weight of the newest epoch; the competence before it keeps the rest. Of two updates in three epochs,
    0.5 leaves the initial value a quarter of the weight."""

    @property
    def needs_progress(self) -> bool:
        """Whether the order learns from the judge's verdicts."""
        return own_class("curriculum.name", self.name).needs_progress if is_own(self.name) else self.name != "shuffle"

    @property
    def initial_attempts(self) -> int:
        """Attempts at each problem before the first epoch, all of them judged."""
        return self.num_initial_attempts if self.needs_progress else 0


@dataclass(frozen=True)
class TeacherConfig(Strict):
    """The teacher's weights."""

    weights: Literal["frozen", "ema", "live"] = "frozen"
    """`frozen` keeps the student's first weights, `ema` follows it as a moving average, `live` is the student itself.
    In the paper both start from the same weights, but the teacher has parameters of its own."""
    ema_decay: Share = 0.999
    """Used by `ema` only: the usual slow teacher."""


@dataclass(frozen=True)
class EvaluationConfig(Strict):
    """pass@k on held-out problems: before training, after every `period` epochs, and where the run ends."""

    data_path: Name | None = None
    """A file of problems. Without it there is no evaluation."""
    num_samples: Several = 8
    """Answers to each problem. Paper."""
    temperature: Annotated[float, Interval(ge=0, le=100)] = 0.6
    """0 is greedy; numbers between 0 and 0.01 overflow. Paper."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = 0.95
    """What the model family's makers advise for this temperature; stored with every result."""
    top_k: CountOrZero = 20
    """0 is off. As above."""
    max_new_tokens: Count = 12288
    """Paper. Refused if it leaves no room for a prompt in `policy.max_total_sequence_length`; a response that meets
    that limit first counts in `truncation_rate`."""
    period: Count = 1
    """In epochs. Every epoch, as in the paper's curves; an incomplete last epoch counts too."""


@dataclass(frozen=True)
class AOPSDConfig(Strict):
    """Everything that the method adds to a NeMo RL config."""

    engine: Literal["local", "nemo_rl"] = "local"
    """`local` runs anywhere; a cluster run names its engine."""
    seed: int = 0
    """Every random choice of a run is derived from it."""
    prompts: Name = "default"
    """A folder of nemo_aopsd/prompts, or a path. The paper's prompts are not published with it, so the wording is ours.
    The teacher is not told to keep its context secret: that would change the leakage that the method is about."""
    num_prompts_per_step: Several = 32
    """Usual for on-policy self-distillation; 23 steps an epoch on 725 problems; divisible by 4 for 1:2:1 batches."""
    num_generations_per_prompt: Several = 1
    """The method needs no group: the teacher is the baseline. Of more, each rollout has its own context and probes."""
    max_num_epochs: Count = 3
    """Paper."""
    max_num_steps: CountOrZero | None = None
    """null: epochs decide. 0 evaluates the model as it is, and stops."""
    max_response_tokens: Count | None = None
    """Training ends at the step that reaches it, to compare methods at equal rollout tokens. Judge, probes and first
    attempts are not counted; demonstrations are."""
    max_train_seconds: Positive | None = None
    """The same for the seconds of the steps, without start-up, first attempts and evaluation."""
    mask_truncated: bool = False
    """Leave truncated rollouts out of the update, and out of all that a step's weights are made of. By default they are
    judged and trained on unchanged: they have no end token, so none is rewarded. Counted in `rollout/truncated`."""
    weighting: Weighting | Own = "continuation"
    """What multiplies the gaps. Paper; `uniform` sets every weight to 1, `normalised` is a variant of ours, the others
    are controls: [methods.md](methods.md)."""
    scoring: Scoring = "auto"
    """Which kernels give both sides of a gap ([more](nemo_rl.md#which-kernels-score)). `trainer`: a forward of the
    trainer for each side. `sampler`: for the student the log-probs that sampling returned, for the teacher a prefill,
    of vLLM on NeMo RL. `prefill`, on NeMo RL: as `sampler`, with a prefill for the student, too, where decoding and
    prefill differ (FP8, experts). `auto`: `sampler`; but `trainer` on the local engine where the teacher continues
    (probes read what the student's forward leaves), and with what was not run so: FP8, pipeline and context
    parallelism, DTensor, an objective of your own, `probes.keep_cache`; a run's `config.yaml` says what it became."""
    keep_optimizer_on_gpu: bool = False
    """On NeMo RL with Megatron only: the optimizer's state stays on the GPU while vLLM samples, where there is room
    (`aopsd doctor` and the log say so), and does not move to host memory and back in every step. Off: run on one H200
    with room to spare, and nowhere else yet."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    thinking: ThinkingConfig = field(default_factory=ThinkingConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    probes: ProbeConfig = field(default_factory=ProbeConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    @property
    def rollouts_per_step(self) -> int:
        return self.num_prompts_per_step * self.num_generations_per_prompt

    @property
    def keeps_cache(self) -> bool:
        """Whether vLLM stays awake between rollout and probes (NeMo RL)."""
        return self.probes.keep_cache and self.continues and self.scoring == "trainer"

    @property
    def continues(self) -> bool:
        return continues(self.weighting)

    @property
    def shown_context(self) -> str:
        """`context.kind`, or none where no teacher would read it."""
        return self.context.kind if self.objective.reads_teacher else "none"

    @property
    def shows_progress(self) -> bool:
        """Whether the teacher's context depends on how far the response has come."""
        return is_adaptive(self.shown_context)

    @property
    def needs_progress(self) -> bool:
        """Whether the judge is asked: adaptive contexts show progress, and any order but `shuffle` learns from it."""
        return self.shows_progress or self.curriculum.needs_progress


def continues(weighting: str) -> bool:
    """Whether the teacher continues at triggered tokens."""
    return own_class("weighting", weighting).continues if is_own(weighting) else weighting in CONTINUED


def is_adaptive(context: str) -> bool:
    """Whether a context depends on how far the response has come."""
    return own_class("context.kind", context).adaptive if is_own(context) else context in ADAPTIVE


@dataclass(frozen=True)
class Config:
    """One run: our typed block, and NeMo RL's blocks as plain nested dicts."""

    aopsd: AOPSDConfig
    policy: dict[str, Any]
    data: dict[str, Any]
    logger: dict[str, Any]
    checkpointing: dict[str, Any]
    raw: dict[str, Any]  # the whole resolved tree, as written to the run folder
    origins: dict[str, str] = field(default_factory=dict, compare=False, repr=False)  # `config.keys.where` reads them

    @property
    def rollout(self) -> Sampling:
        """How the student answers: `policy.generation`, in NeMo RL's keys."""
        generation = self.policy["generation"]
        return Sampling(
            max_new_tokens=generation["max_new_tokens"],
            temperature=generation.get("temperature", 1.0),
            top_p=1.0 if generation.get("top_p") is None else generation["top_p"],
            top_k=generation.get("top_k") or 0,
            with_logprobs=self.aopsd.scoring == "sampler",
        )

    @property
    def max_row_tokens(self) -> int:
        """The longest prompt + response that the engine takes, the teacher's longer prompts included."""
        return self.policy["max_total_sequence_length"]


def keys_of(block: type, prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    """Each key below a block by its dotted name, blocks included."""
    for each in fields(block):
        yield f"{prefix}{each.name}", each
        inner = next((part for part in (each.type, *get_args(each.type)) if is_dataclass(part)), None)
        if isinstance(inner, type):
            yield from keys_of(inner, f"{prefix}{each.name}.")


def _choices(annotation: Any) -> tuple[str, ...]:
    """Those of a Literal, which may be Annotated, or stand beside classes of the user's own."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return _choices(get_args(annotation)[0]) if get_origin(annotation) in (Annotated, Union) else ()


# Dotted key below `aopsd` -> its choices; key of `objective` -> the objectives that read it.
CHOICES = {key: names for key, each in keys_of(AOPSDConfig) if (names := _choices(each.type))}
READ_BY: dict[str, tuple[str, ...]] = {
    each.name: mark.names
    for each in fields(ObjectiveConfig)
    for mark in getattr(each.type, "__metadata__", ())
    if isinstance(mark, ReadBy)
}
