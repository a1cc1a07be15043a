"""What every check returns, and how external programs are called."""

import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

OK, WARN, ERROR = "ok", "warn", "error"
EXIT_CODES = {OK: 0, WARN: 1, ERROR: 2}

Run = Callable[[Sequence[str], float], str]


@dataclass
class Check:
    """One finding. Its texts have no final full stop, but for a `found` that is an error's whole message.

    `remedy` is kept only where something is wrong.
    """

    name: str
    severity: str
    found: str
    expected: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.severity == OK:
            self.remedy = ""


def worst(checks: Iterable[Check]) -> str:
    """The highest severity.

    >>> worst([Check("a", "ok", "", ""), Check("b", "warn", "", "")])
    'warn'
    """
    return max((check.severity for check in checks), key=EXIT_CODES.__getitem__, default=OK)


def run(command: Sequence[str], seconds: float) -> str:
    """Standard output. Raises OSError if the program is missing, fails, or takes longer than `seconds`."""
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"no answer from {command[0]} in {seconds:g} s") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise OSError(f"{command[0]} ended with {done.returncode}: {last}")
    return done.stdout


def parameters(count: int) -> str:
    """For people: small models in millions.

    >>> parameters(4_022_468_096), parameters(620_288)
    ('4.02 billion', '0.62 million')
    """
    return f"{count / 1e9:.2f} billion" if count >= 1e8 else f"{count / 1e6:.2f} million"


def gigabytes(size: float) -> str:
    """Bytes in units of 10^9, as makers of GPUs and disks count, or of 10^6 below a tenth of that.

    >>> gigabytes(8_044_936_192), gigabytes(100_000_000), gigabytes(99_000_000)
    ('8.0 GB', '0.1 GB', '99.0 MB')
    """
    return f"{size / 1e6:.1f} MB" if 0 < size < 1e8 else f"{size / 1e9:.1f} GB"
