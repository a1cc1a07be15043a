"""Which events are labelled: a simple random sample, or as many of each NLL bin as there are.

The paper names neither its bins nor its way of sampling (its appendix F.3 is not public). Only the bound of the last
bin, 4 nats, and the number of events, 15,043, are its own.
"""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from nemo_aopsd.analysis.audit.events import Place, Population, find_events, read_events
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_write, derive_seed, read_json, read_jsonl, write_jsonl
from nemo_aopsd.run.folder import load_run_config

EDGES = (0.5, 1.0, 2.0, 3.0, 4.0)  # nats a token, between the bins
_DRAWN_BY = ("seed", "count", "by_bin", "edges")
_WRITTEN = (*_DRAWN_BY, "population_per_bin", "drawn_per_bin", "num_empty", "last_file")

Record = dict[str, Any]


def sample(run: Path, *, count: int, seed: int, by_bin: bool = False, edges: Sequence[float] = EDGES) -> Record:
    """Draw events into `run/audit/`; returns what `sample.json` says. The same call again changes nothing.

    Raises UserError if a sample is there that was drawn otherwise, for labels may rest on it.
    """
    _check_edges(edges)
    folder, population = run / "audit", find_events(run)
    wanted = {"seed": seed, "count": count, "by_bin": by_bin, "edges": list(edges)}
    if (folder / "sample.json").exists():
        return _same_sample(folder, wanted)
    chosen = draw(population.places, count=count, seed=seed, by_bin=by_bin, edges=edges)
    seen, key = {}, {}
    for place, event, numbers in read_events(chosen, load_run_config(run)):
        seen[place], key[place] = event, numbers
    record = wanted | _summary(population, chosen, edges)
    write_jsonl(folder / "events.jsonl", [seen[place] for place in chosen])
    write_jsonl(folder / "key.jsonl", [key[place] for place in chosen])
    atomic_write(folder / "sample.json", json.dumps(record, indent=1) + "\n")  # last: the sample is complete
    return record


def read_sample(folder: Path) -> Record:
    """What `sample.json` says. Raises UserError if it is not as it was written."""
    return read_json(folder / "sample.json", *_WRITTEN, remedy=f"Restore the file, or move {folder} away.")


def read_drawn(folder: Path, name: str, fields: Sequence[str]) -> list[Record]:
    """Every line of a file that `sample` wrote. Raises UserError if one is damaged, lacks a field or is not there."""
    path, expected = folder / name, sum(read_sample(folder)["drawn_per_bin"])
    lines = []
    for where, line in read_jsonl(path):
        missing = [field for field in fields if field not in line]
        if missing:
            raise UserError(f"{where}: no `{missing[0]}` in it. Restore the file, or move {folder} away.")
        lines.append(line)
    if len(lines) != expected:
        raise UserError(
            f"{path}: {len(lines)} events, but sample.json says {expected}. Restore the file, or move {folder} away."
        )
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
    """Shares of `count` as even as the bins allow: what a small bin cannot give, the others give.

    >>> allocate([100, 2, 50], 30)
    [14, 2, 14]
    """
    given = [0] * len(sizes)
    left = min(count, sum(sizes))
    while left:
        open_bins = [index for index, size in enumerate(sizes) if given[index] < size]
        even = max(1, left // len(open_bins))
        for index in open_bins:
            more = min(even, sizes[index] - given[index], left)
            given[index] += more
            left -= more
    return given


def bin_of(nll: float, edges: Sequence[float]) -> int:
    """Index of the bin of L_t; an edge belongs to the bin above it.

    >>> [bin_of(nll, (0.5, 4.0)) for nll in (0.0, 0.5, 3.9, 4.0)]
    [0, 1, 1, 2]
    """
    return bisect_right(edges, nll)


def bin_name(index: int, edges: Sequence[float]) -> str:
    """`L < 0.5`, `0.5 ≤ L < 1`, `L ≥ 4`."""
    if index == 0:
        return f"L < {edges[0]:g}"
    return f"L ≥ {edges[-1]:g}" if index == len(edges) else f"{edges[index - 1]:g} ≤ L < {edges[index]:g}"


def summary_lines(record: Record) -> list[str]:
    """What `aopsd audit sample` says: a line in all, a line a bin."""
    drawn, population = record["drawn_per_bin"], record["population_per_bin"]
    how = "the same number of each bin as far as it goes" if record["by_bin"] else "simple random sample"
    lines = [
        f"{sum(drawn)} of {sum(population)} events ({how}, seed {record['seed']}); "
        f"{record['num_empty']} empty probes left out"
    ]
    lines += [
        f"  {bin_name(index, record['edges']):<12} {taken:>6} of {there}"
        for index, (taken, there) in enumerate(zip(drawn, population, strict=True))
    ]
    if sum(drawn) < record["count"]:
        lines.append(f"{record['count']} were asked for; the run has no more.")
    return lines


def count_per_bin(nlls: Sequence[float], edges: Sequence[float]) -> list[int]:
    """How many values each bin holds."""
    counts = [0] * (len(edges) + 1)
    for nll in nlls:
        counts[bin_of(nll, edges)] += 1
    return counts


def _summary(population: Population, chosen: Sequence[Place], edges: Sequence[float]) -> Record:
    return {
        "population_per_bin": count_per_bin([place.nll for place in population.places], edges),
        "drawn_per_bin": count_per_bin([place.nll for place in chosen], edges),
        "num_empty": population.num_empty,
        "last_file": max(place.file.name for place in population.places),
    }


def _same_sample(folder: Path, wanted: Record) -> Record:
    record = read_sample(folder)
    changed = [
        f"{name} {record.get(name)!r} -> {wanted[name]!r}" for name in _DRAWN_BY if record.get(name) != wanted[name]
    ]
    if changed:
        raise UserError(
            f"{folder}: holds a sample that was drawn otherwise ({', '.join(changed)}). Labels may rest on it: "
            f"repeat its settings, or move the folder away to draw anew."
        )
    return record


def _check_edges(edges: Sequence[float]) -> None:
    if not edges or not all(low < high < math.inf for low, high in pairwise([0.0, *edges])):  # NaN fails, too
        raise UserError(f"--edges {edges}: expected rising numbers above 0, in nats a token. Give 0.5,1,2,3,4, say.")
