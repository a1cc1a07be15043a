"""pass@k of the bare question on held-out problems, resumable to the same bytes.

Rows (problem by problem, sample by sample) go to the model in fixed blocks, each with its own seed, and a block
is written whole or sampled again. So an interrupted evaluation ends in the files of an uninterrupted one, but for
`seconds`, which counts the last call alone. All epochs share their seeds, which makes a paired difference less noisy.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nemo_aopsd.config import EvaluationConfig
from nemo_aopsd.context import student_messages
from nemo_aopsd.data import Problem, read_jsonl
from nemo_aopsd.engine import LanguageModel, Tokenizer
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_write, derive_seed, naming
from nemo_aopsd.grading import grade
from nemo_aopsd.leaks import leak_patterns, mentions_context
from nemo_aopsd.stats import bootstrap_interval, mean_pass_at_k, paired_bootstrap_interval, pass_at_k
from nemo_aopsd.types import Generation, Sampling, Tokens

BLOCK_SIZE = 256  # rows a call; a part of the meaning of a seed, so not a setting

Line = dict[str, Any]


def evaluate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    config: EvaluationConfig,
    *,
    prompts: str,
    thinking: bool | None,
    seed: int,
    out: Path,
    epoch: int,
    weights: str = "",
) -> dict[str, Any]:
    """Sample, grade and summarise `config.num_samples` responses a problem; returns the summary.

    Writes `out/epoch_000.jsonl` (one line a sample), `.json` (the summary, last) and `.settings.json` (what the
    samples were made with); `weights` names the model's weights there, a checkpoint say. Complete blocks of an
    earlier, interrupted call are kept. Must run in the main thread (see `grading`).
    Raises UserError if the folder holds samples that were made with other settings, prompts, problems or weights.
    """
    started = time.monotonic()
    rendered = [tokenizer.render(student_messages(problem, prompts), thinking) for problem in problems]
    rows = [(problem, sample) for problem in range(len(problems)) for sample in range(config.num_samples)]
    stem = out / f"epoch_{epoch:03d}"
    samples_path, summary_path = stem.with_suffix(".jsonl"), stem.with_suffix(".json")
    settings = _settings(config, problems, rendered, seed, weights)
    _check_settings(stem.with_suffix(".settings.json"), samples_path, settings)
    if summary_path.exists():
        return json.loads(summary_path.read_text(encoding="utf-8"))

    lines = _keep_complete_blocks(samples_path, len(rows))
    sampling = Sampling(
        max_new_tokens=config.max_new_tokens, temperature=config.temperature, top_p=config.top_p, top_k=config.top_k
    )
    patterns = leak_patterns(prompts)
    with samples_path.open("ab") as file, _progress(len(rows), len(lines)) as advance:
        for start in range(len(lines), len(rows), BLOCK_SIZE):
            block = rows[start : start + BLOCK_SIZE]
            block_seed = derive_seed(seed, "evaluation", start // BLOCK_SIZE)
            generations = model.generate([rendered[problem] for problem, _ in block], sampling, block_seed)
            for (index, sample), generation in zip(block, generations, strict=True):
                text = tokenizer.decode(generation.tokens)
                lines.append(_line(problems[index], sample, block_seed, generation, text, patterns))
            _append(file, lines[start:])
            advance(len(block))
    summary = {"epoch": epoch, **summarize(lines, config.num_samples), "seconds": time.monotonic() - started}
    atomic_write(summary_path, json.dumps(summary, ensure_ascii=False, indent=1) + "\n")
    return summary


def summarize(lines: Sequence[Line], num_samples: int) -> dict[str, Any]:
    """Counts, pass@k for every k up to `num_samples` with 95 % bootstrap intervals over problems, and rates."""
    correct: dict[str, int] = {}
    for line in lines:
        correct[line["problem_id"]] = correct.get(line["problem_id"], 0) + line["correct"]
    pass_at, intervals = {}, {}
    for k in range(1, num_samples + 1):
        low, high = bootstrap_interval([pass_at_k(num_samples, count, k) for count in correct.values()])
        pass_at[str(k)] = mean_pass_at_k(correct.values(), num_samples, k)
        intervals[str(k)] = {"low": low, "high": high}
    return {
        "num_problems": len(correct),
        "num_samples": num_samples,
        "pass_at_k": pass_at,
        "pass_at_k_interval": intervals,
        "correct_per_problem": correct,
        "leak_rate": _mean(line["leak"] for line in lines),
        "truncation_rate": _mean(not line["finished"] for line in lines),
        "mean_tokens": _mean(line["num_tokens"] for line in lines),
        "ungradable": sum(line["reason"] == "ungradable" for line in lines),
    }


def paired_interval(before: dict[str, Any], after: dict[str, Any]) -> tuple[float, float]:
    """95 % paired bootstrap interval of pass@1 after less before, over problems, from two summaries.

    Raises UserError if the two are not about the same problems.
    """
    earlier, later = before["correct_per_problem"], after["correct_per_problem"]
    if earlier.keys() != later.keys():
        odd = sorted(earlier.keys() ^ later.keys())
        raise UserError(
            f"the evaluations of epochs {before['epoch']} and {after['epoch']} share no set of problems: "
            f"{len(odd)} are in one only, such as {odd[0]!r}. Compare evaluations of the same file."
        )
    return paired_bootstrap_interval(
        [earlier[problem] / before["num_samples"] for problem in earlier],
        [later[problem] / after["num_samples"] for problem in earlier],
    )


def _line(
    problem: Problem, sample: int, seed: int, generation: Generation, text: str, patterns: list[re.Pattern[str]]
) -> Line:
    graded = grade(text, problem.answer)
    return {
        "problem_id": problem.id,
        "sample": sample,
        "seed": seed,  # of the whole block
        "response_text": text,
        "num_tokens": len(generation.tokens),
        "finished": generation.finished,
        "correct": graded.correct,
        "reason": graded.reason,
        "leak": mentions_context(text, patterns),
    }


def _settings(
    config: EvaluationConfig, problems: Sequence[Problem], rendered: Sequence[Tokens], seed: int, weights: str
) -> dict[str, Any]:
    content = [[problem.id, problem.answer, tokens] for problem, tokens in zip(problems, rendered, strict=True)]
    sampling = {key: value for key, value in asdict(config).items() if key not in ("data_path", "period")}
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return {**sampling, "seed": seed, "block_size": BLOCK_SIZE, "weights": weights, "prompts_and_answers": digest}


def _check_settings(path: Path, samples_path: Path, settings: dict[str, Any]) -> None:
    """Store the settings, or refuse to go on under others than the stored ones."""
    if not path.exists():
        if samples_path.exists():
            raise UserError(f"{samples_path}: samples without {path.name}, so of unknown origin. Move them away.")
        atomic_write(path, json.dumps(settings, indent=1) + "\n")
        return
    stored = json.loads(path.read_text(encoding="utf-8"))
    changed = [key for key in {**stored, **settings} if stored.get(key) != settings.get(key)]
    if changed:
        listed = ", ".join(f"{key} {stored.get(key)!r} -> {settings.get(key)!r}" for key in changed)
        raise UserError(
            f"{samples_path}: made with other settings ({listed}). "
            f"Restore them, choose another folder, or delete {path.with_suffix('').stem}.* there to start over."
        )


def _keep_complete_blocks(path: Path, num_rows: int) -> list[Line]:
    """Cut the file after its last complete block and return the lines up to there."""
    if not path.exists():
        return []
    complete = path.read_bytes().split(b"\n")[:-1]  # what follows the last line break was cut short by a kill
    count = len(complete) if len(complete) == num_rows else len(complete) // BLOCK_SIZE * BLOCK_SIZE
    os.truncate(path, sum(len(line) + 1 for line in complete[:count]))
    return [line for _, line in read_jsonl(path)]


def _append(file: Any, lines: Sequence[Line]) -> None:
    with naming(Path(file.name)):
        file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())


def _mean(values: Iterator[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


@contextmanager
def _progress(total: int, done: int) -> Iterator[Any]:
    """A bar with its rate on a terminal, nothing elsewhere; yields a function that takes a number of new rows."""
    if not sys.stdout.isatty():
        yield lambda count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    started, new = time.monotonic(), 0
    with Progress(*columns) as bar:
        task = bar.add_task("evaluate", total=total, completed=done)

        def advance(count: int) -> None:
            nonlocal new
            new += count
            rate = new / (time.monotonic() - started)
            bar.update(task, advance=count, description=f"evaluate {rate:.1f} samples/s")

        yield advance
