import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.leak_weights import weights_of
from nemo_aopsd.config.schema import ProbeConfig
from nemo_aopsd.method.weighting import (
    Betas,
    Surprise,
    band_pass,
    constant_negative,
    continuation_weight,
    gap_weights,
    step_weights,
)
from nemo_aopsd.run.record_types import Probe
from nemo_aopsd.types import TrainRow

# Computed with a pocket calculator from eq:continuation-weight.
TABLE = {
    (0.1, 1.0): 0.24596, (0.5, 1.0): 0.82436, (2.0, 1.0): 0.73576, (4.0, 1.0): 0.19915,
    (1.0, 2.5): 0.72885, (4.0, 2.5): 0.87810, (8.0, 2.5): 0.35457, (10.0, 2.5): 0.19915,
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "expected"), TABLE.items())
def test_band_pass_values(arguments, expected):
    assert band_pass(*arguments) == pytest.approx(expected, abs=1e-5)


@given(st.floats(0, 1e3), st.floats(1e-2, 1e2))
def test_weight_lies_between_0_and_1_and_peaks_at_beta(nll, beta):
    assert 0 <= band_pass(nll, beta) <= 1 + 1e-12
    assert band_pass(beta, beta) == pytest.approx(1)
    assert band_pass(0, beta) == band_pass(math.inf, beta) == 0
    assert band_pass(nll, beta) <= band_pass(beta, beta) + 1e-12


@pytest.mark.parametrize(("nll", "beta"), [(-0.1, 1), (math.nan, 1), (1, 0), (1, -1), (1, math.nan)])
def test_values_without_meaning_are_refused(nll, beta):
    with pytest.raises(ValueError, match="expected nll >= 0 and beta > 0"):
        band_pass(nll, beta)


def test_beta_goes_by_the_sign_of_the_gap_and_an_empty_suffix_keeps_1():
    betas = Betas(positive=1.0, negative=2.5)
    assert continuation_weight(+3.0, 1.0, betas) == pytest.approx(1)
    assert continuation_weight(-3.0, 2.5, betas) == pytest.approx(1)
    assert continuation_weight(-3.0, 1.0, betas) == pytest.approx(0.4 * math.exp(0.6))
    assert continuation_weight(-3.0, None, betas) == continuation_weight(-3.0, None, Betas(None, None)) == 1
    assert continuation_weight(-3.0, 1.0, Betas(0.5, None)) == 1  # only at a token that the loss does not count


def test_auto_betas_are_the_median_of_the_last_steps_medians_by_sign():
    auto, fixed = ProbeConfig(betas="auto"), ProbeConfig(beta_positive=0.7, beta_negative=1.9)
    first = Surprise().after([(2.5, 1.0), (2.5, 9.0), (3.0, 2.0), (-2.0, 4.0), (-2.0, 6.0), (-9.0, None)])
    assert first == Surprise((2.0,), (5.0,))
    assert first.betas(auto) == Betas(2.0, 5.0) and first.betas(fixed) == Betas(0.7, 1.9)
    later = first.after([(2.0, 1.0)]).after([(2.0, 7.0), (-2.0, 0.0)])
    assert later == Surprise((2.0, 1.0, 7.0), (5.0, 0.0))  # a step without an L of a sign says nothing of it
    assert later.betas(auto) == Betas(2.0, 2.5)
    assert Surprise((), (0.0, 0.0, 3.0)).betas(auto) == Betas(None, 0.1)  # never 0, which no weight survives


def test_auto_betas_forget_what_is_older_than_32_steps():
    found = Surprise()
    for _ in range(16):
        found = found.after([(1.0, 8.0)])
    for _ in range(17):
        found = found.after([(1.0, 2.0)])
    assert found.positive == (8.0,) * 15 + (2.0,) * 17
    assert found.betas(ProbeConfig(betas="auto")).positive == 2.0


def reweighed(weights, weighting, seed=0, gaps=None, **probes):
    return step_weights(weights, gaps or [2.0] * len(weights), weighting, seed, ProbeConfig(**probes))


def test_shuffled_is_any_permutation_so_one_token_keeps_its_weight_on_average():
    weights = [index / 5 for index in range(5)]
    kept = [sum(map(float.__eq__, weights, reweighed(weights, "shuffled", seed))) for seed in range(2000)]
    assert sum(kept) / len(kept) == pytest.approx(1, abs=0.1)  # its standard deviation is 1 / sqrt(2000) = 0.022
    assert reweighed([0.7], "shuffled") == [0.7]
    first, again, other = (reweighed(weights, "shuffled", seed) for seed in (3, 3, 4))
    assert sorted(first) == weights and first == again != other


def test_constant_keeps_the_sum_of_the_weights_and_gap_matched_that_of_the_advantages():
    gaps, own = [2.0, -2.0, -4.0], [0.5, 0.25, 0.0]
    sums = {"constant": (0.75, 2.0), "gap_matched": (0.560159, 1.5), "continuation": (0.75, 1.5)}
    for weighting, expected in sums.items():
        found = reweighed(own, weighting, gaps=gaps, beta_positive=1.0, beta_negative=2.5)
        by_gap = sum(weight * abs(gap) for weight, gap in zip(found, gaps, strict=True))
        assert (sum(found), by_gap) == pytest.approx(expected, abs=1e-6), weighting


