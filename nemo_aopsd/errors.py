"""The one error that a user can fix: bad input, a bad setting, a broken file. The CLI prints it and exits with 2."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

_LISTED = 10  # faults of one kind in one message


class UserError(ValueError):
    """The message says what was found, what was expected, where, and what to do."""


def tell_all(*checks: Callable[[], Any]) -> list[Any]:
    """What the checks return. Raises one UserError with all that they refuse: nobody meets them one by one."""
    found, told = [], []
    for check in checks:
        try:
            found.append(check())
        except UserError as error:
            told.append(str(error))
    if told:
        raise UserError("\n".join(dict.fromkeys(told)))
    return found


def refuse(faults: Sequence[str], noun: str, remedy: str = "") -> None:
    """Raises a UserError if there are faults: a line for each of the first ten, how many there are, and what to do."""
    if faults:
        rest = len(faults) - _LISTED
        more = [f"... and {rest:,} more {noun}, {len(faults):,} in all."] if rest > 0 else []
        raise UserError("\n".join([*faults[:_LISTED], *more, *([remedy] if remedy else [])]))


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint at the end of a message; empty where nothing known is like `name`, in whatever case.

    >>> nearest("train-365", ["train-366-level5", "train-365-level4"])
    ' Did you mean `train-365-level4`?'
    """
    name, of = name.lower(), {each.lower(): each for each in known}
    begun = [each for each in of if len(name) > 2 and each.startswith(name)]
    matches = begun or get_close_matches(name, of, n=1, cutoff=0.7)  # at 0.6 `online` is like `live`
    return f" Did you mean `{of[matches[0]]}`?" if matches else ""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without a full stop."""
    return str(error).strip().split("\n")[0].rstrip(".")


def how_to_install(*extras: str) -> str:
    """The end of a message where a library is absent; NeMo RL's container has all of these."""
    return f"Run in the checkout: pip install -e '.[{','.join(extras)}]'"
