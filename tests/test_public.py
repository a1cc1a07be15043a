"""The public Python API: every name is there, and importing the package stays light."""

import subprocess
import sys

import pytest

import nemo_aopsd
from examples import python_api


@pytest.mark.parametrize("name", nemo_aopsd.PUBLIC)
def test_a_public_name_is_the_function_of_its_module(name):
    found = getattr(nemo_aopsd, name)
    assert (found.__name__, found.__module__) == (name, nemo_aopsd.PUBLIC[name])
    assert name in dir(nemo_aopsd)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = nemo_aopsd.no_such_name


def test_importing_the_package_loads_no_torch():
    code = "import sys, nemo_aopsd; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
def test_the_example_takes_a_step_and_reads_its_run(tmp_path, capsys):
    python_api.main(tmp_path / "run")
    said = capsys.readouterr().out.splitlines()
    assert sum(": progress " in line and " probes" in line for line in said) == 4
    assert sum(line.startswith("step 1: ") for line in said) == 1
    assert sum(": reached " in line for line in said) == 4


def test_the_example_leaves_a_folder_that_exists_alone(tmp_path):
    with pytest.raises(SystemExit, match=f"{tmp_path} exists: .*another folder"):
        python_api.main(tmp_path)
    assert not list(tmp_path.iterdir())
