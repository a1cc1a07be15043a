"""Sampled and graded responses in a file that survives any kill.

A row is one sample of one problem; its line is written once and never made again. Rows are numbered problem by
problem, sample by sample, and a complete file lists them in this order, so an interrupted evaluation ends in the bytes
of an uninterrupted one wherever the engine repeats a row exactly.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from nemo_aopsd.console import progress
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import LanguageModel, Tokenizer
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import derive_seed, json_text, read_json, read_jsonl
from nemo_aopsd.grading import grade
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.method.leaks import mentions_context
from nemo_aopsd.thoughts import whole_text
from nemo_aopsd.types import Generation, Sampling, Tokens

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One response as an engine gave it; `seed` is what it was drawn with."""

    row: int
    generation: Generation
    seed: int


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked, `num_samples` times each. `prompts` has one entry a problem, `patterns` are the leak meter's."""

    problems: Sequence[Problem]
    prompts: Sequence[Tokens]
    num_samples: int
    tokenizer: Tokenizer
    patterns: Sequence[re.Pattern[str]]


class Sampler(Protocol):
    """How rows become responses: some rows at a time, in any order, each row of `missing` once at least."""

    def __call__(self, prompts: list[Tokens], missing: Sequence[int]) -> Iterator[list[Sampled]]:
        """`prompts` of all rows; `missing` are the indices of those that have no line yet."""
        ...


class SeededModel(Protocol):
    """A model that draws each row from a seed of its own and hands a response out as soon as it is complete."""

    def stream(self, prompts: list[Tokens], sampling: Sampling, seeds: list[int]) -> Iterator[tuple[int, Generation]]:
        """(index in `prompts`, response), in any order."""
        ...


@dataclass(frozen=True, slots=True)
class BlockSampler:
    """Fixed blocks of rows, one seed a block: a row has the same neighbours each time, so equal bits."""

    model: LanguageModel
    sampling: Sampling
    seed: int
    block_size: int

    def __call__(self, prompts: list[Tokens], missing: Sequence[int]) -> Iterator[list[Sampled]]:
        for block in sorted({row // self.block_size for row in missing}):
            rows = range(block * self.block_size, min((block + 1) * self.block_size, len(prompts)))
            seed = derive_seed(self.seed, "evaluation", block)
            generations = self.model.generate([prompts[row] for row in rows], self.sampling, seed)
            yield [Sampled(row, found, seed) for row, found in zip(rows, generations, strict=True)]


@dataclass(frozen=True, slots=True)
class RowSampler:
    """One seed a row, for engines that batch as they like."""

    model: SeededModel
    sampling: Sampling
    seed: int

    def __call__(self, prompts: list[Tokens], missing: Sequence[int]) -> Iterator[list[Sampled]]:
        seeds = [derive_seed(self.seed, "evaluation", "row", row) for row in missing]
        for index, generation in self.model.stream([prompts[row] for row in missing], self.sampling, seeds):
            yield [Sampled(missing[index], generation, seeds[index])]


def collect(manifest: Manifest, path: Path, asked: Questions, sampler: Sampler, title: str) -> list[Line]:
    """A line a row of `path`, those that it lacks sampled and graded now, behind a bar; in order of rows.

    `manifest` has checked what is there. Raises UserError on a line of `path` that is broken or belongs to no row.
    """
    problems, prompts = asked.problems, asked.prompts
    rows = [(problem, sample) for problem in range(len(problems)) for sample in range(asked.num_samples)]
    found = _read(path, {(problems[index].id, sample): row for row, (index, sample) in enumerate(rows)})
    missing = [row for row in range(len(rows)) if row not in found]
    with progress(title, len(rows), len(found), Console(stderr=True), keep=True) as advance:
        for batch in sampler([prompts[index] for index, _ in rows], missing) if missing else ():
            new = {sampled.row: sampled for sampled in batch if sampled.row not in found}
            for row, sampled in new.items():
                index, sample = rows[row]
                text = whole_text(prompts[index], sampled.generation.tokens, asked.tokenizer)
                found[row] = _line(problems[index], sample, sampled, text, asked.patterns)
            manifest.append(path, [found[row] for row in new])
            advance(len(new))
    lines = [found[row] for row in range(len(rows))]
    if list(found) != sorted(found):
        manifest.replace_jsonl(path, lines)
    return lines


def check_settings(manifest: Manifest, stem: Path, settings: dict[str, Any]) -> None:
    """Store what samples are made with, or refuse to go on under other settings than the stored ones.

    Raises UserError naming each setting that differs, or if there are samples without stored settings.
    """
    path, samples_path = stem.with_suffix(".settings.json"), stem.with_suffix(".jsonl")
    if not path.exists():
        if samples_path.exists():
            raise UserError(f"{samples_path}: has no {path.name}, which says how its samples were made. Move it away.")
        manifest.replace(path, json_text(settings))
        return
    stored = read_json(path, remedy=f"Restore it, or delete {stem.name}.* there to start over.")
    changed = [key for key in {**stored, **settings} if stored.get(key) != settings.get(key)]
    if changed:
        listed = ", ".join(
            "another seed" if key == "seed" else f"{key} {stored.get(key)!r} -> {settings.get(key)!r}"
            for key in changed  # a benchmark's seed is not the one that was typed
        )
        remedy = f"Restore them, choose another folder, or delete {stem.name}.* there to start over."
        raise UserError(f"{samples_path}: made with other settings ({listed}). {remedy}")


def _line(problem: Problem, sample: int, sampled: Sampled, text: str, patterns: Sequence[re.Pattern[str]]) -> Line:
    graded = grade(text, problem.answer)
    return {
        "problem_id": problem.id,
        "sample": sample,
        "seed": sampled.seed,  # of the whole block, or of this row alone: `block_size` in the settings tells
        "response_text": text,
        "num_tokens": len(sampled.generation.tokens),
        "finished": sampled.generation.finished,
        "correct": graded.correct,
        "reason": graded.reason,
        "leak": mentions_context(text, patterns),
    }


def _read(path: Path, row_of: dict[tuple[object, object], int]) -> dict[int, Line]:
    if not path.exists():
        return {}
    found: dict[int, Line] = {}
    for where, line in read_jsonl(path):
        row = row_of.get((str(line.get("problem_id")), line.get("sample", -1)))
        if row is None or row in found:
            kind = "belongs to no row" if row is None else "repeats a row"
            raise UserError(f"{where}: {kind} of this evaluation. Delete the line, or the file to start over.")
        found[row] = line
    return found
