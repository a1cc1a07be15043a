"""The objective of eq:weighted-advantage as a NeMo RL loss: its clipped policy gradient on our advantage.

NeMo RL hands a loss of input type LOGPROB the complete next-token log-probs, reduced over tensor-parallel shards and
gathered over context-parallel ones, so nothing here depends on the parallel layout. Under sequence packing it calls
the loss once a sequence with a plain dict, else once a micro-batch with a BatchedDataDict, and adds up what it
returns (nemo_rl/algorithms/loss/wrapper.py).
"""

from collections.abc import Mapping
from typing import Any

import torch
from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig, ClippedPGLossFn
from nemo_rl.algorithms.utils import masked_mean
from torch import Tensor

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.method.objectives.pg import weighted_advantage, with_reward

# Added to the parent's metrics. NeMo RL sums every metric over micro-batches and ranks, and treats names that hold
# `_min` or `_max` apart: each of these is a sum divided by the valid tokens of the whole batch.
OWN_METRICS = ("frac_clipped", "frac_ratio_clipped", "mean_abs_advantage")
_COLUMNS = ("teacher_logprobs", "gaps", "probe_weights", "generation_logprobs", "prev_logprobs", "advantages")


class AOPSDLossFn(ClippedPGLossFn):
    """`ClippedPGLossFn` whose advantage is clip(sg[w (log q - log p_theta)], -C, C), anew in every forward.

    Where the sampler has scored, log q - log p_theta is the sampler's gap at collection, less what the trainer says the
    student has moved since. The advantage must follow the student: one made at collection time is stale from the
    second mini-batch on.
    Ratio clips come from `objective` and replace those of `loss_config`; everything else of the block (importance
    sampling correction, on-policy ratio, sequence-level loss, ...) works through the parent. The object holds plain
    values only, since Ray pickles it for each call. Compare `nemo_aopsd.method.objectives.pg.PolicyGradient`.
    """

    def __init__(self, loss_config: ClippedPGLossConfig, objective: ObjectiveConfig):
        clips = {"ratio_clip_min": objective.ratio_clip_min, "ratio_clip_max": objective.ratio_clip_max}
        super().__init__(loss_config.model_copy(update=clips))
        self.objective = objective

    def __call__(
        self,
        next_token_logprobs: Tensor,  # [B, S-1] with gradient; column t - 1 belongs to token t
        data: Mapping[str, Any],  # columns [B, S]: column t belongs to token t
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss and metrics, sums over this micro-batch divided by the counts of the whole batch.

        `data` needs `probe_weights`, `teacher_logprobs` or `gaps` (batches.py makes both forms), `advantages` where the
        objective has a reward, and what the parent always reads: `token_mask`, `sample_mask`, `generation_logprobs`
        and, unless the ratio is forced to 1, `prev_logprobs`. With `gaps`, absent `prev_logprobs` are those of this
        forward. It is not changed. Tokens that the masks leave out may hold anything.
        """
        mask = data["token_mask"] * data["sample_mask"].unsqueeze(-1)
        # With 0 where a token does not count, all ratios there are 1, all differences 0. The parent multiplies by its
        # mask after `exp`: an infinity or a NaN would poison the sum.
        data = {**data, **{name: torch.where(mask > 0, data[name], 0.0) for name in _COLUMNS if name in data}}
        current = torch.where(mask[:, 1:] > 0, next_token_logprobs, 0.0)
        if "gaps" in data:  # [log q - log p] of the sampler's kernels, less [log p_now - log p_old] of the trainer's
            data.setdefault("prev_logprobs", torch.nn.functional.pad(current.detach(), (1, 0)))
            moved, gaps = current - data["prev_logprobs"][:, 1:], data["gaps"][:, 1:]
            of_teacher = weighted_advantage(moved, gaps, data["probe_weights"][:, 1:])
        else:
            of_teacher = weighted_advantage(current, data["teacher_logprobs"][:, 1:], data["probe_weights"][:, 1:])
        bound = self.objective.advantage_clip
        of_reward = None if self.objective.reward == "none" else data["advantages"][:, 1:]
        advantage = with_reward(of_teacher.clamp(-bound, bound), of_reward, self.objective)
        data["advantages"] = torch.nn.functional.pad(advantage, (1, 0))  # the parent skips the first column of all

        loss, metrics = super().__call__(current, data, global_valid_seqs, global_valid_toks)
        own = {
            "frac_clipped": of_teacher.abs() > bound,
            "frac_ratio_clipped": self._ratio_clip_binds(current.detach(), advantage, data),
            "mean_abs_advantage": advantage.abs(),
        }
        means = [masked_mean(own[name].float(), mask[:, 1:], None, global_valid_toks) for name in OWN_METRICS]
        return loss, metrics | dict(zip(OWN_METRICS, torch.stack(means).tolist(), strict=True))

    def _ratio_clip_binds(self, current: Tensor, advantage: Tensor, data: Mapping[str, Any]) -> Tensor:
        """[B, S-1] bool: tokens whose loss is that of the clipped ratio. The parent keeps its ratios to itself."""
        if self.force_on_policy_ratio or self.disable_ppo_ratio:
            return torch.zeros_like(advantage, dtype=torch.bool)
        log_ratio = current - data["prev_logprobs"][:, 1:]
        if self.sequence_level_importance_ratios:
            log_ratio = masked_mean(log_ratio, data["token_mask"][:, 1:], dim=-1).unsqueeze(-1)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.ratio_clip_min, 1 + self.ratio_clip_max)
        if self.use_cispo:  # it weighs with the clipped ratio on either side
            return (clipped != ratio).expand_as(advantage)
        return clipped * advantage < ratio * advantage
