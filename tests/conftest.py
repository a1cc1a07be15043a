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


# Every line that these run is run by others, too, and coverage's tracer doubles their time: they run without it.
UNTRACED = (
    "analysis/test_compare.py::test_killed_anywhere",
    "analysis/test_compare.py::test_named_members",
    "analysis/test_compare_real.py",
    "analysis/test_report.py::test_full_run",
    "cli/test_cli.py::test_a_run_from_training",
    "cli/test_cli_outputs.py",
    "config/test_load.py",
    "config/test_method_of_run.py::test_what_a_method_does_not_read",
    "config/test_methods.py::test_a_config_is_short",
    "config/test_methods.py::test_a_method_of_each_code_path",
    "config/test_refused.py::test_a_number_outside_its_range",
    "data/test_data_prepare.py::test_normalising_twice",
    "data/test_examples.py",
    "engines/test_beside_trl.py",
    "engines/test_decoding_step.py",
    "engines/test_gpu_layouts.py",
    "engines/test_local_engine.py",
    "engines/test_local_model.py",
    "engines/test_local_objectives.py",
    "engines/test_loss_memory.py",
    "engines/test_nemo_rl_configs.py",
    "engines/test_step_cost",
    "examples/",
    "method/test_scenarios.py",
    "method/test_step_reference.py",
    "run/test_trainer.py::test_killed_at_any_moment",
    "test_docs.py",
    "test_public.py",
    "test_tutorials.py::test_gsm8k_from_a_file",
    "test_tutorials.py::test_the_demo",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(tuple(f"tests/{each}" for each in UNTRACED)):
            item.add_marker("no_cover")


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
