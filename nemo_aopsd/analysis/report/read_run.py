"""A run folder as the report needs it. Rollout files are streamed one step at a time; only sums and examples stay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nemo_aopsd.analysis.report.fields import (
    COMPETENCE,
    METRICS,
    PROBE,
    ROLLOUT,
    Kind,
    check_evaluation,
    check_fields,
    check_numbers,
)
from nemo_aopsd.analysis.report.measures import GapMass
from nemo_aopsd.config.schema import AOPSDConfig, Config
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_journal, read_jsonl
from nemo_aopsd.run.folder import load_run_config

Record = dict[str, Any]


@dataclass
class RolloutDigest:
    """Everything that the figures need of all rollouts."""

    gaps: GapMass
    num_rollouts: int = 0
    num_unscored: int = 0  # left out because the teacher's prompt did not fit
    positive: list[tuple[float, float]] = field(default_factory=list)  # (L_t, weight) where gap > 0
    negative: list[tuple[float, float]] = field(default_factory=list)  # (L_t, weight) where gap < 0
    num_empty: int = 0  # probes whose suffix was empty
    examples: dict[str, Record] = field(default_factory=dict)
    graph_rollout: Record | None = None

    def add(self, rollout: Record, where: str) -> None:
        """Take one line of `rollouts/step_*.jsonl`. Raises UserError if a field that the page needs is not there."""
        check_fields(rollout, ROLLOUT, where)
        for probe in rollout["probes"]:
            check_fields(probe, PROBE, where)
        self.num_rollouts += 1
        self._offer_graph(rollout)
        if rollout["dropped"] or rollout["teacher_logprobs"] is None:
            self.num_unscored += 1
            return
        teacher, student = np.array(rollout["teacher_logprobs"]), np.array(rollout["student_logprobs"])
        self.gaps.add(teacher - student)
        for probe in rollout["probes"]:
            if probe["nll"] is None:
                self.num_empty += 1
                continue
            side = self.positive if probe["gap"] > 0 else self.negative
            side.append((probe["nll"], probe["weight"]))
            self._offer_example(rollout, probe)

    def _offer_example(self, rollout: Record, probe: Record) -> None:
        """Keep three telling probes, best of finished rollouts: the heaviest of each sign, and the most damped."""
        kind = "positive" if probe["gap"] > 0 else "negative"
        for name, score in ((kind, probe["weight"]), ("damped", -probe["weight"])):
            score = (rollout["finished"], score)
            best = self.examples.get(name)
            if best is None or score > best["score"]:
                self.examples[name] = {"score": score, "probe": probe, **_describe(rollout, probe["position"])}

    def _offer_graph(self, rollout: Record) -> None:
        """Keep the latest rollout that is part of the way through its graph, or else the latest judged one."""
        if rollout["progress"] is None or rollout["reached"] is None:  # not judged, or the verdict was unreadable
            return
        if self.graph_rollout is None or _telling(rollout) >= _telling(self.graph_rollout):
            keys = ("problem_id", "epoch", "step", "reached", "progress", "response_text", "disclosed_share")
            self.graph_rollout = {key: rollout[key] for key in keys}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run folder. Lists are in order of step or epoch and may be empty."""

    path: Path
    config: Config
    command: str | None
    metrics: list[Record]
    evaluations: list[Record]
    competences: list[Record]
    rollouts: RolloutDigest

    @property
    def method(self) -> AOPSDConfig:
        """The `aopsd:` block."""
        return self.config.aopsd


def read_run(path: Path) -> Run:
    """Read whatever a run has written so far. Raises UserError where nothing usable is there or a file is broken."""
    if not path.is_dir():
        raise UserError(f"{path}: no such run folder (looked from {Path.cwd()}). Name the folder that training wrote.")
    config = load_run_config(path)
    metrics = _read_journal(path / "metrics.jsonl", METRICS)
    evaluations = [_read_evaluation(file) for file in sorted((path / "eval").glob("epoch_[0-9]*[0-9].json"))]
    files = sorted((path / "rollouts").glob("step_*.jsonl"))
    if not (metrics or evaluations or files):
        raise UserError(
            f"{path}: nothing to report yet: no metrics.jsonl, no eval/epoch_*.json, no rollouts/step_*.jsonl. "
            "Let the run finish its first step or evaluation, then run `aopsd report` again."
        )
    digest = RolloutDigest(GapMass(config.aopsd.probes.threshold))
    for where, rollout in _stream(files):
        try:
            digest.add(rollout, where)
        except UserError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise UserError(f"{where}: not a rollout line: {error!r}. Restore or delete the file.") from error
    return Run(
        path=path,
        config=config,
        command=_command(path / "config.yaml"),
        metrics=metrics,
        evaluations=evaluations,
        competences=_read_competences(path / "competence.jsonl"),
        rollouts=digest,
    )


def _stream(files: list[Path]) -> Iterator[tuple[str, Record]]:
    for file in files:
        yield from read_jsonl(file)


def _describe(rollout: Record, position: int) -> Record:
    pieces = rollout.get("pieces")
    return {
        "problem_id": rollout["problem_id"],
        "epoch": rollout["epoch"],
        "step": rollout["step"],
        "before": None if pieces is None else "".join(pieces[:position]),
        "token": None if pieces is None else pieces[position],
        "token_id": rollout["response"][position],
    }


def _telling(rollout: Record) -> bool:
    """Some but not all checkpoints reached, and something left undisclosed."""
    return 0 < rollout["progress"] < 1 and (rollout["disclosed_share"] or 0) < 1


def _command(config: Path) -> str | None:
    """The command that made the run, where the config file opens with it as a comment."""
    first = config.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# aopsd ") else None


def _read_evaluation(path: Path) -> Record:
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: broken JSON: {error}. Evaluate again or delete the file.") from error
    check_evaluation(record, str(path))
    return record


def _read_competences(path: Path) -> list[Record]:
    lines = _read_journal(path, COMPETENCE)
    for number, line in enumerate(lines, start=1):
        check_numbers(line["competence"], f"{path}:{number}: `competence`", optional=True)
    return lines


def _read_journal(path: Path, fields: dict[str, Kind]) -> list[Record]:
    """Complete lines; besides `fields`, a line of metrics holds numbers only."""
    lines = read_journal(path)
    for number, line in enumerate(lines, start=1):
        check_fields(line, fields, f"{path}:{number}")
        if fields is METRICS:
            check_numbers(line, f"{path}:{number}", optional=True)
    return lines
