"""Two evaluations of the same problems: is one better than the other, problem by problem?

For each benchmark, and for the unweighted mean over them: the difference of pass@k with a paired bootstrap interval
and the p-value of a sign-flip permutation test, for every k that both can estimate; and how many problems only one of
the two solved in its N samples, with the exact McNemar test. No correction for many comparisons is made.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from nemo_aopsd.console import counted
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation import RESULTS
from nemo_aopsd.evaluation.summary import Summary, check_same_problems
from nemo_aopsd.evaluation.tables import ends, markdown_table, percent
from nemo_aopsd.stats import macro_bootstrap_interval, mcnemar_p_value, pass_at_k, sign_flip_p_value

_MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`counts`: correct samples of each problem of each benchmark; `num_samples` of one problem."""

    name: str
    num_samples: int
    counts: dict[str, dict[str, int]]


def load_evaluation(path: Path) -> Evaluation:
    """A folder of `aopsd evaluate`, its `results.json`, or the `epoch_*.json` that training wrote.

    Raises UserError if it is none of them.
    """
    file = path / RESULTS if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"{file}: no such file or folder (looked from {Path.cwd()}). Give the folder of "
            "a run that has an evaluation, one that `aopsd evaluate` has finished, or an epoch's JSON."
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if "benchmarks" in content:
            parts, num_samples = content["benchmarks"], content["settings"]["num_samples"]
            counts = {name: _counts(part, num_samples) for name, part in parts.items()}
        else:
            num_samples = content["num_samples"]
            counts = {"held_out": _counts(content, num_samples)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        fault = f"{type(error).__name__}: {error}"
        raise UserError(f"{file}: not the results of an evaluation ({fault}). Evaluate again.") from error
    return Evaluation(str(path), num_samples, counts)


def compare(first: Evaluation, second: Evaluation) -> Summary:
    """`second` less `first`, by benchmark and in the mean. Raises UserError unless both are on the same problems."""
    # Training says held_out where `aopsd evaluate` names the file.
    if len(first.counts) == len(second.counts) == 1 and "held_out" in {*first.counts, *second.counts}:
        second = replace(second, counts=dict(zip(first.counts, second.counts.values(), strict=True)))
    if first.counts.keys() != second.counts.keys():
        told = "; ".join(f"{one.name} has {', '.join(one.counts)}" for one in (first, second))
        raise UserError(f"{told}. Compare evaluations of the same benchmarks.")
    for name in first.counts:
        check_same_problems(f"{name} of {first.name} and {second.name}", first.counts[name], second.counts[name])
    names = list(first.counts)
    parts = {name: _compare([name], first, second) for name in names}
    if len(names) > 1:
        parts[_MEAN] = _compare(names, first, second)
    return {"first": first.name, "second": second.name, "parts": parts}


def markdown(comparison: Summary) -> str:
    """A table with a row a benchmark and k, and a line of counts a benchmark."""
    header = ["benchmark", "k", "first", "second", "difference", "95 % interval", "p (sign flips)"]
    rows = []
    for name, part in comparison["parts"].items():
        for k, found in part["pass_at_k"].items():
            rates = [percent(found[side]) for side in ("first", "second")]
            difference = [f"{100 * found['difference']:+.1f} pp", ends(found["low"], found["high"], "+")]
            rows.append([name, k, *rates, *difference, f"{found['p_value']:.3g}"])
    counts = "\n".join(_counts_line(name, part) for name, part in comparison["parts"].items())
    return f"{markdown_table(header, rows)}\n\n{counts}\n"


def _counts_line(name: str, part: Summary) -> str:
    line = (
        f"{name}: correct samples {part['correct_first']} of {part['responses_first']} and {part['correct_second']} of "
        f"{part['responses_second']} on {counted(part['num_problems'], 'problem')}"
    )
    solved = part["solved"]
    if solved is None:
        return f"{line}; solved problems are not compared, as the numbers of samples differ"
    return (
        f"{line}; both solved {solved['both']}, only the first {solved['only_first']}, only the second "
        f"{solved['only_second']}, neither {solved['neither']} (McNemar p = {solved['p_value']:.3g})"
    )


def _compare(names: Sequence[str], first: Evaluation, second: Evaluation) -> Summary:
    pairs = [[(first.counts[name][key], second.counts[name][key]) for key in first.counts[name]] for name in names]
    flat = [pair for group in pairs for pair in group]
    ks = range(1, min(first.num_samples, second.num_samples) + 1)
    return {
        "num_problems": len(flat),
        "correct_first": sum(one for one, _ in flat),
        "correct_second": sum(other for _, other in flat),
        "responses_first": first.num_samples * len(flat),
        "responses_second": second.num_samples * len(flat),
        "pass_at_k": {str(k): _difference(pairs, k, first.num_samples, second.num_samples) for k in ks},
        "solved": _solved(flat) if first.num_samples == second.num_samples else None,
    }


def _difference(pairs: Sequence[Sequence[tuple[int, int]]], k: int, num_first: int, num_second: int) -> Summary:
    one = [[pass_at_k(num_first, pair[0], k) for pair in group] for group in pairs]
    other = [[pass_at_k(num_second, pair[1], k) for pair in group] for group in pairs]
    differences = [[b - a for a, b in zip(left, right, strict=True)] for left, right in zip(one, other, strict=True)]
    low, high = macro_bootstrap_interval(differences)
    return {
        "first": fmean(map(fmean, one)),
        "second": fmean(map(fmean, other)),
        "difference": fmean(map(fmean, differences)),
        "low": low,
        "high": high,
        "p_value": sign_flip_p_value(differences),
    }


def _solved(pairs: Sequence[tuple[int, int]]) -> Summary:
    """Problems solved by any of the N samples, the same N on both sides."""
    counts = Counter((one > 0, other > 0) for one, other in pairs)
    return {
        "both": counts[True, True],
        "only_first": counts[True, False],
        "only_second": counts[False, True],
        "neither": counts[False, False],
        "p_value": mcnemar_p_value(counts[True, False], counts[False, True]),
    }


def _counts(part: Mapping[str, Any], num_samples: int) -> dict[str, int]:
    counts = dict(part["correct_per_problem"])
    if not counts or not all(isinstance(count, int) and 0 <= count <= num_samples for count in counts.values()):
        raise ValueError("`correct_per_problem` must hold counts up to `num_samples`")
    return counts
