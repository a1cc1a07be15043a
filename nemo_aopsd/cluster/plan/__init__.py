"""`aopsd plan`: seconds and GPU-hours of a run before it runs, from a cost model that measured runs can be fitted to.

docs/scaling.md has the formulas, and says what is predicted and what has been measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from nemo_aopsd.cluster.doctor.memory import Item
from nemo_aopsd.cluster.doctor.result import Check
from nemo_aopsd.cluster.plan import workload
from nemo_aopsd.cluster.plan.constants import Constants, read_constants, read_gpu
from nemo_aopsd.cluster.plan.measured import Measured, read_run
from nemo_aopsd.cluster.plan.setup import check_memory, make_setup
from nemo_aopsd.cluster.plan.stages import Setup, Terms, add, answer, judge, refit, step_terms, times
from nemo_aopsd.cluster.plan.workload import Workload
from nemo_aopsd.config.schema import Config


@dataclass(frozen=True)
class Plan:
    """What one run takes: `terms` of each stage of a step, `once` those before the first epoch."""

    setup: Setup
    work: Workload
    constants: Constants
    terms: dict[str, Terms]
    once: Terms
    checks: list[Check]
    memory: list[Item]
    notes: list[str]

    @property
    def step_seconds(self) -> dict[str, float]:
        """By stage."""
        return {stage: self.constants.seconds(terms) for stage, terms in self.terms.items()}

    @property
    def epoch_seconds(self) -> dict[str, float]:
        return {stage: seconds * self.work.steps for stage, seconds in self.step_seconds.items()}

    @property
    def once_seconds(self) -> float:
        return self.constants.seconds(self.once)

    def gpu_hours(self, seconds: float) -> float:
        return seconds * self.setup.layout.gpus / 3600

    @property
    def probe_share(self) -> float:
        """Seconds of the probes over those of all other stages."""
        seconds = self.step_seconds
        probes = seconds.get("probes", 0.0)
        return probes / (sum(seconds.values()) - probes)

    @property
    def assumed_data(self) -> str | None:
        """What is assumed for want of the data file; None where it is there."""
        if self.work.missing is None:
            return None
        lengths = [name for name in ("question_tokens", "solution_tokens", "graph_tokens") if self._is_assumed(name)]
        and_lengths = f" and their lengths ({', '.join(lengths)})" if lengths else ""
        return (
            f"no file data.train.data_path={self.work.missing} (looked from {Path.cwd()}): "
            f"{self.work.problems} problems{and_lengths} are assumed"
        )

    @property
    def measured_errors(self) -> dict[str, tuple[float, float]]:
        """Least and greatest error of the shipped constants by stage, where steps were measured: docs/scaling.md."""
        return self.constants.measured_errors

    def _is_assumed(self, name: str) -> bool:
        return self.work.sources[name].startswith("assumed")

    def shares_by_status(self) -> dict[str, float]:
        """Of an epoch's seconds, by how well the constants behind them are known."""
        total = sum(self.step_seconds.values())
        shares: dict[str, float] = {}
        for terms in self.terms.values():
            for name, amount in terms.items():
                constant = self.constants.by_name[name]
                shares[constant.status] = shares.get(constant.status, 0.0) + amount * constant.theta / total
        return shares


def make_plan(
    config: Config, gpu: str, gpus: int | None = None, fitted: Path | None = None, lengths: Path | None = None
) -> Plan:
    """Plan `config` on `gpus` GPUs of the kind `gpu`; row lengths from the run `lengths` where it is given."""
    sheet, constants = read_gpu(gpu), read_constants(config.aopsd.engine, fitted)
    work = workload.from_config(config, constants)
    if lengths:
        rows = work.rows
        work = read_run(lengths).workload(work)
        work = replace(work, rows=rows, probes=work.probes * rows / work.rows)
    setup = make_setup(config, sheet, gpus, work)
    checks, items = check_memory(setup, config)
    return Plan(
        setup,
        work,
        constants,
        step_terms(setup, work),
        before_training(setup, work),
        checks,
        items,
        _notes(config, setup, work),
    )


def of_run(run: Measured, gpu: str, gpus: int | None, fitted: Path | None) -> Plan:
    """What the model would have said of a run, with the lengths that its rows turned out to have."""
    return make_plan(run.config, gpu, gpus, fitted, run.folder)


def before_training(setup: Setup, work: Workload) -> Terms:
    """K attempts at each problem, and their verdicts; a step's problems at a time (c^(0) of eq:dynamic-competence)."""
    if not work.initial_attempts:
        return {}
    rows = work.prompts * work.initial_attempts
    attempts = answer(setup, rows, work.question, work.response, work.longest)
    batches = times(work.steps, add(attempts, judge(setup, work, rows)))
    return batches if setup.is_local else add(refit(setup), batches)


def paper_overhead(rate: float, length: int) -> float:
    """The paper's claim as arithmetic: k teacher and k - 1 student tokens an event, over 7 forwards a rollout token.

    The 7 (rollout 1, teacher 1, update 5) are inferred from its 2.14 %, not stated in it.

    >>> round(paper_overhead(0.01, 8), 4)
    0.0214
    """
    return rate * (2 * length - 1) / 7


def _notes(config: Config, setup: Setup, work: Workload) -> list[str]:
    """What the numbers do not cover, for this config."""
    notes = []
    copies = setup.model_copies
    if config.aopsd.max_num_steps == 0:
        notes.append("aopsd.max_num_steps=0: no step is taken; the numbers are of one that would be")
    if work.teaches_in_update:
        notes.append(
            f"aopsd.objective.name={config.aopsd.objective.name}: the teacher's forward counts to the update; forming "
            "logits of the whole vocabulary twice, chunk by chunk, does not"
        )
    if work.rows % copies:
        notes.append(f"{work.rows} rollouts do not divide over {copies} copies of the model: all wait for the fullest")
    if work.rows < copies or work.rows < setup.engines:
        notes.append(f"{work.rows} rollouts a step leave GPUs idle: {copies} copies train, {setup.engines} vLLM sample")
    if config.aopsd.evaluation.data_path:
        notes.append("evaluations are not in these numbers")
    return notes
