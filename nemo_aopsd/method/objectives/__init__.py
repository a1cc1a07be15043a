"""Training objectives: pure functions on per-token log-probs, a file each. An engine calls them inside its forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nemo_aopsd.types import Signal, TopK, TrainRow

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_aopsd.config.schema import ObjectiveConfig


class Objective(Protocol):
    """A token-level objective. It declares what it reads, and nothing else is computed.

    Loss and metrics add up over micro-batches of whole rows: both are sums over the micro-batch divided by the counts
    of the whole batch. Masked tokens may hold anything in any column.
    """

    config: ObjectiveConfig
    signal: Signal
    on_policy_rate: float  # share of steps on the student's own responses; the others take the data's solutions
    needs_old_logprobs: bool  # of the student at collection
    needs_reward: bool  # 1 for a right final answer, 0 for a wrong or unfinished one

    def prepare(self, rows: list[TrainRow]) -> list[TrainRow]:
        """The rows of a step with what needs all of them at once: `advantages`."""

    def divergence(self, student_logprobs: Tensor, teacher: Tensor | TopK) -> Tensor:
        """[N] from the student's log-softmax [N, V], with gradient, and the teacher's: [N, V], or the top k of N."""

    def __call__(
        self,
        logprobs: Tensor,  # [B, S] float, current student, with gradient
        *,
        divergence: Tensor | None,  # [B, S], with gradient
        entropy: Tensor | None,  # [B, S], the teacher's, of the rows' top k
        old_logprobs: Tensor | None,  # [B, S]
        teacher_logprobs: Tensor | None,  # [B, S]
        weights: Tensor,  # [B, S]
        advantages: Tensor | None,  # [B, S]
        mask: Tensor,  # [B, S] bool
        num_tokens: float,  # valid tokens of the whole batch
        num_rows: float,  # rows of the whole batch with a valid token
    ) -> tuple[Tensor, dict[str, Tensor]]: ...


def build_objective(config: ObjectiveConfig) -> Objective:
    """The objective that the config names."""
    from nemo_aopsd.method.objectives.dash import Dash
    from nemo_aopsd.method.objectives.eopd import EntropyAware
    from nemo_aopsd.method.objectives.fkl import ForwardKL
    from nemo_aopsd.method.objectives.gkd import GeneralizedDistillation
    from nemo_aopsd.method.objectives.grpo import GroupRelative
    from nemo_aopsd.method.objectives.jsd import JensenShannon
    from nemo_aopsd.method.objectives.minillm import MiniLLM
    from nemo_aopsd.method.objectives.pg import PolicyGradient
    from nemo_aopsd.method.objectives.rkl import ReverseKL
    from nemo_aopsd.method.objectives.sft import SupervisedFineTuning
    from nemo_aopsd.method.objectives.topk_fkl import TopKForwardKL

    return {
        "pg": PolicyGradient,
        "sft": SupervisedFineTuning,
        "grpo": GroupRelative,
        "fkl": ForwardKL,
        "rkl": ReverseKL,
        "jsd": JensenShannon,
        "topk_fkl": TopKForwardKL,
        "dash": Dash,
        "eopd": EntropyAware,
        "gkd": GeneralizedDistillation,
        "minillm": MiniLLM,
    }[config.name](config)
