"""Continuation events of a run: where they are, and what a labeller may see of one."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nemo_aopsd.config.schema import Config
from nemo_aopsd.data.problems import Problem, load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_lines
from nemo_aopsd.method.context import donors_for, shown_messages
from nemo_aopsd.run import layout
from nemo_aopsd.run.reader import parse
from nemo_aopsd.run.record_types import Rollout

SHOWN_CHARACTERS = 4000  # of the response before the event; what is left out is counted


@dataclass(frozen=True, slots=True)
class Event:
    """What a labeller may see; `before_omitted` characters of the student's text stand in front of `before`."""

    id: str
    problem_id: str
    problem: str
    teacher_read: str
    before: str
    before_omitted: int
    token: str  # the student's next one
    anchor: str
    suffix: str


@dataclass(frozen=True, slots=True)
class Key:
    """What only the report may see of an event."""

    id: str
    step: int
    row: int  # of the step's file
    position: int
    nll: float
    gap: float
    weight: float


class Place(NamedTuple):
    """Where a scored probe stands in `rollouts/`, and its L_t in nats a token (eq:continuation-nll)."""

    file: Path
    row: int  # of the file
    probe: int  # of the rollout
    nll: float


def find_events(run: Path) -> tuple[list[Place], int]:
    """Every scored probe of a run, in the order of its files, and how many more had no continuation to label.

    Raises UserError if there is none or a file is broken.
    """
    places, num_empty = [], 0
    files = list(layout.rollout_files(run).values())
    for file in files:
        for row, rollout in enumerate(_rollouts(file)):
            for index, probe in enumerate(rollout.probes):
                if probe.nll is None:
                    num_empty += 1
                elif not 0 <= probe.nll < math.inf:  # NaN fails, too
                    raise UserError(f"{rollout.where}: `nll` must be null or a number from 0 up, got {probe.nll}.")
                else:
                    places.append(Place(file, row, index, probe.nll))
    if not places:
        raise UserError(
            f"{run}: no continuation event among its {len(files)} rollout files ({num_empty} empty probes). The audit "
            "needs a run with aopsd.weighting=continuation whose gaps reach aopsd.probes.threshold."
        )
    return places, num_empty


def read_events(places: Iterable[Place], config: Config) -> Iterator[tuple[Place, Event, Key]]:
    """The event and the key of each place, by file.

    Raises UserError if the training problems are not there any more or a rollout lacks a field.
    """
    aopsd, source = config.aopsd, config.data["train"]["data_path"]
    problems = {problem.id: problem for problem in load_problems(source)}
    donors = donors_for([*problems.values()], aopsd.shown_context, aopsd.seed)
    wanted: dict[Path, dict[int, list[Place]]] = {}
    for place in places:
        wanted.setdefault(place.file, {}).setdefault(place.row, []).append(place)
    for file, rows in wanted.items():
        for row, rollout in enumerate(_rollouts(file)):
            if row not in rows:
                continue
            if (problem := problems.get(rollout.problem_id)) is None:
                raise UserError(f"{rollout.where}: {source} has no problem {rollout.problem_id!r} now. Restore it.")
            messages = shown_messages(problem, aopsd, frozenset(rollout.reached or ()), donors)
            yield from ((place, *_event(place, rollout, problem, messages[-1]["content"])) for place in rows[row])


def _rollouts(file: Path) -> Iterator[Rollout]:
    return (parse(Rollout, line, where) for where, line in read_lines(file))


def _event(place: Place, rollout: Rollout, problem: Problem, teacher_read: str) -> tuple[Event, Key]:
    probe, pieces = rollout.probes[place.probe], rollout.pieces
    if pieces is None or probe.anchor_text is None or probe.suffix_text is None:
        raise UserError(f"{rollout.where}: no `pieces`, `anchor_text` or `suffix_text`. Restore the file.")
    before = "".join(pieces[: probe.position])
    seen = {
        "problem_id": problem.id,
        "problem": problem.problem,
        "teacher_read": teacher_read,
        "before": before[-SHOWN_CHARACTERS:],
        "before_omitted": max(0, len(before) - SHOWN_CHARACTERS),
        "token": pieces[probe.position],
        "anchor": probe.anchor_text,
        "suffix": probe.suffix_text,
    }
    # The place tells equal texts apart; the content ties a label to what was read.
    content = [place.file.name, place.row, place.probe, *seen.values()]
    identity = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    key = Key(identity, rollout.step, place.row, probe.position, place.nll, probe.gap, probe.weight)
    return Event(identity, **seen), key
