"""What the audit found: `report.json`, `report.md` and `enrichment.svg` in `RUN/audit/`."""

from dataclasses import asdict
from itertools import combinations
from pathlib import Path

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.audit.labels import LABELS, Record, read_labels
from nemo_aopsd.analysis.audit.measure import agreement, by_bin
from nemo_aopsd.analysis.audit.sampling import Sample, bin_names, load_events, load_keys, read_sample
from nemo_aopsd.console import counted
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.tables import ends, markdown_table, percent
from nemo_aopsd.files import atomic_write, json_text
from nemo_aopsd.run import layout

_LOOKS = {
    label: {"color": color, "marker": marker}
    for label, color, marker in zip(LABELS, (svg.TEAL, svg.GREY, svg.ORANGE), "os^", strict=True)
}


def write_report(run: Path) -> str:
    """Compare labels with NLLs, write the three files and return what `report.md` says.

    Raises UserError without a sample or a label, or where labels belong to another sample.
    """
    folder, sample = run / layout.AUDIT, read_sample(run)
    nlls = {key.id: key.nll for key in load_keys(run)}
    if nlls.keys() != {event.id for event in load_events(run)}:
        raise UserError(f"{folder}: events.jsonl and key.jsonl are not of one sample. Restore both.")
    labels, labellers = {}, {}
    for path in sorted((run / layout.LABELS).glob("*.jsonl")):
        origin, found, unread = read_labels(path)
        if unknown := [event for event in found if event not in nlls]:
            raise UserError(
                f"{path}: {len(unknown)} of {len(found)} labels are of events outside this sample, such as "
                f"{unknown[0]}. Move the file to the sample that it belongs to."
            )
        if found or unread:
            labels[path.stem] = found
            labellers[path.stem] = {"origin": origin, "unread": unread, **by_bin(found, nlls, sample)}
    if not labellers:
        raise UserError(f"{run / layout.LABELS}: no label yet. Label by `aopsd audit label` or `aopsd audit judge`.")
    record = {
        "sample": asdict(sample),
        "bins": bin_names(sample.edges),
        "labellers": labellers,
        "agreement": [{"labellers": [a, b], **agreement(labels[a], labels[b])} for a, b in combinations(labels, 2)],
    }
    page = _markdown(record, sample)
    atomic_write(folder / "enrichment.svg", _figure(record))
    atomic_write(folder / "report.md", page)
    atomic_write(folder / "report.json", json_text(record))
    return page


def _markdown(record: Record, sample: Sample) -> str:
    how = "drawn by bin, as evenly as the bins allow" if sample.by_bin else "a simple random sample"
    parts = [
        "# Audit of continuation events",
        f"{sample.num_drawn} of {sum(sample.population_per_bin)} events, {how}, seed {sample.seed}; "
        f"{sample.num_empty} probes with an empty continuation left out; rollouts up to {sample.last_file}. "
        "Labellers saw neither L nor gap nor weight. Brackets: 95 % Wilson intervals, which take events as "
        "independent; those of one rollout are not, so the truth is wider. × is the share over the base rate. "
        "The paper labels 91.35 % of its events with L ≥ 4 as leakage (15,043 events in all).",
    ]
    for name, found in record["labellers"].items():
        origin = found["origin"]
        who = f"model {origin['model']}" if origin.get("kind") == "model" else "by hand"
        said = f"{found['labelled']} of {sample.num_drawn} events labelled; answers without a label: {found['unread']}."
        parts += [f"## {name} ({who})", said, _table(record["bins"], found, sample)]
    pairs = []
    for pair in record["agreement"]:
        kappa = "undefined, both gave all events one label" if pair["kappa"] is None else f"{pair['kappa']:.3f}"
        same = f"same label on {pair['agree']} of {pair['events']} events, Cohen's kappa {kappa}"
        told = same if pair["events"] else "no event that both labelled"
        pairs.append(f"- {' and '.join(pair['labellers'])}: {told}")
    alone = "One labeller only: not known. A second one labels under another `--name`."
    return "\n\n".join([*parts, "## Agreement", "\n".join(pairs) or alone]) + "\n"


def _table(bins: list[str], found: Record, sample: Sample) -> str:
    rows = [
        [name, row["population"], row["drawn"], row["labelled"]]
        + [_share(row["labels"][label], row["labelled"]) for label in LABELS]
        for name, row in zip(bins, found["bins"], strict=True)
    ]
    whole = [sum(sample.population_per_bin), sample.num_drawn, found["labelled"]]
    unknown = "not known until each bin has labels"
    rates = [
        f"{unknown if rate is None else percent(rate)} ({counted(found['counts'][label], 'label')})"
        for label, rate in found["base_rate"].items()
    ]
    header = ["L, nats a token", "events in the run", "drawn", "labelled", *LABELS]
    return markdown_table(header, [*rows, ["base rate", *whole, *rates]])


def _share(cell: Record, trials: int) -> str:
    if cell["share"] is None:
        return "no label"
    times = "" if cell["enrichment"] is None else f" ×{cell['enrichment']:.2f}"
    return f"{percent(cell['share'])} ({cell['count']} of {trials}) {ends(cell['low'], cell['high'])}{times}"


def _figure(record: Record) -> str:
    """The share of each label by NLL bin, a panel a labeller; dashed lines are base rates."""
    labellers = record["labellers"]
    with svg.drawing(7.2, 0.8 + 2.7 * len(labellers)) as figure:
        all_axes = figure.subplots(len(labellers), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (name, found) in zip(all_axes, labellers.items(), strict=True):
            for index, (label, look) in enumerate(_LOOKS.items()):
                cells = [(place, row["labels"][label]) for place, row in enumerate(found["bins"]) if row["labelled"]]
                places = [place + 0.08 * (index - 1) for place, _ in cells]
                bars = [(cell["low"], cell["high"]) for _, cell in cells]
                svg.with_errors(axes, places, [cell["share"] for _, cell in cells], bars, label=label, **look)
                if found["base_rate"][label] is not None:
                    axes.axhline(found["base_rate"][label], color=look["color"], linestyle=(0, (4, 3)), linewidth=1)
            sizes = ", ".join(str(row["labelled"]) for row in found["bins"])
            axes.set_title(f"{name}: {counted(found['labelled'], 'label')}, by bin {sizes}")
            axes.set(ylim=(-0.02, 1.02), ylabel="share of the bin")
            axes.yaxis.set_major_formatter(svg.PERCENT)
        all_axes[-1].set_xticks(range(len(record["bins"])), record["bins"])
        all_axes[-1].set_xlabel("L, nats a token")
        figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(LABELS))
        return svg.to_svg(figure)
