"""The GSM8K tables of docs/results.md from their counts: right answers to each held-out problem, by model and method.

    python -m benchmarks.gsm8k_counts [MEMBER]   # reads benchmarks/measured/gsm8k_counts.json

Problems are lines of GSM8K's train.jsonl. Differences are from MEMBER, or from `base`, the untrained model, in points
and paired by problem, over the problems that both have; intervals are a bootstrap over problems.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from nemo_aopsd.stats import bootstrap_interval

COUNTS = Path(__file__).parent / "measured/gsm8k_counts.json"


def main() -> None:
    against = (sys.argv[1:] or ["base"])[0]
    for model, block in json.loads(COUNTS.read_text()).items():
        members = {name: table(words) for name, words in block["right_and_samples"].items()}
        if against not in members:
            continue
        print(model)
        base = members[against]
        for name, (right, samples) in members.items():
            rate = right.sum() / samples.sum()
            line = f"  {name:14} {100 * rate:5.1f} % of {samples.sum()} samples"
            both = (samples > 0) & (base[1] > 0)
            if name != against:
                differences = right[both] / samples[both] - base[0][both] / base[1][both]
                low, high = bootstrap_interval(differences.tolist(), num_resamples=10_000, seed=0)
                line += (
                    f", {100 * differences.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] on {both.sum()} problems"
                )
            print(line)


def table(words: str) -> tuple[np.ndarray, np.ndarray]:
    """Right answers and samples of each problem; 0 of 0 where it was not asked."""
    pairs = [("0", "0") if word == "-" else word.split("/") for word in words.split()]
    right, samples = np.array(pairs, dtype=int).T
    return right, samples


if __name__ == "__main__":
    main()
