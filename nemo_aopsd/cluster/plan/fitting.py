"""Constants from measured runs: linear least squares of stage seconds, drawn towards the shipped values.

A handful of stage times cannot tell a dozen constants apart. So each constant has the shipped value as its prior, with
a wide spread; the data move it as far as they speak of it. One that they leave uncertain stays an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date

import numpy as np

from nemo_aopsd.cluster.plan import Plan
from nemo_aopsd.cluster.plan.constants import Constant, Constants
from nemo_aopsd.cluster.plan.measured import Measured, by_measured_stage
from nemo_aopsd.cluster.plan.stages import Terms
from nemo_aopsd.errors import UserError

NOISE = 0.05  # relative, of a median stage time, at least: more where the fit leaves more
SPREAD = 3.0  # of a constant's theta around the shipped one, relative
LEAST = 0.02  # of the shipped wait, below which none goes; no efficiency goes above 1
ENOUGH = 0.3  # relative standard deviation at which a constant counts as fitted


@dataclass(frozen=True)
class Fitted:
    """One constant before and after; `uncertainty` is the relative standard deviation of its theta."""

    before: Constant
    after: Constant
    uncertainty: float


def fit(runs: list[tuple[Measured, Plan]]) -> list[Fitted]:
    """Minimises the squares of relative errors of stage seconds / noise, and of relative changes of theta / SPREAD.

    Raises UserError if the runs are of several engines or kinds of GPU.
    """
    constants = _common(runs)
    rows = [row for run, plan in runs for row in _equations(run, plan)]
    names = sorted({name for terms, _ in rows for name in terms})
    prior = np.array([constants.by_name[name].theta for name in names])
    # In units of the prior, each row divided by its measured seconds: 1 = sum of x_j * terms_j * prior_j / seconds
    design = np.array([[terms.get(name, 0.0) for name in names] for terms, _ in rows]) * prior
    design /= np.array([[seconds] for _, seconds in rows])
    least = np.array([_least(constants.by_name[name]) for name in names])
    left = 1 - design @ _solve(design, least, NOISE)
    noise = max(NOISE, float(np.sqrt(np.mean(left**2))))
    solution = _solve(design, least, noise)
    covariance = np.linalg.inv(design.T @ design / noise**2 + np.eye(len(names)) / SPREAD**2)
    uncertainty = np.sqrt(np.diag(covariance)) / solution
    kind = runs[0][1].setup.gpu.kind
    source = f"fitted {date.today()} to {len(runs)} run{'s' * (len(runs) > 1)} on {kind}, {len(rows)} stage times"
    return [
        _fitted(constants.by_name[name], float(x * theta), float(share), source)
        for name, x, theta, share in zip(names, solution, prior, uncertainty, strict=True)
    ]


def with_fit(constants: Constants, fitted: list[Fitted]) -> Constants:
    by_name = constants.by_name | {each.after.name: each.after for each in fitted}
    return replace(constants, by_name=by_name, measured_errors={})  # those of the shipped constants


def _least(constant: Constant) -> float:
    """Lower bound of theta, relative to the shipped one."""
    return constant.value if constant.kind == "efficiency" else LEAST


def _solve(design: np.ndarray, least: np.ndarray, noise: float) -> np.ndarray:
    """Ridge towards 1; what would fall below its bound is held there, and the rest solved again."""
    free, solution = np.ones(len(least), bool), least.copy()
    while free.any():
        part = design[:, free]
        left = 1 - design[:, ~free] @ solution[~free]
        normal = part.T @ part / noise**2 + np.eye(int(free.sum())) / SPREAD**2
        found = np.linalg.solve(normal, part.T @ left / noise**2 + 1 / SPREAD**2)
        low = found < least[free]
        if not low.any():
            solution[free] = found
            break
        free[np.flatnonzero(free)[low]] = False
    return solution


def _equations(run: Measured, plan: Plan) -> list[tuple[Terms, float]]:
    """(terms, measured seconds) of each stage that was both planned and timed."""
    seconds = run.seconds()
    found = []
    for stage, parts in by_measured_stage(plan.terms).items():
        if seconds.get(stage, 0.0) > 0:
            names = {name for terms in parts for name in terms}
            found.append(({name: sum(terms.get(name, 0.0) for terms in parts) for name in names}, seconds[stage]))
    return found


def _fitted(before: Constant, theta: float, uncertainty: float, source: str) -> Fitted:
    if uncertainty > ENOUGH:
        source = f"{source}, which leave it uncertain; before: {before.source}"
        return Fitted(before, before.at(theta, "assumption", source), uncertainty)
    return Fitted(before, before.at(theta, "fitted", source), uncertainty)


def _common(runs: list[tuple[Measured, Plan]]) -> Constants:
    kinds = {(plan.constants.engine, plan.setup.gpu.kind) for _, plan in runs}
    if len(kinds) != 1:
        raise UserError(f"--fit: runs of one engine on one kind of GPU, found {sorted(kinds)}. Fit them apart.")
    return runs[0][1].constants
