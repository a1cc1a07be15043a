import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_aopsd.config.schema import CurriculumConfig
from nemo_aopsd.method.curriculum import Curriculum, bridge_batches, tercile_batches


def make(competence: dict[str, list[float]], batch_size: int = 4, **settings) -> Curriculum:
    curriculum = Curriculum(list(competence), CurriculumConfig(**settings), batch_size, seed=0)
    curriculum.initialize(competence)
    return curriculum


def test_initial_competence_is_the_mean_of_k_attempts_and_the_ema_follows_by_hand():
    curriculum = make({"a": [0.2, 0.4], "b": [1.0, 0.0]}, ema=0.25)
    assert curriculum.competence == pytest.approx({"a": 0.3, "b": 0.5})
    curriculum.observe("a", 1.0)
    curriculum.observe("a", 0.5)
    curriculum.end_epoch()
    assert curriculum.competence["a"] == pytest.approx(0.75 * 0.3 + 0.25 * 0.75)
    assert curriculum.competence["b"] == pytest.approx(0.5)  # nothing seen: unchanged, not pulled to 0


def test_an_epoch_runs_from_high_to_low_competence_or_reversed_with_ties_by_id():
    competence = {"c": [0.5], "a": [0.5], "d": [0.9], "b": [0.1]}
    assert make(competence).order() == ["d", "a", "c", "b"]
    assert make(competence, name="competence_reversed").order() == ["b", "a", "c", "d"]


def test_a_problem_without_readable_verdict_stands_at_the_mean_and_is_not_set_to_0():
    curriculum = make({"low": [0.0], "unknown": [], "high": [1.0]})
    assert curriculum.competence["unknown"] is None
    assert curriculum.order() == ["high", "unknown", "low"]
    curriculum.observe("unknown", 0.8)
    curriculum.end_epoch()
    assert curriculum.competence["unknown"] == pytest.approx(0.8)


def test_725_problems_in_batches_of_32_make_23_batches_with_every_problem_once():
    ids = [f"{index:04d}" for index in range(725)]
    batches = bridge_batches(ids, 32, random.Random(0))
    assert len(batches) == 23
    assert Counter(problem for batch in batches for problem in batch) == Counter(ids)
    assert [len(batch) for batch in batches[:21]] == [32] * 21
    for index, batch in enumerate(batches[1:-2], start=1):
        strata = Counter(int(problem) // 32 - index for problem in batch)
        assert strata == {-1: 8, 0: 16, 1: 8}  # easy : own : hard
    means = [sum(map(int, batch)) / len(batch) for batch in batches]
    assert means == sorted(means)


@given(st.integers(1, 200), st.integers(1, 10), st.integers(0, 5))
def test_every_problem_stands_in_exactly_one_batch(num_problems, quarter, seed):
    ids = [str(index) for index in range(num_problems)]
    batches = bridge_batches(ids, 4 * quarter, random.Random(seed))
    assert sorted(problem for batch in batches for problem in batch) == sorted(ids)
    assert all(batches)


@pytest.mark.parametrize("name", ["shuffle", "competence"])
def test_state_round_trips_through_json_in_the_middle_of_an_epoch(name):
    first = make({f"p{index}": [index / 9] for index in range(10)}, name=name)
    first.observe("p3", 1.0)
    first.end_epoch()
    first.observe("p7", 0.2)
    second = Curriculum([f"p{index}" for index in range(10)], first.config, 4, seed=0)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.batches() == first.batches()
    for curriculum in (first, second):
        curriculum.observe("p7", 0.4)
        curriculum.end_epoch()
    assert second.state_dict() == first.state_dict()
    assert second.batches() == first.batches()


def test_shuffle_differs_by_epoch_and_seed_and_repeats_for_the_same():
    def orders(seed):
        curriculum = Curriculum([str(index) for index in range(50)], CurriculumConfig(name="shuffle"), 8, seed)
        first = curriculum.order()
        curriculum.end_epoch()
        return first, curriculum.order()

    assert orders(0) == orders(0)
    assert len({tuple(order) for seed in (0, 1) for order in orders(seed)}) == 4


def test_global_terciles_mix_the_whole_set_in_every_batch():
    curriculum = make({f"{i:02d}": [1 - i / 40] for i in range(40)}, batch_size=8, name="global_terciles")
    batches = curriculum.batches()
    assert [len(batch) for batch in batches] == [8] * 5
    for batch in batches:
        thirds = Counter("easy" if int(i) < 10 else "hard" if int(i) >= 30 else "moderate" for i in batch)
        assert thirds == {"easy": 2, "moderate": 4, "hard": 2}
    curriculum.end_epoch()
    assert curriculum.batches() != batches


@given(st.integers(1, 300), st.integers(1, 10), st.integers(0, 5))
def test_terciles_place_every_problem_once_and_only_the_last_batch_is_smaller(num_problems, share, seed):
    ids = [str(index) for index in range(num_problems)]
    batches = tercile_batches(ids, 4 * share, random.Random(seed))
    assert Counter(problem for batch in batches for problem in batch) == Counter(ids)
    assert all(len(batch) == 4 * share for batch in batches[:-1])
    assert 0 < len(batches[-1]) <= 4 * share
