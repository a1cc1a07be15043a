"""No time limit a hypothesis example: on a shared machine it measures the neighbours, not the code.

No waiting for the disk: no test pulls the plug. And the tree of commands is made once, not at every call.
"""

import os
import shlex
import sys
from functools import cache

import pytest
import typer.main
from hypothesis import HealthCheck, settings

settings.register_profile("shared_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared_machine")
os.fsync = lambda file: None
typer.main.get_command = cache(typer.main.get_command)


@pytest.fixture
def command_line(monkeypatch, capsys):
    """Runs `aopsd` with a line of arguments; returns (exit code, stdout, stderr)."""
    from nemo_aopsd.cli import app as cli

    def run(line):
        monkeypatch.setattr(sys, "argv", ["aopsd", *shlex.split(line)])
        with pytest.raises(SystemExit) as stop:
            cli.run()
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return run
