"""What the method asks of an engine, as protocols: `Tokenizer`, `LanguageModel`, `Objective` and `Engine`.

The step and an engine meet here and only here, in token ids. An engine knows no problem, graph or judge. How it moves
weights between processes, pads rows or saves memory is its own business.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nemo_aopsd.types import Branch, Generation, Sampling, Signal, Tokens, TopK, TrainRow

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_aopsd.config.schema import ObjectiveConfig

Message = dict[str, str]  # {"role": ..., "content": ...}


class Tokenizer(Protocol):
    """Text at the border: chat messages in, prompt ids out."""

    end_ids: frozenset[int]  # every id that ends a response
    end_id: int  # the one of them that ends a response from the data

    def render(self, messages: list[Message], thinking: bool | None) -> Tokens:
        """Prompt ids, generation marker included. `thinking` None leaves the template's default."""
        ...

    def render_all(self, conversations: list[list[Message]], thinking: bool | None) -> list[Tokens]:
        """As `render`, of many conversations at once: faster, where the tokenizer has threads."""
        ...

    def encode(self, text: str) -> Tokens:
        """Ids of bare text, without any special token added."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text of `tokens`, end-of-sequence and other special tokens left out."""
        ...

    def pieces(self, tokens: Tokens) -> list[str]:
        """The text of each token by itself, special tokens shown; for people to look at."""
        ...


class LanguageModel(Protocol):
    """A causal language model that can be sampled and asked for log-probs. Results keep the order of inputs."""

    def generate(self, prompts: list[Tokens], sampling: Sampling, seed: int) -> list[Generation]:
        """Sample one response a prompt. The same seed and inputs give the same ids."""
        ...

    def logprobs(self, prompts: list[Tokens], responses: list[Tokens]) -> list[Tensor]:
        """Log-probs `[T]` float32 of each response token at temperature 1, under its own prompt."""
        ...

    def top_logprobs(self, prompts: list[Tokens], responses: list[Tokens], k: int) -> list[TopK]:
        """The `k` most likely tokens at the place of each response token."""
        ...

    def continue_greedily(
        self, prompts: list[Tokens], responses: list[Tokens], branches: list[list[Branch]], length: int
    ) -> list[list[Branch]]:
        """Extend each branch greedily to `length` tokens in all; an end token (its own included) ends it."""
        ...

    def branch_logprobs(
        self, prompts: list[Tokens], responses: list[Tokens], branches: list[list[Branch]]
    ) -> list[list[Tensor]]:
        """Log-probs of each branch's own tokens (the anchor too), each after `prompt + response[:position]`."""
        ...

    def next_logprobs(
        self, prompts: list[Tokens], responses: list[Tokens], branches: list[list[Branch]], choices: Tokens
    ) -> list[list[Tensor]]:
        """Log-probs `[K]` of each of the `choices` as the one token after each branch."""
        ...


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
        ...

    def divergence(self, student_logprobs: Tensor, teacher: Tensor | TopK) -> Tensor:
        """[N] from the student's log-softmax [N, V], with gradient, and the teacher's: [N, V], or the top k of N."""
        ...

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


class Engine(Protocol):
    """A student that learns and a teacher that does not (or follows by EMA, or is the live student)."""

    tokenizer: Tokenizer
    student: LanguageModel
    teacher: LanguageModel
    judge: tuple[LanguageModel, Tokenizer] | None  # the model of `judge.model=PATH`, which has its own tokens

    def train(self, rows: list[TrainRow], objective: Objective) -> dict[str, float]:
        """Train on `rows`, then let the teacher follow if it does. Returns summed metrics.

        That is one optimizer step; on NeMo RL one for each `policy.train_global_batch_size` rows.

        Calls `objective.divergence` where its signal is top-k or full, never with more positions than a small share
        of memory takes; then the objective itself, once a micro-batch.
        """
        ...

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Hand numbers that the run folder has already to the engine's own trackers, if it has any."""
        ...

    def forget_metrics_after(self, step: int) -> None:
        """Before the first number of a process: the run goes on from `step`, so later steps are made again."""
        ...

    def teacher_checksum(self) -> str:
        """SHA-256 over names, shapes and bytes of the teacher's weights."""
        ...

    def save(self, directory: Path) -> None:
        """Write student, optimizer and (unless frozen) teacher into an existing empty directory."""
        ...

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote."""
        ...
