"""The order of the problems (eq:dynamic-competence): competence, its EMA, high-to-low order, 1:2:1 bridge batches.

Beside the paper's order: `shuffle`, and two controls. `competence_reversed` goes from low to high; `global_terciles`
takes the paper's "easy : moderate : hard = 1 : 2 : 1 within a batch" as shares of the whole set, so that batches have
no order.

A problem whose every attempt got no readable verdict has no competence; it stands at the mean of the others
until its first observation.
"""

import random
from collections.abc import Sequence
from copy import deepcopy
from statistics import mean
from typing import Any

from nemo_aopsd.config.extension import fresh, is_own
from nemo_aopsd.config.schema import CurriculumConfig
from nemo_aopsd.errors import UserError

_STATE = ("epoch", "competence", "observed", "history")


class Curriculum:
    """Order and batches of an epoch, fed by the progress of each rollout. Everything it knows is in `state_dict`.

    A curriculum of one's own is a subclass: `order` or `batches` anew, and `needs_progress` False if no judge is asked.
    """

    needs_progress = True

    def __init__(self, problem_ids: Sequence[str], config: CurriculumConfig, batch_size: int, seed: int):
        self.config = config
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.competence: dict[str, float | None] = dict.fromkeys(problem_ids)
        self.observed: dict[str, list[float]] = {}
        self.history: list[dict[str, Any]] = []

    def initialize(self, progress: dict[str, list[float]]) -> None:
        """c^(0): the mean progress of each problem's readable initial attempts."""
        self.competence = {
            problem_id: mean(progress[problem_id]) if progress[problem_id] else None for problem_id in self.competence
        }

    def observe(self, problem_id: str, progress: float) -> None:
        """Note the progress of one rollout of the running epoch."""
        self.observed.setdefault(problem_id, []).append(progress)

    def end_epoch(self) -> None:
        """c <- (1 - lambda) c + lambda mean(r); a problem without a readable rollout keeps its competence."""
        for problem_id, progress in self.observed.items():
            before, now = self.competence[problem_id], mean(progress)
            rate = self.config.ema
            self.competence[problem_id] = now if before is None else (1 - rate) * before + rate * now
        self.observed = {}
        self.epoch += 1

    def order(self) -> list[str]:
        """Problem ids of this epoch: from high to low competence (ties by id), the other way round, or shuffled."""
        if self.config.name == "shuffle":
            ids = sorted(self.competence)
            random.Random(f"{self.seed}/order/{self.epoch}").shuffle(ids)
            return ids
        known = [value for value in self.competence.values() if value is not None]
        neutral = mean(known) if known else 0.5
        assumed = {problem_id: neutral if value is None else value for problem_id, value in self.competence.items()}
        sign = 1 if self.config.name == "competence_reversed" else -1
        return sorted(assumed, key=lambda problem_id: (sign * assumed[problem_id], problem_id))

    def batches(self) -> list[list[str]]:
        """The batches of this epoch; every problem stands in exactly one."""
        ids = self.order()
        if self.config.name == "shuffle":
            return _strata(ids, self.batch_size)
        mix = tercile_batches if self.config.name == "global_terciles" else bridge_batches
        return mix(ids, self.batch_size, random.Random(f"{self.seed}/bridge/{self.epoch}"))

    def record(self) -> None:
        """Append the running epoch's competences and order to `history`."""
        self.history.append({"epoch": self.epoch, "competence": dict(self.competence), "order": self.order()})

    def state_dict(self) -> dict[str, Any]:
        """All that changes, ready for JSON."""
        return {name: deepcopy(getattr(self, name)) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`, of the same problems."""
        for name in _STATE:
            setattr(self, name, deepcopy(state[name]))


def build_curriculum(ids: Sequence[str], config: CurriculumConfig, batch_size: int, seed: int) -> Curriculum:
    """Ours or the user's, new."""
    if is_own(config.name):
        return fresh("curriculum.name", config.name, ids, config, batch_size, seed)
    return Curriculum(ids, config, batch_size, seed)


def checked_batches(curriculum: Curriculum) -> list[list[str]]:
    """The batches of this epoch. Raises UserError where one of the user's has none, or an id of no problem."""
    batches = curriculum.batches()
    name = f"aopsd.curriculum.name={curriculum.config.name}: `batches` must give lists of problem ids"
    if not isinstance(batches, list) or not batches or not all(isinstance(batch, list) and batch for batch in batches):
        raise UserError(f"{name}, none of them empty; got {repr(batches)[:120]}.")
    if unknown := [each for batch in batches for each in batch if each not in curriculum.competence]:
        raise UserError(f"{name}; no problem has the id {unknown[0]!r}.")
    return batches


def bridge_batches(ids: Sequence[str], batch_size: int, rng: random.Random) -> list[list[str]]:
    """Mix neighbouring strata of `ids` (easy to hard) so that an inner batch is easy : own : hard = 1 : 2 : 1.

    Half of each stratum stays, one quarter joins the batch before (there the hard quarter) and one the batch
    after (there the easy quarter); at both ends the quarter without a neighbour stays.
    """
    strata = _strata(ids, batch_size)
    batches: list[list[str]] = [[] for _ in strata]
    for index, stratum in enumerate(strata):
        mixed = rng.sample(stratum, len(stratum))
        quarter = len(mixed) // 4
        batches[max(index - 1, 0)] += mixed[:quarter]
        batches[min(index + 1, len(strata) - 1)] += mixed[quarter : 2 * quarter]
        batches[index] += mixed[2 * quarter :]
    return batches


def tercile_batches(ids: Sequence[str], batch_size: int, rng: random.Random) -> list[list[str]]:
    """Batches that each draw 1 : 2 : 1 from the easiest quarter, the middle half and the hardest quarter of `ids`.

    Both quarters are n // 4 problems. What is left when they cannot fill another share makes one last, smaller batch.
    """
    quarter, share = len(ids) // 4, batch_size // 4
    groups = [ids[:quarter], ids[quarter : len(ids) - quarter], ids[len(ids) - quarter :]]
    easy, middle, hard = (rng.sample(group, len(group)) for group in groups)
    batches = []
    while len(easy) >= share:
        batches.append(easy[:share] + middle[: 2 * share] + hard[:share])
        easy, middle, hard = easy[share:], middle[2 * share :], hard[share:]
    rest = easy + middle + hard
    return [*batches, rest] if rest else batches


def _strata(ids: Sequence[str], size: int) -> list[list[str]]:
    return [list(ids[start : start + size]) for start in range(0, len(ids), size)]
