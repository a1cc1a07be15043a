"""The files that `python -m examples.wordproblems` writes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from examples.wordproblems.problems import problem_record, sample_split
from examples.wordproblems.story import Story
from examples.wordproblems.warmstart import bare_questions, demonstrations, judge_cases
from nemo_aopsd.files import write_jsonl


def write_files(out: Path, seed: int, sizes: dict[str, int]) -> list[tuple[Path, int]]:
    """Write a file a split of `sizes` (keys of `BUCKETS`), and `judge_cases.jsonl`, attempts at the held-out problems.

    The same seed and sizes give the same bytes. Returns paths and numbers of rows.
    """
    stories = {split: list(islice(sample_split(split, seed), size)) for split, size in sizes.items()}
    records = {split: _records(split, stories[split], seed) for split in ("train", "heldout", "dev")}
    ids = [record["id"] for record in records["heldout"]]
    files = {
        "train": records["train"],
        "heldout": records["heldout"],
        "dev": bare_questions(records["dev"]),
        "warmstart": demonstrations(stories["warmstart"], seed),
        "judge_cases": judge_cases(stories["heldout"], ids, seed),
    }
    return [_write(out / f"{name}.jsonl", list(rows)) for name, rows in files.items()]


def _records(split: str, stories: list[Story], seed: int) -> list[dict[str, Any]]:
    return [
        problem_record(story, f"{split}-{index:04d}-steps{len(story.quantities)}", seed)
        for index, story in enumerate(stories)
    ]


def _write(path: Path, rows: list[dict[str, Any]]) -> tuple[Path, int]:
    write_jsonl(path, rows)
    return path, len(rows)
