import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nemo_aopsd.config.schema import ProbeConfig
from nemo_aopsd.method.weighting import band_pass, continuation_weight, gap_weights, step_weights

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
    config = ProbeConfig(beta_positive=1.0, beta_negative=2.5)
    assert continuation_weight(+3.0, 1.0, config) == pytest.approx(1)
    assert continuation_weight(-3.0, 2.5, config) == pytest.approx(1)
    assert continuation_weight(-3.0, 1.0, config) == pytest.approx(0.4 * math.exp(0.6))
    assert continuation_weight(-3.0, None, config) == 1


def test_shuffled_is_any_permutation_so_one_token_keeps_its_weight_on_average():
    weights = [index / 5 for index in range(5)]
    kept = [
        sum(map(float.__eq__, weights, step_weights(weights, "shuffled", seed, max_weight=5))) for seed in range(2000)
    ]
    assert sum(kept) / len(kept) == pytest.approx(1, abs=0.1)  # its standard deviation is 1 / sqrt(2000) = 0.022
    assert step_weights([0.7], "shuffled", seed=0, max_weight=5) == [0.7]
    first, again, other = (step_weights(weights, "shuffled", seed, max_weight=5) for seed in (3, 3, 4))
    assert sorted(first) == weights and first == again != other


def test_constant_gives_every_token_the_mean_and_nothing_to_nobody():
    assert step_weights([0.0, 0.5, 1.0], "constant", seed=0, max_weight=5) == [0.5, 0.5, 0.5]
    assert (
        step_weights([], "constant", seed=0, max_weight=5) == step_weights([], "shuffled", seed=0, max_weight=5) == []
    )


def test_normalised_has_mean_1_up_to_the_bound():
    assert step_weights([0.2, 0.4, 0.6], "normalised", seed=0, max_weight=5) == pytest.approx([0.5, 1.0, 1.5])
    assert step_weights([0.2, 0.4, 0.6], "normalised", seed=0, max_weight=1.2) == pytest.approx([0.5, 1.0, 1.2])
    assert step_weights([0.0, 0.0], "normalised", seed=0, max_weight=5) == [0.0, 0.0]
    assert step_weights([], "normalised", seed=0, max_weight=5) == []


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
