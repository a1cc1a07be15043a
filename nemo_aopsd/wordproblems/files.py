"""The files of `aopsd data wordproblems`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_aopsd.files import write_jsonl
from nemo_aopsd.wordproblems.problems import problem_record, sample_split
from nemo_aopsd.wordproblems.warmstart import bare_questions, demonstrations


def write_files(out: Path, seed: int, sizes: dict[str, int]) -> list[tuple[Path, int]]:
    """Write a file a split of `sizes` (keys of `BUCKETS`), the same bytes each time; return paths and rows."""
    written = []
    for split, size in sizes.items():
        path, rows = out / f"{split}.jsonl", list(_rows(split, size, seed))
        write_jsonl(path, rows)
        written.append((path, len(rows)))
    return written


def _rows(split: str, size: int, seed: int) -> Iterable[dict[str, Any]]:
    stories = islice(sample_split(split, seed), size)
    if split == "warmstart":
        return demonstrations(stories, seed)
    records = (
        problem_record(story, f"{split}-{index:04d}-steps{len(story.quantities)}", seed)
        for index, story in enumerate(stories)
    )
    return bare_questions(records) if split == "dev" else records
