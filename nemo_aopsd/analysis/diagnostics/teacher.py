"""Conditional utility: the frozen teacher answers with its context in its prompt, and without (Figure 1a, amber).

Its weights are those of the run's first step; docs/diagnostics.md lists the files. Under an adaptive context
(`dag_frontier`) every sample has one of its own, as in training: the student attempts the bare question, the judge says
what that establishes, and the teacher sees this and the frontier.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_aopsd.analysis.diagnostics.intervals import estimate, ratio
from nemo_aopsd.analysis.diagnostics.output import estimate_text
from nemo_aopsd.config.schema import Config, is_adaptive
from nemo_aopsd.console import warn
from nemo_aopsd.data.dag import largest_closed_subset
from nemo_aopsd.data.problems import Problem, fingerprint, load_problems
from nemo_aopsd.engine import Engine
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.epochs import prepare, sampling_of
from nemo_aopsd.evaluation.samples import BlockSampler, Sampled, Sampler, collect
from nemo_aopsd.evaluation.summary import summarize
from nemo_aopsd.evaluation.tables import markdown_table
from nemo_aopsd.files import derive_seed, json_text, read_json
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.method.context import donors_for, has_context, shown_messages, student_prompts, teacher_messages
from nemo_aopsd.method.step import judge_rollouts
from nemo_aopsd.run import layout
from nemo_aopsd.stats import pass_at_k
from nemo_aopsd.types import Tokens

BLOCK_SIZE = 256  # rows a call; a part of the meaning of a seed, so not a setting


@dataclass(frozen=True)
class Plan:
    """What a teacher is asked: problems that have what the context shows, and how many there were."""

    problems: list[Problem]
    num_left_out: int
    data: str
    folder: Path
    num_samples: int


def plan_teacher(run: Path, config: Config, data: Path | None, num_samples: int | None) -> Plan:
    """The problems of `data` (the run's held-out file if None) that the run's context can show.

    Raises UserError if there is no file, or no such problem in it.
    """
    file = data or config.aopsd.evaluation.data_path
    if file is None:
        raise UserError(f"{run}: the run has no aopsd.evaluation.data_path. Name problems: --data FILE.")
    problems = load_problems(file)
    kind = config.aopsd.context.kind
    usable = [problem for problem in problems if has_context(problem, kind)]
    if not usable:
        raise UserError(f"{file}: none of {len(problems)} problems has what context {kind} shows. Name others: --data.")
    count = num_samples or config.aopsd.evaluation.num_samples
    folder = layout.teacher_folder(run) / f"{Path(file).stem}_{fingerprint(usable)[:8]}_x{count}"
    return Plan(usable, len(problems) - len(usable), str(file), folder, count)


def evaluate_teacher(plan: Plan, kind: str, config: Config, engine: Engine) -> dict[str, Any]:
    """Sample and grade the teacher under context `kind`; returns the summary. An interrupted call is taken up again."""
    aopsd, stem = config.aopsd, plan.folder / kind.rpartition(":")[2]
    prompts = _fixed_prompts(plan.problems, kind, config, engine)
    evaluation = replace(aopsd.evaluation, num_samples=plan.num_samples)
    made_with = {
        "context": kind,
        "mark_frontier": aopsd.context.mark_frontier,
        "seed": aopsd.seed,
        "block_size": BLOCK_SIZE,
        "model": str(config.policy["model_name"]),
        "problems": fingerprint(plan.problems),
    }
    manifest = Manifest(plan.folder)
    warn(manifest.check(path for path in plan.folder.glob("*") if path.suffix in (".json", ".jsonl")))
    asked = prepare(manifest, stem, plan.problems, prompts, evaluation, engine.tokenizer, aopsd.prompts, made_with)
    summary_path = stem.with_suffix(".json")
    if summary_path.exists():
        return read_json(summary_path, "num_problems", "correct_per_problem", remedy="Delete it to have it made anew.")
    seed = derive_seed(aopsd.seed, "teacher", kind)
    sampler: Sampler = BlockSampler(engine.teacher, sampling_of(evaluation), seed, BLOCK_SIZE)
    if is_adaptive(kind):
        sampler = _AdaptiveSampler(plan, config, engine, seed)
    lines = collect(manifest, stem.with_suffix(".jsonl"), asked, sampler, f"teacher, {kind}")
    summary = {"context": kind, "data": plan.data, "num_left_out": plan.num_left_out}
    summary |= summarize(lines, plan.num_samples)
    manifest.replace(summary_path, json_text(summary))
    return summary


def utility(alone: dict[str, Any], informed: dict[str, Any]) -> str:
    """A table of pass@1 and pass@k from two summaries, and the paired change; intervals over problems."""
    rows = []
    for k in sorted({1, alone["num_samples"]}):
        sums: dict[str, list[float]] = {problem: [1.0] for problem in alone["correct_per_problem"]}
        for problem, row in sums.items():
            row += [pass_at_k(one["num_samples"], one["correct_per_problem"][problem], k) for one in (alone, informed)]
        before, after = estimate(sums, lambda totals: ratio(totals[:, 1:], totals[:, :1]))
        (change,) = estimate(sums, lambda totals: ratio(totals[:, 2:] - totals[:, 1:2], totals[:, :1]), is_share=False)
        rows.append([f"pass@{k}", *map(estimate_text, (before, after, change))])
    return markdown_table(["", "alone", "with the context", "paired change"], rows)


@dataclass(frozen=True)
class _AdaptiveSampler:
    """A fresh attempt, its verdict and the context P(y) for every row (eq:local-disclosure), in fixed blocks."""

    plan: Plan
    config: Config
    engine: Engine
    seed: int

    def __call__(self, prompts: list[Tokens], missing: Sequence[int]) -> Iterator[list[Sampled]]:
        """`prompts` are the bare questions of all rows."""
        for block in sorted({row // BLOCK_SIZE for row in missing}):
            rows = list(range(block * BLOCK_SIZE, min((block + 1) * BLOCK_SIZE, len(prompts))))
            seed = derive_seed(self.seed, block)
            teacher_prompts = self._disclose(rows, [prompts[row] for row in rows], seed)
            answers = self.engine.teacher.generate(
                teacher_prompts, sampling_of(self.config.aopsd.evaluation), derive_seed(seed, "teacher")
            )
            yield [Sampled(row, answer, seed) for row, answer in zip(rows, answers, strict=True)]

    def _disclose(self, rows: Sequence[int], prompts: list[Tokens], seed: int) -> list[Tokens]:
        aopsd, engine = self.config.aopsd, self.engine
        problems = [self.plan.problems[row // self.plan.num_samples] for row in rows]
        attempts = engine.student.generate(prompts, self.config.rollout, derive_seed(seed, "rollout"))
        verdicts = judge_rollouts(problems, [attempt.tokens for attempt in attempts], engine, self.config, seed)
        shown = [
            shown_messages(problem, aopsd, largest_closed_subset(problem.graph, verdict.judged), donors={})
            for problem, verdict in zip(problems, verdicts, strict=True)
        ]
        rendered = engine.tokenizer.render_all(shown, aopsd.thinking.teacher)
        _check_room(problems, rendered, self.config)
        return rendered


def _fixed_prompts(problems: Sequence[Problem], kind: str, config: Config, engine: Engine) -> list[Tokens]:
    """One prompt a problem: the teacher's, or the bare question where nothing is shown or each sample has its own."""
    aopsd = config.aopsd
    if kind == "none" or is_adaptive(kind):
        prompts = student_prompts(problems, engine.tokenizer, aopsd.prompts, aopsd.thinking.student)
    else:
        donors = donors_for(problems, kind, aopsd.seed)
        shown = [teacher_messages(item, kind, aopsd.prompts, donor=donors.get(item.id)) for item in problems]
        prompts = [engine.tokenizer.render(messages, aopsd.thinking.teacher) for messages in shown]
    _check_room(problems, prompts, config)
    return prompts


def _check_room(problems: Sequence[Problem], prompts: Sequence[Tokens], config: Config) -> None:
    """A teacher that is cut short by its longer prompt would look like one that its context does not help."""
    answer, limit = config.aopsd.evaluation.max_new_tokens, config.max_row_tokens
    for problem, prompt in zip(problems, prompts, strict=True):
        if len(prompt) + answer > limit:
            raise UserError(
                f"{problem.where}: problem {problem.id!r}: prompt {len(prompt)} + answer {answer} tokens exceed "
                f"policy.max_total_sequence_length={limit}. Lower the answer: --max-new-tokens N."
            )
