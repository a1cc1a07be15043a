"""Results as Markdown: one row per benchmark and one for their mean, each percentage with its count."""

from collections.abc import Mapping
from typing import Any

from nemo_aopsd.console import counted, seed_words
from nemo_aopsd.evaluation.tables import ends, markdown_table, percent

Summary = Mapping[str, Any]

_NOTES = """\
Intervals are 95 %: bootstrap over problems (10,000 resamples; for the mean over benchmarks, within each), and Wilson
for problems solved and where all problems are right or all are wrong. pass@k is the unbiased estimator
1 - C(n-c, k) / C(n, k), averaged over problems; pass@1 is avg@N. Another seed draws other answers. The
mean over benchmarks is unweighted. In the majority vote a sample without an answer has no voice, and a tie counts as
the chance that a fair draw among its answers is right.
"""


def markdown(results: Summary) -> str:
    """The content of `results.json` as a page; it shows `results.svg` beside it."""
    n, rows = results["settings"]["num_samples"], _rows(results)
    many = [f"pass@{n}"] if n > 1 else []
    counts = ["problems solved (Wilson)", f"majority@{n}", "ties"]
    header = ["benchmark", "pass@1 = avg@N", "correct responses", *many, *counts]
    every_k = [[k, *(_rate_and_interval(part, k) for _, part in rows)] for k in range(1, n + 1)]
    parts = [
        f"# {results['model']}: pass@k",
        "Made with " + ", ".join(f"{key} `{value}`" for key, value in results["settings"].items()) + ".",
        markdown_table(header, [_main_row(*row, n) for row in rows]),
        markdown_table(_RESPONSES_HEADER, [_responses_row(*row) for row in rows]),
        "## pass@k for every k",
        markdown_table(["k", *(name for name, _ in rows)], every_k),
        "![pass@k by k](results.svg)",
        _NOTES,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def summary_table(results: Summary) -> str:
    """The columns of the page's tables that fit a terminal: a row a benchmark, the mean last."""
    ks = list(dict.fromkeys((1, results["settings"]["num_samples"])))
    header = ["benchmark", *(f"pass@{k}" for k in ks), "solved", "truncated"]
    rows = []
    for name, part in _rows(results):
        solved = f"{part['num_solved']} of {part['num_problems']}"
        rows.append([name, *(_rate_and_interval(part, k) for k in ks), solved, percent(part["truncation_rate"])])
    return markdown_table(header, rows)


def asked_line(settings: Summary) -> str:
    """How the questions were asked, for a terminal."""
    seed = seed_words(settings["seed"], "--seed") if settings["temperature"] else "greedy, whatever the seed"
    return (
        f"{counted(settings['num_samples'], 'sample')} a problem, prompts {settings['prompts']}, temperature "
        f"{settings['temperature']:g}, top-p {settings['top_p']:g}, top-k {settings['top_k']}, at most "
        f"{settings['max_new_tokens']} tokens; {seed}"
    )


def _rows(results: Summary) -> list[tuple[str, Summary]]:
    rows = list(results["benchmarks"].items())
    return [*rows, ("mean", results["macro"])] if len(rows) > 1 else rows


def _main_row(name: str, part: Summary, n: int) -> list[object]:
    solved = f"{part['num_solved']} of {part['num_problems']}"
    wilson, vote = part.get("solved_wilson_interval"), part["majority"]
    return [
        name,
        _rate_and_interval(part, 1),
        f"{part['num_correct']} of {part['num_responses']}",
        *([_rate_and_interval(part, n)] if n > 1 else []),
        f"{solved} {ends(**wilson)}" if wilson else solved,
        f"{percent(vote['rate'])} {ends(**vote['interval'])}, {vote['count']:.4g} of {part['num_problems']}",
        vote["ties"],
    ]


_RESPONSES_HEADER = ["benchmark", "truncated", "mean tokens", "mention private context", "no answer", "ungradable"]


def _responses_row(name: str, part: Summary) -> list[object]:
    def rate(key: str) -> str:
        of_all = f" ({part[f'{key}_count']} of {part['num_responses']})" if f"{key}_count" in part else ""
        return f"{percent(part[f'{key}_rate'])}{of_all}"

    unread = [part["no_answer"], part["ungradable"]]
    return [name, rate("truncation"), f"{part['mean_tokens']:.0f}", rate("leak"), *unread]


def _rate_and_interval(part: Summary, k: int) -> str:
    return f"{percent(part['pass_at_k'][str(k)])} {ends(**part['pass_at_k_interval'][str(k)])}"
