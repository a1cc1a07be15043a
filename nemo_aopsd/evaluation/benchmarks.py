"""Problems to evaluate on, by path or by name: the four benchmarks of the paper come from the Hugging Face hub.

No problem text is shipped: HMMT and BRUMO are licensed CC BY-NC-SA, and AIME's text is its organiser's.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from nemo_aopsd.data.prepare import normalise
from nemo_aopsd.data.problems import Problem, answer_text, load_problems, parse_problem
from nemo_aopsd.data.source import read_source
from nemo_aopsd.errors import UserError

HUB_SETS = {  # data set of the hub, with columns `problem` and `answer`, and its split
    "aime24": ("HuggingFaceH4/aime_2024", "train"),
    "aime25": ("math-ai/aime25", "test"),
    "hmmt_feb25": ("MathArena/hmmt_feb_2025", "train"),
    "brumo25": ("MathArena/brumo_2025", "train"),
}
_NUM_PROBLEMS = 30  # of each


def load_benchmarks(sources: Iterable[str]) -> dict[str, list[Problem]]:
    """Problems by name of their benchmark: a known id, or else a JSONL file, whose name then is the benchmark's.

    A file with the very name of an id wins over the hub. Raises UserError on what is neither, on two sources of one
    name, on a bad problem, and on a hub that cannot be reached, naming the file to give instead.
    """
    found: dict[str, list[Problem]] = {}
    for source in sources:
        is_id = source in HUB_SETS and not Path(source).is_file()
        name = source if is_id else benchmark_name(source)
        if name in found:
            raise UserError(f"--data {source}: a second benchmark named {name!r}. Rename one of the files.")
        if not is_id and not Path(source).is_file() and not Path(source).suffix:
            raise UserError(f"--data {source}: neither a file nor one of {', '.join(HUB_SETS)}. Give a JSONL file.")
        found[name] = _from_hub(source) if is_id else load_problems(source, bare=True)
    return found


def also_in(problems: Sequence[Problem], others: Iterable[Problem]) -> list[Problem]:
    """Those whose question is one of the others', but for case, spacing, punctuation and LaTeX layout."""
    asked = {normalise(other.problem) for other in others}
    return [problem for problem in problems if normalise(problem.problem) in asked]


def check_apart(dev: dict[str, list[Problem]], test: dict[str, list[Problem]]) -> None:
    """Raise UserError if a question of `dev` is one of `test`."""
    if both := also_in([*chain(*dev.values())], [*chain(*test.values())]):
        raise UserError(
            f"--choose-on: {len(both)} of its problems are in --data, too, such as {both[0].where}. A checkpoint "
            "that is chosen on them is not tested by them. Give other problems."
        )


def benchmark_name(file: str) -> str:
    """What a benchmark from a file is called; `gsm8k.dev.jsonl` -> `gsm8k_dev`."""
    return Path(file).stem.replace(".", "_")


def _from_hub(name: str) -> list[Problem]:
    hub_id, split = HUB_SETS[name]
    instead = f"Or give the problems yourself: --data {name}.jsonl, one object a line with id, problem, answer."
    try:
        rows = list(read_source(hub_id, split=split))
    except UserError as error:
        cause = str(error).split(". ")[0]  # what follows is about another command
        raise UserError(f"--data {name}: {cause}. {instead}") from error
    if len(rows) != _NUM_PROBLEMS:
        raise UserError(f"--data {name}: {hub_id} has {len(rows)} rows, expected {_NUM_PROBLEMS}. {instead}")
    return [
        parse_problem({"id": f"{name}-{index}", "problem": row.get("problem"), "answer": answer_text(row)}, where)
        for index, (where, row) in enumerate(rows)
    ]
