"""Numbers of the command line that must be finite: typer takes nan, inf and 1e400 where an option has no bound."""

from __future__ import annotations

import math

import typer

from nemo_aopsd.errors import UserError


def finite(option: typer.CallbackParam, given: float | list[float] | None) -> float | list[float] | None:
    """Callback of an option, repeatable or not. Raises UserError on what is no finite number."""
    for value in given if isinstance(given, list | tuple) else [given]:
        if value is not None and not math.isfinite(value):
            raise UserError(f"{option.opts[0]} {value}: expected a finite number. Choose another.")
    return given
