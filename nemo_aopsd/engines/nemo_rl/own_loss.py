"""An objective of the user's own as a NeMo RL loss: sampled tokens, and what the batch says of them.

Ray pickles the loss for each call. A worker may not have the file that the class is in, so such a class goes along as
code; one of a module goes by its name, and `engines/nemo_rl/__init__.py` checks that workers will find it.
"""

from collections.abc import Mapping
from typing import Any, cast

import ray
import torch
from nemo_rl.algorithms.loss.interfaces import LossFunction, LossInputType, LossType
from torch import Tensor

from nemo_aopsd.config.extension import module_from_file
from nemo_aopsd.engine import Objective
from nemo_aopsd.engines.nemo_rl.batches import COLUMNS


class OwnLossFn(LossFunction):
    """An objective that reads log-probs of sampled tokens, or a reward. It reads no `loss_fn` block."""

    input_type = LossInputType.LOGPROB

    def __init__(self, objective: Objective):
        if module := module_from_file(objective):
            ray.cloudpickle.register_pickle_by_value(module)
        self.objective = objective
        is_token_mean = objective.config.aggregation == "token_mean"
        self.loss_type = LossType.TOKEN_LEVEL if is_token_mean else LossType.SEQUENCE_LEVEL

    def __call__(
        self,
        next_token_logprobs: Tensor,  # [B, S-1] with gradient; column t - 1 belongs to token t
        data: Mapping[str, Any],  # columns [B, S]: column t belongs to token t
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> tuple[Tensor, dict[str, float]]:
        """As `AOPSDLossFn`. Tokens that the masks leave out may hold anything: the objective sees 0 there."""
        mask = (data["token_mask"] * data["sample_mask"].unsqueeze(-1))[:, 1:] > 0
        columns = {
            argument: torch.where(mask, data[name][:, 1:], 0.0) if name in data else None
            for name, argument in COLUMNS.items()
        }
        loss, metrics = self.objective(
            torch.where(mask, next_token_logprobs, 0.0),
            divergence=None,
            entropy=None,
            **cast(Any, columns),
            mask=mask,
            num_tokens=cast(float, global_valid_toks),  # tensors that divide just as well, without waiting for a GPU
            num_rows=cast(float, global_valid_seqs),
        )
        return loss, {name.removeprefix("train/"): float(value) for name, value in metrics.items()}
