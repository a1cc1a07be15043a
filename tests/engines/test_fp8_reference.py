"""The reference for FP8 of the GPU tests, by hand."""

from __future__ import annotations

import torch

from tests.gpu.fp8 import rounded


def test_a_block_keeps_three_bits_behind_the_leading_one_under_a_scale_of_its_own():
    row = torch.zeros(1, 256)
    row[0, :4] = torch.tensor([448.0, 17.0, 18.0, 19.0])  # scale 1: steps of 2 between 16 and 32, ties to even
    row[0, 128:131] = torch.tensor([7.0, 17 / 64, 19 / 64])  # scale 64
    expected = torch.zeros(1, 256)
    expected[0, :4] = torch.tensor([448.0, 16.0, 18.0, 20.0])
    expected[0, 128:131] = torch.tensor([7.0, 16 / 64, 20 / 64])
    assert torch.equal(rounded(row, 1), expected)


def test_blocks_of_weights_share_a_scale_across_rows_and_may_be_cut_off():
    weights = torch.zeros(130, 200)
    weights[0, 0], weights[1, 1], weights[129, 199] = 448.0, 2**-7, 2**-7
    found = rounded(weights, 128)
    assert found[0, 0] == 448.0 and found[1, 1] == 2**-7  # subnormal: a multiple of 2^-9
    weights[1, 1] = 2**-11
    assert rounded(weights, 128)[1, 1] == 0 and rounded(weights, 1)[1, 1] == 2**-11
    assert found[129, 199] == 2**-7
