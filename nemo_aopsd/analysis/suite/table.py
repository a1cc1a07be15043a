"""The results of a suite as Markdown, as CSV and as a figure."""

import csv
import io
from collections.abc import Sequence

from matplotlib.axes import Axes

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.suite.processes import Failure
from nemo_aopsd.analysis.suite.results import Difference, Row
from nemo_aopsd.evaluation.tables import ends, markdown_table, percent

_NONE = "-"
_ROW, _MARGIN, _WIDTH = 0.3, 1.1, 4.2  # inches: height of a member, of title and axis, width of a panel
_NOTES = """\
pass@1 is the mean over seeds, problems and samples; pass@k the unbiased estimator 1 - C(n-c, k) / C(n, k). Counts are
over all seeds. Intervals are 95 %, paired by problem and seed, from a bootstrap that resamples problems and seeds (with
one seed: problems only); no correction for many comparisons is made. `base` is the model before training, as each run
evaluated it. An answer names the context if a pattern of `leaks.txt` of its prompts finds something in it; it is
truncated if it has no end. Steps and tokens are those of one seed; supervision is what the update reads of one response
token.
"""


def markdown(title: str, command: str, rows: Sequence[Row], reference: str | None, failures: Sequence[Failure]) -> str:
    """A page that shows `results.svg` beside it; it names what failed and what no step told."""
    parts = [f"# {title}", f"`{command}`"]
    if rows:
        most, seeds = max(rows[0].pass_at_k), sorted({seed for row in rows for seed in row.seeds})
        many = [f"pass@{most}", "solved"] if most > 1 else []
        against = _heads(rows, reference)
        costs = ["s a step", "steps", "response tokens", "supervision, bytes a token"]
        header = ["member", "seeds", "pass@1", "correct", *many, *against, "names the context", "truncated", *costs]
        rates = [dict(zip(row.seeds, map(percent, row.by_seed), strict=True)) for row in rows]
        by_seed = [[row.label, *(own.get(seed, _NONE) for seed in seeds)] for row, own in zip(rows, rates, strict=True)]
        parts += [markdown_table(header, [_cells(row, most, reference) for row in rows]), _NOTES]
        if silent := [row.label for row in rows if row.steps and row.bytes_per_token is None]:
            parts[-1] += (
                f"\nNo `train/supervision_bytes_per_token` in the metrics of {', '.join(silent)}: there is no teacher, "
                "or its whole distribution is formed inside the update."
            )
        parts += ["![pass@1 and differences](results.svg)", "## pass@1 of each seed"]
        parts.append(markdown_table(["member", *(f"seed {seed}" for seed in seeds)], by_seed))
    if failures:
        lines = [f"- {failure.run.label}: {failure.reason} (`{failure.run.log}`)" for failure in failures]
        parts += ["## Failed", "\n".join(lines), "The same command tries them again."]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def summary(rows: Sequence[Row], reference: str | None) -> str:
    """The columns of the page's table that fit a terminal."""
    header = ["member", "seeds", "pass@1", *_heads(rows, reference)]
    cells = []
    for row in rows:
        rate, against = f"{percent(row.pass_at_k[1])} {ends(*row.interval)}", _against(row, reference)
        cells.append([row.label, len(row.seeds), rate, *map(_difference, against.values())])
    return markdown_table(header, cells)


def csv_text(rows: Sequence[Row], reference: str | None) -> str:
    """A line a member, with all digits; an empty cell where there is no value."""
    records, buffer = [_record(row, reference) for row in rows], io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([records[0], *(record.values() for record in records)])  # None is an empty cell
    return buffer.getvalue()


def _cells(row: Row, most: int, reference: str | None) -> list[str]:
    many = [percent(row.pass_at_k[most]), f"{row.solved:,} of {row.problems:,}"] if most > 1 else []
    return [
        row.label,
        str(len(row.seeds)),
        f"{percent(row.pass_at_k[1])} {ends(*row.interval)}",
        f"{row.correct:,} of {row.responses:,}",
        *many,
        *map(_difference, _against(row, reference).values()),
        *(_NONE if count is None else percent(count / row.responses) for count in (row.leaks, row.truncated)),
        _NONE if row.seconds_per_step is None else f"{row.seconds_per_step:.2f}",
        f"{row.steps:.0f}",
        f"{row.response_tokens:,.0f}",
        _NONE if row.bytes_per_token is None else f"{row.bytes_per_token:.1f}",
    ]


