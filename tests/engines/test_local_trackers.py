"""Trackers of the local engine: what their libraries are told, which may be fakes, and what is refused."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.shipped import find_recipe
from nemo_aopsd.engines import local
from nemo_aopsd.engines.local import trackers
from nemo_aopsd.engines.local.trackers import Trackers, check_trackers
from nemo_aopsd.errors import UserError
from tests.fakes import make_config


@pytest.fixture
def started(tmp_path):
    """Trackers of a config with these keys of its `logger` block."""

    def start(**keys):
        config = make_config(tmp_path / "run")
        config.logger.update(keys)
        return Trackers(config)

    return start


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_an_absent_library_names_the_extra(monkeypatch, name):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"logger\.{name}_enabled is true.*pip install -e '\.\[{name}\]'"):
        check_trackers({f"{name}_enabled": True})
    check_trackers({f"{name}_enabled": False, "swanlab_enabled": False})
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: True)
    check_trackers({f"{name}_enabled": True})
    with pytest.raises(UserError, match=r"swanlab_enabled is true; the local engine has tensorboard, wandb, mlflow"):
        check_trackers({"swanlab_enabled": True})


def test_the_engine_hands_its_numbers_to_them_and_refuses_an_absent_library(monkeypatch, tmp_path):
    logged = []
    monkeypatch.setattr(Trackers, "log", lambda self, metrics, step: logged.append((metrics, step)))
    config = load_config(find_recipe(Path("demo")), [f"logger.log_dir={tmp_path}/run", "logger.wandb_enabled=true"])
    local.build(config).log_metrics({"train/loss": 1.0}, 3)
    assert logged == [({"train/loss": 1.0}, 3)]
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"logger\.wandb_enabled is true"):
        local.check(config)


def test_none_is_started_unless_it_is_on(started, tmp_path):
    started(log_dir=str(tmp_path / "run")).log({"train/loss": 1.0}, 1)
    assert not (tmp_path / "run").exists()


def test_wandb_gets_its_block_the_config_and_each_step(started, monkeypatch, tmp_path):
    calls = []
    run = SimpleNamespace(log=lambda metrics, step: calls.append((metrics, step)))
    fake = SimpleNamespace(init=lambda **options: calls.append(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    found = started(log_dir=str(tmp_path / "run"), wandb_enabled=True, wandb={"project": "p", "mode": "offline"})
    found.forget_after(3)
    assert calls == []  # it starts with the first number
    found.log({"train/loss": 1.0}, 4)
    found.log({"eval/pass_at_1": 0.5}, 4)
    options, *logged = calls
    assert (options["project"], options["mode"], options["dir"]) == ("p", "offline", str(tmp_path / "run/wandb"))
    assert logged == [({"train/loss": 1.0}, 4), ({"eval/pass_at_1": 0.5}, 4)]


def test_mlflow_keeps_the_run_beside_it_unless_told_where(started, monkeypatch, tmp_path):
    calls = []

    def note(name):
        return lambda *values, **options: calls.append((name, *values, *options.values()))

    names = ("set_tracking_uri", "set_experiment", "start_run", "log_dict", "log_metrics")
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**{name: note(name) for name in names}))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    block = {"experiment_name": "e", "run_name": "r"}
    started(log_dir=str(tmp_path / "run"), mlflow_enabled=True, mlflow=block).log({"train/loss": 1.0}, 1)
    assert [call for call in calls if call[0] != "log_dict"] == [
        ("set_tracking_uri", f"sqlite:///{tmp_path}/run/mlflow/mlflow.db"),
        ("set_experiment", "e"),
        ("start_run", "r"),
        ("log_metrics", {"train/loss": 1.0}, 1),
    ]
    calls.clear()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    started(log_dir=str(tmp_path / "run"), mlflow_enabled=True).log({"train/loss": 1.0}, 1)
    assert calls[:2] == [("set_tracking_uri", "http://server"), ("start_run", None)]


def test_tensorboard_has_each_number_and_shows_a_repeated_step_once(started, tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="pip install -e '.[tensorboard]'"
    )
    for first, steps, more in ((1, range(1, 4), 0.0), (3, range(3, 5), 0.5)):  # killed behind step 3, resumed at 2
        found = started(log_dir=str(tmp_path / "run"), tensorboard_enabled=True)
        found.forget_after(first - 1)
        for step in steps:
            found.log({"train/loss": step + more}, step)
    events = accumulator.EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 1), (2, 2), (3, 3.5), (4, 4.5)]
