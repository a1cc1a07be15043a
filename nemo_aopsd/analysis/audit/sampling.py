"""Which events are labelled: a simple random sample, or equally many per NLL bin as far as available.

The paper names neither its bins nor its way of sampling (its appendix F.3 is not public). Only the bound of the last
bin, 4 nats, and the number of events, 15,043, are its own.
"""

import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from nemo_aopsd.analysis.audit.events import Event, Key, Place, find_events, read_events
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.tables import markdown_table
from nemo_aopsd.files import atomic_write, derive_seed, json_text, read_lines, write_jsonl
from nemo_aopsd.run import layout
from nemo_aopsd.run.folder import load_run_config
from nemo_aopsd.run.own_files import check_shown
from nemo_aopsd.run.reader import parse

EDGES = (0.5, 1.0, 2.0, 3.0, 4.0)  # nats a token, between the bins

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """How a sample was drawn, and from what: `sample.json`."""

    seed: int
    count: int  # asked for
    by_bin: bool
    edges: list[float]
    population_per_bin: list[int]
    drawn_per_bin: list[int]
    num_empty: int  # probes without a continuation
    last_file: str  # of the rollouts

    @property
    def num_drawn(self) -> int:
        return sum(self.drawn_per_bin)


def sample(run: Path, *, count: int, seed: int, by_bin: bool = False, edges: Sequence[float] = EDGES) -> Sample:
    """Draw events into `run/audit/`. The same call again changes nothing.

    Raises UserError if a sample is there that was drawn otherwise, for labels may rest on it.
    """
    if not edges or not all(low < high < math.inf for low, high in pairwise([0.0, *edges])):  # NaN fails, too
        raise UserError(f"--edges {edges}: expected rising numbers above 0, in nats a token. Example: 0.5,1,2,3,4.")
    folder, (places, num_empty) = run / layout.AUDIT, find_events(run)
    wanted = {"seed": seed, "count": count, "by_bin": by_bin, "edges": list(edges)}
    if (folder / "sample.json").exists():
        return _same_sample(folder, wanted)
    chosen, config = draw(places, count=count, seed=seed, by_bin=by_bin, edges=edges), load_run_config(run)
    check_shown(run, config.aopsd)
    found = {place: (event, key) for place, event, key in read_events(chosen, config)}
    drawn = Sample(
        **wanted,
        population_per_bin=count_per_bin([place.nll for place in places], edges),
        drawn_per_bin=count_per_bin([place.nll for place in chosen], edges),
        num_empty=num_empty,
        last_file=max(place.file.name for place in places),
    )
    write_jsonl(folder / "events.jsonl", [asdict(found[place][0]) for place in chosen])
    write_jsonl(folder / "key.jsonl", [asdict(found[place][1]) for place in chosen])
    atomic_write(folder / "sample.json", json_text(asdict(drawn)))  # last: the sample is complete
    return drawn


def read_sample(run: Path) -> Sample:
    """The sample of a run. Raises UserError if there is none, or the file is damaged."""
    file = run / layout.AUDIT / "sample.json"
    if not file.is_file():
        raise UserError(f"{run}: no sample to label. Draw one first: aopsd audit sample {run} --count 300 --seed 0")
    return parse(Sample, file.read_bytes(), str(file))


def load_events(run: Path) -> list[Event]:
    """What labellers see, in the order of the sample. Raises UserError if there is none or the file is damaged."""
    return _read_drawn(run, "events.jsonl", Event)


def load_keys(run: Path) -> list[Key]:
    """What the report sees of the same events."""
    return _read_drawn(run, "key.jsonl", Key)


def _read_drawn(run: Path, name: str, kind: type[T]) -> list[T]:
    path, expected = run / layout.AUDIT / name, read_sample(run).num_drawn
    lines = [parse(kind, line, where) for where, line in read_lines(path)]
    if len(lines) != expected:
        raise UserError(f"{path}: {len(lines)} events, sample.json says {expected}. Restore it, or move the folder.")
    return lines


def draw(places: Sequence[Place], *, count: int, seed: int, by_bin: bool, edges: Sequence[float]) -> list[Place]:
    """`count` places (or all, where there are fewer) in random order, so that any first part is a sample, too."""
    chance = random.Random(derive_seed(seed, "audit"))
    if not by_bin:
        return chance.sample(places, min(count, len(places)))
    bins: list[list[Place]] = [[] for _ in range(len(edges) + 1)]
    for place in places:
        bins[bin_of(place.nll, edges)].append(place)
    sizes = allocate([len(members) for members in bins], count)
    drawn = [place for members, size in zip(bins, sizes, strict=True) for place in chance.sample(members, size)]
    chance.shuffle(drawn)
    return drawn


def allocate(sizes: Sequence[int], count: int) -> list[int]:
    """Shares of `count` as even as the bins allow: of 30, [14, 2, 14] if the bins have 100, 2 and 50."""
    given = [0] * len(sizes)
    for _ in range(min(count, sum(sizes))):
        least = min((index for index, size in enumerate(sizes) if given[index] < size), key=given.__getitem__)
        given[least] += 1
    return given


def bin_of(nll: float, edges: Sequence[float]) -> int:
    """Index of the bin of L_t; an edge belongs to the bin above it."""
    return bisect_right(edges, nll)


def bin_names(edges: Sequence[float]) -> list[str]:
    """`L < 0.5`, `0.5 ≤ L < 1`, ..., `L ≥ 4`."""
    between = [f"{low:g} ≤ L < {high:g}" for low, high in pairwise(edges)]
    return [f"L < {edges[0]:g}", *between, f"L ≥ {edges[-1]:g}"]


def summary(drawn: Sample) -> str:
    """What `aopsd audit sample` says: how it was drawn, and a table of bins."""
    how = "the same number of each bin as far as it goes" if drawn.by_bin else "simple random sample"
    rows = zip(bin_names(drawn.edges), drawn.drawn_per_bin, drawn.population_per_bin, strict=True)
    table = markdown_table(["L, nats a token", "drawn", "in the run"], rows)
    return (
        f"{drawn.num_drawn} of {sum(drawn.population_per_bin)} events ({how}, seed {drawn.seed}; {drawn.count} asked "
        f"for); {drawn.num_empty} empty probes left out\n\n{table}"
    )


def count_per_bin(nlls: Sequence[float], edges: Sequence[float]) -> list[int]:
    counts = Counter(bin_of(nll, edges) for nll in nlls)
    return [counts[index] for index in range(len(edges) + 1)]


def _same_sample(folder: Path, wanted: dict[str, Any]) -> Sample:
    found = read_sample(folder.parent)
    before = {name: getattr(found, name) for name in wanted}
    changed = [f"{name} {before[name]!r} -> {value!r}" for name, value in wanted.items() if before[name] != value]
    if changed:
        raise UserError(
            f"{folder}: holds a sample drawn with other settings ({', '.join(changed)}). Labels may refer to it: "
            "repeat its settings, or move the folder away to draw anew."
        )
    return found
