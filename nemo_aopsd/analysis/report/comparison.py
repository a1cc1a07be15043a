"""Runs and evaluations side by side. Rollouts are not read, so many runs cost little."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nemo_aopsd.config.label import family_label
from nemo_aopsd.console import counted
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.benchmarks import benchmark_name
from nemo_aopsd.evaluation.tables import ends, has_width
from nemo_aopsd.files import read_json
from nemo_aopsd.run import layout
from nemo_aopsd.run.folder import refuse_suite
from nemo_aopsd.run.reader import Run, load_run, parse
from nemo_aopsd.run.record_types import Evaluation
from nemo_aopsd.stats import paired_bootstrap_interval, sign_flip_p_value

_SETTINGS = ("temperature", "top_p", "top_k", "max_new_tokens", "prompts_and_answers")  # names in `.settings.json`


class Cell(NamedTuple):
    """`detail` has the counts behind `text`."""

    text: str
    detail: str = ""


class Measured(NamedTuple):
    """An evaluation of a set of problems at a step. Two are compared only if the same was `asked` of the model."""

    problems: str
    step: int
    summary: Evaluation
    asked: tuple[object, ...] = ()
    by_training: bool = False


class Source(NamedTuple):
    """A run, or an evaluation of a model as it comes. `evaluations` are in the order of steps."""

    name: str
    model: str
    evaluations: list[Measured]
    method: str = ""
    minutes: Cell = Cell("-")  # an epoch, of the steps of finished epochs
    run: Run | None = None


@dataclass(frozen=True)
class _Results:
    """As much of `results.json` as is read here."""

    model: str
    benchmarks: dict[str, Evaluation]


def read_sources(paths: Sequence[Path]) -> list[Source]:
    """Each folder once. Raises UserError on one that is neither a run nor an evaluation, or has a broken file."""
    return [read_source(path) for path in {path.resolve(): path for path in paths}.values()]


def side_by_side(sources: Sequence[Source]) -> list[list[Cell]]:
    """A header and a row a source: pass@1 at the first and at the newest checkpoint evaluated on each set of problems.

    Both are of evaluations asked as training asks (`_alike`); the others are listed below the newest. A column without
    any value is left out. Empty if there is nothing to compare: one run with only its training's evaluations.
    """
    sets = sorted({name for source in sources for name, *_ in source.evaluations})
    if len(sources) == 1 and len(sets) <= 1:
        return []
    columns = [f"{name}, {when}" for name in sets for when in ("first", "newest")]
    header = [Cell(text) for text in ("Run", "Method", *columns, "min an epoch")]
    rows = [header, *(_row(source, sets) for source in sources)]
    filled = [column for column in zip(*rows, strict=True) if any(cell.text not in ("", "-") for cell in column[1:])]
    has_numbers = any(column[0].text not in ("Run", "Method") for column in filled)
    return [list(row) for row in zip(*filled, strict=True)] if has_numbers else []


def differences(sources: Sequence[Source]) -> list[list[Cell]]:
    """A header and a row for each other source and set of problems: pass@1 of the first source less that of the other.

    Of the newest checkpoints that `side_by_side` names, paired by problem. Empty if no two evaluated the same problems.
    """
    rows = []
    for there, ours, theirs in _pairs(sources):
        name = Cell(there.name, there.method if there.method != there.name else "")
        rows.append([name, *_difference(ours, theirs), Cell(ours.problems)])
    header = [Cell(text) for text in ("This run against", "difference", "here", "there", "problems")]
    return [header, *rows] if rows else []


def cautions(sources: Sequence[Source]) -> list[str]:
    """What is to be said before `differences`: whose evaluation compared there is not that of its end."""
    found = [
        source.run.caution(newest.step, source.name)
        for there, *sides in _pairs(sources)
        for source, newest in zip((sources[0], there), sides, strict=True)
        if source.run
    ]
    return [said for said in dict.fromkeys(found) if said]


def _pairs(sources: Sequence[Source]) -> Iterator[tuple[Source, Measured, Measured]]:
    """Each other source, and the newest evaluation of the first and of it on each set of problems that both have."""
    here, *others = sources
    for there in others:
        for name in sorted({one.problems for one in here.evaluations} & {one.problems for one in there.evaluations}):
            yield there, _alike(here, name)[-1], _alike(there, name)[-1]


def verdict(low: float, high: float) -> str:
    """What the interval of a difference says; without width it is none."""
    if not has_width(low, high):
        return "no verdict"
    return "better" if low > 0 else "worse" if high < 0 else "no difference shown"


def read_source(path: Path) -> Source:
    """A run folder, or a folder that `aopsd evaluate` wrote."""
    if (path / layout.CONFIG).is_file():
        return _read_run(load_run(path))
    if not (path / layout.RESULTS).is_file():
        refuse_suite(path)
        raise UserError(f"{path}: neither a run (config.yaml) nor an evaluation (results.json). Check the path.")
    results = parse(_Results, (path / layout.RESULTS).read_bytes(), str(path / layout.RESULTS))
    return Source(name_of(path), results.model, [Measured(name, 0, one) for name, one in results.benchmarks.items()])


def name_of(path: Path) -> str:
    """What to call a run: its folder, and the member before it where a suite calls all its runs `seed_N`."""
    path = path.resolve()
    return f"{path.parent.name}/{path.name}" if re.fullmatch(r"seed_\d+", path.name) else path.name


def _read_run(run: Run) -> Source:
    finished = [row for row in run.metrics if row.epoch < run.epochs_done]
    held_out = benchmark_name(str(run.config.aopsd.evaluation.data_path))
    found = [
        Measured(held_out, one.step, one, _asked(one, file), by_training=True)
        for one, file in zip(run.evaluations, layout.evaluation_files(run.path).values(), strict=True)
    ]
    minutes, epochs = sum(row.number("time/step") for row in finished) / 60, len({row.epoch for row in finished})
    return Source(
        name=name_of(run.path),
        model=str(run.config.policy["model_name"]),
        evaluations=sorted([*found, *_later_evaluations(run)], key=lambda one: one.step),
        method=family_label(run.config.aopsd),
        run=run,
        minutes=Cell(f"{minutes / epochs:.3g}", counted(epochs, "epoch")) if epochs else Cell("-"),
    )


def _later_evaluations(run: Run) -> Iterator[Measured]:
    """Those of `aopsd evaluate` on checkpoints, which are named by their step."""
    for file in sorted((run.path / layout.EVALUATIONS).glob(f"*/{layout.RESULTS}")):
        results = parse(_Results, file.read_bytes(), str(file))
        match = re.fullmatch(r"step_(\d+)", results.model)
        if match is None:
            raise UserError(f"{file}: `model` must be a checkpoint such as step_000012, got {results.model!r}.")
        for name, one in results.benchmarks.items():
            yield Measured(name, int(match[1]), one, _asked(one, file.with_name(f"{name}.json")))


def _asked(one: Evaluation, stem: Path) -> tuple[object, ...]:
    """Problems, samples and sampling settings. The seed is no part: that of `aopsd evaluate` is another by design."""
    file = stem.with_suffix(".settings.json")
    settings = read_json(file, remedy="Restore it, or delete its evaluation.") if file.exists() else {}
    return (*sorted(one.correct_per_problem), one.num_samples, *(settings.get(key) for key in _SETTINGS))


def _row(source: Source, sets: Sequence[str]) -> list[Cell]:
    unfinished = f"; unfinished: {source.run.steps_done}" if source.run and not source.run.is_finished else ""
    cells = [Cell(source.name, source.model + unfinished), Cell(source.method)]
    for wanted in sets:
        cells += _first_and_newest(source, wanted)
    return [*cells, source.minutes]


def _first_and_newest(source: Source, problems: str) -> list[Cell]:
    alike = _alike(source, problems)
    if not alike:
        return [Cell("-")] * 2
    text, detail = _rate(alike[-1].step, alike[-1].summary)
    found = [one for one in source.evaluations if one.problems == problems]
    others = [_rate(one.step, one.summary) for one in found if one.asked != alike[0].asked]
    detail += "".join(f"; asked otherwise: {other.text} at {other.detail}" for other in others)
    return [_rate(alike[0].step, alike[0].summary), Cell(text, detail)]


def _alike(source: Source, problems: str) -> list[Measured]:
    """The evaluations on these problems asked as training asks, or else in the most usual way, by step, one a step."""
    found = [one for one in source.evaluations if one.problems == problems]
    if not found:
        return []
    groups = Counter(one.asked for one in found)
    leading = max(found, key=lambda one: (one.by_training, groups[one.asked], one.summary.num_samples))
    # The first of a step stays: where training evaluated it and `aopsd evaluate` again, training's own.
    by_step = {one.step: one for one in reversed(found) if one.asked == leading.asked}
    return [by_step[step] for step in sorted(by_step)]


def _difference(ours: Measured, theirs: Measured) -> list[Cell]:
    """The difference, and pass@1 of both."""
    sides = [_rate(one.step, one.summary) for one in (ours, theirs)]
    if ours.asked != theirs.asked:
        return [Cell("-", "asked otherwise: not paired"), *sides]
    before, after = (
        [count / one.summary.num_samples for _, count in sorted(one.summary.correct_per_problem.items())]
        for one in (theirs, ours)
    )
    low, high = paired_bootstrap_interval(before, after)
    p_value = sign_flip_p_value([[one - other for other, one in zip(before, after, strict=True)]])
    change = 100 * (ours.summary.pass_at_k[1] - theirs.summary.pass_at_k[1])
    told = f"95 % interval {ends(low, high, '+')}, p = {p_value:.2g} (sign flips): {verdict(low, high)}"
    return [Cell(f"{change:+.1f} points", told), *sides]


def _rate(step: int, one: Evaluation) -> Cell:
    """pass@1; below it the step, the counts, and pass@k of the most samples."""
    most = max(one.pass_at_k)
    many = f", pass@{most} {100 * one.pass_at_k[most]:.1f}" if most > 1 else ""
    counts = f"{counted(one.num_problems, 'problem')} × {counted(one.num_samples, 'sample')}"
    return Cell(f"{100 * one.pass_at_k[1]:.1f}", f"step {step}, {counts}{many}")
