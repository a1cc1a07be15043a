"""Does what helps the teacher help its student? Conditional pass@k against question-only transfer (Figure 1a).

The teacher's side comes from `aopsd diagnose teacher`, the student's from the run's first and last evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.diagnostics.intervals import Estimate, estimate, ratio
from nemo_aopsd.analysis.diagnostics.output import Result, Table, drawing, error_bars
from nemo_aopsd.errors import UserError
from nemo_aopsd.run import layout
from nemo_aopsd.run.reader import parse, read_run
from nemo_aopsd.run.record_types import Counts
from nemo_aopsd.stats import pass_at_k


@dataclass(frozen=True)
class Pair:
    """The same problems before and after, or without and with a context."""

    before: Counts
    after: Counts
    label: str

    def at(self, k: int) -> tuple[Estimate, Estimate, Estimate]:
        """pass@k before, after, and the paired difference."""
        both = self.before, self.after
        sums = {
            problem: (1.0, *(pass_at_k(one.num_samples, one.correct_per_problem[problem], k) for one in both))
            for problem in self.before.correct_per_problem
        }
        rates = estimate(sums, lambda totals: ratio(totals[:, 1:], totals[:, :1]))
        (change,) = estimate(sums, lambda totals: ratio(totals[:, 2:] - totals[:, 1:2], totals[:, :1]), is_share=False)
        return rates[0], rates[1], change


@dataclass(frozen=True)
class Subject:
    """One run: what its context does for the teacher, and its training for the student."""

    name: str
    context: str
    weighting: str
    teacher: Pair
    student: Pair


def diagnose_utility(runs: Sequence[Path], k: int | None = None, teacher: str | None = None) -> Result:
    """Figure 1a of several runs. `teacher`: which folder of teacher evaluations, where a run has several.

    `k` defaults to the fewest samples that any evaluation has. Raises UserError if a run lacks its teacher's evaluation
    or two of its own, or if k is larger than one of them allows.
    """
    names = _short_names([run.resolve() for run in runs])
    subjects = [_subject(run, name, teacher) for run, name in zip(runs, names, strict=True)]
    if not subjects:
        raise UserError("no run given. Name one or more run folders.")
    pairs = [pair for subject in subjects for pair in (subject.teacher, subject.student)]
    most = min(one.num_samples for pair in pairs for one in (pair.before, pair.after))
    k = most if k is None else k
    if not 1 <= k <= most:
        raise UserError(f"--k {k}: an evaluation of these runs has {most} samples a problem. Choose 1 to {most}.")
    rows = [_row(subject, k) for subject in subjects]
    return Result(
        name="utility",
        title=f"Conditional utility of the teacher and transfer to its student, pass@{k}",
        settings={"runs": ", ".join(str(run) for run in runs), "k": k},
        samples={
            "runs": len(subjects),
            **{f"teacher's problems, {one.name}": len(one.teacher.before.correct_per_problem) for one in subjects},
            **{f"student's problems, {one.name}": len(one.student.before.correct_per_problem) for one in subjects},
        },
        tables=[Table(f"pass@{k}", rows)],
        figure=_figure(rows, k),
        notes=[
            "Changes are differences of pass@k on the same problems, as fractions of 1, with paired intervals.",
            "The teacher has the weights that the run began with; under dag_frontier it sees what a fresh attempt of "
            "the student reached, one attempt a sample.",
            "One run a context: intervals cover the choice of problems, not that of the training seed.",
            "The paper (725 problems, pass@8): 76.4 % alone, 95.9 % with the solution, 99.4 % with a plan, 99.2 % with "
            "subproblems; students on AIME 2025: 56 %, 56 %, 63 % after a baseline of 66 %.",
        ],
    )


def _short_names(runs: list[Path]) -> list[str]:
    """The folder of each run, or the last two where those are alike: a whole path leaves a figure no room."""
    for length in (1, 2):
        names = ["/".join(run.parts[-length:]) for run in runs]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"{', '.join(map(str, runs))}: two runs of one name. Name each once, or rename a folder.")


def _subject(run: Path, name: str, teacher: str | None) -> Subject:
    config = read_run(run).config
    kind = config.aopsd.context.kind
    if kind == "none":
        raise UserError(f"{run}: its teacher has no context (aopsd.context.kind=none), so no utility. Leave it out.")
    return Subject(name, kind, config.aopsd.weighting, _teacher(run, kind, teacher), _student(run))


def _teacher(run: Path, kind: str, name: str | None) -> Pair:
    place = layout.teacher_folder(run)
    done = sorted(
        folder.name
        for folder in place.glob(name or "*")
        if all((folder / f"{k}.json").is_file() for k in ("none", kind))
    )
    if not done:
        raise UserError(
            f"{place}: no finished teacher evaluation{f' {name}' if name else ''} with none.json and {kind}.json. "
            f"Run `aopsd diagnose teacher {run}` first."
        )
    if len(done) > 1:
        raise UserError(f"{place}: several teacher evaluations: {', '.join(done)}. Choose one: --teacher NAME.")
    folder = place / done[0]
    return _pair(_read(folder / "none.json"), _read(folder / f"{kind}.json"), done[0], folder)


def _student(run: Path) -> Pair:
    by_epoch = layout.evaluation_files(run)
    files = [*by_epoch.values()]
    if len(files) < 2 or 0 not in by_epoch:
        found = ", ".join(file.stem for file in files) or "none"
        raise UserError(
            f"{run / 'eval'}: transfer needs the evaluation before training (epoch_000.json) and a later one, found "
            f"{found}. Let the run finish an epoch, with aopsd.evaluation.data_path set."
        )
    return _pair(_read(files[0]), _read(files[-1]), f"{files[0].stem} to {files[-1].stem}", run / layout.EVALUATIONS)


def _pair(before: Counts, after: Counts, label: str, where: Path) -> Pair:
    one, other = before.correct_per_problem, after.correct_per_problem
    if one.keys() != other.keys():
        odd = sorted(one.keys() ^ other.keys())
        raise UserError(
            f"{where}: the two evaluations share no set of problems: {len(odd)} in one only. Evaluate again."
        )
    return Pair(before, after, label)


def _read(path: Path) -> Counts:
    return parse(Counts, path.read_bytes(), str(path))


def _row(subject: Subject, k: int) -> dict:
    alone, informed, gain = subject.teacher.at(k)
    before, after, change = subject.student.at(k)
    return {
        "run": subject.name,
        "context": subject.context,
        "weighting": subject.weighting,
        "teacher alone": alone,
        "teacher with context": informed,
        "change, teacher": gain,
        "student before": before,
        "student after": after,
        "change, student": change,
        "teacher's data": subject.teacher.label,
        "student's evaluations": subject.student.label,
    }


def _figure(rows: Sequence[dict], k: int) -> str:
    places = np.arange(len(rows))
    with drawing(max(4.4, 1.6 * len(rows) + 1.6), 3.8) as (figure, axes):
        for offset, key, color, label in (
            (-0.19, "change, teacher", svg.GOLD, "teacher, with its context"),
            (0.19, "change, student", svg.BLUE, "student after training, question only"),
        ):
            changes = [row[key] for row in rows]
            axes.bar(places + offset, [one.value for one in changes], width=0.36, color=color, label=label)
            bars = {"yerr": error_bars(changes), "fmt": "none", "ecolor": svg.INK, "capsize": 3}
            axes.errorbar(places + offset, [one.value for one in changes], **bars)
        axes.axhline(0, color=svg.INK, linewidth=0.8)
        axes.set_xticks(places, [f"{row['run']}\n{row['context']}" for row in rows])
        axes.grid(False, axis="x")
        axes.set(ylabel=f"change of pass@{k}")
        figure.legend(loc="outside upper left", ncols=1)
        return svg.to_svg(figure)
