"""What `aopsd diagnose direction` found: on the terminal, as a page and as numbers."""

import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nemo_aopsd.analysis.diagnostics.direction import GROUPS, Arm, Direction, Keep
from nemo_aopsd.analysis.diagnostics.yardstick import Yardstick
from nemo_aopsd.config.schema import Config
from nemo_aopsd.console import counted, seed_words
from nemo_aopsd.files import atomic_write, json_text, write_jsonl

LEAST_MIXED = 2 * GROUPS  # problems with right and wrong answers: of groups of one, the spread says little
LEAST_COMPARED = 10 * GROUPS  # of these to tell weightings apart: draws with 48 contradict each other

_LEGEND = (
    "Gaps, and L, the mean surprise of the teacher's continuations, in nats; w is their mean weight. Progress is a "
    "share of the checkpoints, triggered of the tokens, leaks of the continuations."
)
CONTROLS = ("gap_matched", "shuffled", "constant", "zero_triggered")
_DIFFERENCES = (
    "Less uniform: the cosine less that of uniform weights, with its own 95 % interval. Most are narrower than that "
    "of either, since both are held against the same groups of problems. Behind it the part at triggered tokens, the "
    f"norm of that part and of the rest. {', '.join(CONTROLS[:-1])} and {CONTROLS[-1]} are controls. How to read it: "
    "docs/diagnostics.md, direction."
)


def verdicts(found: Direction, weighting: str = "uniform") -> list[str]:
    """Where a context's update points, with uniform weights and with the config's, if the yardstick can tell.

    And whether a weighting points more towards correctness than uniform weights.
    """
    told = [_verdict(arm, found.yardstick) for arm in found.arms if arm.weighting in ("uniform", weighting)]
    if found.yardstick.num_mixed >= LEAST_COMPARED:
        told += [_beside_uniform(arm) for arm in found.arms if arm.weighting == weighting != "uniform"]
        told += [_advice([arm for arm in found.arms if arm.context == signal.context]) for signal in found.signals]
    elif found.yardstick.num_mixed >= LEAST_MIXED:
        few = counted(found.yardstick.num_mixed, "problem")
        told.append(f"no weighting to try: {few} of right and wrong answers, {LEAST_COMPARED} needed")
    if all(arm.weighting != weighting for arm in found.arms):
        told.append(f"no verdict on aopsd.weighting={weighting}, which is none of the weightings measured here")
    return told


def _advice(arms: Sequence[Arm]) -> str:
    """Which weighting to try under the context of `arms`."""
    known = [(arm.less_uniform, arm.less_uniform_error or 0.0, arm) for arm in arms if arm.less_uniform is not None]
    above = [(more, arm) for more, error, arm in known if more > error and arm.weighting not in CONTROLS]
    if not above:
        return f"{arms[0].context}: no weighting is above uniform weights beyond its interval: aopsd.weighting=uniform"
    best = max(above, key=lambda pair: pair[0])[1]
    numbers = f"({best.less_uniform:+.2g} \u00b1 {best.less_uniform_error:.2g})"
    return f"{best.context}: {best.weighting} is above uniform weights {numbers}: try aopsd.weighting={best.weighting}"


def _verdict(arm: Arm, stick: Yardstick) -> str:
    if arm.cosine is None or arm.error is None:
        return f"{arm.context}: undecided: its update or the yardstick is 0 ({arm.weighting})"
    numbers = f"({arm.weighting} {arm.cosine:.2g} \u00b1 {arm.error:.2g})"
    if stick.num_mixed < LEAST_MIXED:
        few = counted(stick.num_mixed, "problem")
        return f"{arm.context}: undecided with {few} of right and wrong answers, {LEAST_MIXED} needed {numbers}"
    if abs(arm.cosine) <= arm.error:
        return f"{arm.context}: undecided: the interval holds 0 {numbers}"
    return f"{arm.context}: points {'towards' if arm.cosine > 0 else 'away from'} correctness {numbers}"


