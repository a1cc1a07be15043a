"""AdamW on float32 master weights, so that small updates survive bfloat16."""

import math
from dataclasses import asdict

import torch
from torch import Tensor, nn

from nemo_aopsd.config.nemo_rl_keys import OptimizerKwargs
from nemo_aopsd.errors import UserError


class MasterOptimizer:
    """The masters are the parameters themselves, or in bfloat16 float32 copies that lead them."""

    def __init__(self, model: nn.Module, settings: OptimizerKwargs, max_grad_norm: float):
        self.params = dict(model.named_parameters())
        self.masters = {
            name: param.detach().float() if param.dtype == torch.bfloat16 else param
            for name, param in self.params.items()
        }
        self.max_grad_norm = max_grad_norm
        # One kernel on a GPU, where the default holds what is between its kernels, as large as the parameters.
        is_fused = all(master.is_cuda for master in self.masters.values())
        self.adamw = torch.optim.AdamW(self.masters.values(), **asdict(settings), fused=is_fused or None)

    def accumulate(self) -> None:
        """In bfloat16, add one micro-batch's gradients to the masters in float32; else autograd has summed them."""
        for name, param in self.params.items():
            master = self.masters[name]
            if param is master or param.grad is None:
                continue
            master.grad = param.grad.float() if master.grad is None else master.grad.add_(param.grad)
            param.grad = None

    def take_gradients(self) -> list[Tensor]:
        """The accumulated gradients, which are forgotten here; zeros for a parameter without one."""
        masters = self.masters.values()
        found = [torch.zeros_like(master) if master.grad is None else master.grad for master in masters]
        self.adamw.zero_grad(set_to_none=True)
        return found

    def step(self, source: str = "") -> float:
        """Clip, update, forget the gradients; returns the norm before clipping. Raises UserError if not finite."""
        norm = nn.utils.clip_grad_norm_(self.masters.values(), self.max_grad_norm).item()
        if not math.isfinite(norm):
            diverged = "training has diverged. Lower policy.optimizer.kwargs.lr, or use policy.precision=float32."
            raise UserError(f"the gradient norm is {norm}: {source or diverged}")
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.sync()
        return norm

    @torch.no_grad()
    def sync(self) -> None:
        """Give the parameters the masters' values."""
        for name, param in self.params.items():
            if param is not self.masters[name]:
                param.copy_(self.masters[name])

    def state(self) -> dict[str, Tensor]:
        """Optimizer state by `kind/parameter`; empty before the first step."""
        states = {name: self.adamw.state.get(master, {}) for name, master in self.masters.items()}
        return {f"{kind}/{name}": value for name, state in states.items() for kind, value in state.items()}

    @torch.no_grad()
    def restore(self, masters: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        """Set master weights and optimizer state to what `masters` and `state` gave."""
        for name, master in self.masters.items():
            master.copy_(masters[name])
        self.adamw.state.clear()
        for key, value in state.items():
            kind, _, name = key.partition("/")
            master = self.masters[name]
            self.adamw.state[master][kind] = value.to(master.device)  # a fused AdamW counts its steps there, too
        self.sync()
