"""The records of a run folder, as `reader.py` returns them. `where` of a record is its `file:line`, or its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_aopsd.console import asked_of
from nemo_aopsd.errors import UserError, nearest

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Probe:
    """What the teacher would write at one token, and what the student thinks of it (run/records.py writes it)."""

    position: int  # in the response
    gap: float  # nats, signed
    anchor: int  # the first token of the continuation
    suffix: list[int]  # the tokens after it
    nll: float | None  # L_t, nats a token; None if the suffix is empty
    weight: float
    anchor_text: str | None = None
    suffix_text: str | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """One response of the student and all that was computed about it. Log-probs and weights are one a token."""

    problem_id: str
    epoch: int  # from 0
    step: int  # from 1
    response: list[int]
    response_text: str
    finished: bool  # False: cut off at the longest response
    student_prompt: list[int]
    teacher_prompt: list[int] | None  # None where the objective has no teacher
    judge_failed: bool | None  # could the verdict not be read? None: no judge was asked
    judge_cut: bool | None  # was the attempt shortened for the judge?
    judge_text: str | None
    reached: list[str] | None  # checkpoints
    progress: float | None  # None also where the verdict could not be read
    disclosed_share: float | None  # of the graph, to the teacher
    dropped: bool  # True: the teacher's prompt did not fit
    student_logprobs: list[float] | None
    teacher_logprobs: list[float] | None
    weights: list[float] | None
    probes: list[Probe]
    pieces: list[str] | None = None  # the text of each token
    where: str = ""

    def __post_init__(self) -> None:
        wanted = len(self.response)
        for name in ("student_logprobs", "teacher_logprobs", "weights", "pieces"):
            values = getattr(self, name)
            if values is not None and len(values) != wanted:
                raise ValueError(f"`{name}` must hold {wanted} values, one a token, got {len(values)}")
        if any(not 0 <= probe.position < wanted for probe in self.probes):
            raise ValueError(f"`probes`: a `position` is outside of the response of {wanted} tokens")

    def gaps(self) -> np.ndarray | None:
        """g_t = log q - log p of each token, [T], in nats (eq:opsd-gap); None where the rollout was not scored.

        Raises UserError if one is not finite, or only one of both log-probs is there.
        """
        import numpy as np

        if self.dropped or self.teacher_logprobs is None:
            return None
        if self.student_logprobs is None:
            raise UserError(f"{self.where}: `student_logprobs` is null, `teacher_logprobs` is not. Restore the file.")
        gaps = np.array(self.teacher_logprobs) - np.array(self.student_logprobs)
        if not np.isfinite(gaps).all():
            raise UserError(f"{self.where}: `teacher_logprobs` - `student_logprobs` is not finite. Restore the file.")
        return gaps


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The numbers of a step. The method decides which there are; run/metrics.py lists them all."""

    epoch: int
    step: int
    values: dict[str, float | None]
    where: str = ""

    def get(self, key: str) -> float | None:
        """A number, None where the step has none."""
        return self.values.get(key)

    def number(self, key: str) -> float:
        """A number that the method of the run has, such as `time/step`. Raises UserError if it is not there."""
        value = self.values.get(key)
        if value is None:
            lost = f"this run has no such number.{nearest(key, list(self.values))}"
            found = "is null at this step." if key in self.values else lost
            raise UserError(f"{self.where}: `{key}`: {found} `get` gives None there. If it was lost, restore the file.")
        return value


@dataclass(frozen=True, slots=True)
class Competence:
    """Competence of each problem after so many epochs; None where no verdict could be read yet."""

    epoch: int
    competence: dict[str, float | None]
    where: str = ""


@dataclass(frozen=True, slots=True)
class Interval:
    """The ends of a 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many of the samples of each problem were right."""

    num_samples: int  # a problem
    correct_per_problem: dict[str, int]
    leak_count: int | None = None  # answers that name the private context
    truncation_count: int | None = None
    where: str = ""

    def __post_init__(self) -> None:
        counts = self.correct_per_problem.values()
        if not counts or self.num_samples < 1 or not all(0 <= count <= self.num_samples for count in counts):
            raise ValueError(
                f"`correct_per_problem` must be from 0 to `num_samples` {self.num_samples}, got {[*counts]}"
            )


@dataclass(frozen=True, kw_only=True)
class Evaluation(Counts):
    """pass@k on the bare questions of one set of problems."""

    num_trained_on: int | None = None  # of the problems; None if nobody has looked
    epoch: int = 0  # epochs begun before it, as in the name of its file; of `aopsd evaluate`, 0
    step: int = 0  # steps of training before it; of `aopsd evaluate`, 0
    num_problems: int
    pass_at_k: dict[int, float]
    pass_at_k_interval: dict[int, Interval]
    leak_rate: float
    truncation_rate: float
    mean_tokens: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_problems != len(self.correct_per_problem):
            raise ValueError(f"`num_problems` is {self.num_problems}, but {len(self.correct_per_problem)} are counted")
        if 1 not in self.pass_at_k or not self.pass_at_k.keys() <= self.pass_at_k_interval.keys():
            raise ValueError("`pass_at_k` must have k = 1, and `pass_at_k_interval` each of its k")

    @property
    def asked(self) -> str:
        """Its problems in words: how many, and whether they were held out."""
        return asked_of(self.num_problems, self.num_trained_on)

    @property
    def num_correct(self) -> int:
        """Correct samples of all problems."""
        return sum(self.correct_per_problem.values())
