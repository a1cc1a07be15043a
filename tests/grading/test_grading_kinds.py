"""One property a kind of answer: an equivalent rewriting keeps the verdict, a near miss loses it."""

import pytest

from tests.grading.rewritings import KINDS, failures


@pytest.mark.parametrize("name", KINDS)
def test_rewritings_keep_the_verdict_and_near_misses_lose_it(name):
    _, _, wrong = failures(KINDS[name], seed=11, count=3)
    assert wrong == []
