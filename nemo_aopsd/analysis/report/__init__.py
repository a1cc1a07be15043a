"""`report.html`: one run on one page. Self-contained, without scripts; every figure is redone from the run folder."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from nemo_aopsd.analysis.report import page, panels
from nemo_aopsd.analysis.report.comparison import cautions, differences, name_of, read_sources, side_by_side
from nemo_aopsd.analysis.report.digest import read_reported
from nemo_aopsd.analysis.report.terms import terms
from nemo_aopsd.files import atomic_write
from nemo_aopsd.run import layout


def write_report(run: Path, others: Sequence[Path] = ()) -> Path:
    """Write `run/report.html` and return its path. A run that was cut short gets what it has.

    `others`: more runs, whose curves lie over those of `run`; evaluations of untrained models are in the tables alone.
    Raises UserError if a folder holds nothing to report, or a file in it is broken.
    """
    sources = read_sources([run, *others])  # first: it refuses what is no run
    data = read_reported(run, others)
    groups = [panels.draw(data, wanted) for wanted in (panels.OUTCOME, panels.METHOD, panels.STEPS)]
    outcome, method, steps = (shown for shown, _ in groups)
    graph, problem = page.graph_panel(data) or (None, None)
    environment = Environment(
        loader=PackageLoader("nemo_aopsd.analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment.get_template("report.html.jinja").render(
        name=name_of(run),
        run=data,
        page=page,
        differences=differences(sources),
        cautions=cautions(sources),
        comparison=side_by_side(sources),
        outcome=outcome,
        evaluations=panels.evaluation_table(data),
        method=method,
        steps=steps,
        missing=[title for _, titles in groups for title in titles],
        graph=graph,
        problem=problem,
        rollout=data.digest.graph_rollout,
        terms=terms(data.method),
        commands=page.commands(data, others),
    )
    path = run / layout.REPORT
    atomic_write(path, html)
    return path
