"""`LanguageModel` on a cluster: vLLM samples, continues and scores branches.

Whole responses are scored by the trainer, or by vLLM in one prefill (`aopsd.scoring`): both sides of a gap come from
the same kernels. vLLM's own log-probs also serve a probe's NLL, where a hundredth of a nat moves a weight by less than
0.03 / beta.
"""

from itertools import pairwise
from typing import Any, TypeVar

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from torch import Tensor

from nemo_aopsd.config.schema import ProbeRunner
from nemo_aopsd.engines.nemo_rl.batches import response_spans, scoring_batch, top_k_spans
from nemo_aopsd.engines.nemo_rl.cluster import Cluster, Role, cluster_errors
from nemo_aopsd.engines.nemo_rl.settings import Settings
from nemo_aopsd.types import Branch, Generation, Sampling, Tokens, TopK

Item = TypeVar("Item")


class ClusterModel:
    """Student or teacher of one cluster. Rows go to vLLM's engines in contiguous shares."""

    def __init__(self, role: Role, cluster: Cluster, settings: Settings, end_ids: list[int], pad_id: int):
        self.role, self.cluster, self.settings = role, cluster, settings
        self.end_ids, self.pad_id = end_ids, pad_id

    def generate(self, prompts: list[Tokens], sampling: Sampling, seed: int) -> list[Generation]:
        """One response a prompt. vLLM's kernels depend on the batch, so equal seeds do not promise equal ids."""
        common = {"sampling": sampling, "end_ids": self.end_ids}
        seeds = [seed % 2**31 + rank for rank in range(self._num_engines)]
        return self._sample("sample", common, seed=seeds, prompts=self._share(prompts))

    def logprobs(self, prompts: list[Tokens], responses: list[Tokens]) -> list[Tensor]:
        """Log-probs `[T]` float32 of each response token, by the trainer or by vLLM, whose cache then has the rows."""
        if self.settings.scoring == "trainer":
            return self.trainer_logprobs(prompts, responses)
        whole = [[Branch(0, response)] for response in responses]
        return [row for (row,) in self.branch_logprobs(prompts, responses, whole, "requests")]

    def trainer_logprobs(self, prompts: list[Tokens], responses: list[Tokens]) -> list[Tensor]:
        if not prompts:
            return []
        policy, batch = self.cluster.policy, self._scored(prompts, responses)
        with cluster_errors():
            if self.role is Role.STUDENT:
                scores = policy.get_logprobs(batch)["logprobs"]
            else:
                scores = policy.get_reference_policy_logprobs(batch)["reference_logprobs"]
        return response_spans(scores, prompts, responses)

    def top_logprobs(self, prompts: list[Tokens], responses: list[Tokens], k: int) -> list[TopK]:
        """The `k` most likely tokens at the place of each response token; by the trainer, of the teacher only."""
        if not prompts:
            return []
        if self.settings.scoring != "trainer":
            rows = {"prompts": self._share(prompts), "responses": self._share(responses)}
            return self._sample("score_top_k", {"k": k}, **rows)
        assert self.role is Role.TEACHER, "the training workers give the top k of their reference weights only"
        batch = self._scored(prompts, responses)
        with cluster_errors():
            found = self.cluster.policy.get_topk_logits(batch, k=k + 2)  # see top_k.top_k_and_norm
        return top_k_spans(found, prompts, responses)

    def continue_greedily(
        self, prompts: list[Tokens], responses: list[Tokens], branches: list[list[Branch]], length: int
    ) -> list[list[Branch]]:
        common = {"length": length, "end_ids": self.end_ids, "runner": self.settings.probe_runner}
        return self._on_branches("continue_branches", common, prompts, responses, branches)

    def branch_logprobs(
        self,
        prompts: list[Tokens],
        responses: list[Tokens],
        branches: list[list[Branch]],
        runner: ProbeRunner | None = None,
    ) -> list[list[Tensor]]:
        """Log-probs of each branch's own tokens, by vLLM; the `runner` is the setting's unless one is given."""
        common = {"runner": runner or self.settings.probe_runner}
        return self._on_branches("score_branches", common, prompts, responses, branches)

    def next_logprobs(
        self, prompts: list[Tokens], responses: list[Tokens], branches: list[list[Branch]], choices: Tokens
    ) -> list[list[Tensor]]:
        """Log-probs of the `choices` after each branch, by vLLM: a request a branch, behind its prefix cache."""
        return self._on_branches("score_choices", {"choices": choices}, prompts, responses, branches)

    def _scored(self, prompts: list[Tokens], responses: list[Tokens]) -> BatchedDataDict:
        """The batch for the trainer, whose turn it is then."""
        self.cluster.let_score()
        layout = {"divisible_by": self.settings.divisible_by, "rows_multiple": self.settings.scoring_rows_multiple}
        return scoring_batch(prompts, responses, pad_id=self.pad_id, **layout)

    def _on_branches(
        self,
        method: str,
        common: dict[str, Any],
        prompts: list[Tokens],
        responses: list[Tokens],
        branches: list[list[Branch]],
    ) -> list[list[Any]]:
        """Rows without a branch go too, so that each row comes to the engine that has its prefix."""
        if not any(branches):
            return [[] for _ in branches]
        columns = {"prompts": prompts, "responses": responses, "branches": branches}
        return self._sample(method, common, **{name: self._share(rows) for name, rows in columns.items()})

    def _sample(self, method: str, common: dict[str, Any], **shards: list[Any]) -> list[Any]:
        self.cluster.let_sample(self.role)
        by_engine = self.cluster.sample_shards(method, common | {"salt": self.role.value}, **shards)
        return [result for results in by_engine for result in results]

    def _share(self, items: list[Item]) -> list[list[Item]]:
        """Contiguous shares, one an engine, their sizes at most one apart."""
        size, more = divmod(len(items), self._num_engines)
        ends = [0, *(rank * size + min(rank, more) for rank in range(1, self._num_engines + 1))]
        return [items[start:end] for start, end in pairwise(ends)]

    @property
    def _num_engines(self) -> int:
        return self.cluster.generation.dp_size