def test_constant_gives_every_token_the_mean_and_nothing_to_nobody():
    assert reweighed([0.0, 0.5, 1.0], "constant") == [0.5, 0.5, 0.5]
    assert reweighed([], "constant") == reweighed([], "shuffled") == reweighed([], "gap_matched") == []


def test_normalised_has_mean_1_up_to_the_bound():
    assert reweighed([0.2, 0.4, 0.6], "normalised", max_weight=5) == pytest.approx([0.5, 1.0, 1.5])
    assert reweighed([0.2, 0.4, 0.6], "normalised", max_weight=1.2) == pytest.approx([0.5, 1.0, 1.2])
    assert reweighed([0.0, 0.0], "normalised") == [0.0, 0.0]
    assert reweighed([], "normalised") == []


def test_gap_matched_selects_by_the_gap_and_takes_away_as_much_advantage_as_the_continuations():
    gaps, own = [2.0, -2.0, -4.0], [0.5, 0.25, 0.0]  # w |gap| of the continuations: 1 + 0.5 + 0 = 1.5 of 8
    # By the gap 2 e^-1, 0.8 e^0.2 and 1.6 e^-0.6, times |gap|: 1.471518 + 1.954244 + 3.512396 = 6.938157
    found = reweighed(own, "gap_matched", gaps=gaps, beta_positive=1.0, beta_negative=2.5)
    assert found == pytest.approx([0.159068, 0.211250, 0.189842], abs=1e-6)  # the three times 1.5 / 6.938157
    assert sum(weight * abs(gap) for weight, gap in zip(found, gaps, strict=True)) == pytest.approx(1.5)
    assert reweighed([0.5], "gap_matched", gaps=[5000.0]) == [0.0]  # the band-pass underflows: nothing to scale


def test_constant_negative_is_the_mean_absolute_gap_below_the_student_wherever_the_loss_looks():
    def row(old, teacher, mask):
        old, teacher = torch.tensor(old), torch.tensor(teacher)
        return TrainRow([1], [2] * len(old), old, teacher, torch.ones(len(old)), torch.tensor(mask))

    rows = [row([-1.0, -2.0], [-4.0, -1.0], [True, True]), row([-0.5, -3.0], [-9.0, -3.0], [False, True])]
    first, second = constant_negative(rows)  # |gap| 3, 1, (8.5 is masked), 0: mean 4 / 3
    assert first.teacher_logprobs.tolist() == pytest.approx([-1 - 4 / 3, -2 - 4 / 3])
    assert second.teacher_logprobs.tolist() == pytest.approx([-0.5 - 4 / 3, -3 - 4 / 3])
    assert first.weights.tolist() == [1.0, 1.0] and first.old_logprobs.tolist() == [-1.0, -2.0]
    assert constant_negative([]) == []


def test_gap_controls_by_hand():
    gap = torch.tensor([0.5, 2.0, -2.0, -4.0, 1.99])
    config = ProbeConfig(threshold=2.0, beta_positive=1.0, beta_negative=2.5)
    assert gap_weights(gap, "uniform", config).tolist() == [1.0] * 5
    assert gap_weights(gap, "zero_triggered", config).tolist() == [1.0, 0.0, 0.0, 0.0, 1.0]
    # 2 e^-1, 0.8 e^0.2 and 1.6 e^-0.6 (a pocket calculator)
    assert gap_weights(gap, "gap_only", config).tolist() == pytest.approx([1.0, 0.735759, 0.977122, 0.878099, 1.0])
    half = replace(config, untriggered_weight=0.5)
    assert gap_weights(gap, "gap_only", half).tolist() == pytest.approx([0.5, 0.735759, 0.977122, 0.878099, 0.5])
    assert gap_weights(gap, "uniform", half).tolist() == [1.0] * 5


def test_gap_controls_touch_the_tokens_that_a_limit_leaves_to_probes():
    gap = torch.tensor([0.5, 2.0, -3.0, -4.0, 1.99])
    config = ProbeConfig(threshold=2.0, max_per_rollout=2, untriggered_weight=0.5)
    assert gap_weights(gap, "zero_triggered", config).tolist() == [1.0, 1.0, 0.0, 0.0, 1.0]
    # 1.2 e^-0.2 and 1.6 e^-0.6; the gap of 2 is one of those with `untriggered_weight`
    assert gap_weights(gap, "gap_only", config).tolist() == pytest.approx([0.5, 0.5, 0.982477, 0.878099, 0.5])


def test_weights_of_recorded_probes_are_those_of_their_steps():
    first = [Probe(0, -3.0, 1, [2], 2.5, 0.0), Probe(1, 2.0, 1, [2], 4.0, 0.0), Probe(2, -2.0, 1, [], None, 0.0)]
    steps = [first, [Probe(0, -3.0, 1, [2], 7.5, 0.0)]]
    config = ProbeConfig(beta_positive=1.0, beta_negative=2.5)
    own = [1.0, 4 * math.exp(-3), 1.0, 3 * math.exp(-2)]
    assert weights_of(steps, "continuation", config) == pytest.approx(own)
    assert weights_of(steps, "betas=auto", config) == pytest.approx([1.0, 1.0, 1.0, 1.5 * math.exp(-0.5)])
    assert weights_of(steps, "constant", config) == pytest.approx([sum(own[:3]) / 3] * 3 + own[3:])
