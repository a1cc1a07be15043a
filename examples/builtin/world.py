"""Problems of the embedded default: chains of sums modulo 10 with an exact reasoning DAG.

`python -m examples.builtin.world --out DIR` writes `train.jsonl` and `heldout.jsonl`, byte for byte the same
each time. Every definition but the last is a checkpoint; the last one is the question, so no checkpoint states it.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_aopsd.data.leaks import find_graph_faults
from nemo_aopsd.files import atomic_write

NAMES = "abcdefgh"
MODULUS = 10
LEVELS = (3, 4, 5, 6)  # number of checkpoints
SPLITS = {"train": (384, 31_415_926), "heldout": (400, 27_182_818)}  # number of problems, seed


@dataclass(frozen=True, slots=True)
class Sum:
    """One definition `name = left + right`; an operand is a digit or an earlier name. `value` is its sum modulo 10."""

    name: str
    left: str
    right: str
    value: int

    @property
    def parents(self) -> tuple[str, ...]:
        """Names among the operands, each once."""
        return tuple(dict.fromkeys(operand for operand in (self.left, self.right) if operand in NAMES))


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Definitions in a topological order; the last one is asked for, the others are the checkpoints."""

    sums: tuple[Sum, ...]

    @property
    def target(self) -> Sum:
        return self.sums[-1]

    @property
    def checkpoints(self) -> tuple[Sum, ...]:
        return self.sums[:-1]


def sample_puzzle(rng: random.Random, level: int) -> Puzzle:
    """A puzzle with `level` checkpoints, all of them needed, none with a fault that `aopsd dag check` knows."""
    while True:
        puzzle = _draft(rng, level)
        used = {parent for item in puzzle.sums for parent in item.parents}
        doubled = any(item.left == item.right for item in puzzle.sums)
        needed = not doubled and used == {item.name for item in puzzle.checkpoints}
        if needed and not find_graph_faults(graph_record(puzzle), str(puzzle.target.value)):
            return puzzle


def _draft(rng: random.Random, level: int) -> Puzzle:
    names = rng.sample(NAMES, level + 1)
    values: dict[str, int] = {}
    unused: list[str] = []
    sums: list[Sum] = []
    for index, name in enumerate(names):
        operands = []
        for _ in range(2):
            if values and rng.random() < (0.9 if index == level else 0.5):
                operands.append(rng.choice(unused if unused and rng.random() < 0.6 else list(values)))
            else:
                operands.append(str(rng.randrange(MODULUS)))
        left, right = operands
        values[name] = sum(values[op] if op in values else int(op) for op in operands) % MODULUS
        unused = [other for other in unused if other not in operands] + [name]
        sums.append(Sum(name, left, right, values[name]))
    return Puzzle(tuple(sums))


def graph_record(puzzle: Puzzle) -> dict[str, Any]:
    """The reasoning DAG over the checkpoints, ids being the names."""
    nodes = [{"id": item.name, "statement": f"{item.name}={item.value}"} for item in puzzle.checkpoints]
    edges = [[parent, item.name] for item in puzzle.checkpoints for parent in item.parents]
    return {"nodes": nodes, "edges": edges}


def question(puzzle: Puzzle) -> str:
    """The problem's text; two puzzles are duplicates exactly if their questions are equal."""
    definitions = ", ".join(f"{item.name}: {item.left} + {item.right}" for item in puzzle.sums)
    return f"Mod {MODULUS}, {definitions}. Find {puzzle.target.name}."


def problem_record(puzzle: Puzzle, problem_id: str) -> dict[str, Any]:
    """One line of a problems file, with everything that any teacher context needs."""
    values = {item.name: f"{item.name} {item.value}" for item in puzzle.sums}  # an operand is named with its value
    worked = ", ".join(
        f"{item.name}: {values.get(item.left, item.left)} + {values.get(item.right, item.right)}"
        f" makes {item.value} {item.name}={item.value}"
        for item in puzzle.sums
    )
    return {
        "id": problem_id,
        "problem": question(puzzle),
        "answer": str(puzzle.target.value),
        "solution": f"{worked}, answer \\boxed{{{puzzle.target.value}}}",
        "plan": [f"Find {item.name}." for item in puzzle.sums],
        "subproblems": [f"What makes {item.name}?" for item in puzzle.sums],
        "dag": graph_record(puzzle),
    }


def sample_records(prefix: str, num_problems: int, seed: int, taken: set[str]) -> list[dict[str, Any]]:
    """`num_problems` records, levels in turn, no question twice nor in `taken` (which grows)."""
    rng = random.Random(seed)
    records: list[dict[str, Any]] = []
    while len(records) < num_problems:
        level = LEVELS[len(records) % len(LEVELS)]
        puzzle = sample_puzzle(rng, level)
        if question(puzzle) not in taken:
            taken.add(question(puzzle))
            records.append(problem_record(puzzle, f"{prefix}-{len(records):03d}-level{level}"))
    return records


def splits() -> dict[str, list[dict[str, Any]]]:
    """The records of every shipped split; no question occurs twice, within a split or between two."""
    taken: set[str] = set()
    return {name: sample_records(name, number, seed, taken) for name, (number, seed) in SPLITS.items()}


def write_splits(directory: Path) -> None:
    """Write every split as JSONL into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, records in splits().items():
        atomic_write(directory / f"{name}.jsonl", "".join(json.dumps(record) + "\n" for record in records))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the embedded problems (train.jsonl, heldout.jsonl).")
    parser.add_argument("--out", type=Path, required=True, help="folder, e.g. nemo_aopsd/builtin/data")
    write_splits(parser.parse_args().out)


if __name__ == "__main__":
    main()
