"""One part of each kind, to be named in a config or in an override: docs/extending.md.

aopsd train demo aopsd.weighting=examples/my_parts.py:RisingWeights aopsd.judge.kind=examples/my_parts.py:NumberJudge
"""

import re

import torch

from nemo_aopsd.method.curriculum import Curriculum
from nemo_aopsd.method.objectives.base import BaseObjective
from nemo_aopsd.types import Signal


class RisingWeights:
    """The teacher is followed more towards the end of a response: w_t = (t + 1) / T."""

    continues = False  # needs no continuation of the teacher

    def __init__(self, aopsd):
        pass

    def weigh(self, gaps, probes):
        return [(torch.arange(len(gap)) + 1) / max(len(gap), 1) for gap in gaps]


class UnsurprisingOnly:
    """Of the triggered tokens only those count whose continuation the student finds likely: L below 1 nat a token."""

    continues = True

    def __init__(self, aopsd):
        self.elsewhere = aopsd.probes.untriggered_weight

    def weigh(self, gaps, probes):
        weights = [torch.full((len(gap),), self.elsewhere) for gap in gaps]
        for row, found in zip(weights, probes, strict=True):
            for probe in found:
                row[probe.position] = float(probe.nll is not None and probe.nll < 1)
        return weights


class FirstCheckpoint:
    """The teacher sees one checkpoint that the student has not reached, and nothing else."""

    field = "dag"
    adaptive = True

    def messages(self, problem, reached, prompts):
        ahead = [data["statement"] for node, data in problem.graph.nodes(data=True) if node not in reached]
        hint = f"\n\nA step of a correct solution: {ahead[0]}" if ahead else ""
        return [{"role": "user", "content": problem.problem + hint}]


class NumberJudge:
    """A checkpoint is established if the last number of its statement stands in the attempt: no model is asked."""

    def __init__(self, aopsd):
        pass

    def judge(self, problems, responses, model, tokenizer, seed):
        rows = zip(problems, responses, strict=True)
        return [self._reached(problem, tokenizer.decode(tokens)) for problem, tokens in rows]

    def _reached(self, problem, attempt):
        numbers = set(re.findall(r"\d+", attempt))
        last = {node: re.findall(r"\d+", data["statement"])[-1:] for node, data in problem.graph.nodes(data=True)}
        return frozenset(node for node, found in last.items() if found and found[0] in numbers)


class SortedOrder(Curriculum):
    """Problems in the order of their ids, the same in every epoch."""

    needs_progress = False  # no judge is asked, and there are no initial attempts

    def batches(self):
        ids = sorted(self.competence)
        return [ids[start : start + self.batch_size] for start in range(0, len(ids), self.batch_size)]


class HalfSquaredGap(BaseObjective):
    """1/N sum_t w_t (log p_theta - log q)^2 / 2, whose gradient at collection is that of the policy gradient."""

    signal = Signal(sampled=True)
    needs_old_logprobs = True

    def __call__(self, logprobs, *, teacher_logprobs, weights, mask, num_tokens, num_rows, **_unread):
        loss = self.reduce(weights * (logprobs - teacher_logprobs) ** 2 / 2, mask, num_tokens, num_rows)
        return loss, {"train/loss": loss.detach()}
