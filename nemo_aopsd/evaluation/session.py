"""One call of `aopsd evaluate`: several benchmarks, one after the other, then their results.

`results.json`, `.md` and `.svg` are the same however often the work was interrupted; in `calls.jsonl` each call notes
what it did and how long it took.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_aopsd.config.schema import EvaluationConfig
from nemo_aopsd.console import warn
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Tokenizer
from nemo_aopsd.evaluation import RESULTS
from nemo_aopsd.evaluation.epochs import prepare, settings_of
from nemo_aopsd.evaluation.report import markdown
from nemo_aopsd.evaluation.samples import Sampler, collect
from nemo_aopsd.evaluation.summary import Summary, macro_average, summarize
from nemo_aopsd.files import atomic_write, derive_seed, json_text
from nemo_aopsd.manifest import NAME, Manifest
from nemo_aopsd.method.context import student_prompts


@dataclass(frozen=True, slots=True)
class Session:
    """`made_with`: what changes samples besides `config` and the prompts. `new_sampler` takes a benchmark's seed."""

    name: str
    tokenizer: Tokenizer
    new_sampler: Callable[[int], Sampler]
    config: EvaluationConfig
    prompts: str
    thinking: bool | None
    seed: int
    made_with: Mapping[str, Any]

    def run(self, benchmarks: Mapping[str, Sequence[Problem]], out: Path) -> Summary:
        """Sample what is missing, write all files of `out`, and return the content of `results.json`.

        Raises UserError, before anything is sampled, if `out` holds samples made with other settings.
        """
        from nemo_aopsd.evaluation.figure import pass_at_k_figure

        started, out = time.monotonic(), out.absolute()
        out.mkdir(parents=True, exist_ok=True)
        manifest, files = Manifest(out), {name: out / f"{name}.jsonl" for name in benchmarks}
        warn(manifest.check([*out.glob("*.jsonl"), *out.glob("*.settings.json")]))
        seeds = {name: derive_seed(self.seed, "benchmark", name) for name in benchmarks}
        prepared = {}
        for name, problems in benchmarks.items():
            rendered = student_prompts(problems, self.tokenizer, self.prompts, self.thinking)
            made_with = {**self.made_with, "seed": seeds[name]}
            asked = (problems, rendered, self.config, self.tokenizer, self.prompts)
            prepared[name] = prepare(manifest, out / name, *asked, made_with)
        summaries: dict[str, Summary] = {}
        before = {name: file.read_bytes().count(b"\n") if file.exists() else 0 for name, file in files.items()}
        for name in benchmarks:
            lines = collect(manifest, files[name], prepared[name], self.new_sampler(seeds[name]), name)
            summaries[name] = summarize(lines, self.config.num_samples)
            new, seconds = len(lines) - before[name], time.monotonic() - started
            call = {"benchmark": name, "new_samples": new, "seconds_so_far": seconds}
            manifest.append(out / "calls.jsonl", [call])
        own = {"seed": self.seed, "prompts": self.prompts, "thinking": self.thinking}
        results = {
            "model": self.name,
            "settings": {**settings_of(self.config), **self.made_with, **own},
            "benchmarks": summaries,
            "macro": macro_average(list(summaries.values())),
        }
        atomic_write(out / RESULTS, json_text(results))
        atomic_write(out / "results.svg", pass_at_k_figure(results))
        atomic_write(out / "results.md", markdown(results))
        return results


def files_of(out: Path, benchmarks: Iterable[str]) -> list[Path]:
    """Every file that a session writes."""
    own = [f"{name}{suffix}" for name in benchmarks for suffix in (".jsonl", ".settings.json")]
    return [out / name for name in (*own, "results.json", "results.svg", "results.md", "calls.jsonl", NAME)]
