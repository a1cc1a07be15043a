"""A run as pandas data frames: `frames = load_run("runs/mine").frames()`.

They hold what the records of `reader.py` hold, and are read through it. NaN or NA is where a record has None.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nemo_aopsd.errors import UserError, how_to_install
from nemo_aopsd.run.record_types import Evaluation, Probe, Rollout

if TYPE_CHECKING:
    import pandas as pd

    from nemo_aopsd.run.reader import Run

_COMPETENCE = {"epoch": int, "problem_id": str, "competence": float}
_ROLLOUTS = {
    **{"step": int, "epoch": int, "problem_id": str, "num_tokens": int, "finished": bool, "dropped": bool},
    **{"judge_failed": "boolean", "judge_cut": "boolean", "progress": float, "disclosed_share": float},
    **{"mean_abs_gap": float, "num_probes": int, "response_text": str},
}
_PROBES = {
    **{"step": int, "problem_id": str, "position": int, "gap": float, "nll": float, "weight": float},
    **{"anchor_text": object, "suffix_text": object},
}


@dataclass(frozen=True)
class Frames:
    """A frame is made when it is asked for. Raises UserError where a file is damaged."""

    run: Run

    def __repr__(self) -> str:
        return f"Frames of {self.run}: metrics, evaluations, competence, rollouts, probes"

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row a step, by step; the columns are the keys of `run/metrics.py`."""
        rows = [row.values | {"step": row.step, "epoch": row.epoch} for row in self.run.metrics]
        return _frame(rows, {"step": int, "epoch": int}, also=True).set_index("step")

    @cached_property
    def competence(self) -> pd.DataFrame:
        """A row for each problem and epoch."""
        rows = [
            {"epoch": one.epoch, "problem_id": key, "competence": value}
            for one in self.run.competence
            for key, value in one.competence.items()
        ]
        return _frame(rows, _COMPETENCE)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """A row an evaluation of training, by step: `pass_at_1` with its interval in `pass_at_1_low` and `_high`."""
        rows = [_evaluation(one) for one in self.run.evaluations]
        return _frame(rows, {"step": int, "epoch": int}, also=True).set_index("step")

    @cached_property
    def rollouts(self) -> pd.DataFrame:
        """A row a rollout, without what is one a token. All of them are read."""
        return _frame(self._read[0], _ROLLOUTS)

    @cached_property
    def probes(self) -> pd.DataFrame:
        """A row a probe; `nll` is L."""
        return _frame(self._read[1], _PROBES)

    @cached_property
    def _read(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        rollouts, probes = [], []
        for rollout in self.run.rollouts():
            rollouts.append(_rollout(rollout))
            probes += [_probe(rollout, probe) for probe in rollout.probes]
        return rollouts, probes


def frames_of(run: Run) -> Frames:
    """Raises UserError if pandas is not installed."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise UserError(f"pandas is not installed. {how_to_install('pandas')}") from error
    return Frames(run)


def _frame(rows: list[dict[str, Any]], columns: dict[str, Any], *, also: bool = False) -> pd.DataFrame:
    """The columns, and with `also` those that rows have beyond them; all are there even without a row."""
    import pandas as pd

    more = dict.fromkeys(key for row in rows for key in row if key not in columns) if also else {}
    return pd.DataFrame(rows, columns=[*columns, *more]).astype(columns | dict.fromkeys(more, float))


def _evaluation(one: Evaluation) -> dict[str, Any]:
    counts, rates = ("num_problems", "num_samples", "num_correct"), ("leak_rate", "truncation_rate", "mean_tokens")
    row = {name: getattr(one, name) for name in ("step", "epoch", *counts, *rates)}
    for k, rate in one.pass_at_k.items():
        low, high = asdict(one.pass_at_k_interval[k]).values()
        row |= {f"pass_at_{k}": rate, f"pass_at_{k}_low": low, f"pass_at_{k}_high": high}
    return row


def _rollout(rollout: Rollout) -> dict[str, Any]:
    gaps = rollout.gaps()
    told = {name: getattr(rollout, name) for name in _ROLLOUTS if hasattr(rollout, name)}
    mean = float(abs(gaps).mean()) if gaps is not None and len(gaps) else None
    return told | {"num_tokens": len(rollout.response), "mean_abs_gap": mean, "num_probes": len(rollout.probes)}


def _probe(rollout: Rollout, probe: Probe) -> dict[str, Any]:
    told = {name: getattr(probe, name) for name in _PROBES if hasattr(probe, name)}
    return {"step": rollout.step, "problem_id": rollout.problem_id} | told