def _against(row: Row, reference: str | None) -> dict[str, Difference | None]:
    """Differences by what the row is compared with. A reference named `base` is shown once, as the reference."""
    return {"base": row.against_base} | ({reference: row.against_reference} if reference else {})


def _label(rows: Sequence[Row], name: str) -> str:
    return next((row.label for row in rows if row.member == name), name)


def _heads(rows: Sequence[Row], reference: str | None) -> list[str]:
    return [f"against {_label(rows, name)}" for name in _against(rows[0], reference)]


def _difference(found: Difference | None) -> str:
    if not found:
        return _NONE
    sides = f"{percent(found.first)} -> {percent(found.second)}"
    return f"{100 * found.mean:+.1f} pp {ends(*found.interval, '+')}, {sides}"


def _record(row: Row, reference: str | None) -> dict[str, object]:
    record: dict[str, object] = {"member": row.member, "seeds": len(row.seeds)}
    record |= {f"pass@{k}": value for k, value in row.pass_at_k.items()}
    record |= {"pass@1 low": row.interval[0], "pass@1 high": row.interval[1]}
    record |= {"correct": row.correct, "responses": row.responses, "solved": row.solved, "problems": row.problems}
    parts = ("", " from", " to", " low", " high", " by problem low", " by problem high", " seeds")
    for name, found in _against(row, reference).items():
        values = [None] * 7 + [0]
        if found:
            values = [found.mean, found.first, found.second, *found.interval, *found.by_problem, found.num_seeds]
        record |= zip((f"against {name}{part}" for part in parts), values, strict=True)
    record |= {"names the context": row.leaks, "truncated": row.truncated}
    record |= {"steps": row.steps, "response tokens": row.response_tokens}
    return record | {"seconds per step": row.seconds_per_step, "supervision bytes per token": row.bytes_per_token}


def suite_figure(rows: Sequence[Row], reference: str | None) -> str:
    """pass@1 of every member, and its difference to the reference, with intervals; members as in the table.

    One grey mark a seed; an SVG document on white.
    """
    panels = 2 if any(row.against_reference for row in rows) else 1
    names = max(1.0, 0.07 * max(len(row.label) for row in rows))
    with svg.drawing(_WIDTH * panels + names, _ROW * len(rows) + _MARGIN) as figure:
        rates, *differences = figure.subplots(1, panels, sharey=True, squeeze=False).ravel()
        several = any(len(row.seeds) > 1 for row in rows)
        rates.set(title="pass@1 (grey: each seed)" if several else "pass@1", xlabel="95 % over problems and seeds")
        rates.xaxis.set_major_formatter(svg.PERCENT)
        rates.set_yticks(range(len(rows)), [row.label for row in rows])
        rates.set_ylim(len(rows) - 0.4, -0.6)
        for axes in differences:
            axes.axvline(0, color=svg.INK, linewidth=0.8)
            axes.set(title=f"pass@1 less that of {_label(rows, reference or '')}", xlabel="percentage points")
        for place, row in enumerate(rows):
            rates.plot(row.by_seed, [place] * len(row.seeds), linestyle="", marker="|", color=svg.GREY, markersize=9)
            _interval(rates, place, row.pass_at_k[1], row.interval, svg.BLUE)
            found = row.against_reference
            if found and row.steps:  # the untrained model is far away and in the other panel
                low, high = (100 * end for end in found.interval)
                _interval(differences[0], place, 100 * found.mean, (low, high), svg.ORANGE)
        for axes in (rates, *differences):
            axes.grid(axis="y", visible=False)
        return svg.to_svg(figure)


def _interval(axes: Axes, place: int, mean: float, ends: tuple[float, float], color: str) -> None:
    axes.plot(ends, [place, place], color=color)
    axes.plot([mean], [place], marker="o", color=color)
