import math
import random

import pytest
import torch

from nemo_aopsd.config.schema import ProbeConfig
from nemo_aopsd.method.probes import Probe, run_probes
from nemo_aopsd.method.weighting import reweigh, triggered
from tests.fakes import ALPHABET, END, BigramModel, CharTokenizer

encode = CharTokenizer().encode


def test_triggers_are_the_gaps_at_or_above_the_threshold_by_size():
    gap = torch.tensor([0.5, -2.0, 1.99, 3.0, -4.0])
    assert triggered(gap, ProbeConfig(threshold=2.0)) == [1, 3, 4]
    assert triggered(gap, ProbeConfig(threshold=2.0, max_per_rollout=2)) == [3, 4]
    assert triggered(gap, ProbeConfig(threshold=5.0)) == []
    assert triggered(torch.empty(0), ProbeConfig()) == []


def cycle_model(cycle: str, certainty: float = 1e3) -> BigramModel:
    """Greedy text runs round `cycle`; every other token is (almost) impossible."""
    logits = torch.zeros(len(ALPHABET), len(ALPHABET), dtype=torch.float64)
    ids = [END if char == "$" else ALPHABET.index(char) for char in cycle]
    for here, there in zip(ids, [*ids[1:], ids[0]], strict=True):
        logits[here, there] = certainty
    return BigramModel(logits)


def uniform_model() -> BigramModel:
    return BigramModel(torch.zeros(len(ALPHABET), len(ALPHABET), dtype=torch.float64))


def probe_at(teacher, tokens: list[int], gap: list[float], student=None, **settings):
    """The probes of one response behind the prompt `a`."""
    student, prompt, config = student or uniform_model(), encode("a"), ProbeConfig(threshold=2.0, **settings)
    found = run_probes(student, teacher, [prompt], [prompt], [tokens], [torch.tensor(gap)], config, in_loss=[True])
    return found[0]


def test_positive_gap_anchors_at_the_sampled_token():
    (probe,) = probe_at(cycle_model("abcde"), encode("bx"), [2.5, 0.0], length=4)
    assert (probe.position, probe.gap) == (0, 2.5)
    assert probe.anchor == encode("b")[0]
    assert probe.suffix == encode("cde")  # k - 1 = 3 tokens after the anchor


def test_negative_gap_anchors_at_the_teachers_greedy_token():
    (probe,) = probe_at(cycle_model("abcde"), encode("xb"), [-2.5, 0.0], length=4)
    assert probe.anchor == encode("b")[0]  # after the prompt's "a"
    assert probe.suffix == encode("cde")


def test_nll_is_the_students_mean_over_the_suffix_without_the_anchor():
    student = uniform_model()
    with torch.no_grad():
        student.logits[encode("a")[0], encode("b")[0]] = -50.0  # the anchor "b" is nearly impossible after the prompt
    (probe,) = probe_at(cycle_model("abcde"), encode("b"), [2.5], student, length=5)
    assert len(probe.suffix) == 4
    assert probe.nll == pytest.approx(math.log(len(ALPHABET)), abs=1e-6)  # uniform behind it
    u = math.log(len(ALPHABET))
    assert probe.weight == pytest.approx(u * math.exp(1 - u), abs=1e-6)
    (probe,) = probe_at(cycle_model("abcde"), encode("b"), [2.5], student, length=5, score_anchor=True)
    anchor = 50 + math.log(len(ALPHABET) - 1)  # -log of e^-50 among words at e^0
    assert probe.nll == pytest.approx((anchor + 4 * u) / 5, abs=1e-4)


def test_end_of_sequence_inside_the_suffix_is_scored_and_ends_it():
    (probe,) = probe_at(cycle_model("abc$"), encode("b"), [2.5], length=8)
    assert probe.suffix == [*encode("c"), END]
    assert probe.nll == pytest.approx(math.log(len(ALPHABET)), abs=1e-6)


@pytest.mark.parametrize("gap", [2.5, -2.5])
def test_an_anchor_that_ends_the_text_leaves_an_empty_suffix_and_weight_1(gap):
    (probe,) = probe_at(cycle_model("a$"), [END], [gap])
    assert (probe.anchor, probe.suffix, probe.nll, probe.weight) == (END, [], None, 1.0)


def test_a_broken_log_prob_is_refused_and_never_a_weight():
    broken = BigramModel(torch.full((len(ALPHABET), len(ALPHABET)), math.nan, dtype=torch.float64))
    with pytest.raises(ValueError, match="expected nll"):
        probe_at(cycle_model("abc"), encode("b"), [3.0], broken)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("normalised", [0.8, 1.2]),
        ("constant", [0.25, 0.25]),
        ("shuffled", [0.3, 0.2]),
        # 2 e^-1 and 1.6 e^-0.6, times (0.2 * 2 + 0.3 * 4) / (2 * 0.735759 + 4 * 0.878099)
        ("gap_matched", [0.236203, 0.281899]),
        ("continuation", [0.2, 0.3]),
    ],
)
def test_a_step_s_weights_are_made_of_what_the_loss_counts(weighting, expected):
    def probe(gap, weight):
        return Probe(0, gap, 1, [2], 1.0, weight)

    masked = [probe(3.0, 0.9), probe(-6.0, 0.1)]
    steps = [[probe(2.0, 0.2)], masked, [probe(-4.0, 0.3)]]
    seed = 0 if weighting != "shuffled" else next(s for s in range(99) if shuffles(s))
    first, second, third = reweigh(steps, [True, False, True], weighting, seed, ProbeConfig(threshold=2.0))
    assert [each.weight for each in (*first, *third)] == pytest.approx(expected, abs=1e-6)
    assert second == masked  # their continuation weights are recorded


def shuffles(seed):
    """Whether two weights change places at this seed."""
    return random.Random(f"{seed}/shuffled").sample([1, 2], 2) == [2, 1]


def test_auto_betas_are_medians_over_what_the_loss_counts():
    """L is log(vocabulary) of a uniform student in the first row, and that of a half-sure one in the second."""
    teacher, student = cycle_model("abcde"), uniform_model()
    config = ProbeConfig(threshold=2.0, length=2, betas="auto")
    with torch.no_grad():
        student.logits[encode("b")[0], encode("c")[0]] = 6.0
    prompts, responses = [encode("a")] * 2, [encode("d"), encode("b")]
    gaps = [torch.tensor([2.5])] * 2
    usual = math.log(len(ALPHABET))
    surprised = math.log(math.exp(6) + len(ALPHABET) - 1) - 6
    for in_loss, beta in (([True, False], usual), ([False, True], surprised), ([True] * 2, (usual + surprised) / 2)):
        found = run_probes(student, teacher, prompts, prompts, responses, gaps, config, in_loss=in_loss)
        assert [row[0].nll for row in found] == pytest.approx([usual, surprised])
        expected = [nll / beta * math.exp(1 - nll / beta) for nll in (usual, surprised)]
        assert [row[0].weight for row in found] == pytest.approx(expected)
    found = run_probes(student, teacher, prompts, prompts, responses, gaps, config, in_loss=[False, False])
    assert [row[0].weight for row in found] == [1.0, 1.0]  # no width is known
