"""What FP8 alone costs a model: the local engine, its layers' products rounded as Transformer Engine does."""

from __future__ import annotations

import torch
from torch.nn import functional as F

BLOCK = 128
LARGEST = torch.finfo(torch.float8_e4m3fn).max  # 448


def rounded(values, rows):
    """`values` [..., K] in e4m3 with a scale for each block of `rows` x 128, and back in float32.

    Transformer Engine's recipe `Float8BlockScaling`: 1 x 128 for activations, 128 x 128 for weights, the scale the
    largest power of two that leaves no value beyond 448.
    """
    matrix = values.reshape(-1, values.shape[-1]).float()
    num_rows, width = matrix.shape
    padded = F.pad(matrix, (0, -width % BLOCK, 0, -num_rows % rows))
    blocks = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // BLOCK, BLOCK)
    largest = blocks.abs().amax((1, 3), keepdim=True)
    scale = torch.where(largest > 0, torch.exp2(torch.floor(torch.log2(LARGEST / largest))), 1.0)
    inexact = (blocks * scale).to(torch.float8_e4m3fn).float() / scale
    return inexact.view_as(padded)[:num_rows, :width].reshape(values.shape)


def round_products(network):
    """The inputs and weights of every linear layer but the head, whose product Megatron leaves in bfloat16."""
    for name, layer in network.named_modules():
        if isinstance(layer, torch.nn.Linear) and "lm_head" not in name:
            layer.weight.data = rounded(layer.weight.data, BLOCK).to(layer.weight.dtype)
            layer.register_forward_pre_hook(lambda layer, inputs: (rounded(inputs[0], 1).to(inputs[0].dtype),))
