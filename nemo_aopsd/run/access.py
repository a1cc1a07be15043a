"""Who may write into a folder: locks against a second process, and whether the system lets us."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nemo_aopsd.errors import UserError
from nemo_aopsd.files import naming, open_locked


@contextmanager
def lock(run: Path, elsewhere: str = "another logger.log_dir") -> Iterator[None]:
    """Keep a second process out of the folder; the system lifts the lock however this one ends."""
    try:
        with held(run / ".lock"):
            yield
    except BlockingIOError as error:
        holder = Path(error.filename).read_text().strip() or "unknown"
        raise UserError(
            f"{run}: process {holder} is writing a run there. Wait for it, or choose {elsewhere}."
        ) from None


@contextmanager
def held(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock file for the time of the block; it notes this process.

    Nothing stays of it, nor of folders that were made for it and are empty: a command that is refused leaves no trace.
    Raises BlockingIOError with the path, unless it is to `wait`, if another process holds it.
    """
    made = [folder for folder in path.absolute().parents if not folder.exists()]
    file = open_locked(path, wait=wait)
    try:
        os.ftruncate(file, 0)
        with naming(path):
            job = f" (Slurm job {os.environ['SLURM_JOB_ID']})" if "SLURM_JOB_ID" in os.environ else ""
            os.write(file, f"{os.getpid()} on {socket.gethostname()}{job}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)
        for folder in made:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def existing_parent(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def why_unwritable(path: Path) -> str:
    """What hinders that a folder is made in `path`, or in the nearest folder above it that exists; empty if nothing.

    It makes one and removes it: permissions alone do not tell, of a disk that is read-only for one.
    """
    try:
        with tempfile.TemporaryDirectory(dir=existing_parent(path), prefix=".aopsd-"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def check_writable(run: Path, elsewhere: str = "another logger.log_dir") -> None:
    """Raise UserError unless a folder can be made there."""
    if why := why_unwritable(run):
        raise UserError(f"{existing_parent(run)}: not a folder that can be written ({why}). Choose {elsewhere}.")
