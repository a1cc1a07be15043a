"""When things happen: initial attempts, epochs, steps, evaluation, checkpoints, resume. What happens is in step.py.

Every random choice has a seed of its own, made from the run's seed and the step's number, so the state of a run is
its weights, its curriculum and a few counters. A killed run redoes the steps since its last checkpoint, and finds
the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from nemo_aopsd.config.schema import Config
from nemo_aopsd.console import Whole, counted, evaluation_line, progress, slow, step_line, track, warn
from nemo_aopsd.data.problems import Problem, fingerprint
from nemo_aopsd.engine import Engine
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.benchmarks import also_in
from nemo_aopsd.evaluation.epochs import evaluate
from nemo_aopsd.files import derive_seed, read_journal
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.method.context import donors_for, student_prompts
from nemo_aopsd.method.curriculum import build_curriculum, checked_batches
from nemo_aopsd.method.leaks import leak_patterns, mentions_context
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.probes import surprises
from nemo_aopsd.method.rollout import Draft, StepResult
from nemo_aopsd.method.step import judge_rollouts, train_step
from nemo_aopsd.method.weighting import Surprise
from nemo_aopsd.models.fingerprint import fingerprint_model
from nemo_aopsd.run import checkpoint, health, layout
from nemo_aopsd.run.checkpoint import CheckpointState
from nemo_aopsd.run.health import Finding
from nemo_aopsd.run.metrics import step_metrics
from nemo_aopsd.run.reader import read_evaluations, read_metrics, used_up
from nemo_aopsd.run.record_types import StepMetrics
from nemo_aopsd.run.records import rollout_record

_PACE = 5  # steps whose mean time says how long the rest takes: responses get longer or shorter while training


def train(
    config: Config,
    problems: list[Problem],
    held_out: list[Problem] | None,
    engine: Engine,
    run: Path,
    *,
    resume: bool,
    console: Console | None = None,
) -> None:
    """Train into the run folder until `max_num_epochs` or a budget is used up; with `resume`, from where it stopped.

    Budgets are `max_num_steps`, `max_response_tokens` and `max_train_seconds`; the step that reaches one is the last.
    """
    Trainer(config, problems, held_out, engine, run, console or Console()).run(resume)


class Trainer:
    """Holds what lives as long as a run; its arguments are those of `train`."""

    def __init__(
        self,
        config: Config,
        problems: list[Problem],
        held_out: list[Problem] | None,
        engine: Engine,
        folder: Path,
        console: Console,
    ):
        self.config, self.aopsd, self.engine = config, config.aopsd, engine
        self.folder, self.console, self.manifest = folder, console, Manifest(folder)
        self.problems, self.held_out = {problem.id: problem for problem in problems}, held_out
        self.objective = build_objective(self.aopsd.objective)
        self.donors = donors_for(problems, self.aopsd.shown_context, self.aopsd.seed)
        self.leak_patterns = leak_patterns(self.aopsd.prompts)
        order, size = self.aopsd.curriculum, self.aopsd.num_prompts_per_step
        self.curriculum = build_curriculum(list(self.problems), order, size, self.aopsd.seed)
        self.step = 0  # steps done
        self.next_batch = 0  # of the running epoch
        self.response_tokens = 0  # of the steps done
        self.train_seconds = 0.0  # of the steps done
        self.surprise = Surprise()  # of the steps done
        self.rows: list[StepMetrics] = []  # of the steps done
        self.rules = health.rules(self.aopsd)

    def run(self, resume: bool) -> None:
        if resume:
            warn(self.manifest.check(layout.trusted_files(self.folder)))
        newest = checkpoint.newest(self.checkpoints) if resume else None
        state = checkpoint.load(newest, self.engine) if newest else None
        if state:
            self._check_problems(state)
            self.step, self.next_batch = state.step, state.next_batch
            self.response_tokens, self.train_seconds = state.response_tokens, state.train_seconds
            self.curriculum.load_state_dict(state.curriculum)
            self.surprise = Surprise(**{sign: tuple(values) for sign, values in state.surprise.items()})
        if resume:
            self._say_what_is_left() if self._finished() else self._say_where_it_goes_on()
        self._forget_steps_after(self.step)
        self.rows = read_metrics(self.folder)
        self.engine.forget_metrics_after(self.step)
        if not self._finished():
            self._forget_evaluations_after(self.curriculum.epoch)
        if not state:
            self._start_curriculum()
        self._evaluate()
        while not self._finished():
            self._run_epoch()
            self._evaluate()

    def _run_epoch(self) -> None:
        epoch = self.curriculum.epoch
        batches = checked_batches(self.curriculum)
        label = f"epoch {epoch + 1}/{self.aopsd.max_num_epochs}, steps"
        limit = self.aopsd.max_num_steps
        total = len(batches) if limit is None else min(len(batches), self.next_batch + limit - self.step)
        with progress(label, total, self.next_batch, self.console, keep=False, told=True) as advance:
            for batch in batches[self.next_batch :]:
                self._make_step(batch, epoch, len(batches))
                advance(1)  # now, for its line is said, and a checkpoint may take long
                finished = self.next_batch == len(batches)
                if finished:
                    self.curriculum.end_epoch()
                    self.next_batch = 0
                    self._record_competence()
                if finished or self._out_of_budget() or self.step % self.config.checkpointing["save_period"] == 0:
                    self._save()
                if self._out_of_budget():
                    return

    def _make_step(self, batch: Sequence[str], epoch: int, num_batches: int) -> None:
        result = train_step(
            [self.problems[problem_id] for problem_id in batch],
            self.engine,
            self.objective,
            self.config,
            donors=self.donors,
            seed=derive_seed(self.aopsd.seed, "step", self.step + 1),
            past=self.surprise,
        )
        self.step += 1
        self.next_batch += 1
        self.response_tokens += sum(len(draft.output.tokens) for draft in result.drafts)
        self.train_seconds += sum(result.seconds.values())
        self._observe(result)
        self._record(result, epoch, self._whole(num_batches))

    def _observe(self, result: StepResult) -> None:
        probes_B = [row.probes for row in result.scored if row.draft.in_loss(self.aopsd)]
        self.surprise = self.surprise.after(surprises(probes_B))
        for draft in result.drafts:
            if draft.progress is not None and not draft.is_demonstration:
                self.curriculum.observe(draft.problem.id, draft.progress)

    def _whole(self, num_batches: int) -> Whole:
        """What the budgets leave, at the pace of the last steps; the first to be used up says when the run ends."""
        epochs = self.aopsd.max_num_epochs
        steps = min(num_batches * epochs, self.aopsd.max_num_steps or math.inf)
        past = self.rows[-_PACE] if len(self.rows) >= _PACE else None
        seconds = self.train_seconds - (past.number("time/total") if past else 0)
        left = []
        for key, limit, used in (
            ("step", steps, self.step),
            ("rollout/total_tokens", self.aopsd.max_response_tokens, self.response_tokens),
            ("time/total", self.aopsd.max_train_seconds, self.train_seconds),
        ):
            lately = used - (past.number(key) if past else 0)
            if limit is not None and lately > 0:
                left.append(seconds * max(0, limit - used) / lately)
        return Whole(epochs, int(steps), min(left))

    def _record(self, result: StepResult, epoch: int, whole: Whole) -> None:
        at: dict[str, Any] = {"epoch": epoch, "step": self.step}
        records = [
            at | rollout_record(*pair, self.engine.tokenizer, self.aopsd.shown_context) for pair in result.pairs()
        ]
        leaks = [mentions_context(record["response_text"], self.leak_patterns) for record in records]
        totals = {"rollout/total_tokens": self.response_tokens, "time/total": self.train_seconds}
        metrics = at | step_metrics(result, self.aopsd, leaks) | self._betas() | totals
        self.manifest.replace_jsonl(layout.rollout_file(self.folder, self.step), records)
        self.manifest.append(self.folder / layout.METRICS, [metrics])
        self.engine.log_metrics(metrics, self.step)
        self.rows.append(StepMetrics(epoch, self.step, metrics))
        self._say(step_line(metrics, whole, self.console.width if self.console.is_terminal else None))
        self._warn(health.entered(self.rules, self.rows))

    def _warn(self, findings: Iterable[Finding]) -> None:
        for found in findings:
            self._say(f"warning: step {self.step}: {found.sentence} {found.remedy}")

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _betas(self) -> dict[str, float]:
        """Those of the step that `_observe` saw last, where they are not in the config."""
        if self.aopsd.probes.betas == "fixed":
            return {}
        found = asdict(self.surprise.betas(self.aopsd.probes))
        return {f"probe/beta_{sign}": beta for sign, beta in found.items() if beta is not None}

    def _start_curriculum(self) -> None:
        if self.aopsd.curriculum.needs_progress and not self._finished():  # with max_num_steps=0 nothing reads it
            self.curriculum.initialize(self._initial_progress())
        self._record_competence()

    def _initial_progress(self) -> dict[str, list[float]]:
        """Progress of K attempts a problem (c^(0) of eq:dynamic-competence), journalled a batch at a time."""
        journal = self.folder / layout.INITIAL_PROGRESS
        found = {line["problem_id"]: line["progress"] for line in read_journal(journal, "problem_id", "progress")}
        size = self.aopsd.num_prompts_per_step
        ids = sorted(self.problems)
        blocks = [ids[start : start + size] for start in range(0, len(ids), size)]
        missing = [index for index, block in enumerate(blocks) if not found.keys() >= set(block)]
        done = len(blocks) - len(missing)
        for index in track(missing, "initial attempts, batches", self.console, len(blocks), done):
            new = self._attempt(blocks[index], derive_seed(self.aopsd.seed, "initial", index))
            new = {key: values for key, values in new.items() if key not in found}
            self.manifest.append(journal, ({"problem_id": key, "progress": new[key]} for key in new))
            found |= new
        return found

    def _attempt(self, ids: list[str], seed: int) -> dict[str, list[float]]:
        problems = [self.problems[key] for key in ids for _ in range(self.aopsd.curriculum.num_initial_attempts)]
        prompts = student_prompts(problems, self.engine.tokenizer, self.aopsd.prompts, self.aopsd.thinking.student)
        outputs = self.engine.student.generate(prompts, self.config.rollout, derive_seed(seed, "rollout"))
        verdicts = judge_rollouts(problems, [output.tokens for output in outputs], self.engine, self.config, seed)
        drafts = [Draft(*row) for row in zip(problems, prompts, outputs, strict=True)]
        found: dict[str, list[float]] = {key: [] for key in ids}
        for draft, verdict in zip(drafts, verdicts, strict=True):
            if (progress := draft.judged(verdict).progress) is not None:
                found[draft.problem.id].append(progress)
        return found

    def _evaluate(self) -> None:
        """pass@k of the current weights between epochs, each `period`, and where the run ends; none is made twice.

        It has the number of epochs begun, so a run that ends within epoch 3 ends with `epoch_003`.
        """
        if self.held_out is None or not self._lacks_evaluation():
            return
        summary = evaluate(
            self.engine.student,
            self.engine.tokenizer,
            self.held_out,
            self.aopsd.evaluation,
            prompts=self.aopsd.prompts,
            thinking=self.aopsd.thinking.student,
            seed=derive_seed(self.aopsd.seed, "eval"),
            manifest=self.manifest,
            out=self.folder / layout.EVALUATIONS,
            epoch=self._epochs_begun,
            weights=f"step_{self.step:06d}",
            num_trained_on=len(also_in(self.held_out, self.problems.values())),
        )
        rates = {f"eval/pass_at_{k}": rate for k, rate in summary["pass_at_k"].items()}
        self.engine.log_metrics(rates, self.step)
        self._say(evaluation_line(summary, self.step if self.next_batch else None))
        if fall := health.entered_fall(read_evaluations(self.folder, self.rows)):
            self._warn([fall])

    @property
    def _epochs_begun(self) -> int:
        return self.curriculum.epoch + (self.next_batch > 0)

    def _lacks_evaluation(self) -> bool:
        epoch, period = self._epochs_begun, self.aopsd.evaluation.period
        due = self._finished() or (self.next_batch == 0 and epoch % period == 0)
        return due and not layout.evaluation_file(self.folder, epoch).exists()

    def _record_competence(self) -> None:
        self.curriculum.record()
        self.manifest.replace_jsonl(self.folder / layout.COMPETENCE, self.curriculum.history)

    def _save(self) -> None:
        settings = self.config.checkpointing
        if settings["enabled"]:
            with slow(f"saving step {self.step}"):
                checkpoint.save(self.checkpoints, self.engine, self._state(), settings["keep_top_k"])

    def _state(self) -> CheckpointState:
        return CheckpointState(
            step=self.step,
            next_batch=self.next_batch,
            response_tokens=self.response_tokens,
            train_seconds=self.train_seconds,
            teacher_checksum=self.engine.teacher_checksum(),
            problems=fingerprint(self.problems.values()),
            held_out=fingerprint(self.held_out or []),
            judge=self._judge(),
            curriculum=self.curriculum.state_dict(),
            surprise={sign: list(medians) for sign, medians in asdict(self.surprise).items()},
        )

    def _say_what_is_left(self) -> None:
        """No step: the limits that are reached can be raised."""
        reached = ", ".join(f"aopsd.{key}={limit}" for key, limit in self._reached().items())
        evaluates = self.held_out is not None and self._lacks_evaluation()
        left = "only the last evaluation is left to do" if evaluates else "nothing left to do"
        self._say(f"{left}: {counted(self.step, 'step')} done; reached: {reached}")

    def _say_where_it_goes_on(self) -> None:
        """Before the first checkpoint a run starts again, but keeps its initial attempts."""
        said = f"goes on at step {self.step + 1}" if self.step else "no checkpoint yet: starts again at step 1"
        if not self.step and self.aopsd.curriculum.needs_progress:
            kept = {line["problem_id"] for line in read_journal(self.folder / layout.INITIAL_PROGRESS, "problem_id")}
            said += f", keeps the initial attempts at {len(kept)} of {len(self.problems)} problems"
        lost = checkpoint.steps_without(self.checkpoints, self.folder / layout.METRICS)
        self._say(said + (f"; redoes {counted(lost, 'step')} that no checkpoint holds" if lost else ""))

    def _check_problems(self, state: CheckpointState) -> None:
        for before, problems, path in (
            (state.problems, self.problems.values(), self.config.data["train"]["data_path"]),
            (state.held_out, self.held_out or [], self.aopsd.evaluation.data_path),
        ):
            if before != fingerprint(problems):
                raise UserError(
                    f"{path}: these are not the problems that the run in {self.folder} was started with. "
                    "Restore the file, or start a new run in another logger.log_dir."
                )

        if state.judge not in ("", self._judge()):
            raise UserError(
                f"{self.aopsd.judge.model}: is not the model that judged the run in {self.folder} (aopsd.judge.model). "
                "Restore it, or start a new run in another logger.log_dir."
            )

    def _judge(self) -> str:
        """A fingerprint of the judge's own model; empty if it has none."""
        judge = self.aopsd.judge
        return (fingerprint_model(judge.model) or "") if judge.has_own_model else ""

    def _forget_steps_after(self, step: int) -> None:
        """Drop what was recorded after the newest checkpoint: those steps come again."""
        self.manifest.replace_jsonl(self.folder / layout.COMPETENCE, self.curriculum.history)
        metrics = self.folder / layout.METRICS
        self.manifest.replace_jsonl(metrics, [line for line in read_journal(metrics, "step") if line["step"] <= step])
        for later, path in layout.rollout_files(self.folder).items():
            if later > step:
                self.manifest.remove(path)

    def _forget_evaluations_after(self, epoch: int) -> None:
        """Drop that of a run that ended within an epoch, and now goes on."""
        for path in (self.folder / layout.EVALUATIONS).glob("epoch_[0-9]*.*"):
            if int(path.name.removeprefix("epoch_").split(".")[0]) > epoch:
                self.manifest.remove(path)

    def _finished(self) -> bool:
        return bool(self._reached())

    def _out_of_budget(self) -> bool:
        return bool(self._reached().keys() - {"max_num_epochs"})

    def _reached(self) -> dict[str, float]:
        return used_up(self.aopsd, self.curriculum.epoch, self.step, self.response_tokens, self.train_seconds)

    @property
    def checkpoints(self) -> Path:
        return Path(self.config.checkpointing["checkpoint_dir"])
