"""What the page needs of all rollouts. They are read one at a time; only sums and a few examples stay."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from nemo_aopsd.analysis.gap_mass import GapMass
from nemo_aopsd.config.schema import AOPSDConfig
from nemo_aopsd.errors import UserError
from nemo_aopsd.run import layout
from nemo_aopsd.run.metrics import GAP_THRESHOLDS
from nemo_aopsd.run.reader import Run, load_run
from nemo_aopsd.run.record_types import Probe, Rollout


@dataclass
class RolloutDigest:
    """Sums and examples of all rollouts."""

    gaps: GapMass
    num_rollouts: int = 0
    num_unscored: int = 0  # left out because the teacher's prompt did not fit
    positive: list[tuple[float, float]] = field(default_factory=list)  # (L_t, weight) where gap > 0
    negative: list[tuple[float, float]] = field(default_factory=list)  # (L_t, weight) where gap < 0
    num_empty: int = 0  # probes whose suffix was empty
    examples: dict[str, tuple[Rollout, Probe]] = field(default_factory=dict)
    graph_rollout: Rollout | None = None
    _is_telling: bool = False  # the one before

    def add(self, rollout: Rollout) -> None:
        self.num_rollouts += 1
        if rollout.progress is not None and rollout.reached is not None:  # judged, and the verdict could be read
            # The latest rollout that is part of the way through its graph, or else the latest judged one.
            telling = 0 < rollout.progress < 1 and (rollout.disclosed_share or 0) < 1
            if telling or not self._is_telling:
                self.graph_rollout, self._is_telling = rollout, telling
        gaps = rollout.gaps()
        if gaps is None:
            self.num_unscored += 1
            return
        self.gaps.add(gaps)
        for probe in rollout.probes:
            if probe.nll is None:
                self.num_empty += 1
                continue
            side = self.positive if probe.gap > 0 else self.negative
            side.append((probe.nll, probe.weight))
            if rollout.pieces is None:  # its text cannot be shown token by token
                continue
            self._offer_example("positive" if probe.gap > 0 else "negative", 1, rollout, probe)
            self._offer_example("damped", -1, rollout, probe)

    def _offer_example(self, name: str, sign: int, rollout: Rollout, probe: Probe) -> None:
        """Keep three telling probes, best of finished rollouts: the heaviest of each sign, and the most damped."""
        best = self.examples.get(name)
        if best is None or (rollout.finished, sign * probe.weight) > (best[0].finished, sign * best[1].weight):
            self.examples[name] = rollout, probe


@dataclass(frozen=True)
class ReportedRun(Run):
    """A run with a digest of its rollouts, which are read once. `others` are runs whose curves lie over its own."""

    others: tuple[Run, ...] = ()

    @property
    def method(self) -> AOPSDConfig:
        """The `aopsd:` block."""
        return self.config.aopsd

    @cached_property
    def digest(self) -> RolloutDigest:
        digest = RolloutDigest(GapMass([*GAP_THRESHOLDS, self.method.probes.threshold]))
        for rollout in self.rollouts():
            digest.add(rollout)
        return digest


def read_reported(path: Path, others: Sequence[Path] = ()) -> ReportedRun:
    """Whatever a run has written so far, and those of `others` that are runs.

    Raises UserError if that is nothing, or a file is broken.
    """
    run = load_run(path)
    runs = tuple(load_run(other) for other in others if (other / layout.CONFIG).is_file())
    found = ReportedRun(run.path, run.config, runs)
    if not (found.metrics or found.evaluations or layout.rollout_files(path)):
        raise UserError(
            f"{path}: nothing to report yet: no metrics.jsonl, no eval/epoch_*.json, no rollouts/step_*.jsonl. "
            "Let the run finish its first step or evaluation, then run `aopsd report` again."
        )
    return found