def _beside_uniform(arm: Arm) -> str:
    difference, error = arm.less_uniform, arm.less_uniform_error
    if difference is None or error is None:
        return f"{arm.context}: {arm.weighting} and uniform weights: undecided: an update or the yardstick is 0"
    numbers = f"({difference:+.2g} \u00b1 {error:.2g})"
    if abs(difference) <= error:
        return f"{arm.context}: {arm.weighting} and uniform weights are not told apart {numbers}"
    side = "more" if difference > 0 else "less"
    return f"{arm.context}: {arm.weighting} points {side} towards correctness than uniform weights {numbers}"


def show(found: Direction, config: Config, console: Console) -> None:
    """Print it so that it fits 80 columns: a table of contexts, and one of weightings a context."""
    console.print(_yardstick(found.yardstick, config), highlight=False, markup=False)
    heads = ("context", "rollouts", "drop", "prog.", "|gap|", "gap", "trig.", "L", "w", "leaks")
    signals = [[_text(getattr(signal, name)) for name in signal.__slots__] for signal in found.signals]
    console.print(_terminal_table(" ", heads, signals), highlight=False)
    console.print(_LEGEND, highlight=False, markup=False)
    console.print(_DIFFERENCES, highlight=False, markup=False)
    heads = ("weighting", "cosine", "\u00b1", "-unif.", "\u00b1", "trig.", "-unif.", "\u00b1", "norm", "rest")
    for signal in found.signals:
        own = [arm for arm in found.arms if arm.context == signal.context]
        arms = [[_text(getattr(arm, name)) for name in arm.__slots__ if name != "context"] for arm in own]
        console.print(_terminal_table(f"\n{signal.context}", heads, arms), highlight=False)
    console.print()
    for sentence in verdicts(found, config.aopsd.weighting):
        console.print(sentence, highlight=False, markup=False)


def _terminal_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _yardstick(stick: Yardstick, config: Config) -> str:
    model, threshold = config.policy["model_name"], config.aopsd.probes.threshold
    undecided = f", {stick.num_undecided} ungradable and counted as wrong" if stick.num_undecided else ""
    return (
        f"{model}, threshold {threshold} nats, {seed_words(config.aopsd.seed)}. "
        f"Yardstick: {stick.num_answers} answers, {stick.num_right} right{undecided}; "
        f"{stick.num_mixed} of {stick.num_problems} problems have right and wrong ones. Its halves agree at cosine "
        f"{stick.agreement:.3f}, so a perfect update would show about {stick.ceiling:.3f}."
    )


_SAMPLED = (
    "What was sampled: the yardstick's answers in `answers.jsonl`; gaps, weights and probes of each rollout, token by "
    "token, in `rollouts.jsonl`. All digits of the numbers: `direction.json`."
)
FILES = ("direction.md", "direction.json", "answers.jsonl", "rollouts.jsonl")


def keeper(folder: Path) -> Keep:
    """Writes what is sampled into `folder`, as soon as it is there."""
    kept: dict[str, list[dict[str, Any]]] = {}

    def keep(name: str, records: list[dict[str, Any]]) -> None:
        kept[name] = kept.get(name, []) + records
        write_jsonl(folder / f"{name}.jsonl", kept[name])

    return keep


def write_direction(folder: Path, found: Direction, config: Config) -> list[Path]:
    """Write what `show` prints to direction.md, all digits to direction.json, and return their paths."""
    shown = io.StringIO()
    show(found, config, Console(file=shown, width=120, color_system=None, force_terminal=False))  # FORCE_COLOR or not
    names = ("num_answers", "num_right", "num_undecided", "num_mixed", "num_problems", "agreement", "ceiling")
    numbers = {
        "seed": config.aopsd.seed,
        "yardstick": {name: getattr(found.yardstick, name) for name in names},
        "contexts": [asdict(signal) for signal in found.signals],
        "arms": [_finite(asdict(arm)) for arm in found.arms],
    }
    page, data = (folder / name for name in FILES[:2])
    atomic_write(data, json_text(numbers))
    atomic_write(page, f"# Does an update point towards correctness?\n\n```\n{shown.getvalue()}```\n\n{_SAMPLED}\n")
    return [page, data]


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """With null for the error of one group, which is infinite: JSON has no such number."""
    return {name: None if value == math.inf else value for name, value in values.items()}


def _text(cell: str | float | None) -> str:
    return "-" if cell is None else f"{cell:.3f}" if isinstance(cell, float) else str(cell)
