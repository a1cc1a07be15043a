"""Does progress r predict the final answer? r against correctness of all judged rollouts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.diagnostics.intervals import Estimate, estimate, ratio, share
from nemo_aopsd.analysis.diagnostics.output import Result, intervals_of
from nemo_aopsd.analysis.diagnostics.steps import ALL_STEPS, Steps, read_rollouts
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.grading import grade
from nemo_aopsd.run.reader import load_run
from nemo_aopsd.run.record_types import Rollout

# Bins of r; nothing and everything reached are atoms of their own.
BINS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "r = 0": lambda r: r == 0,
    "0 < r <= 1/4": lambda r: (r > 0) & (r <= 0.25),
    "1/4 < r <= 1/2": lambda r: (r > 0.25) & (r <= 0.5),
    "1/2 < r <= 3/4": lambda r: (r > 0.5) & (r <= 0.75),
    "3/4 < r < 1": lambda r: (r > 0.75) & (r < 1),
    "r = 1": lambda r: r == 1,
}


@dataclass(frozen=True)
class Judged:
    """One judged rollout; `progress` is None where the verdict could not be read."""

    problem: str
    progress: float | None
    correct: bool
    gradable: bool = True


def diagnose_progress(run: Path, problems: Path | None = None, steps: Steps = ALL_STEPS) -> Result:
    """r (eq:dag-progress) against the graded answer of every judged rollout. `problems`: instead of the run's file.

    Raises UserError if the run judged nothing, or a rollout's problem is not in the file.
    """
    source = load_run(run)
    config = source.config
    file = problems or Path(config.data["train"]["data_path"])
    answers = {problem.id: problem.answer for problem in load_problems(file)}
    rollouts = [_judged(rollout, answers, file) for rollout in read_rollouts(source, steps)]
    judged = [one for one in rollouts if one is not None]
    if not judged:
        raise UserError(
            f"{run}: none of {len(rollouts)} rollouts was judged (context {config.aopsd.context.kind}, curriculum "
            f"{config.aopsd.curriculum.name}). Choose a run with context dag_frontier or curriculum competence."
        )
    read = [one for one in judged if one.progress is not None]
    members = {name: list(compress(read, within(_progress(read)))) for name, within in BINS.items()}
    members["unreadable verdict"] = [one for one in judged if one.progress is None]
    bins = [_bin_row(name, inside) for name, inside in members.items()]
    return Result(
        name="progress",
        title="Progress r against the final answer",
        settings={"run": str(run), "problems": str(file), "judge": config.aopsd.judge.model, "steps": str(steps)},
        samples={
            "rollouts": len(rollouts),
            "judged": len(judged),
            "readable verdicts": len(read),
            "of these correct": sum(one.correct for one in read),
            "problems": len({one.problem for one in judged}),
            "answers that could not be graded": sum(not one.gradable for one in judged),
        },
        tables={"Agreement": agreement(read), "Correct by bin of r": bins},
        figure=_figure(bins),
        notes=[
            "AUC: the chance that a correct response has a higher r than a wrong one, ties one half. Both numbers mix "
            "problems of different difficulty, so they are no proof that r ranks the attempts at one problem.",
            "r counts checkpoints of one reference route: a right answer by another route has a low r.",
            "An answer that could not be graded counts as not correct.",
        ],
    )


def agreement(read: Sequence[Judged]) -> list[dict]:
    """Point-biserial correlation and AUC of r for correctness; undefined where r or correctness does not vary."""
    found = [Estimate(None, is_share=False)] * 2
    if read:
        levels, sums = _by_level(read)
        found = estimate(sums, lambda totals: _agreement(totals, levels), is_share=False)
    measures = ("point-biserial correlation", "AUC")
    return [{"measure": measure, "value": value} for measure, value in zip(measures, found, strict=True)]


def _judged(rollout: Rollout, answers: dict[str, str], file: Path) -> Judged | None:
    problem = rollout.problem_id
    if rollout.judge_failed is None:
        return None
    if problem not in answers:
        raise UserError(f"{rollout.where}: problem {problem!r} is not in {file}. Name its file: --problems FILE.")
    graded = grade(rollout.response_text, answers[problem])
    return Judged(problem, rollout.progress, graded.correct, graded.reason in ("correct", "wrong", "no_answer"))


def _progress(read: Sequence[Judged]) -> np.ndarray:
    return np.array([one.progress for one in read], dtype=float)


def _by_level(read: Sequence[Judged]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The values of r, ascending, [L]; and by problem how many responses had each, [wrong L, then correct L]."""
    levels, places = np.unique(_progress(read), return_inverse=True)
    sums: dict[str, np.ndarray] = {}
    for one, place in zip(read, places, strict=True):
        counts = sums.setdefault(one.problem, np.zeros(2 * len(levels)))
        counts[place + one.correct * len(levels)] += 1
    return levels, sums


def _agreement(totals: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Both measures, [R, 2], of counts [R, 2 L]."""
    wrong, correct = totals[:, : len(levels)], totals[:, len(levels) :]
    num_wrong, num_correct = wrong.sum(axis=1), correct.sum(axis=1)
    below = np.cumsum(wrong, axis=1) - wrong
    auc = ratio((correct * (below + wrong / 2)).sum(axis=1), num_wrong * num_correct)
    count = num_wrong + num_correct
    mean = ratio((wrong + correct) @ levels, count)
    squares = (wrong + correct) @ levels**2 - count * mean**2
    spread = np.sqrt(np.where(squares > 1e-12 * count, squares, 0) * num_wrong * ratio(num_correct, count))
    return np.stack([ratio(correct @ levels - num_correct * mean, spread), auc], axis=1)


def _bin_row(name: str, inside: Sequence[Judged]) -> dict:
    known = [one.progress for one in inside if one.progress is not None]
    right = Counter(one.problem for one in inside if one.correct)
    return {
        "bin": name,
        "responses": len(inside),
        "problems": len({one.problem for one in inside}),
        "mean r": float(np.mean(known)) if known else None,
        "correct": sum(one.correct for one in inside),
        "share correct": share(right, Counter(one.problem for one in inside)) if inside else Estimate(None),
    }


def _figure(rows: Sequence[dict]) -> str:
    shown = [row for row in rows if row["responses"]]
    with svg.drawing(6.4, 3.6) as figure:
        axes = figure.subplots()
        shares, places = [row["share correct"] for row in shown], range(len(shown))
        heights = [one.value for one in shares]
        colors = [svg.GREY if row["mean r"] is None else svg.BLUE for row in shown]
        axes.bar(places, heights, color=colors, width=0.7)
        svg.with_errors(axes, places, heights, intervals_of(shares), fmt="none", ecolor=svg.INK)
        axes.set_xticks(places, [f"{row['bin'].replace(' verdict', '')}\nn = {row['responses']}" for row in shown])
        axes.tick_params(axis="x", labelsize=8.5)
        axes.grid(False, axis="x")
        axes.set(ylabel="share with the right answer", ylim=(0, 1.02))
        return svg.to_svg(figure)
