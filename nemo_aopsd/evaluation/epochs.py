"""pass@k of the bare question on held-out problems, resumable to the same bytes.

Rows (problem by problem, sample by sample) go to the model in fixed blocks, each with its own seed. So an interrupted
evaluation ends in the files of an uninterrupted one, but for `seconds`, which counts the last call alone. All epochs
share their seeds, which makes a paired difference less noisy.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nemo_aopsd.config.schema import EvaluationConfig
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import LanguageModel, Tokenizer
from nemo_aopsd.evaluation import EPOCH
from nemo_aopsd.evaluation.samples import BlockSampler, Questions, check_settings, collect
from nemo_aopsd.evaluation.summary import Summary, check_same_problems, summarize
from nemo_aopsd.evaluation.tables import has_width
from nemo_aopsd.files import json_text, read_json
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.method.context import student_prompts
from nemo_aopsd.method.leaks import leak_patterns
from nemo_aopsd.stats import paired_bootstrap_interval
from nemo_aopsd.types import Sampling, Tokens

BLOCK_SIZE = 256  # rows a call; a part of the meaning of a seed, so not a setting


def evaluate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    config: EvaluationConfig,
    *,
    prompts: str,
    thinking: bool | None,
    seed: int,
    manifest: Manifest,
    out: Path,
    epoch: int,
    weights: str = "",
    num_trained_on: int = 0,
) -> Summary:
    """Sample, grade and summarise `config.num_samples` responses a problem; returns the summary.

    Writes `out/epoch_000.jsonl` (a line a sample), `.json` (the summary, last) and `.settings.json` (what samples are
    made with; `weights` names the model's). What an interrupted call wrote is kept; `manifest` has checked it. Raises
    UserError if there are samples that were made with other settings, prompts, problems or weights.
    """
    started = time.monotonic()
    stem = out / EPOCH.format(epoch)
    summary_path = stem.with_suffix(".json")
    rendered = student_prompts(problems, tokenizer, prompts, thinking)
    made_with = {"seed": seed, "block_size": BLOCK_SIZE, "weights": weights}
    asked = prepare(manifest, stem, problems, rendered, config, tokenizer, prompts, made_with)
    if summary_path.exists():
        return read_json(summary_path, "num_samples", "correct_per_problem", remedy="Delete it to have it made anew.")
    sampler = BlockSampler(model, sampling_of(config), seed, BLOCK_SIZE)
    lines = collect(manifest, stem.with_suffix(".jsonl"), asked, sampler, "evaluation, responses")
    counted = summarize(lines, config.num_samples) | {"num_trained_on": num_trained_on}
    summary = {"epoch": epoch, **counted, "seconds": time.monotonic() - started}
    manifest.replace(summary_path, json_text(summary))
    return summary


def prepare(
    manifest: Manifest,
    stem: Path,
    problems: Sequence[Problem],
    rendered: Sequence[Tokens],
    config: EvaluationConfig,
    tokenizer: Tokenizer,
    prompts: str,
    made_with: Mapping[str, Any],
) -> Questions:
    """What is asked, a `rendered` prompt a problem, once `stem.settings.json` agrees on what samples are made with.

    `made_with` are the caller's entries there: whatever changes a sample and is not in `config`. Raises UserError if
    there are samples that were made with anything else.
    """
    content = [[problem.id, problem.answer, tokens] for problem, tokens in zip(problems, rendered, strict=True)]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    settings = {**settings_of(config), **made_with, "prompts_and_answers": digest}
    check_settings(manifest, stem, settings)
    return Questions(problems, rendered, config.num_samples, tokenizer, leak_patterns(prompts))


def sampling_of(config: EvaluationConfig) -> Sampling:
    """How an evaluation decodes."""
    return Sampling(
        max_new_tokens=config.max_new_tokens, temperature=config.temperature, top_p=config.top_p, top_k=config.top_k
    )


def paired_interval(before: Summary, after: Summary) -> tuple[float, float]:
    """95 % paired bootstrap interval of pass@1 after less before, over problems, from two summaries.

    Raises UserError if the two are not about the same problems.
    """
    earlier, later = before["correct_per_problem"], after["correct_per_problem"]
    check_same_problems(f"the evaluations of epochs {before['epoch']} and {after['epoch']}", earlier, later)
    return paired_bootstrap_interval(
        [earlier[problem] / before["num_samples"] for problem in earlier],
        [later[problem] / after["num_samples"] for problem in earlier],
    )


def told_interval(low: float, high: float) -> str:
    """What `paired_interval` says; where each problem changed alike that is nothing, whatever is resampled."""
    if not has_width(low, high):
        return f"no interval of the change: it is {low:+.3f} for each problem"
    return f"95 % interval of the change [{low:+.3f}, {high:+.3f}]"


def settings_of(config: EvaluationConfig) -> dict[str, Any]:
    """What `config` says of the samples: not where the problems are, nor how often training evaluates."""
    return {key: value for key, value in asdict(config).items() if key not in ("data_path", "period")}
