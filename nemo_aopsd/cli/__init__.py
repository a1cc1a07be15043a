"""The `aopsd` command: one file per group of commands, composed in `app.py`."""

import os
import sys


def main() -> None:
    """Run the command line; exit code 2 and one message for what a user can fix."""
    if not sys.stderr.isatty():  # tqdm reads it at its import; the bar of a GGUF file would fill a log
        os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        from nemo_aopsd.cli.app import run
    except ModuleNotFoundError as error:  # such as typer, which NeMo RL's environment lacks
        if str(error.name).startswith("nemo_aopsd"):
            raise
        told = f"{error.name} is not installed for {sys.executable}. Run `pip install .` in the checkout; in NeMo RL's"
        print(f"error: {told} container, add what it lacks: containers/README.md.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\ninterrupted.", file=sys.stderr)
        sys.exit(130)
    run()
