"""What a user has after `pip install` of the wheel, in an empty folder and without the checkout."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import REPO

PROBLEM = {"id": "p", "problem": "?", "answer": "1", "dag": {"nodes": [{"id": "a", "statement": "x"}], "edges": []}}
SUITE = "config: demo\nmembers: {base: , opsd: , mine: {method: aopsd, settings: {aopsd: {probes: {length: 4}}}}}\n"
SHORT = "aopsd.max_num_steps=1 aopsd.num_prompts_per_step=4 aopsd.curriculum.name=shuffle"
FEW = "aopsd.evaluation.data_path=null data.train.data_path=few.jsonl policy.generation.max_new_tokens=16"
LINES = """\
import sys
from nemo_aopsd.cli import main
for line in sys.argv[1:]:
    sys.argv[1:] = line.split()
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, line
    print("\\0", end="")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Runs lines of `aopsd` of the built wheel in an empty folder, in one process; returns the stdout of each."""
    root = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = root / "source"  # the checkout's build/ would bring files that the wheel no longer names
    shutil.copytree(REPO / "nemo_aopsd", source / "nemo_aopsd", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPO / name, source)
    subprocess.run([*pip, "install", "--no-deps", "--target", root / "site", source], check=True)
    folder = root / "empty"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(root / "site"), "OMP_NUM_THREADS": "1"}

    def run(*lines):
        command = [sys.executable, "-c", LINES, *lines]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.split("\0")[:-1]

    run.folder, run.site = folder, root / "site"
    return run


def test_the_wheel_ships_what_is_no_code(installed):
    """Prompts, templates and the model are read at run time, so the package data must name them."""
    needed = (path for path in (REPO / "nemo_aopsd").rglob("*.*") if path.suffix not in (".py", ".pyc"))
    assert [path for path in needed if not (installed.site / path.relative_to(REPO)).is_file()] == []


def test_methods_and_checks_need_nothing_but_the_wheel(installed):
    (installed.folder / "problems.jsonl").write_text(json.dumps(PROBLEM) + "\n")
    (installed.folder / "suite.yaml").write_text(SUITE)
    lines = ("methods --json", "dag check problems.jsonl", "compare suite.yaml --dry-run", "compare embedded --dry-run")
    methods, checked, own, shipped = installed(*lines)
    methods = json.loads(methods)
    assert {"aopsd", "opsd", "gap_only", "k_16"} <= {method["name"] for method in methods}
    assert len(methods) == len(list((REPO / "nemo_aopsd/config/recipes").glob("[ma]*s/*.yaml")))
    assert "1 usable" in checked and "mine" in own and "opsd" in shipped


def test_the_demo_trains_and_reports(installed):
    data = (installed.site / "nemo_aopsd/builtin/data/heldout.jsonl").read_text().splitlines(keepends=True)
    (installed.folder / "few.jsonl").write_text("".join(data[:4]))
    check, train = "train demo --method opsd logger.log_dir=runs/opsd --check", f"train demo {FEW} {SHORT}"
    *_, report = installed(check, f"{train} logger.log_dir=runs/mine", "report runs/mine")
    assert Path(installed.folder, "runs/mine/metrics.jsonl").read_text().count("\n") == 1
    assert report.strip().endswith("report.html")
