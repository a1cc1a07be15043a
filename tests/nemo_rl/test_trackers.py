"""What a run tells NeMo RL's own trackers, with NeMo RL's Logger and TensorBoard's real files."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nemo_aopsd.engines.nemo_rl.trackers import start_trackers
from nemo_aopsd.run.trainer import train

pytestmark = pytest.mark.usefixtures("one_process")


def with_logger(config, **keys):
    return replace(config, logger=config.logger | keys)


def test_tensorboard_has_every_number_of_metrics_jsonl_at_its_step(engine, config, problems):
    engine.config = with_logger(config, tensorboard_enabled=True)
    run = Path(config.logger["log_dir"])
    evaluation = replace(config.aopsd.evaluation, num_samples=2, max_new_tokens=48)
    evaluated = replace(config, aopsd=replace(config.aopsd, evaluation=evaluation))
    train(evaluated, problems, problems[:2], engine, run, resume=False)
    for logger in engine.trackers.loggers:
        logger.writer.flush()

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [line["step"] for line in lines] == [1, 2]
    for name in set().union(*lines):
        logged = {event.step: event.value for event in events.Scalars(name)}
        assert logged == pytest.approx({line["step"]: line[name] for line in lines if name in line}, rel=1e-6), name
    rates = json.loads((run / "eval/epoch_000.json").read_text())["pass_at_k"]
    first = {k: events.Scalars(f"eval/pass_at_{k}")[0] for k in rates}
    assert {k: event.value for k, event in first.items()} == pytest.approx(rates)
    assert {event.step for event in first.values()} == {0}
    assert list((run / "tensorboard").glob("*/events*"))  # the config, as TensorBoard's hyperparameters


def test_tensorboard_shows_a_step_that_comes_again_once(config):
    """Killed behind step 5, the newest checkpoint that of step 3, an evaluation at it."""
    logged = with_logger(config, tensorboard_enabled=True)
    first = start_trackers(logged, 1)
    for step in range(1, 6):
        first.log_metrics({"train/loss": float(step)}, step)
    first.log_metrics({"eval/pass_at_1": 0.3}, 3)
    time.sleep(2.5)  # and no flush, as in a process that is killed
    again = start_trackers(logged, 4)
    for step in range(4, 7):
        again.log_metrics({"train/loss": step + 0.5}, step)
    again.loggers[0].writer.flush()
    events = EventAccumulator(str(Path(config.logger["log_dir"]) / "tensorboard")).Reload()
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert found == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.5), (5, 5.5), (6, 6.5)]
    assert [event.step for event in events.Scalars("eval/pass_at_1")] == [3]


def test_no_tracker_no_logger(config, tmp_path):
    assert start_trackers(config, 1) is None
    bare = replace(config, logger={"log_dir": str(tmp_path / "bare")})
    assert start_trackers(bare, 1) is None
    assert not (tmp_path / "bare").exists()
