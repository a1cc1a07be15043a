"""Shares, enrichment and agreement of labels, by hand."""

from dataclasses import replace

import pytest

from nemo_aopsd.analysis.audit import labels, measure, sampling

SAMPLE = sampling.Sample(0, 10, True, [4.0], [90, 10], [5, 5], 0, "step_000001.jsonl")
NLLS = {str(number): 1.0 if number < 5 else 4.0 for number in range(10)}
FOUND = dict(zip(NLLS, ["redundant"] * 4 + ["leakage"] * 5 + ["useful"], strict=True))


def test_shares_base_rates_and_enrichment_by_hand():
    found = measure.by_bin(FOUND, NLLS, SAMPLE)
    low, high = found["bins"]
    assert found["counts"] == {"useful": 1, "redundant": 4, "leakage": 5}
    assert (low["labelled"], high["labelled"]) == (5, 5)
    # Each bin counts with its size in the run: leakage 0.9 * 1/5 + 0.1 * 4/5.
    assert found["base_rate"] == pytest.approx({"useful": 0.02, "redundant": 0.72, "leakage": 0.26})
    assert high["labels"]["leakage"]["enrichment"] == pytest.approx(0.8 / 0.26)
    assert low["labels"]["useful"] == {
        "count": 0,
        "share": 0.0,
        "low": 0.0,
        "high": pytest.approx(3.8415 / (5 + 3.8415), abs=1e-4),  # Wilson at 0 of n: z^2 / (n + z^2)
        "enrichment": 0.0,
    }
    # Wilson at p = 4/5, n = 5: centre (0.8 + 0.38415) / 1.76829, half width 1.95996 / 1.76829 sqrt(0.032 + 0.038415)
    assert high["labels"]["leakage"]["low"] == pytest.approx(0.66966 - 0.29412, abs=1e-4)
    assert high["labels"]["leakage"]["high"] == pytest.approx(0.66966 + 0.29412, abs=1e-4)


def test_base_rate_of_a_simple_random_sample_is_its_share():
    found = measure.by_bin(FOUND, NLLS, replace(SAMPLE, by_bin=False))
    assert found["base_rate"] == pytest.approx({"useful": 0.1, "redundant": 0.4, "leakage": 0.5})


def test_what_is_not_known_is_none():
    half = {event: label for event, label in FOUND.items() if NLLS[event] < 4}
    found = measure.by_bin(half, NLLS, SAMPLE)
    assert found["base_rate"] == dict.fromkeys(labels.LABELS)
    empty = {"count": 0, "share": None, "low": None, "high": None, "enrichment": None}
    assert found["bins"][1]["labels"] == dict.fromkeys(labels.LABELS, empty)
    assert found["bins"][0]["labels"]["leakage"]["enrichment"] is None
    assert measure.by_bin({}, NLLS, replace(SAMPLE, by_bin=False))["base_rate"] == dict.fromkeys(labels.LABELS)
    never = measure.by_bin(dict.fromkeys(FOUND, "useful"), NLLS, SAMPLE)  # base rate 0: no ratio
    assert never["bins"][1]["labels"]["leakage"]["enrichment"] is None


def test_a_bin_that_the_run_lacks_is_no_obstacle():
    sample = replace(SAMPLE, edges=[4.0, 9.0], population_per_bin=[90, 10, 0], drawn_per_bin=[5, 5, 0])
    assert measure.by_bin(FOUND, NLLS, sample)["base_rate"]["leakage"] == pytest.approx(0.26)


def test_kappa_by_hand():
    """The 2 x 2 table 20, 5, 10, 15: p_o = 35/50 = 0.7, p_e = (25 * 30 + 25 * 20) / 2500 = 0.5, kappa = 0.4."""
    pairs = [("useful", "useful")] * 20 + [("useful", "leakage")] * 5
    pairs += [("leakage", "useful")] * 10 + [("leakage", "leakage")] * 15
    one, other = ({str(i): pair[side] for i, pair in enumerate(pairs)} for side in (0, 1))
    assert measure.agreement(one, other) == {"events": 50, "agree": 35, "kappa": pytest.approx(0.4)}
    assert measure.agreement(other, one)["kappa"] == pytest.approx(0.4)
    # Only what both labelled counts.
    assert measure.agreement(one | {"x": "useful"}, other | {"y": "leakage"})["events"] == 50


def test_kappa_at_its_ends():
    same = {"a": "useful", "b": "leakage"}
    assert measure.agreement(same, same)["kappa"] == 1
    assert measure.agreement(same, {"a": "leakage", "b": "useful"})["kappa"] == -1
    assert measure.agreement(dict.fromkeys("ab", "useful"), dict.fromkeys("ab", "useful"))["kappa"] is None
    assert measure.agreement(same, {}) == {"events": 0, "agree": 0, "kappa": None}
