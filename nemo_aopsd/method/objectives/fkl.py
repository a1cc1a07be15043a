"""Forward KL: over the whole vocabulary with clipped entries (OPSD, OP2SD), or on the teacher's K likeliest tokens."""

from torch import Tensor

from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.method.objectives.distillation import Distillation
from nemo_aopsd.method.objectives.divergences import forward_kl, top_k_forward_kl
from nemo_aopsd.types import Signal, TopK


class ForwardKL(Distillation):
    """D_t = sum_v min(P_t (log P_t - log S_t), tau), tau = `token_clip` (OPSD, arXiv 2601.18734, Eq. 8).

    With `support` K the sum goes over the teacher's K most likely words, and one term, not clipped, compares what both
    have left for all others: the form `tail` of `forward_kl_on_top_k`. Without tau that is less than the whole sum by
    (1 - Z_P) KL(P, S) of the other words alone. `train/frac_negative`: tokens whose clipped sum is below 0.
    """

    top_k_form = "tail"

    def __init__(self, config: ObjectiveConfig):
        super().__init__(config)
        if config.support is not None:
            self.signal = Signal(top_k=config.support)
        self.token_clip = config.token_clip

    def divergence(self, student_logprobs: Tensor, teacher: Tensor | TopK) -> Tensor:
        if isinstance(teacher, TopK):
            return top_k_forward_kl(student_logprobs, teacher, self.top_k_form, self.token_clip)
        return forward_kl(student_logprobs, teacher, self.token_clip)

    def token_losses(self, divergence: Tensor, mask: Tensor) -> Tensor:
        """[B, S]: min(D_t, `sum_clip`). A position above the bound has no gradient, so none points the wrong way."""
        return divergence if self.config.sum_clip is None else divergence.clamp(max=self.config.sum_clip)


class TopKForwardKL(ForwardKL):
    """D_t = the form `top_k_form` of `forward_kl_on_top_k`, 8 K bytes of supervision a token; no token is clamped at 0.

    `train/frac_negative`: tokens whose truncated sum is below 0, which some other implementations clamp.
    """

    def __init__(self, config: ObjectiveConfig):
        super().__init__(config)
        self.signal, self.top_k_form, self.token_clip = Signal(top_k=config.top_k), config.top_k_form, None
