"""The GSM8K tables of docs/results.md from their counts: right answers to each held-out problem, by study and seed.

    python -m benchmarks.gsm8k_counts [MEMBER]   # reads benchmarks/measured/gsm8k_counts.json
    python -m benchmarks.gsm8k_counts --add runs/compare/SUITE/*/seed_* --study NAME   # writes new runs into it

Problems are lines of GSM8K's train.jsonl. Differences are in points of pass@1 from MEMBER, or from `base`, the
untrained model, paired by problem and seed, over the problems that both have. Those of one seed have a bootstrap
interval over problems. Those over all seeds that both have, at least two, have Student's t over the seeds (t) and the
crossed bootstrap over problems and seeds (c); the page states the wider of the two.

`--add` takes run folders, MEMBER/seed_N or MEMBER_seed_N, with an evaluation after training; the runs must have ended.
Their evaluation before training is the seed's `base` if the study has none yet. Counts that are there never change.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.seed_differences import student_t
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.summary import check_same_problems
from nemo_aopsd.files import atomic_write
from nemo_aopsd.run import layout
from nemo_aopsd.run.reader import parse
from nemo_aopsd.run.record_types import Counts
from nemo_aopsd.stats import bootstrap_interval, crossed_bootstrap_interval

COUNTS = Path(__file__).parent / "measured/gsm8k_counts.json"
Table = tuple[np.ndarray, np.ndarray]  # right answers and samples, [problems]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("member", nargs="?", default="base")
    parser.add_argument("--add", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--study", metavar="NAME")
    arguments = parser.parse_args()
    if (arguments.add is None) != (arguments.study is None):
        parser.error("--add and --study belong together")
    studies = json.loads(COUNTS.read_text(encoding="utf-8"))
    if arguments.add:
        study = studies.setdefault(arguments.study, {"problems": "", "right_and_samples": {}})
        try:
            for run in arguments.add:
                add(run, study)
        except UserError as error:
            parser.exit(1, f"{error}\nNothing was written.\n")
        atomic_write(COUNTS, json.dumps(studies, indent=1) + "\n")
        return
    known = {member for study in studies.values() for member in study["right_and_samples"]}
    if arguments.member not in known:
        parser.error(f"no study has {arguments.member}; there are {', '.join(sorted(known))}")
    for name, study in studies.items():
        members = {
            member: {int(seed): table(words) for seed, words in seeds.items()}
            for member, seeds in study["right_and_samples"].items()
        }
        if arguments.member in members:
            print(name)
            show(members, arguments.member)


def show(members: Mapping[str, Mapping[int, Table]], against: str) -> None:
    """Print the tables of one study: one for each seed of the member `against`, and one over its seeds."""
    reference = members[against]
    for seed in sorted(reference):
        print(f"  seed {seed}, less {against}")
        for name, seeds in members.items():
            if seed in seeds:
                print(_line(name, {seed: seeds[seed]}, {} if name == against else {seed: reference[seed]}))
    repeated = {name: seeds for name, seeds in members.items() if len(seeds.keys() & reference.keys()) > 1}
    if repeated:
        print(f"  over seeds, less {against}")
    for name, seeds in repeated.items():
        print(_line(name, seeds, {} if name == against else reference))


def _line(name: str, seeds: Mapping[int, Table], reference: Mapping[int, Table]) -> str:
    right, samples = np.sum(list(seeds.values()), axis=(0, 2))
    line = f"    {name:17} {100 * right / samples:5.1f} % of {samples} samples"
    both = sorted(seeds.keys() & reference.keys())
    if not both:
        return line
    asked = np.all([table[1] > 0 for seed in both for table in (seeds[seed], reference[seed])], axis=0)
    points = 100 * np.array([_rates(seeds[seed], asked) - _rates(reference[seed], asked) for seed in both])
    line += f", {points.mean():+z5.1f}"
    if len(both) == 1:
        return f"{line} {_interval(*bootstrap_interval(points[0].tolist()))} on {asked.sum()} problems"
    by_seed = points.mean(axis=1).tolist()
    half = student_t(by_seed)
    student = _interval(points.mean() - half, points.mean() + half)
    crossed = _interval(*crossed_bootstrap_interval(points))
    each = ", ".join(f"{difference:+z.1f} (seed {seed})" for seed, difference in zip(both, by_seed, strict=True))
    return f"{line} t {student} c {crossed} on {asked.sum()} problems: {each}"


def _rates(counts: Table, asked: np.ndarray) -> np.ndarray:
    return counts[0][asked] / counts[1][asked]


def _interval(low: float, high: float) -> str:
    return f"[{low:+z.1f}, {high:+z.1f}]"


def table(words: str) -> Table:
    """Right answers and samples of each problem; 0 of 0 where it was not asked."""
    pairs = [("0", "0") if word == "-" else word.split("/") for word in words.split()]
    right, samples = np.array(pairs, dtype=int).T
    return right, samples


def add(run: Path, study: dict[str, Any]) -> None:
    """Put the counts of a run into `study`, and say so. Raises UserError for other problems or counts, or no end."""
    named = re.fullmatch(r".*?([^/]+)[/_]seed_(\d+)", run.resolve().as_posix())
    files = list(layout.evaluation_files(run).values())
    if not named or len(files) < (1 if named[1] == "base" else 2):
        raise UserError(
            f"{run}: expected MEMBER/seed_N of a run that ended, with an evaluation before and after training; "
            f"found {len(files)}. Let it end, or leave it out."
        )
    before, after = (parse(Counts, file.read_bytes(), str(file)) for file in (files[0], files[-1]))
    problems = study["problems"].split() or [name.removeprefix("train-") for name in after.correct_per_problem]
    study["problems"] = " ".join(problems)
    for member, found in {"base": before, named[1]: after}.items():
        right = {name.removeprefix("train-"): count for name, count in found.correct_per_problem.items()}
        check_same_problems(f"{found.where} and the study", right, problems, "Choose another --study.")
        words = " ".join(f"{right[problem]}/{found.num_samples}" for problem in problems)
        seeds = study["right_and_samples"].setdefault(member, {})
        if seeds.get(named[2], words) == words:
            told = "there already" if named[2] in seeds else "added"
            seeds[named[2]] = words
        elif member == "base":
            told = "left out: the study has another evaluation of the untrained model for this seed"
        else:
            raise UserError(f"{found.where}: {run} has other counts than the study. Remove either.")
        print(f"{member}, seed {named[2]}, {sum(right.values())} right: {told}")


if __name__ == "__main__":
    main()
