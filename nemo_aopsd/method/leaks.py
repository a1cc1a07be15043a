"""Leak meter: does a response to the bare question mention the private context that only the teacher saw?

It counts phrases, not copied content: a student that copies results without naming their source is not detected.
"""

import re
from collections.abc import Iterable

from nemo_aopsd.errors import UserError
from nemo_aopsd.prompts import read


def leak_patterns(prompts: str) -> list[re.Pattern[str]]:
    """The patterns of `leaks.txt` in a family of prompts: one regular expression a line, `#` starts a comment line.

    Raises UserError if the file is missing or a line does not compile.
    """
    return [
        compiled(line, f"leaks.txt of prompts {prompts!r}, line {number}")
        for number, line in enumerate(read(prompts, "leaks").splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]


def compiled(line: str, where: str) -> re.Pattern[str]:
    """The regular expression of a line, in any case. Raises UserError if it is none."""
    try:
        return re.compile(line, re.IGNORECASE)
    except re.error as error:
        raise UserError(f"{where}: {error} in {line!r}. Correct it.") from error


def mentions_context(text: str, patterns: Iterable[re.Pattern[str]]) -> bool:
    return any(pattern.search(text) for pattern in patterns)
