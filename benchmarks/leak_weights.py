"""What weightings make of continuations that name the private context, and of all others: from the probes of runs.

python -m benchmarks.leak_weights STEPS RUN [RUN ...]     the first STEPS of runs with aopsd.weighting=continuation
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from nemo_aopsd.config.schema import ProbeConfig
from nemo_aopsd.method.leaks import leak_patterns, mentions_context
from nemo_aopsd.method.weighting import Surprise, continuation_weight, step_weights
from nemo_aopsd.run.reader import load_run
from nemo_aopsd.run.record_types import Probe

WEIGHTINGS = ("continuation", "betas=auto", "normalised", "gap_matched", "constant")


def weights_of(steps: Sequence[Sequence[Probe]], weighting: str, config: ProbeConfig) -> list[float]:
    """Of all probes of one run, in order, as its steps would have given them."""
    if weighting == "betas=auto":
        config = replace(config, betas="auto")
    seen, found = Surprise(), []
    for probes in steps:
        gaps = [probe.gap for probe in probes]
        seen = seen.after((probe.gap, probe.nll) for probe in probes)
        own = [continuation_weight(probe.gap, probe.nll, seen.betas(config)) for probe in probes]
        found += step_weights(own, gaps, weighting, 0, config)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=int)
    parser.add_argument("runs", type=Path, nargs="+")
    arguments = parser.parse_args()
    leaks: list[bool] = []
    probes: list[Probe] = []
    weights: dict[str, list[float]] = {name: [] for name in WEIGHTINGS}
    for run in map(load_run, arguments.runs):
        aopsd, steps = run.config.aopsd, {}
        for rollout in run.rollouts():
            if rollout.step > arguments.steps:
                break
            if rollout.finished or not aopsd.mask_truncated:  # others have no weight in the loss
                steps.setdefault(rollout.step, []).extend(rollout.probes)
        patterns = leak_patterns(aopsd.prompts)
        own = [probe for step in steps.values() for probe in step]
        leaks += [mentions_context(f"{probe.anchor_text}{probe.suffix_text}", patterns) for probe in own]
        probes += own
        for name in WEIGHTINGS:
            weights[name] += weights_of([*steps.values()], name, aopsd.probes)
    print("| continuation | events | median L | L >= 4 |", *(f" w, {name} |" for name in WEIGHTINGS), sep="")
    print("|---|---|---|---|" + "---|" * len(WEIGHTINGS))
    kinds = [(leak, probe.gap > 0) for leak, probe in zip(leaks, probes, strict=True)]
    for kind in sorted(set(kinds), reverse=True):
        rows = [index for index, found in enumerate(kinds) if found == kind]
        nlls = [nll for index in rows if (nll := probes[index].nll) is not None]
        label = f"{'names the context' if kind[0] else 'other'}, gap {'>' if kind[1] else '<'} 0"
        cells = [len(rows), f"{median(nlls):.2f}" if nlls else "-", sum(nll >= 4 for nll in nlls)]
        cells += [f"{fmean(weights[name][index] for index in rows):.3f}" for name in WEIGHTINGS]
        print("| " + " | ".join(map(str, [label, *cells])) + " |")


if __name__ == "__main__":
    main()
