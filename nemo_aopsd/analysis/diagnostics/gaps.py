"""How concentrated is the gap? Share of tokens against share of the sum of |gap|, by threshold and sign (Figure 1b)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.diagnostics.intervals import estimate, ratio
from nemo_aopsd.analysis.diagnostics.output import Result
from nemo_aopsd.analysis.diagnostics.steps import ALL_STEPS, Steps, read_rollouts
from nemo_aopsd.analysis.gap_mass import GapMass
from nemo_aopsd.errors import UserError
from nemo_aopsd.run.reader import load_run

THRESHOLDS = (0.5, 1.0, 2.0, 4.0)  # nats
PAPER = {1.0: "3.08 % / 51.78 %", 2.0: "1.15 % / 34.07 %"}  # tokens / mass, sec:obs-solver-teacher


def diagnose_gaps(run: Path, thresholds: Sequence[float] = THRESHOLDS, steps: Steps = ALL_STEPS) -> Result:
    """Figure 1b of a run's rollouts. Raises UserError if no rollout was scored or a threshold is not positive."""
    thresholds = sorted(set(thresholds))
    if not thresholds or thresholds[0] <= 0:
        raise UserError(f"thresholds {thresholds}: each must be above 0 nats. Choose others.")
    source = load_run(run)
    config, curves, num_rollouts, num_dropped = source.config, GapMass(THRESHOLDS), 0, 0
    by_problem: dict[str, np.ndarray] = {}
    for rollout in read_rollouts(source, steps):
        gaps, num_rollouts = rollout.gaps(), num_rollouts + 1
        if gaps is None:
            num_dropped += 1
            continue
        by_problem[rollout.problem_id] = by_problem.get(rollout.problem_id, 0) + _sums(gaps, thresholds)
        curves.add(gaps)
    num_tokens = int(curves.tokens.sum())
    if not num_tokens:
        raise UserError(
            f"{run}: none of {num_rollouts} rollouts has a scored token ({num_dropped} have no gap: "
            f"the teacher's prompt did not fit, or objective {config.aopsd.objective.name} reads no sampled tokens). "
            "Choose other steps, raise policy.max_total_sequence_length, or look at a run of the objective pg."
        )
    notes = [
        "A gap is the teacher's log-prob of the sampled token less the student's, at collection; all tokens of a "
        "response count, of cut-off ones too.",
        "`paper` has the published shares (tokens / mass) of Qwen3-4B-Instruct-2507 before training, on other data.",
    ]
    if not curves.mass.sum():
        notes.append("Every gap is 0, so shares of the sum are undefined: teacher and student read the same here.")
    with svg.drawing(6.4, 4.0) as drawn:
        curves.draw(drawn, drawn.subplots(), [*PAPER])
        figure = svg.to_svg(drawn)
    return Result(
        name="gaps",
        title="Share of tokens and share of |gap|",
        settings={"run": str(run), "context": config.aopsd.context.kind, "steps": str(steps)},
        samples={
            "rollouts": num_rollouts,
            "of these dropped unscored": num_dropped,
            "problems": len(by_problem),
            "tokens": num_tokens,
        },
        tables={"By threshold and sign": _rows(by_problem, thresholds)},
        figure=figure,
        notes=notes,
    )


def _sums(gaps: np.ndarray, thresholds: Sequence[float]) -> np.ndarray:
    """Tokens and sums of |gap|, [1 + thresholds, 2 signs, (tokens, mass)]."""
    size = np.abs(gaps)
    signs = np.stack([gaps >= 0, gaps < 0])  # a gap of 0 has no mass; counting it here keeps the token total
    reached = np.stack([size >= threshold for threshold in (0.0, *thresholds)])
    kept = reached[:, None] & signs  # [1 + thresholds, 2, T]
    return np.stack([kept.sum(axis=2), (kept * size).sum(axis=2)], axis=2)


def _rows(by_problem: dict[str, np.ndarray], thresholds: Sequence[float]) -> list[dict]:
    flat = {problem: values.ravel() for problem, values in by_problem.items()}
    shape = next(iter(by_problem.values())).shape
    total = np.sum([*by_problem.values()], axis=0)

    def shares(totals: np.ndarray) -> np.ndarray:
        cells = totals.reshape(-1, *shape)
        signed = np.concatenate([cells.sum(axis=2, keepdims=True), cells], axis=2)  # both signs, positive, negative
        return ratio(signed[:, 1:], signed[:, :1, :1]).reshape(len(totals), -1)

    found = iter(estimate(flat, shares))
    rows = []
    for index, threshold in enumerate(thresholds, start=1):
        for side, sign in enumerate(("any", "positive", "negative")):
            rows.append(
                {
                    "|gap| at least": threshold,
                    "sign": sign,
                    "share of tokens": next(found),
                    "share of |gap|": next(found),
                    "tokens": int(total[index, :, 0].sum() if sign == "any" else total[index, side - 1, 0]),
                    "paper": PAPER.get(threshold, "") if sign == "any" else "",
                }
            )
    return rows
