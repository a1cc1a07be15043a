"""A run as data frames, and the notebook that reads one."""

import json
import math
import sys

import pytest

from nemo_aopsd.errors import UserError
from nemo_aopsd.run.reader import load_run
from tests import REPO
from tests.fake_run import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return load_run(write_run(tmp_path_factory.mktemp("frames") / "run", num_epochs=2, steps_per_epoch=2, batch=3))


def frames(run):
    pytest.importorskip("pandas", reason="pandas is not installed: pip install -e '.[pandas]'")
    return run.frames()


def test_without_pandas_the_package_to_install_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[pandas\]'"):
        run.frames()


def test_frames_hold_the_numbers_of_the_records(run):
    found = frames(run)
    assert [*found.metrics.index] == [1, 2, 3, 4] and [*found.metrics.epoch] == [0, 0, 1, 1]
    assert [*found.metrics["train/loss"]] == [row.number("train/loss") for row in run.metrics]
    assert [*found.evaluations.index] == [0, 2, 4] and [*found.evaluations.epoch] == [0, 1, 2]
    last = run.evaluations[-1]
    row = found.evaluations.loc[4]
    assert (row.pass_at_8, row.pass_at_1_low) == (last.pass_at_k[8], last.pass_at_k_interval[1].low)
    assert (row.num_correct, row.leak_rate) == (last.num_correct, last.leak_rate)
    at_end = found.competence[found.competence.epoch == 2].set_index("problem_id").competence
    told = run.competence[-1].competence
    assert {key: None if math.isnan(value) else value for key, value in at_end.items()} == told


def test_frames_show_themselves_in_a_line(run):
    assert repr(frames(run)) == f"Frames of {run!r}: metrics, evaluations, competence, rollouts, probes"


def test_rollouts_and_probes_have_a_row_each(run):
    found, rollouts = frames(run), list(run.rollouts())
    assert len(found.rollouts) == len(rollouts) == 12
    assert [*found.rollouts.num_tokens] == [len(one.response) for one in rollouts]
    assert [*found.rollouts.mean_abs_gap] == pytest.approx([abs(one.gaps()).mean() for one in rollouts])
    probes = [(one.step, one.problem_id, probe) for one in rollouts for probe in one.probes]
    assert [*found.probes.weight] == [probe.weight for *_, probe in probes]
    assert [*found.probes.step] == [step for step, *_ in probes]
    assert found.probes.nll.isna().sum() == sum(probe.nll is None for *_, probe in probes)


def test_what_a_run_does_not_have_is_an_empty_frame_or_a_missing_value(tmp_path):
    bare = write_run(tmp_path / "run", num_epochs=0, evaluations=False, curriculum="shuffle", context="solution")
    found = frames(load_run(bare))
    for frame in (found.metrics, found.evaluations, found.competence, found.rollouts, found.probes):
        assert len(frame) == 0
    assert {"nll", "weight", "gap"} <= {*found.probes.columns} and [*found.metrics.columns] == ["epoch"]
    unjudged = write_run(tmp_path / "two", num_epochs=1, steps_per_epoch=1, curriculum="shuffle", context="solution")
    rollouts = frames(load_run(unjudged)).rollouts
    assert rollouts.progress.isna().all() and rollouts.judge_failed.isna().all() and len(rollouts) == 8


@pytest.mark.parametrize("opened_in", [".", "examples"])
def test_the_notebook_draws_three_figures(tmp_path, monkeypatch, opened_in):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: it is in the extra `dev`")
    for name in ("pandas", "ipykernel"):
        pytest.importorskip(name, reason=f"{name} is not installed: it is in the extra `dev`")
    import nbformat

    (tmp_path / opened_in).mkdir(exist_ok=True)
    write_run(tmp_path / "runs/demo", num_epochs=2, steps_per_epoch=2, batch=3)
    file = REPO / "examples/reading_a_run.ipynb"
    assert not [cell for cell in json.loads(file.read_text())["cells"] if cell.get("outputs")]  # none is committed
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    notebook = nbformat.read(file, as_version=4)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": tmp_path / opened_in}}, timeout=120).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert not [output for output in outputs if output.output_type in ("error", "stream")]
