import pytest

from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.calibration import auc, first_half, fit_threshold


def test_auc_by_hand():
    scored = [(3.0, True), (1.0, True), (2.0, False), (1.0, False)]
    assert auc(scored) == (1 + 1 + 0 + 0.5) / 4
    assert auc(scored[:2]) is None and auc([]) is None


@pytest.mark.parametrize(
    ("scored", "threshold"),
    [
        ([(2, True), (0, True), (-1, False), (-3, False)], -0.5),  # apart: in the middle of the gap
        ([(2, True), (1, False), (0, True), (-4, False)], -2),  # F1 2/3, 1/2, 4/5, 2/3 from above
        ([(2, True), (1, False), (0, False), (-1, True)], 1.5),  # 2/3, 1/2, 2/5, 2/3: the first of equals
        ([(1, True), (1, False), (0, False)], 0.5),  # no threshold parts a tie
        ([(1, True), (0, True)], -0.5),  # all are true
    ],
)
def test_the_threshold_has_the_largest_f1(scored, threshold):
    assert fit_threshold(scored) == fit_threshold(scored[::-1]) == threshold


def test_nothing_to_fit_is_an_error():
    with pytest.raises(UserError, match="--calibrate: no checkpoint"):
        fit_threshold([(1.0, False)])
    with pytest.raises(UserError, match=r"--calibrate: .* one problem"):
        first_half("aaa", 0)


def test_problems_are_halved_by_lot_whatever_their_order():
    half = first_half("abcdefg" * 3, 5)
    assert len(half) == 3 and half == first_half("gfedcba", 5)
    assert len({frozenset(first_half("abcdefg", seed)) for seed in range(9)}) > 1
