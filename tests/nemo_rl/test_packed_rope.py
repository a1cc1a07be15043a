"""Rotary embeddings of a pack at once against megatron-core's, row by row."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.models.common.embeddings import rope_utils
from torch.profiler import profile

from nemo_aopsd.engines.nemo_rl import packed_rope


class Group:
    def __init__(self, size=1):
        self._size = size

    def size(self):
        return self._size

    def rank(self):
        return 0


def pack(lengths, dtype, width=8, rotated=8, seed=0):
    """Heads of a pack, where its rows begin, and the frequencies of the longest row."""
    torch.manual_seed(seed)
    t = torch.randn(sum(lengths), 3, width, dtype=dtype, requires_grad=True)
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    freqs = torch.outer(torch.arange(max(lengths)).float(), torch.rand(rotated // 2))
    return t, starts, torch.cat([freqs, freqs], dim=-1)[:, None, None, :]


def turned(function, t, starts, freqs, **options):
    """The result, and the gradient of a sum of it with random weights."""
    t = t.detach().clone().requires_grad_()
    result = function(t, starts, freqs, cp_group=Group(), **options)
    torch.manual_seed(1)
    (result.float() * torch.randn(result.shape)).sum().backward()
    return result.detach(), t.grad


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    rotated=st.sampled_from([8, 4]),
    interleaved=st.booleans(),
    mscale=st.sampled_from([1.0, 0.7]),
)
def test_a_pack_is_turned_as_its_rows_are_to_the_bit(lengths, dtype, rotated, interleaved, mscale):
    case = pack(lengths, dtype, rotated=rotated)
    options = {"rotary_interleaved": interleaved, "mscale": mscale}
    expected = turned(packed_rope._by_row, *case, **options)
    found = turned(packed_rope.rotate_pack, *case, **options)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_a_second_row_begins_at_position_0():
    """By hand: one pair of dimensions, an angle of 1 a token."""
    t = torch.tensor([[[1.0, 0.0]]] * 3)
    freqs = torch.tensor([0.0, 1.0])[:, None, None, None].expand(2, 1, 1, 2)
    found = packed_rope.rotate_pack(t, torch.tensor([0, 2, 3], dtype=torch.int32), freqs, cp_group=Group())
    expected = [[1.0, 0.0], [torch.tensor(1.0).cos().item(), torch.tensor(1.0).sin().item()], [1.0, 0.0]]
    assert torch.allclose(found[:, 0], torch.tensor(expected))


def test_the_work_does_not_grow_with_the_rows():
    def operations(lengths):
        t, starts, freqs = pack(lengths, torch.bfloat16)
        with profile(acc_events=True) as seen:
            turned(packed_rope.rotate_pack, t, starts, freqs)
        return sum(event.count for event in seen.key_averages())

    assert operations([3, 4]) == operations([3, 4, 2, 2, 2, 2, 2, 2])


def test_other_packs_are_megatron_core_s(monkeypatch):
    seen = []
    monkeypatch.setattr(packed_rope, "_by_row", lambda *args, **kwargs: seen.append(kwargs["cp_group"].size()))
    t, starts, freqs = pack([2, 2], torch.float32)
    packed_rope.rotate_pack(t, starts, freqs, cp_group=Group(2))
    packed_rope.rotate_pack(t, starts, freqs.repeat(2, 1, 1, 1), cp_group=Group())
    assert seen == [2, 1]


def test_rows_that_do_not_fill_the_pack_are_an_error():
    t, starts, freqs = pack([2, 2], torch.float32)
    with pytest.raises(RuntimeError):
        packed_rope.rotate_pack(torch.cat([t, t]), starts, freqs, cp_group=Group())


def test_megatron_core_uses_it_once_it_is_told_to(monkeypatch):
    monkeypatch.setattr(rope_utils, "_apply_rotary_pos_emb_thd", packed_rope._by_row)
    packed_rope.use()
    assert rope_utils._apply_rotary_pos_emb_thd is packed_rope.rotate_pack
