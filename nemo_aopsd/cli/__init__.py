"""The `aopsd` command: a file a group of commands, composed in `app.py`."""

from nemo_aopsd.cli.app.app import main

__all__ = ["main"]
