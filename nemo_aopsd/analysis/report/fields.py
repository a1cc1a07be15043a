"""What the report reads of a record, so that a file that lost a field is named instead of tripping a figure."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from nemo_aopsd.errors import UserError

_NUMBER = int | float
METRICS = {"epoch": int, "step": int, "rollout/count": _NUMBER, "time/step": _NUMBER}
COMPETENCE = {"epoch": int, "competence": dict}
EVALUATION = {
    **{"epoch": int, "num_problems": int, "num_samples": int, "correct_per_problem": dict},
    **{"pass_at_k": dict, "pass_at_k_interval": dict},
    **{"leak_rate": _NUMBER, "truncation_rate": _NUMBER, "mean_tokens": _NUMBER},
}
ROLLOUT = {
    **{"problem_id": str, "epoch": int, "step": int, "response": list, "response_text": str, "dropped": bool},
    **{"progress": _NUMBER | None, "disclosed_share": _NUMBER | None, "reached": list | None, "probes": list},
}
PROBE = {"position": int, "gap": _NUMBER, "anchor": int, "suffix": list, "nll": _NUMBER | None, "weight": _NUMBER}

Kind = type | types.UnionType


def check_fields(record: Any, fields: Mapping[str, Kind], where: str) -> None:
    """Raise UserError unless `record` is an object that has each field, of its kind."""
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object, got {type(record).__name__}. Restore or delete the file.")
    for field, kind in fields.items():
        if field not in record or not isinstance(record[field], kind):
            found = repr(record[field])[:40] if field in record else "nothing"
            expected = getattr(kind, "__name__", str(kind))
            raise UserError(f"{where}: `{field}` must be of type {expected}, got {found}. Restore or delete the file.")


def check_numbers(record: Mapping[str, Any], where: str, *, optional: bool = False) -> None:
    """Raise UserError unless every value is a number, or null where `optional`."""
    check_fields(record, dict.fromkeys(record, _NUMBER | None if optional else _NUMBER), where)


def check_evaluation(record: Any, where: str) -> None:
    """`check_fields` for the summary of an evaluation, and the tables in it."""
    check_fields(record, EVALUATION, where)
    rates, bounds = record["pass_at_k"], record["pass_at_k_interval"]
    check_fields(rates, {"1": _NUMBER}, f"{where}: `pass_at_k`")
    check_numbers(rates, f"{where}: `pass_at_k`")
    check_numbers(record["correct_per_problem"], f"{where}: `correct_per_problem`")
    for k in rates:
        check_fields(bounds.get(k), {"low": _NUMBER, "high": _NUMBER}, f"{where}: `pass_at_k_interval`, k = {k}")
    for field in ("num_problems", "num_samples"):
        if record[field] < 1:
            raise UserError(f"{where}: `{field}` must be at least 1, got {record[field]}. Restore or delete the file.")
